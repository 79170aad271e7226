"""Checks that rows can be searched by a column: equality of its values must be well defined. Pure."""

from dataclasses import dataclass

from lethe.base.errors import InputError
from lethe.files.values import ValueKind
from lethe.iceberg.unknown_types import type_of
from pyiceberg.schema import Schema


@dataclass(frozen=True)
class ColumnUse:
    """What a Restatement uses a column for, in the words of its messages."""

    where: str  # the Restatement, and its field that names the column
    done: str  # what did not happen, such as "erased"


def searchable_column(
    schema: Schema, batch_field_id: int, table: str, use: ColumnUse, name: str
) -> tuple[int, ValueKind]:
    """Iceberg field id and kind of a column, by its current name.

    Args:
        table: For messages: the name of the table.
    Raises: InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    column = next((f for f in schema.fields if f.name == name), None)
    if column is None:
        raise InputError(
            "ColumnNotFound",
            f"{use.where} names {name}, but {table} has no such column; its columns are "
            f"{', '.join(f.name for f in schema.fields)}. Nothing was {use.done}.",
        )
    if column.field_id == batch_field_id:
        raise InputError(
            "InvalidSpec",
            f"{use.where} names the batch column {name}. To name whole batches, use spec.batchIds. Nothing was {use.done}.",
        )
    kind = ValueKind.of(str(column.field_type))
    if kind is None:
        raise InputError(
            "ColumnNotSearchable",
            f"{use.where} names {name}, which is {type_of(column)}; expected a column of type string, int, "
            f"long, decimal, date, timestamp or UUID. Nothing was {use.done}.",
        )
    return column.field_id, kind
