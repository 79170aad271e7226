"""Partition fields are read by a grammar: what is no field is refused, whatever it would mean in a statement."""

import re

import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import PARTITION_FIELD_PATTERN
from lethe.files.transforms import Transform, TransformKind, parse_transform

GOOD = {
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
BAD = (
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


@pytest.mark.parametrize("text", GOOD)
def test_a_partition_field_is_read(text: str) -> None:
    assert parse_transform(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_whatever_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="InvalidTableDefinition") as refused:
        parse_transform(text)

    assert "spec.table.create.partitionBy" in refused.value.message


def test_the_definition_accepts_the_same_partition_fields() -> None:
    """The API server checks them with the pattern alone."""
    assert [t for t in GOOD if not re.search(PARTITION_FIELD_PATTERN, t)] == []
    # Python's $ also matches before a newline at the end; that of the API server does not.
    assert [t for t in BAD if re.search(PARTITION_FIELD_PATTERN.removesuffix("$") + r"\Z", t)] == []
