"""Values of columns and partition fields are read as their grammar says, or refused and never repeated."""

import re
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.files.transforms import Transform, TransformKind, parse_transform
from lethe.files.values import MAX_VALUES, ValueKind, Values, ValueType, conversion, parse_values
from pyiceberg.conversions import to_bytes
from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField, StringType, TimestampType

from tests.support.documents import read_yaml


def parsed(content: str | bytes, type_: str = "string") -> tuple[object, ...]:
    kind = ValueKind.of(type_)
    assert kind is not None
    as_bytes = content if isinstance(content, bytes) else content.encode()
    return parse_values(as_bytes, kind, "tailnum", "Restatement ns/erase: the values of spec.rows").items


GOOD = {
    "string": ("N1\nñ ü\r\n\n  \n x \nN1\n", (" x ", "N1", "ñ ü")),
    "int": ("7\n-1\n+007\n2147483647", (-1, 7, 2147483647)),
    "long": ("9223372036854775807\n-9223372036854775808", (-(2**63), 2**63 - 1)),
    "decimal(9, 2)": ("1.5\n-0.25\n1234567.89\n1.50", (Decimal("-0.25"), Decimal("1.5"), Decimal("1234567.89"))),
    "decimal(38, 10)": (
        "1234567890123456789012345678.0123456789",
        (Decimal("1234567890123456789012345678.0123456789"),),
    ),
    "date": ("1970-01-02\n1969-12-31", (-1, 1)),
    "timestamp": ("1970-01-01T00:00:01.000001\n1970-01-01 00:00", (0, 1_000_001)),
    "timestamptz": ("1970-01-01T02:00:00+02:00\n1970-01-01T00:00:01Z", (0, 1_000_000)),
    "uuid": ("00000000-0000-0000-0000-00000000000A", (UUID(int=10),)),
}


@pytest.mark.parametrize(("type_", "content", "wanted"), [(t, *v) for t, v in GOOD.items()], ids=GOOD)
def test_values_are_read_one_a_line_and_as_their_column_has_them(
    type_: str, content: str, wanted: tuple[object, ...]
) -> None:
    assert parsed(content, type_) == wanted


BAD = {
    "int": ["secret", "1.0", "1_000", "2147483648", " 1", "\u0661"],
    "long": ["9223372036854775808", "0x10", "1e3"],
    "decimal(9, 2)": ["1.234", "12345678.9", "1e2", "NaN", "1,5", "1.500000000000000000000000000000000001"],
    "date": ["2025-02-30", "20250301", "2025-03-01T00:00:00"],
    "timestamp": ["2025-03-01T12:00:00Z", "2025-03-01", "2025-03-01T12:00:00.1234567"],
    "timestamptz": ["2025-03-01T12:00:00", "1772366400"],
    "uuid": ["0000000000000000000000000000000A", "secret"],
}


@pytest.mark.parametrize(("type_", "bad"), [(t, b) for t, values in BAD.items() for b in values])
def test_a_value_that_is_not_of_the_columns_type_is_refused_by_its_line_and_not_repeated(type_: str, bad: str) -> None:
    good = GOOD[type_][0].splitlines()[0]

    with pytest.raises(
        InputError, match=r"ns/erase: the values of spec\.rows: line 2 is not a value of column tailnum"
    ) as e:
        parsed(f"{good}\n{bad}\n", type_)

    assert e.value.reason == "InvalidValues"
    assert bad.strip() not in e.value.message.replace(type_, "")
    assert e.value.__suppress_context__  # a log prints whatever an error stems from


def test_nothing_at_all_and_too_much_are_refused() -> None:
    with pytest.raises(InputError, match="are empty"):
        parsed("\n  \n")
    with pytest.raises(InputError, match=f"found {MAX_VALUES + 1} values, expected at most {MAX_VALUES}"):
        parsed("x\n" * (MAX_VALUES + 1))
    with pytest.raises(InputError, match="not UTF-8 text"):
        parsed(b"\xff\xfe")
    assert len(parsed("x\n" * MAX_VALUES)) == 1


HELD = {
    "string": ("N1", "N1", "N2"),
    "long": ("7", 7, 8),
    "date": ("1970-01-02", 1, "1970-01-03"),
    "decimal(9, 2)": ("1.50", "1.5", Decimal("1.51")),
    "timestamptz": ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01+00:00", 1),
    "uuid": (str(UUID(int=10)), UUID(int=10).bytes, str(UUID(int=9))),
}


@pytest.mark.parametrize(("type_", "content", "there", "other"), [(t, *v) for t, v in HELD.items()], ids=HELD)
def test_a_single_value_of_a_partition_or_a_default_is_compared_in_either_form(
    type_: str, content: str, there: object, other: object
) -> None:
    kind = ValueKind.of(type_)
    assert kind is not None
    values = parse_values(content.encode(), kind, "c", "ns/e")

    assert [values.index_of(v) is not None for v in (there, other, None)] == [True, False, False]


DEFAULTS = {
    "string": ("N1", "N1", "N2"),
    "int": ("7", 7, 8),
    "date": ("1970-01-02", "1970-01-02", "1970-01-03"),
    "decimal(9, 2)": ("1.50", "1.50", "1.51"),
    "timestamp": ("1970-01-01T00:00:01", "1970-01-01T00:00:01", "1970-01-01T00:00:02"),
    "timestamptz": ("1970-01-01T00:00:01Z", "1970-01-01T00:00:01+00:00", "1970-01-01T00:00:02+00:00"),
    "uuid": (str(UUID(int=10)), str(UUID(int=10)), str(UUID(int=9))),
}


@pytest.mark.parametrize(("type_", "content", "there", "other"), [(t, *v) for t, v in DEFAULTS.items()], ids=DEFAULTS)
def test_the_default_of_a_column_is_compared_as_pyiceberg_has_it(
    type_: str, content: str, there: object, other: object
) -> None:
    """It makes Python's dates and times of defaults, and numbers of the values of partitions."""
    kind = ValueKind.of(type_)
    assert kind is not None
    values = parse_values(content.encode(), kind, "c", "ns/e")

    def default(value: object) -> object:
        field = {"id": 1, "name": "c", "type": type_, "required": False, "initial-default": value}
        return NestedField.model_validate(field).initial_default

    assert [values.index_of(default(v)) is not None for v in (there, other)] == [True, False]


CONVERTED = {
    ("string", "string"): {"007": "007"},
    ("string", "long"): {"+007": 7},
    ("string", "date"): {"1970-01-02": 1},
    ("string", "uuid"): {"00000000-0000-0000-0000-00000000000A": UUID(int=10)},
    ("long", "string"): {-7: "-7"},
    ("long", "int"): {7: 7, 2**31: None},
    ("int", "decimal(5, 2)"): {999: Decimal("999.00"), 1000: None},
    ("decimal(38, 2)", "long"): {Decimal("7.00"): 7, Decimal("7.50"): None, Decimal(2**63): None},
    ("decimal(38, 10)", "decimal(5, 2)"): {
        Decimal("1.5000000000"): Decimal("1.50"),
        Decimal("0.0010000000"): None,
        Decimal("1234567890123456789012345678.0123456789"): None,
    },
}


@pytest.mark.parametrize(("types", "values"), CONVERTED.items(), ids=str)
def test_a_value_becomes_the_equal_one_of_another_type_exactly_or_none(
    types: tuple[str, str], values: dict[object, object]
) -> None:
    source, target = map(ValueKind.of, types)
    assert source is not None
    assert target is not None
    convert = conversion(source, target)

    assert convert is not None
    assert {value: convert(value) for value in values} == values


@pytest.mark.parametrize(
    ("source", "target"), [("date", "timestamp"), ("uuid", "string"), ("long", "date"), ("date", "string")]
)
def test_values_of_types_that_may_be_written_in_several_ways_are_not_converted(source: str, target: str) -> None:
    kinds = ValueKind.of(source), ValueKind.of(target)
    assert kinds[0] is not None
    assert kinds[1] is not None
    assert conversion(*kinds) is None


def test_a_text_that_is_no_value_of_the_other_type_is_an_error() -> None:
    convert = conversion(ValueKind(ValueType.STRING), ValueKind(ValueType.LONG))
    assert convert is not None

    with pytest.raises(ValueError):
        convert("7 ")


@pytest.mark.parametrize(
    "type_", ["double", "float", "boolean", "binary", "fixed[4]", "struct<1: a: optional int>", "time"]
)
def test_records_are_named_by_columns_whose_values_are_surely_equal_or_not(type_: str) -> None:
    assert ValueKind.of(type_) is None


TYPED = [
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (StringType(), st.text(max_size=4)),
    (DateType(), st.integers(-(2**31), 2**31 - 1)),
    (TimestampType(), st.integers(-(2**63), 2**63 - 1)),
    (DecimalType(38, 10), st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-10"))),
    (DecimalType(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))),
]


@pytest.mark.parametrize(("type_", "values"), TYPED, ids=[str(t) for t, _ in TYPED])
@given(data=st.data())
def test_bounds_exclude_a_file_only_if_no_value_is_within_them(
    type_: StringType, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    wanted = data.draw(st.lists(values, min_size=1, max_size=4, unique=True))
    lower, upper = sorted(data.draw(st.tuples(values, values)))  # type: ignore[type-var]
    kind = ValueKind.of(str(type_))
    assert kind is not None
    asked = Values(kind, tuple(sorted(wanted)))  # type: ignore[type-var]

    possible = asked.might_be_in(to_bytes(type_, lower), to_bytes(type_, upper))

    assert possible == any(lower <= v <= upper for v in wanted)  # type: ignore[operator]
    assert asked.might_be_in(None, None)


def test_a_bound_of_another_width_than_the_columns_type_proves_nothing() -> None:
    """The column was of dates before it was of timestamps."""
    asked = Values(ValueKind(ValueType.TIMESTAMP), (10**15,))

    assert asked.might_be_in(to_bytes(DateType(), 1), to_bytes(DateType(), 2))


FIELDS = {
    "day": Transform(TransformKind.IDENTITY, ("day",)),
    " day ": Transform(TransformKind.IDENTITY, ("day",)),
    "identity(day)": Transform(TransformKind.IDENTITY, ("day",)),
    "days(ts)": Transform(TransformKind.DAYS, ("ts",)),
    "DAYS( ts )": Transform(TransformKind.DAYS, ("ts",)),
    "day(ts)": Transform(TransformKind.DAYS, ("ts",)),
    "year(ts)": Transform(TransformKind.YEARS, ("ts",)),
    "months(ts)": Transform(TransformKind.MONTHS, ("ts",)),
    "hour(a.b)": Transform(TransformKind.HOURS, ("a", "b")),
    "bucket(16, id)": Transform(TransformKind.BUCKET, ("id",), 16),
    "truncate(4,name)": Transform(TransformKind.TRUNCATE, ("name",), 4),
    "`flight day`": Transform(TransformKind.IDENTITY, ("flight day",)),
    "days(`a.b`.`c``d`)": Transform(TransformKind.DAYS, ("a.b", "c`d")),
    "bucket(2, `x) LOCATION 's3://lake/other' --`)": Transform(
        TransformKind.BUCKET, ("x) LOCATION 's3://lake/other' --",), 2
    ),
    "`größe`": Transform(TransformKind.IDENTITY, ("größe",)),
}
NO_FIELDS = (
    "x) LOCATION 's3://lake/warehouse/sales/orders' --",
    "day -- comment",
    "day /* comment */",
    "day; DROP TABLE t",
    "'day'",
    '"day"',
    "days(ts))",
    "days(ts",
    "days ts",
    "`day",
    "`a`b`",
    "``",
    "",
    " ",
    "a..b",
    "a b",
    "größe",
    "bucket(id)",
    "bucket(0, id)",
    "bucket(-1, id)",
    "bucket(99999999999, id)",
    "bucket(id, 16)",
    "days(4, ts)",
    "reverse(ts)",
    "void(ts)",
    "day\n",
    "day\t",
    "days(ts), x",
    "day\x00",
)


@pytest.mark.parametrize("text", FIELDS)
def test_a_partition_field_is_read(text: str) -> None:
    assert parse_transform(text) == FIELDS[text]


@pytest.mark.parametrize("text", NO_FIELDS)
def test_whatever_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="InvalidTableDefinition") as refused:
        parse_transform(text)

    assert "spec.table.create.partitionBy" in refused.value.message


def test_the_pattern_of_the_definition_admits_the_same_fields() -> None:
    document = read_yaml(Path(__file__).parents[4] / "crds/dataset.yaml")
    spec = document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    pattern = spec["table"]["properties"]["create"]["properties"]["partitionBy"]["items"]["pattern"]

    assert [t for t in FIELDS if not re.search(pattern, t)] == []
    # Python's $ also matches before a newline at the end; that of the API server does not.
    assert [t for t in NO_FIELDS if re.search(pattern.removesuffix("$") + r"\Z", t)] == []
