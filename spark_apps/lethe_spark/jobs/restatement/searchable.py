"""Checks that rows can be searched by a column: equality of its values must be well defined. Pure."""

from lethe.base.errors import InputError
from lethe.files.values import ValueKind
from pyiceberg.schema import Schema


def searchable_column(
    schema: Schema, batch_field_id: int, name: str, where: str, table: str, rule: str, done: str
) -> tuple[int, ValueKind]:
    """Iceberg field id and kind of a column, by its current name.

    Args:
        where: For messages: the Restatement, and its field that names the column.
        table: For messages: the name of the table.
        rule: For messages: which columns are allowed, such as "keys are columns".
        done: For messages: what did not happen, such as "erased".
    Raises: InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    column = next((f for f in schema.fields if f.name == name), None)
    if column is None:
        raise InputError(
            "ColumnNotFound",
            f"{where} names {name}, which {table} does not have; its columns are {', '.join(f.name for f in schema.fields)}. "
            f"Nothing was {done}.",
        )
    if column.field_id == batch_field_id:
        raise InputError(
            "InvalidSpec",
            f"{where} names the batch column {name}: name whole batches in spec.batchIds. Nothing was {done}.",
        )
    kind = ValueKind.of(str(column.field_type))
    if kind is None:
        raise InputError(
            "ColumnNotSearchable",
            f"{where} names {name}, which is {column.field_type}; {rule} of strings, whole numbers, decimals, dates, timestamps "
            f"or UUIDs. Nothing was {done}.",
        )
    return column.field_id, kind
