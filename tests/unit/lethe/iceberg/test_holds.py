"""Which rows holds cover, and that no message repeats what their filters say."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from lethe.base.errors import InputError
from lethe.contract.dataset import HoldSpec, active_holds, named
from lethe.iceberg.holds import Holds
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

SCHEMA = Schema(NestedField(1, "v", LongType()), NestedField(2, "name", StringType()))
ROWS = pa.RecordBatch.from_pydict({"v": [1, 2, None, 4], "name": ["a", None, "b", "c"]})
END = datetime(2027, 3, 31, tzinfo=UTC)


def a_hold(filter: str = "", name: str = "h", until: datetime | None = None) -> HoldSpec:
    return HoldSpec(name=name, filter=filter, until=until, reason="case 7")


@pytest.mark.parametrize(
    ("filters", "covered", "columns"),
    [
        ([], [False] * 4, ()),
        (["v > 1"], [False, True, False, True], ("v",)),
        (["v = 1", "name = 'b'"], [True, False, True, False], ("v", "name")),
        (["v = 1", ""], [True] * 4, ("v",)),
    ],
    ids=["none", "an unknown condition covers nothing", "two", "one of the whole table"],
)
def test_a_row_is_covered_if_the_filter_of_one_hold_is_true_for_it(
    filters: list[str], covered: list[bool], columns: tuple[str, ...]
) -> None:
    holds = Holds.of([a_hold(f, f"h{n}") for n, f in enumerate(filters)], SCHEMA)

    assert (holds.covered(ROWS).to_pylist(), holds.columns) == (covered, columns)


@pytest.mark.parametrize("filter", ["secret = 1", "v = 'secret'", "secret person !!", "v LIKE 'secret%'"])
def test_an_invalid_filter_is_refused_without_a_word_of_it(filter: str) -> None:
    with pytest.raises(InputError) as error:
        Holds.of([a_hold("v = 1"), a_hold(filter, "case-7")], SCHEMA)

    assert error.value.reason == "InvalidHold"
    assert "hold case-7" in error.value.message
    assert "secret" not in f"{error.value.message} {error.value!r}"
    assert error.value.__cause__ is None


def test_a_hold_ends_at_its_time_and_is_named_with_it() -> None:
    holds = (a_hold("v = 1", "b", END), a_hold("", "a"))

    assert [h.name for h in active_holds(holds, END.replace(day=30))] == ["a", "b"]
    assert [(h.name, h.reason) for h in active_holds(holds, END)] == [("a", "")]
    assert named(holds) == "hold b until 2027-03-31T00:00:00Z, hold a until it is removed"
