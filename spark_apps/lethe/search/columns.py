"""Decides by which columns the rows of Restatements are searched, and which columns a Redact changes, to what. Pure.

Refused is what would change which batch, partition or record a row belongs to: the batch column, sources of partitions and
identifier fields. Others are redacted, also those by which the table is sorted, because the rows are written again.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import NestedField

from lethe.base.errors import InputError
from lethe.contract.run import ColumnRedaction, ConditionRef, RestatementRequest
from lethe.contract.settings import RedactionMethod
from lethe.files.values import ValueKind, described, parse_value
from lethe.iceberg.column_path import ColumnPath, NoColumn, path_of, resolve_column
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


NOT_REDACTABLE: Final = "ColumnNotRedactable"
_HASHED: Final = ("string", "binary")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?|NaN|[+-]?Infinity")


@dataclass(frozen=True)
class RedactableColumn:
    """A column that can be redacted, and how."""

    path: ColumnPath
    method: RedactionMethod
    constant: str | None = None
    """The text of a Constant, valid for the type of the column."""


def redactable_columns(
    asked: Sequence[ColumnRedaction], name: str, schema: Schema, spec: PartitionSpec, batch_field_id: int, table: str
) -> tuple[RedactableColumn, ...]:
    """The columns of a Redact, by their current names.

    Args:
        asked: What the Redact writes into which columns.
        name: Of the Restatement, for messages.
        spec: The current partition spec, by which the rows are written again.
        table: For messages: the name of the table.

    Raises:
        InputError: ColumnNotFound, ColumnNotRedactable, InvalidSpec.
    """
    where = f"Restatement {name}: spec.redact.columns"
    fixed = _fixed_columns(schema, spec, batch_field_id)
    columns = [_column(c, schema, fixed, table, where) for c in asked]
    for n, column in enumerate(columns):
        if others := [c.path.name for c in columns[:n] if _overlap(c.path, column.path)]:
            raise InputError(
                "InvalidSpec",
                f"{where} names {column.path.name}, and {others[0]}, which is the same or a part of the same. Name one of them. "
                "Nothing was redacted.",
            )
    return tuple(columns)


def _fixed_columns(schema: Schema, spec: PartitionSpec, batch_field_id: int) -> list[tuple[ColumnPath, str]]:
    """The columns that cannot be redacted, with the reason."""
    sources = [f.source_id for f in spec.fields if not isinstance(f.transform, VoidTransform)]
    return [
        (path_of(schema, field_id), why)
        for field_id, why in (
            (batch_field_id, "the batch column"),
            *((i, "a column by which the table is partitioned") for i in sources),
            *((i, "an identifier field of the table") for i in schema.identifier_field_ids),
        )
        if field_id in schema.field_ids
    ]


def _overlap(a: ColumnPath, b: ColumnPath) -> bool:
    """Whether one of them is the other, or a part of it."""
    return a.field_id in {f.field_id for f in b.fields} or b.field_id in {f.field_id for f in a.fields}


def _column(
    asked: ColumnRedaction, schema: Schema, fixed: Collection[tuple[ColumnPath, str]], table: str, where: str
) -> RedactableColumn:
    named = f"{where} names {asked.column}"
    try:
        path = resolve_column(schema, asked.column, table)
    except NoColumn as e:
        raise InputError("ColumnNotFound", f"{named}, {e}. Nothing was redacted.") from None
    field = path.fields[-1]
    why = next((w for other, w in fixed if _overlap(path, other)), None)
    if why is not None:
        raise InputError(
            NOT_REDACTABLE, f"{named}, which is or contains {why}. Its values must stay. Nothing was redacted."
        )
    match asked.method:
        case RedactionMethod.SET_NULL:
            if field.required:
                raise InputError(
                    NOT_REDACTABLE,
                    f"{named} with the method SetNull, but the column is required. Use Constant or KeyedHash, or make the column "
                    "optional. Nothing was redacted.",
                )
        case RedactionMethod.KEYED_HASH:
            if type_of(field) not in _HASHED:
                raise InputError(
                    NOT_REDACTABLE,
                    f"{named} with the method KeyedHash, but the column is {type_of(field)}; expected string or binary. Use "
                    "SetNull or Constant. Nothing was redacted.",
                )
        case RedactionMethod.CONSTANT:
            return RedactableColumn(path, asked.method, _constant(asked.value or "", field, named))
    return RedactableColumn(path, asked.method)


def _constant(text: str, field: NestedField, named: str) -> str:
    """The text of a constant in a form that Spark casts to the type of the column.

    Raises:
        InputError: ColumnNotRedactable, InvalidSpec.
    """
    parse, expected = _parser(type_of(field))
    if parse is None:
        raise InputError(
            NOT_REDACTABLE,
            f"{named} with the method Constant, but the column is {type_of(field)}, of which Lethe writes no constants. Use "
            "SetNull. Nothing was redacted.",
        )
    try:
        return parse(text)
    except (ValueError, ArithmeticError):
        raise InputError(
            "InvalidSpec",
            f"{named} with a value that is not a value of the column: expected {expected}. Nothing was redacted.",
        ) from None


def _parser(of: str) -> tuple[Callable[[str], str] | None, str]:
    """What checks the text of a constant of this type, and what it expects; None: there are no constants of this type."""
    if (kind := ValueKind.of(of)) is not None:

        def parse(text: str) -> str:
            parse_value(text, kind)
            return text.replace(" ", "T") if kind.is_time else text.lower() if kind.is_uuid else text

        return parse, described(kind)
    return _PARSERS.get(of, (None, ""))


def _boolean(text: str) -> str:
    if text not in ("true", "false"):
        raise ValueError
    return text


def _number(text: str) -> str:
    if not _NUMBER.fullmatch(text):
        raise ValueError
    return text


_PARSERS: Final[Mapping[str, tuple[Callable[[str], str], str]]] = {
    "boolean": (_boolean, "true or false"),
    "float": (_number, "float"),
    "double": (_number, "double"),
}
