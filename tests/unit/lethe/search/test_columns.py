"""Which columns a Redact may change, and which constants fit them."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import ColumnRedaction
from lethe.contract.settings import RedactionMethod
from lethe.search.columns import redactable_columns
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

NULL, CONSTANT, HASH = RedactionMethod.SET_NULL, RedactionMethod.CONSTANT, RedactionMethod.KEYED_HASH
BATCH, ID, DAY, FORMER = 1, 2, 3, 4


def column(field_id: int, name: str, kind: IcebergType, required: bool = False) -> NestedField:
    return NestedField(field_id, name, kind, required=required)


PERSON = StructType(column(21, "email", StringType()), column(22, "region", StringType()))
SCHEMA = Schema(
    column(BATCH, "batch_id", StringType()),
    column(ID, "id", LongType(), required=True),
    column(DAY, "day", DateType()),
    column(FORMER, "former", StringType()),
    column(5, "name", StringType(), required=True),
    column(6, "photo", BinaryType()),
    column(7, "price", DecimalType(9, 2)),
    column(8, "at", TimestamptzType()),
    column(9, "local", TimestampType()),
    column(10, "seat", IntegerType()),
    column(11, "ok", BooleanType()),
    column(12, "weight", DoubleType()),
    column(13, "token", UUIDType()),
    column(20, "customer", PERSON),
    column(30, "emails", ListType(31, StringType(), element_required=True)),
    column(40, "notes", MapType(41, StringType(), 42, StringType())),
    identifier_field_ids=[ID],
)
SPEC = PartitionSpec(
    PartitionField(22, 1000, BucketTransform(4), "region"), PartitionField(FORMER, 1001, VoidTransform(), "former")
)


def resolved(*asked: tuple[str, RedactionMethod, str | None]) -> list[tuple[str, str | None]]:
    columns = [ColumnRedaction(column=c, method=m, value=v) for c, m, v in asked]
    return [
        (c.path.name, c.constant) for c in redactable_columns(columns, "ns/redact", SCHEMA, SPEC, BATCH, "air.trips")
    ]


@pytest.mark.parametrize(
    ("name", "method", "value", "written"),
    [
        ("customer.email", NULL, None, None),
        ("notes", NULL, None, None),
        ("former", NULL, None, None),  # no longer a source of a partition
        ("emails.element", HASH, None, None),
        ("name", HASH, None, None),
        ("photo", HASH, None, None),
        ("name", CONSTANT, "", ""),
        ("price", CONSTANT, "-0.5", "-0.5"),
        ("at", CONSTANT, "2026-03-01 12:00+01:00", "2026-03-01T12:00+01:00"),
        ("local", CONSTANT, "2026-03-01T12:00:00.25", "2026-03-01T12:00:00.25"),
        ("seat", CONSTANT, "-1", "-1"),
        ("ok", CONSTANT, "false", "false"),
        ("weight", CONSTANT, "NaN", "NaN"),
        ("token", CONSTANT, "0000000A-0000-0000-0000-000000000000", "0000000a-0000-0000-0000-000000000000"),
    ],
)
def test_a_column_is_redacted_by_its_type(name: str, method: RedactionMethod, value: str | None, written: str) -> None:
    assert resolved((name, method, value)) == [(name, written)]


@pytest.mark.parametrize(
    ("name", "method", "value", "reason", "text"),
    [
        ("batch_id", CONSTANT, "x", "ColumnNotRedactable", "is or contains the batch column"),
        ("id", CONSTANT, "1", "ColumnNotRedactable", "an identifier field"),
        ("customer.region", NULL, None, "ColumnNotRedactable", "a column by which the table is partitioned"),
        ("customer", NULL, None, "ColumnNotRedactable", "a column by which the table is partitioned"),
        ("name", NULL, None, "ColumnNotRedactable", "the column is required"),
        ("emails.element", NULL, None, "ColumnNotRedactable", "the column is required"),
        ("price", HASH, None, "ColumnNotRedactable", "expected string or binary"),
        ("emails", HASH, None, "ColumnNotRedactable", "expected string or binary"),
        ("photo", CONSTANT, "x", "ColumnNotRedactable", "writes no constants"),
        ("notes", CONSTANT, "x", "ColumnNotRedactable", "writes no constants"),
        ("notes.value", NULL, None, "ColumnNotFound", "within a map"),
        ("customer.name", NULL, None, "ColumnNotFound", "has no such column"),
        ("price", CONSTANT, "1.234", "InvalidSpec", "expected decimal(9, 2)"),
        ("at", CONSTANT, "2026-03-02T12:00", "InvalidSpec", "with a zone"),
        ("seat", CONSTANT, "3000000000", "InvalidSpec", "expected int"),
        ("ok", CONSTANT, "yes", "InvalidSpec", "true or false"),
        ("weight", CONSTANT, "heavy", "InvalidSpec", "expected double"),
    ],
)
def test_what_cannot_be_redacted_is_refused_without_the_value(
    name: str, method: RedactionMethod, value: str | None, reason: str, text: str
) -> None:
    with pytest.raises(InputError) as refused:
        resolved((name, method, value))

    assert refused.value.reason == reason
    assert f"Restatement ns/redact: spec.redact.columns names {name}" in refused.value.message
    assert text in refused.value.message
    assert refused.value.message.endswith("Nothing was redacted.")
    assert value is None or len(value) < 4 or value not in refused.value.message


def test_a_column_and_a_part_of_it_are_not_redacted_both() -> None:
    with pytest.raises(InputError, match=r"customer\.email, and customer\.email, which is the same"):
        resolved(("customer.email", NULL, None), ("customer.email", HASH, None))
