"""What a batch must satisfy before it is promoted: each kind of check, nulls, and what a message says."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lethe.base.errors import InputError
from lethe.contract.checks import CheckSpec
from lethe.ingest import checks as module
from lethe.ingest.check_conditions import checks_of
from lethe.ingest.checks import BatchChecks, CheckFailure, FailedRows, KeptKeys, Segment, wanted_row_counts
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    UUIDType,
)

INNER = StructType(NestedField(21, "c", IntegerType()))
SCHEMA = Schema(
    NestedField(1, "v", LongType()),
    NestedField(2, "name", StringType()),
    NestedField(3, "price", DecimalType(9, 2)),
    NestedField(4, "day", DateType()),
    NestedField(5, "at", TimestamptzType()),
    NestedField(6, "ratio", DoubleType()),
    NestedField(7, "ok", BooleanType()),
    NestedField(8, "s", INNER),
    NestedField(9, "l", ListType(31, IntegerType())),
    NestedField(10, "key", UUIDType()),
)
COLUMNS = pa.schema(
    [
        ("v", pa.int64()),
        ("name", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("ratio", pa.float64()),
        ("ok", pa.bool_()),
        ("s", pa.struct([("c", pa.int32())])),
        ("l", pa.list_(pa.int32())),
        ("key", pa.string()),
    ]
)


KEYS = [f"6f1f6a4e-0000-4000-8000-00000000000{digit}" for digit in "ABC"]


def spec(**kind: Any) -> CheckSpec:
    return CheckSpec.model_validate({"name": "c", **kind})


def made(*specs: CheckSpec) -> BatchChecks:
    return checks_of(specs, SCHEMA, COLUMNS)


def rows(column: str, *values: Any) -> pa.Table:
    """Rows that are null in all other columns."""
    return pa.Table.from_pylist([{column: v} for v in values], schema=COLUMNS)


def failing(check: CheckSpec, table: pa.Table) -> list[int]:
    return [int(n) for _, found in made(check).failing(table) for n in found]


def on(kind: str, column: str, **more: Any) -> CheckSpec:
    return spec(**{kind: {"column": column, **more}})


CASES: dict[str, tuple[CheckSpec, str, list[Any], list[int]]] = {
    "a null": (spec(notNull=["v"]), "v", [1, None, 2, None], [1, 3]),
    "no null": (spec(notNull=["v"]), "v", [1, 2], []),
    "a null in a field of a struct": (spec(notNull=["s.c"]), "s", [{"c": 1}, {"c": None}, None], [1, 2]),
    "below and above a range": (on("range", "v", min=0, max=10), "v", [-1, 0, 10, 11, None], [0, 3]),
    "a range with one end": (on("range", "v", min=3), "v", [2, 3, None], [0]),
    "a range of decimals": (on("range", "price", max="9.99"), "price", ["9.99", "10.00", None], [1]),
    "a range of dates": (on("range", "day", min="2026-01-01"), "day", [20453, 20454, None], [0]),
    "a range of times": (on("range", "at", min="2026-01-01T00:00:00+00:00"), "at", [0, 1767225600000000], [0]),
    "a range of floats": (on("range", "ratio", min=0, max="0.5"), "ratio", [0.5, 0.6, float("nan"), None], [1, 2]),
    "another value": (on("values", "name", allowed=["a", "b"]), "name", ["a", "c", None, "b"], [1]),
    "another number": (on("values", "v", allowed=[1, "2"]), "v", [1, 2, 3, None], [2]),
    "another truth": (on("values", "ok", allowed=["true"]), "ok", [True, False, None], [1]),
    "another UUID": (on("values", "key", allowed=KEYS[:2]), "key", [KEYS[0], KEYS[1].lower(), KEYS[2], None], [2]),
    "a UUID in a condition": (spec(condition=f"key <> '{KEYS[0].lower()}'"), "key", [KEYS[0], KEYS[1], None], [0]),
    "a text that does not match": (on("pattern", "name", matches="^[A-Z]{2}[0-9]+$"), "name", ["AB1", "x", None], [1]),
    "a part that matches": (on("pattern", "name", matches="[0-9]"), "name", ["a1b", "ab", ""], [1, 2]),
    "a condition": (spec(condition="v > 3 AND v < 9"), "v", [3, 4, 9, None], [0, 2]),
    "a condition of two columns": (spec(condition="v IS NOT NULL OR name IS NOT NULL"), "v", [1, None], [1]),
    "a condition on a prefix": (spec(condition="name LIKE 'LH%'"), "name", ["LH1", "BA1", None], [1]),
}


@pytest.mark.parametrize(("check", "column", "values", "expected"), CASES.values(), ids=CASES.keys())
def test_each_kind_finds_the_rows_that_fail_and_a_null_satisfies_all_but_not_null(
    check: CheckSpec, column: str, values: list[Any], expected: list[int]
) -> None:
    converted = [pa.scalar(v).cast(COLUMNS.field(column).type) if isinstance(v, str) else v for v in values]
    plain = [v.as_py() if isinstance(v, pa.Scalar) else v for v in converted]
    if column == "day":
        table = rows("v", *values).set_column(3, "day", pa.array(values, pa.int32()).cast(pa.date32()))
    elif column == "at":
        table = rows("v", *values).set_column(4, "at", pa.array(values, pa.int64()).cast(COLUMNS.field("at").type))
    else:
        table = rows(column, *plain)

    assert failing(check, table) == expected


@pytest.mark.parametrize("check", [c for c, _, _, _ in CASES.values()], ids=CASES.keys())
def test_a_batch_without_rows_fails_no_check_of_rows(check: CheckSpec) -> None:
    assert failing(check, COLUMNS.empty_table()) == []
    assert made(check).judge(0, {}) is None


def test_rows_in_several_chunks_are_counted_from_the_first() -> None:
    table = pa.concat_tables([rows("v", 1, None), rows("v", 2), rows("v", None)])

    assert failing(spec(notNull=["v"]), table) == [1, 3]


INVALID: dict[str, tuple[CheckSpec, str]] = {
    "an unknown column": (
        on("range", "nane", min=1),
        "nane, but the table has no such column; the nearest names are name",
    ),
    "an unknown key": (spec(unique=["v", "w"]), "it names the column w, but the table has no such column"),
    "an unknown field": (
        spec(notNull=["s.x"]),
        "s.x, but the table has no such column; the nearest names are s.c",
    ),
    "a key that is a list": (spec(unique=["l"]), "the values of l cannot be compared"),
    "a number for a text": (on("range", "day", min="soon"), "compares day, a date, with a value that is none"),
    "a pattern for a number": (on("pattern", "v", matches="1"), "needs a text of v, a long"),
    "a pattern that is none": (on("pattern", "name", matches="("), "a regular expression that is not one of RE2"),
    "a condition that is none": (spec(condition="v >"), "the condition is not a condition in PyIceberg's syntax"),
    "a condition on an unknown column": (spec(condition="w > 1"), "the condition names the column w"),
    "a kind that a later version has": (spec(), "does not know what it checks"),
}


@pytest.mark.parametrize(("check", "said"), INVALID.values(), ids=INVALID.keys())
def test_a_check_that_cannot_be_applied_stops_the_run_and_says_what_to_correct(check: CheckSpec, said: str) -> None:
    with pytest.raises(InputError) as caught:
        made(check)

    assert caught.value.reason == "InvalidCheck"
    assert caught.value.message.startswith("spec.checks: check c (")
    assert said in caught.value.message


# --- judging ---

NOT_NULL = spec(name="whole", notNull=["v"])
IN_RANGE = spec(name="altitude", range={"column": "v", "min": 0}, onFailure="Hold")


def judged(failed: dict[str, dict[int, FailedRows]], **more: Any) -> CheckFailure | None:
    return made(NOT_NULL, IN_RANGE).judge(100, failed, **more)


def test_a_batch_without_failures_may_be_promoted() -> None:
    assert judged({}) is None


def test_a_refusal_names_check_count_and_first_rows_of_each_file() -> None:
    failure = judged({"b": {0: FailedRows(40, (0, 1, 2, 3, 4))}, "a": {0: FailedRows(2, (7, 9))}})

    assert failure is not None
    assert (failure.is_held, failure.verdict.reason) == (False, "CheckFailed")
    said = "check whole (notNull): 42 of 100 rows fail, first rows 7, 9 of a and rows 0, 1, 2 of b"
    assert failure.verdict.message == said


def test_a_batch_is_held_unless_it_is_approved_or_another_check_refuses_it() -> None:
    one = FailedRows(1, (3,))

    held, approved = (judged({"a": {1: one}}, is_approved=approved) for approved in (False, True))
    refused = judged({"a": {0: one, 1: one}}, is_approved=True)

    assert held is not None
    assert (held.is_held, held.verdict.message) == (
        True,
        "check altitude (range): 1 of 100 rows fail, first row 3 of a",
    )
    assert approved is None
    assert refused is not None
    assert not refused.is_held
    assert "check altitude" in refused.verdict.message


@pytest.mark.parametrize(
    ("check", "count", "latest", "said"),
    [
        ({"min": 5}, 4, (), "the batch has 4 rows, expected at least 5"),
        ({"min": 5}, 5, (), None),
        ({"max": 5}, 6, (), "the batch has 6 rows, expected at most 5"),
        ({"min": 1}, 0, (), "the batch has 0 rows, expected at least 1"),
        ({"atLeastPercent": 50}, 0, (), None),
        (
            {"atLeastPercent": 50},
            49,
            (100, 90, 200),
            "expected at least 50 % of 100, the median of the last 3 promoted",
        ),
        ({"atLeastPercent": 50}, 50, (100, 90, 200), None),
        (
            {"atMostPercent": 200},
            201,
            (100, 90, 200),
            "expected at most 200 % of 100, the median of the last 3 promoted",
        ),
        ({"atMostPercent": 200, "ofLast": 1}, 201, (200, 1, 1), None),
    ],
)
def test_the_rows_are_compared_with_numbers_and_with_the_batches_before(
    check: dict[str, int], count: int, latest: tuple[int, ...], said: str | None
) -> None:
    failure = made(spec(rowCount=check)).judge(count, {}, latest)

    assert (failure is None) == (said is None)
    if failure is not None and said is not None:
        assert said in failure.verdict.message


def test_a_number_of_rows_that_is_not_known_is_not_judged() -> None:
    assert made(spec(rowCount={"min": 5})).judge(None, {}) is None


def test_earlier_batches_are_needed_only_for_percentages() -> None:
    counted = [spec(rowCount={"min": 1}), spec(notNull=["v"])]

    assert wanted_row_counts(counted) == 0
    assert wanted_row_counts([*counted, spec(rowCount={"atMostPercent": 200, "ofLast": 7})]) == 7


# --- keys ---

PAIR = spec(unique=["v", "name"])
ALONE = spec(unique=["v"])


def kept(*parts: tuple[str, str, int, list[tuple[Any, Any]]], checks: BatchChecks | None = None) -> KeptKeys:
    """The keys of rows of batches and files, from a row on, added one part after the other."""
    found = KeptKeys(checks or made(PAIR, ALONE))
    for batch_id, uri, first_row, pairs in parts:
        table = pa.table(
            {"v": pa.array([p[0] for p in pairs], pa.int64()), "name": pa.array([p[1] for p in pairs], pa.string())}
        )
        found.add([Segment(batch_id, uri, first_row, len(pairs))], table)
    return found


def compared(keys: KeptKeys, *batch_ids: str) -> dict[tuple[str, int], FailedRows]:
    """What fails, by file and check."""
    for batch_id in batch_ids:
        keys.end(batch_id)
    found: dict[tuple[str, int], FailedRows] = {}
    for segment, check, failed in keys.compare():
        before = found.get((segment.uri, check))
        found[segment.uri, check] = failed if before is None else before.plus(failed)
    return found


def test_repeated_keys_are_found_across_files_and_the_first_row_of_a_key_is_none() -> None:
    keys = kept(
        ("A", "a", 0, [(1, "x"), (2, "x"), (1, "x")]), ("A", "b", 0, [(3, "x")]), ("A", "b", 1, [(2, "x"), (1, "x")])
    )

    one, two = FailedRows(1, (2,)), FailedRows(2, (1, 2))
    assert compared(keys, "A") == {("a", 0): one, ("a", 1): one, ("b", 0): two, ("b", 1): two}


def test_keys_that_differ_in_one_column_or_have_a_null_are_not_repeated() -> None:
    keys = kept(("A", "a", 0, [(1, "x"), (1, "y"), (None, "x"), (None, "x"), (1, None), (1, None)]))

    assert compared(keys, "A") == {("a", 1): FailedRows(3, (1, 4, 5))}
    assert compared(kept(), "A") == {}


def test_the_texts_of_a_uuid_are_one_key_and_other_texts_are_two() -> None:
    checks = made(spec(unique=["key"]), spec(unique=["name"]))
    texts = [KEYS[0], KEYS[1], KEYS[0].lower(), None]
    keys = KeptKeys(checks)
    keys.add([Segment("A", "a", 0, 4)], pa.table({"key": texts, "name": texts}))

    assert compared(keys, "A") == {("a", 0): FailedRows(1, (2,))}


def test_a_key_may_be_in_several_batches_and_a_batch_is_compared_when_it_is_complete() -> None:
    keys = kept(("A", "a", 0, [(1, "x")]), ("B", "b", 0, [(1, "x")]), ("C", "c", 0, [(2, "x")]))

    assert compared(keys, "A", "B") == {}
    keys.add([Segment("C", "d", 5, 1)], pa.table({"v": [2], "name": ["x"]}))
    assert compared(keys) == {}, "C is not complete"
    assert compared(keys, "C") == {("d", 0): FailedRows(1, (5,)), ("d", 1): FailedRows(1, (5,))}
    assert compared(keys, "C") == {}, "nothing is kept"


def test_small_batches_are_compared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_BYTES_TOGETHER", 100)
    keys = kept(("A", "a", 0, [(1, "x")]), ("B", "b", 0, [(n, "x") for n in range(20)]))

    assert [keys.end("A"), keys.end("B")] == [False, True]


def test_more_keys_of_a_batch_than_fit_in_memory_are_dropped_and_the_others_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEY_BYTES_AT_MOST", 100)

    keys = kept(
        ("A", "a", 0, [(1, "x"), (1, "x")]),
        ("L", "l", 0, [(n, "x") for n in range(20)]),
        ("L", "l", 20, [(1, "x")]),
        ("B", "b", 0, [(1, "x"), (1, "x")]),
    )

    assert keys.too_large == {"L"}
    assert {uri for uri, _ in compared(keys, "A", "L", "B")} == {"a", "b"}


def test_only_the_first_rows_are_kept() -> None:
    many = FailedRows.of(np.arange(100))

    assert many == FailedRows(100, (0, 1, 2, 3, 4))
    assert FailedRows(1, (7,)).plus(many) == FailedRows(101, (7, 0, 1, 2, 3))
