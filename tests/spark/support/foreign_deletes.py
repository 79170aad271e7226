"""Other engines delete rows of a random table natively: by position with Spark, by equality with Iceberg's Java library."""

from collections.abc import Collection, Sequence
from typing import Any

from pyiceberg.manifest import DataFileContent

from tests.model.shapes import Field, comparable_row
from tests.spark.support.any_table import AnyTable, Row
from tests.spark.support.streaming_writer import delete_by_equality as by_equality

# Of these types, the Java library writes the values that Python gives it. Python cannot give it a long.
EQUAL = ("int", "string", "boolean")


def delete_by_position(table: AnyTable, numbers: Collection[int]) -> None:
    """Delete the rows with these numbers, by position delete files or deletion vectors."""
    table.sql(f"ALTER TABLE {table.name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    table.sql(f"DELETE FROM {table.name} WHERE n IN ({', '.join(map(str, numbers))})")
    table.refresh()
    _forget(table, [r for r in table.rows if r[-1] in numbers])


def delete_by_equality(table: AnyTable, field: Field, rows: Sequence[Row]) -> None:
    """Delete, in all partitions, the rows that have the same value of a column as one of these; a null equals a null."""
    values = {_comparable(field, r): _value(field, r) for r in rows}
    spec_id = next(s.specId() for s in table.java().specs().values() if s.isUnpartitioned())
    for value in values.values():
        by_equality(table.story, field.name, value, spec_id)
    table.log.append(f"delete by equality of {field.name}: {[*values.values()]!r}"[:300])
    table.refresh()
    _forget(table, [r for r in table.rows if _comparable(field, r) in values])


def has_equality_deletes(table: AnyTable) -> bool:
    """Whether the head has delete files of another engine that only Spark reads."""
    loaded = table.story.table()
    head = loaded.current_snapshot()
    manifests = head.manifests(loaded.io) if head is not None else []
    entries = (e for m in manifests for e in m.fetch_manifest_entry(loaded.io))
    return any(e.data_file.content == DataFileContent.EQUALITY_DELETES for e in entries)


def _value(field: Field, row: Row) -> Any:
    return row.get(field.key, field.default)


def _comparable(field: Field, row: Row) -> Any:
    return comparable_row([field], {field.key: _value(field, row)})


def _forget(table: AnyTable, gone: Sequence[Row]) -> None:
    table.rows = [r for r in table.rows if not any(r is g for g in gone)]
