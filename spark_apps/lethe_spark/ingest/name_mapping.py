"""The name mapping of a table: by which column of it a file's column is read that has no field id. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from lethe.base.errors import InputError
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import MappedField, create_mapping_from_schema, parse_mapping_from_json

PROPERTY: Final = "schema.name-mapping.default"


def mapping_to_set(schema: Schema, properties: Mapping[str, str], table_name: str) -> dict[str, str]:
    """The property to set before files without field ids join a table, none when it is there. Iceberg itself keeps the
    mapping when columns are added or renamed later.

    Raises: InputError (`NameMappingIncomplete`), if there is one that leads elsewhere.
    """
    if PROPERTY not in properties:
        return {PROPERTY: create_mapping_from_schema(schema).model_dump_json()}
    mapped = dict(_mapped(parse_mapping_from_json(properties[PROPERTY]).root))
    for name in schema.column_names:
        if mapped.get(name) != schema.find_field(name).field_id:
            raise InputError(
                "NameMappingIncomplete",
                f"{table_name}: the table property {PROPERTY} does not map the column {name} to its field id, so that readers "
                "would not find it in files that a producer wrote. Add it to the property, or unset the property if no file "
                "of the table needs it; the next run then sets it.",
            )
    return {}


def field_ids(properties: Mapping[str, str]) -> dict[str, int] | None:
    """The field ids of columns by each name that they may have in a file without field ids; None without a mapping."""
    if PROPERTY not in properties:
        return None
    mapped = parse_mapping_from_json(properties[PROPERTY]).root
    return {name: f.field_id for f in mapped for name in f.names if f.field_id is not None}


def _mapped(fields: Iterable[MappedField], outer: str = "") -> Iterator[tuple[str, int | None]]:
    """Every name that a column may have in a file, with those of the columns it lies in, and the column's field id."""
    for field in fields:
        for name in field.names:
            yield f"{outer}{name}", field.field_id
            yield from _mapped(field.fields, f"{outer}{name}.")
