"""Conditions on rows follow SQL: a comparison with a null is unknown, -0.0 equals 0.0, and NaN is greater than all numbers."""

import struct
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from lethe.base.errors import InputError
from lethe.iceberg.conditions import RowCondition
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    Not,
    NotEqualTo,
    NotIn,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
)

NAN, OTHER_NAN = struct.unpack("<dd", bytes.fromhex("000000000000f87f010000000000f8ff"))
INF = float("inf")
NUMBERS = (NAN, OTHER_NAN, 0.0, -0.0, 1.0, 3.0, INF, -INF, None)
SCHEMA = Schema(
    NestedField(1, "d", DoubleType()),
    NestedField(2, "f", FloatType()),
    NestedField(3, "i", IntegerType()),
    NestedField(4, "n", DecimalType(5, 2)),
    NestedField(
        5, "s", StructType(NestedField(6, "x", IntegerType(), required=True), NestedField(7, "t", StringType()))
    ),
    NestedField(8, "l", ListType(9, StructType(NestedField(10, "y", LongType())))),
    NestedField(11, "day", DateType()),
    NestedField(12, "b", BooleanType()),
    NestedField(13, "t", TimestampNanoType()),
    NestedField(14, "instant", TimestamptzNanoType()),
)


def holds(condition: str | BooleanExpression, column: str, values: Any, kind: pa.DataType) -> list[int]:
    """The places of the values for which the condition is true."""
    rows = pa.record_batch({column: pa.array(values, kind)})
    found = RowCondition.of(SCHEMA, condition).true_in(rows).to_pylist()
    return [n for n, is_true in enumerate(found) if is_true]


@pytest.mark.parametrize("column", ["d", "f"])
@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("{} = 0.0", [2, 3]),
        ("{} in (0.0, 2.0)", [2, 3]),
        ("{} not in (3.0, 1.0)", [0, 1, 2, 3, 6, 7]),
        ("{} < 1.0", [2, 3, 7]),
        ("{} <= 0.0", [2, 3, 7]),
        ("{} > 1.0", [0, 1, 5, 6]),
        ("{} >= 3.0", [0, 1, 5, 6]),
        ("not ({} < 1.0)", [0, 1, 4, 5, 6]),
        ("not ({} = 1.0 or {} > 3.0)", [2, 3, 5, 7]),
        ("{} != 1.0", [0, 1, 2, 3, 5, 6, 7]),
        ("{} is nan", [0, 1]),
        ("{} is not nan", [2, 3, 4, 5, 6, 7, 8]),
        ("{} is null or {} = 3.0", [5, 8]),
        ("{} = 'NaN'", [0, 1]),
        ("{} >= 'NaN'", [0, 1]),
        ("{} < 'NaN'", [2, 3, 4, 5, 6, 7]),
        ("{} > 'NaN'", []),
        ("{} <= 'NaN'", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("{} in ('NaN', '1')", [0, 1, 4]),
        ("{} not in ('NaN', '-0.0')", [4, 5, 6, 7]),
        ("{} = 'Infinity'", [6]),
        ("{} > 'Infinity'", [0, 1]),
    ],
)
def test_floating_point_numbers(column: str, condition: str, wanted: list[int]) -> None:
    kind = pa.float64() if column == "d" else pa.float32()

    assert holds(condition.replace("{}", column), column, NUMBERS, kind) == wanted


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("i < 1.5", [0, 1]),
        ("i >= 1.5", [2, 3]),
        ("i = 1.5", []),
        ("i != 1.5", [0, 1, 2, 3]),
        ("i in (1, 1.5)", [1]),
        ("i < 3000000000", [0, 1, 2, 3]),
        ("i != 3000000000", [0, 1, 2, 3]),
        ("i > -3000000000", [0, 1, 2, 3]),
        ("i in (2, 3000000000)", [2]),
        ("not (i in (3000000000, 4000000000))", [0, 1, 2, 3]),
        ("not (i = 1)", [0, 2, 3]),
        ("i = '1'", [1]),
        ("i = '1.5'", []),
        ("i < '1.5'", [0, 1]),
        ("i != '1.5'", [0, 1, 2, 3]),
        ("i = '3000000000'", []),
        ("i in ('1', '3000000000')", [1]),
        ("i < '1e999999999'", [0, 1, 2, 3]),
        ("i <= '-Infinity'", []),
    ],
)
def test_whole_numbers_are_compared_with_any_number_and_nulls_with_none(condition: str, wanted: list[int]) -> None:
    """PyIceberg rounds 1.5, and takes a comparison with a number that is too large as true of nulls."""
    condition = condition.replace("(1, 1.5)", "(1.0, 1.5)")

    assert holds(condition, "i", [-1, 1, 2, 2**31 - 1, None], pa.int32()) == wanted


def test_decimals_are_compared_with_numbers_of_any_scale() -> None:
    values = [Decimal("1.25"), Decimal("999.99"), Decimal("-3.00"), None]
    kind = pa.decimal128(5, 2)

    assert holds("n = 1.250", "n", values, kind) == [0]
    assert holds("n > 1.249", "n", values, kind) == [0, 1]
    assert holds("n < 1.251 and n != 5.0", "n", values, kind) == [0, 2]
    assert holds("n < 1000000.0", "n", values, kind) == [0, 1, 2]
    assert holds(NotIn("n", [Decimal("-3"), Decimal("1.2500")]), "n", values, kind) == [1]


MIDNIGHT, NOON = datetime(1970, 1, 2), datetime(1970, 1, 2, 12)  # noqa: DTZ001 (a timestamp without a zone)


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        (EqualTo("day", MIDNIGHT), [1]),
        (LessThan("day", MIDNIGHT), [0]),
        (EqualTo("day", NOON), []),
        (NotEqualTo("day", NOON), [0, 1, 2]),
        (LessThan("day", NOON), [0, 1]),
        (GreaterThan("day", NOON), [2]),
        (In("day", [MIDNIGHT, NOON]), [1]),
        (NotIn("day", [MIDNIGHT, NOON]), [0, 2]),
    ],
)
def test_a_date_is_the_first_moment_of_its_day(condition: BooleanExpression, wanted: list[int]) -> None:
    """PyIceberg takes a moment for its day, so the day would be equal to each moment of it, and never before one."""
    assert holds(condition, "day", [0, 1, 2, None], pa.date32()) == wanted


def test_times_that_a_column_cannot_hold_are_before_or_after_all_others() -> None:
    days, nanos = ([0, 1, None], pa.date32()), ([0, 1, None], pa.timestamp("ns"))

    assert holds(LessThan("day", 2**40), "day", *days) == [0, 1]
    assert holds(EqualTo("day", 2**40), "day", *days) == []
    assert holds("t < '2300-01-01T00:00:00'", "t", *nanos) == [0, 1]
    assert holds("t > '0001-01-01T00:00:00'", "t", *nanos) == [0, 1]
    assert holds("t in ('2300-01-01T00:00:00', '1970-01-01T00:00:00')", "t", *nanos) == [0]


def test_null_structs_and_lists_are_null_and_so_are_their_fields() -> None:
    structs = [{"x": 1, "t": "a"}, None, {"x": 2, "t": None}]
    kind = pa.struct([("x", pa.int32()), ("t", pa.string())])
    lists, of_longs = [[{"y": 1}], [], None], pa.list_(pa.struct([("y", pa.int64())]))

    assert holds("s is null", "s", structs, kind) == [1]
    assert holds("s.x is null", "s", structs, kind) == [1]
    assert holds("not (s.x = 1)", "s", structs, kind) == [2]
    assert holds("s.t not like 'b%'", "s", structs, kind) == [0]
    assert holds("l is null", "l", lists, of_longs) == [2]
    assert holds("l is not null", "l", lists, of_longs) == [0, 1]


LISTS = [[{"y": 1}, {"y": 2}], [{"y": 3}, None, {"y": None}], [], None, [{"y": 1}]]


@pytest.mark.parametrize(
    ("condition", "wanted"),
    [
        ("l.element.y = 1", [0, 4]),
        ("l.element.y = 1.5", []),
        ("l.element.y in (2, 3)", [0, 1]),
        ("l.element.y != 1", [1, 2, 3]),
        ("not (l.element.y = 1)", [1, 2, 3]),
        ("l.element.y not in (1, 3)", [2, 3]),
        ("l.element.y = 1 and l.element.y = 2", [0]),
        ("not (l.element.y = 2 or l.element.y = 3)", [2, 3, 4]),
    ],
)
def test_a_condition_on_a_field_in_a_list_is_true_if_it_is_for_one_element(condition: str, wanted: list[int]) -> None:
    """And its opposite if it is for none: a list that is null or empty has no element."""
    of_structs = pa.list_(pa.struct([("y", pa.int64())]))

    assert holds(condition, "l", LISTS, of_structs) == wanted
    assert RowCondition.of(SCHEMA, condition).columns == ("l",)
    assert str(RowCondition.of(SCHEMA, condition).pruning) == "AlwaysTrue()"


@pytest.mark.parametrize("condition", ["l.element.y > 1", "l.element.y between 1 and 2", "l.element.y is null"])
def test_elements_are_only_compared_for_equality(condition: str) -> None:
    """Two comparisons, such as those of `between`, could be true for different elements."""
    with pytest.raises(
        InputError, match=r"of l\.element\.y, of which a row has several values\. Only =, !=, in"
    ) as refused:
        RowCondition.of(SCHEMA, condition)

    assert refused.value.reason == "InvalidRead"


def test_other_values() -> None:
    assert holds("day >= '1970-01-02'", "day", [0, 1, None], pa.date32()) == [1]
    assert holds(And(NotEqualTo("b", True), Not(EqualTo("b", True))), "b", [True, False, None], pa.bool_()) == [1]
    assert holds(GreaterThan("b", False), "b", [True, False, None], pa.bool_()) == [0]


@pytest.mark.parametrize(
    "condition",
    ["secret_column = 1", "l.element.y = 'secret'", "l = 1", "i = 'secret'", "day = 'secret'", "i like 'a%'", "i ="],
)
def test_what_is_no_condition_is_refused_without_its_values(condition: str) -> None:
    with pytest.raises(InputError) as refused:
        RowCondition.of(SCHEMA, condition)

    assert refused.value.reason == "InvalidRead"
    assert "'secret'" not in refused.value.message


def test_files_are_skipped_only_by_what_bounds_show() -> None:
    def pruning(condition: str | BooleanExpression) -> str:
        return str(RowCondition.of(SCHEMA, condition).pruning)

    assert "IsNaN" in pruning(GreaterThan("d", 1.0))
    assert "IsNaN" not in pruning(LessThan("d", 1.0))
    assert pruning(NotEqualTo("i", 1)) == "AlwaysTrue()"
    assert pruning("s.x is null") == "AlwaysTrue()"
    assert pruning("l is not null") == "AlwaysTrue()"
    assert pruning(In("i", [2**40, 2**41])) == "AlwaysFalse()"


@pytest.mark.parametrize("condition", ["{} = {}", "{} != {}", "{} < {}", "{} >= {}", "{} in ({}, {})"])
def test_pyiceberg_gets_no_comparison_with_nanoseconds_which_it_refuses(condition: str) -> None:
    for column, zone in (("t", ""), ("instant", "+00:00")):
        text = condition.format(column, f"'1970-01-01T00:00:00{zone}'", f"'2026-03-02T00:00:00{zone}'")

        assert bind(SCHEMA, RowCondition.of(SCHEMA, text).pruning, case_sensitive=True) == AlwaysTrue()
