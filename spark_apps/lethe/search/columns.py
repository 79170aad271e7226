"""Decides which columns of a table, or fields of them, the rows of Restatements are searched by. Pure."""

from dataclasses import dataclass

from pyiceberg.schema import Schema

from lethe.base.errors import InputError
from lethe.contract.run import ConditionRef, RestatementRequest
from lethe.files.values import ValueKind
from lethe.iceberg.column_path import ColumnPath, NoColumn, resolve_column
from lethe.iceberg.metadata_file import type_of


@dataclass(frozen=True)
class ColumnUse:
    """What a Restatement uses a column for, in the words of its messages."""

    where: str
    """The Restatement, and its field that names the column."""
    done: str
    """What did not happen, such as "erased"."""


@dataclass(frozen=True)
class SearchableColumn:
    """A column that can be searched for values."""

    path: ColumnPath
    kind: ValueKind


def searchable_column(schema: Schema, batch_field_id: int, table: str, use: ColumnUse, name: str) -> SearchableColumn:
    """A column, or a field of it, by its current name.

    Args:
        table: For messages: the name of the table.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    try:
        column = resolve_column(schema, name, table)
    except NoColumn as e:
        raise InputError("ColumnNotFound", f"{use.where} names {name}, {e}. Nothing was {use.done}.") from None
    if column.field_id == batch_field_id:
        raise InputError(
            "InvalidSpec",
            f"{use.where} names the batch column {name}. To name whole batches, use spec.batchIds. Nothing was {use.done}.",
        )
    kind = ValueKind.of(str(column.type))
    if kind is None:
        raise InputError(
            "ColumnNotSearchable",
            f"{use.where} names {name}, which is {type_of(column.fields[-1])}; expected a column of type string, int, "
            f"long, decimal, date, timestamp or UUID. Nothing was {use.done}.",
        )
    if column.is_nested and column.fields[-1].initial_default is not None:
        # Which rows of an older file have the default depends on whether what it is in is null.
        raise InputError(
            "ColumnNotSearchable",
            f"{use.where} names {name}, a field that has an initial default, which older files may not contain; expected a "
            f"column, or a field without an initial default. Use another column. Nothing was {use.done}.",
        )
    return SearchableColumn(column, kind)


def require_columns(request: RestatementRequest, schema: Schema, batch_field_id: int, table: str) -> None:
    """Check that the columns that a request names can be searched.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    for condition in request.conditions:
        erased_column(request, condition, schema, batch_field_id, table)
    key_columns(request, schema, batch_field_id, table)


def erased_column(
    request: RestatementRequest, condition: ConditionRef, schema: Schema, batch_field_id: int, table: str
) -> SearchableColumn:
    """The column whose values name records of an Erase or a Redact, by its current name.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    use = ColumnUse(f"Restatement {request.name}: {condition.field}.column", request.operation.done)
    return searchable_column(schema, batch_field_id, table, use, condition.column)


def key_columns(request: RestatementRequest, schema: Schema, batch_field_id: int, table: str) -> list[SearchableColumn]:
    """The key columns, by their current names; empty for a request without keys.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec.
    """
    replacement = request.replacement
    if replacement is None or not request.by_keys:
        return []
    where = f"Restatement {request.name}: spec.replacement"
    if any(f.name == replacement.op_column for f in schema.fields):
        raise InputError(
            "InvalidSpec",
            f"{where}.opColumn names {replacement.op_column}, which is a column of {table}. The column of "
            "operations must not be in the table. Use another name in the replacement. Nothing was changed.",
        )
    use = ColumnUse(f"{where}.keyColumns", "changed")
    columns = [searchable_column(schema, batch_field_id, table, use, name) for name in replacement.key_columns]
    if in_list := [c.path.name for c in columns if c.path.in_list]:
        raise InputError(
            "ColumnNotSearchable",
            f"{use.where} names {', '.join(in_list)}, of which a row has several values because it is in a list; expected "
            "columns, or fields of structs, that have one value in each row. Use another column. Nothing was changed.",
        )
    return columns
