"""The ids of rows in tables of format version 3. Pure.

A row keeps its id, and the sequence number of its last update, when it moves to another file. Files store both in two reserved
columns, which may be missing, or null. Then a row inherits them from the file's entry: the id of the first row plus the row's
position, and the data sequence number (https://iceberg.apache.org/spec/#row-lineage). So a file that loses rows must store both
for the others.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from lethe.base.names import ROW_ID_COLUMNS
from lethe.ingest.parquet_types import FIELD_ID
from lethe.ingest.registrable import Target
from lethe.purge import footer
from lethe.purge.footer import Struct
from lethe.purge.splicing import add_columns, footer_of

ROW_ID: Final = NestedField(2147483540, ROW_ID_COLUMNS[0], LongType(), required=False)
LAST_UPDATED: Final = NestedField(2147483539, ROW_ID_COLUMNS[1], LongType(), required=False)
NAMES: Final = ROW_ID_COLUMNS
_FIELDS: Final = tuple(
    pa.field(f.name, pa.int64(), metadata={FIELD_ID: str(f.field_id).encode()}) for f in (ROW_ID, LAST_UPDATED)
)
# Iceberg's writer keeps the file's schema under this key, and Arrow under the other one.
_ICEBERG_SCHEMA: Final = b"iceberg.schema"
_ARROW_SCHEMA: Final = b"ARROW:schema"


@dataclass(frozen=True)
class RowIds:
    """What the rows of a file inherit from its entry."""

    # The id of the first row. The row at position n has the id `first` + n.
    first: int
    # The data sequence number of the file: that of the last update of its rows.
    sequence_number: int


def with_row_ids(target: Target) -> Target:
    """The target of files that may store row ids."""
    schema = target.schema
    extended = Schema(
        *schema.fields,
        ROW_ID,
        LAST_UPDATED,
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )
    return replace(target, schema_json=extended.model_dump_json())


def with_fields(schema: pa.Schema) -> pa.Schema:
    """A schema with both columns at its end."""
    return pa.schema([*schema, *_FIELDS])


def filled(rows: pa.RecordBatch, position: int, ids: RowIds) -> pa.RecordBatch:
    """The rows with both columns, at the end if they were not there, and without nulls: these mean that a row inherits.

    Args:
        position: Of the first row in its file.
    """
    for field, value in zip(_FIELDS, _inherited(position, rows.num_rows, ids), strict=True):
        at = rows.schema.get_field_index(field.name)
        if at < 0:
            rows = rows.append_column(field, value)
        else:
            rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(rows.column(at), value))
    return rows


def inherited(position: int, count: int, ids: RowIds) -> pa.Table:
    """Both columns of so many rows that store nothing.

    Args:
        position: Of the first of these rows in their file.
    """
    return pa.table(list(_inherited(position, count, ids)), schema=pa.schema(_FIELDS))


def add_to(found: Struct) -> None:
    """Add both columns to the footer of a file. Its row groups do not get them. Raises: Unreadable, ValueError."""
    empty = BytesIO()
    pq.write_table(inherited(0, 0, RowIds(0, 0)), empty, store_schema=False)
    add_columns(found, footer_of(empty, empty.tell()))
    if footer.PROPERTIES not in found.fields:
        return
    properties = found[footer.PROPERTIES]
    # Arrow's schema would have too few columns. It says no more than that of the file: `lethe.purge.source` compares them.
    properties.items = [p for p in properties.items if p[footer.KEY] != _ARROW_SCHEMA]
    for one in properties.items:
        if one[footer.KEY] == _ICEBERG_SCHEMA:
            one.change(footer.VALUE, _with_both(one[footer.VALUE]))


def options_for(with_dictionaries: Iterable[str]) -> dict[str, Any]:
    """More options of Arrow's writer.

    Args:
        with_dictionaries: The paths of columns that may have dictionaries.
    """
    # A dictionary of ids, which are all different, would only add to their size. Delta encoding would make them much smaller, but
    # not all readers of row ids know it.
    return {"use_dictionary": sorted({*with_dictionaries, LAST_UPDATED.name} - {ROW_ID.name})}


def _inherited(position: int, count: int, ids: RowIds) -> tuple[pa.Array, pa.Array]:
    first = ids.first + position
    return pa.array(np.arange(first, first + count)), pa.repeat(pa.scalar(ids.sequence_number, pa.int64()), count)


def _with_both(schema: bytes) -> bytes:
    """Iceberg's JSON of a schema with both columns."""
    document = json.loads(schema)
    document["fields"] += [f.model_dump(by_alias=True, mode="json", exclude_none=True) for f in (ROW_ID, LAST_UPDATED)]
    return json.dumps(document, separators=(",", ":")).encode()
