"""Files without field ids are read by the names of their columns: the table must say which they are."""

import json

import pytest
from lethe.base.errors import InputError
from lethe.ingest.schema_fit import PROPERTY, field_ids, mapping_to_set
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType, StructType

SCHEMA = Schema(
    NestedField(1, "v", LongType()),
    NestedField(2, "l", ListType(3, LongType())),
    NestedField(4, "s", StructType(NestedField(5, "x", StringType()))),
)


def test_a_table_without_a_mapping_gets_one_of_its_columns() -> None:
    (found,) = mapping_to_set(SCHEMA, {}, "air.t").items()

    assert found[0] == "schema.name-mapping.default"
    assert json.loads(found[1]) == [
        {"names": ["v"], "field-id": 1},
        {"names": ["l"], "field-id": 2, "fields": [{"names": ["element"], "field-id": 3}]},
        {"names": ["s"], "field-id": 4, "fields": [{"names": ["x"], "field-id": 5}]},
    ]


def test_a_whole_mapping_is_left_alone() -> None:
    """It may hold names of old: a renamed column keeps those for older files."""
    known = json.loads(mapping_to_set(SCHEMA, {}, "air.t")[PROPERTY])
    known[0]["names"].insert(0, "older")

    assert mapping_to_set(SCHEMA, {PROPERTY: json.dumps(known)}, "air.t") == {}


@pytest.mark.parametrize("change", [{"field-id": 9}, {"names": ["w"]}])
def test_a_mapping_that_leads_elsewhere_is_an_error(change: dict[str, object]) -> None:
    """Its columns would be read as nulls, or as others."""
    known = json.loads(mapping_to_set(SCHEMA, {}, "air.t")[PROPERTY])
    known[0].update(change)

    with pytest.raises(
        InputError, match=r"air\.t: the table property schema.name-mapping.default does not map the column v"
    ):
        mapping_to_set(SCHEMA, {PROPERTY: json.dumps(known)}, "air.t")


def test_of_a_mapping_every_name_of_a_column_leads_to_its_field_id() -> None:
    known = json.loads(mapping_to_set(SCHEMA, {}, "air.t")[PROPERTY])
    known[0]["names"].insert(0, "older")

    assert field_ids({PROPERTY: json.dumps(known)}) == {"older": 1, "v": 1, "l": 2, "s": 4}
    assert field_ids({}) is None
