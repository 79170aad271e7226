"""Which columns of a table may be keys: such as equal values can be told of, by their names of today."""

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import Replacement, RestatementRequest
from lethe.files.values import ValueKind, ValueType
from lethe.ingest.change_rows import Keyed
from lethe_spark.jobs.restatement.erase import key_columns, keyed_of
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, DecimalType, DoubleType, LongType, NestedField, StringType, StructType

from tests.support.builders import a_change, a_replay, a_request

PLACE = StructType(NestedField(8, "x", LongType()))
SCHEMA = Schema(
    NestedField(1, "batch_id", StringType()),
    NestedField(3, "tailnum", StringType()),
    NestedField(5, "day", DateType()),
    NestedField(6, "weight", DoubleType()),
    NestedField(7, "place", PLACE),
    NestedField(9, "fare", DecimalType(9, 2)),
)


def a_change_by(*columns: str, op: str = "op") -> RestatementRequest:
    return a_change(replacement=Replacement(batch_id="C1", uri="s3://l/C1/", key_columns=columns, op_column=op))


def test_keys_are_identified_by_field_ids_in_the_given_order() -> None:
    found = key_columns(a_change_by("fare", "tailnum", "day"), SCHEMA, 1, "air.flights")

    assert found == [
        (9, ValueKind(ValueType.DECIMAL, 9, 2)),
        (3, ValueKind(ValueType.STRING)),
        (5, ValueKind(ValueType.DATE)),
    ]
    assert key_columns(a_replay(), SCHEMA, 1, "air.flights") == []


@pytest.mark.parametrize(
    ("request_", "reason", "text"),
    [
        (a_change_by("day", "nope"), "ColumnNotFound", "keyColumns names nope, but air.flights has no such column"),
        (a_change_by("place.x"), "ColumnNotFound", "keyColumns names place.x"),
        (a_change_by("weight"), "ColumnNotSearchable", "keyColumns names weight, which is double"),
        (a_change_by("place"), "ColumnNotSearchable", "keyColumns names place, which is struct"),
        (a_change_by("batch_id"), "InvalidSpec", "keyColumns names the batch column batch_id"),
        (a_change_by("day", op="fare"), "InvalidSpec", "opColumn names fare, which is a column of air.flights"),
    ],
)
def test_columns_that_cannot_be_keys_are_refused_by_name(request_: RestatementRequest, reason: str, text: str) -> None:
    with pytest.raises(InputError) as refused:
        key_columns(request_, SCHEMA, 1, "air.flights")

    assert refused.value.reason == reason
    assert text in refused.value.message
    assert refused.value.message.startswith("Restatement ns/change: spec.replacement.")
    assert refused.value.message.endswith("Nothing was changed.")


def test_only_replacements_with_keys_are_read_as_change_data() -> None:
    assert keyed_of([a_change_by("day"), a_replay(), a_request()]) == {"C1": Keyed(("day",), "op")}
