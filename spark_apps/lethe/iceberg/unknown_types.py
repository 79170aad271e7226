"""Lets PyIceberg read the metadata of tables with columns of types that it does not know, and refuses by name what needs their
values. Everything else of such a table goes on.

`lethe.files.unknown_types` replaces the types. PyIceberg has no hook for this: `install` replaces the function with which all its
catalogs but REST parse metadata files. For REST catalogs, `lethe.storage.vended` changes the answers of the server.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import ListType, MapType, NestedField, StructType, UnknownType

from lethe.base.errors import InputError
from lethe.files.unknown_types import REMEMBERED, REMEMBERED_REQUIRED, known_types_only

_parse_raw: Final = TableMetadataUtil.parse_raw


def install() -> None:
    """Let PyIceberg parse metadata files so in this process. Safe to repeat."""
    TableMetadataUtil.parse_raw = staticmethod(parse)  # type: ignore[method-assign, assignment]


def parse(text: str) -> TableMetadata:
    """Parse the metadata of a table. Raises: as PyIceberg's `TableMetadataUtil.parse_raw`."""
    return _parse_raw(known_types_only(text))


def unknown_columns(schema: Schema) -> dict[str, str]:
    """The columns with a type that is unknown here, also within structs, lists and maps: by name, the type."""
    found = ((f.name, next(_unknown_in(f), None)) for f in schema.fields)
    return {name: kind for name, kind in found if kind is not None}


def is_required(field: NestedField) -> bool:
    """Whether the table requires values of a field."""
    return field.required or (field.doc or "").startswith(REMEMBERED_REQUIRED)


def type_of(field: NestedField) -> str:
    """The type of a field as its table's metadata writes it."""
    return _remembered(field) or str(field.field_type)


def require_known(schema: Schema, columns: Iterable[str], what: str) -> None:
    """Check that these columns have types that Lethe knows.

    Args:
        what: Who needs the values, for the message.
    Raises: InputError (`UnknownType`).
    """
    unknown = unknown_columns(schema)
    for name in columns:
        kind = unknown.get(name.partition(".")[0])
        if kind is not None:
            raise InputError(
                "UnknownType",
                f"{what}: column {name} has the type {kind}, which Lethe does not read. Leave the column out, or use an engine "
                "that knows the type.",
            )


def _remembered(field: NestedField) -> str | None:
    if not isinstance(field.field_type, UnknownType):
        return None
    doc = field.doc or ""
    return next((doc.removeprefix(p) for p in (REMEMBERED, REMEMBERED_REQUIRED) if doc.startswith(p)), None)


def _unknown_in(field: NestedField) -> Iterator[str]:
    kind = field.field_type
    if (remembered := _remembered(field)) is not None:
        yield remembered
    elif isinstance(kind, StructType):
        for inner in kind.fields:
            yield from _unknown_in(inner)
    elif isinstance(kind, ListType):
        yield from _unknown_in(kind.element_field)
    elif isinstance(kind, MapType):
        yield from _unknown_in(kind.key_field)
        yield from _unknown_in(kind.value_field)
