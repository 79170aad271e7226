"""Reads and creates the name mapping of a table, which assigns field ids to columns of files without field ids. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, create_mapping_from_schema, parse_mapping_from_json

from lethe.base.errors import InputError

PROPERTY: Final = "schema.name-mapping.default"


def mapping_to_set(schema: Schema, properties: Mapping[str, str], table_name: str) -> dict[str, str]:
    """The table property to set before files without field ids are registered; empty: it is set already. Iceberg updates the
    mapping when columns are added or renamed later.

    Raises: InputError (`NameMappingIncomplete`), if the existing mapping does not map every column to its field id.
    """
    if PROPERTY not in properties:
        return {PROPERTY: create_mapping_from_schema(schema).model_dump_json()}
    mapped = dict(_mapped(parse_mapping_from_json(properties[PROPERTY]).root))
    for name in schema.column_names:
        if mapped.get(name) != schema.find_field(name).field_id:
            raise InputError(
                "NameMappingIncomplete",
                f"{table_name}: the table property {PROPERTY} does not map the column {name} to its field id, "
                "so readers would not find the column in a producer's files. Add it to the property. If no "
                "file of the table needs the property, unset it; then the next run sets it.",
            )
    return {}


def field_ids(properties: Mapping[str, str]) -> dict[str, int] | None:
    """The field ids of top-level columns, by every name that they may have in a file; None: the table has no mapping."""
    if PROPERTY not in properties:
        return None
    mapped = parse_mapping_from_json(properties[PROPERTY]).root
    return {name: f.field_id for f in mapped for name in f.names if f.field_id is not None}


def _mapped(fields: Iterable[MappedField], outer: str = "") -> Iterator[tuple[str, int | None]]:
    """Every full name that a column may have in a file, such as `outer.inner`, and its field id."""
    for field in fields:
        for name in field.names:
            yield f"{outer}{name}", field.field_id
            yield from _mapped(field.fields, f"{outer}{name}.")
