"""Which histories a commit may land on, as values."""

from collections.abc import Iterator

import pytest
from lethe_spark.jvm.commit import Ancestor, Expectation, objection

ROOT = Ancestor(1, None, None)


def carrier(id: int, ledger: str) -> Ancestor:
    return Ancestor(id, id - 1, ledger)


def bare(id: int, parent: int | None = None) -> Ancestor:
    return Ancestor(id, id - 1 if parent is None else parent, None)


@pytest.mark.parametrize(
    ("expected", "history"),
    [
        (Expectation(None), []),
        (Expectation(None, frozenset({1})), [ROOT]),
        (Expectation("L1"), [carrier(5, "L1"), bare(4)]),
        (Expectation("L1", frozenset({6, 7})), [bare(7), bare(6), carrier(5, "L1")]),
        # The carrier has expired; the plan resolved its ledger through the carriers list.
        (Expectation("L1", frozenset({7})), [bare(7)]),
        # PyIceberg took the id of the parent away with it.
        (Expectation("L1", frozenset({1}), expired=True), [ROOT]),
    ],
)
def test_a_history_that_was_planned_on_lets_the_commit_pass(expected: Expectation, history: list[Ancestor]) -> None:
    assert objection(expected, history) is None


@pytest.mark.parametrize(
    ("expected", "history", "problem"),
    [
        (Expectation("L1"), [carrier(6, "L2"), carrier(5, "L1")], "snapshot 6 has set L2 since then"),
        (Expectation(None), [carrier(6, "L2")], "planned on ledger None"),
        (Expectation("L1"), [bare(6), carrier(5, "L1")], "snapshot 6, by another writer"),
        (Expectation("L1", frozenset({6})), [bare(7), bare(6), carrier(5, "L1")], "snapshot 7, by another writer"),
        (Expectation(None), [ROOT], "snapshot 1, by another writer"),
        # Rolled back to before the ledger, or replaced by another table.
        (Expectation("L1"), [], "no snapshot of the current history carries a ledger"),
        (Expectation("L1", frozenset({1})), [ROOT], "no snapshot of the current history carries a ledger"),
    ],
)
def test_any_other_history_stops_it_with_the_reason(
    expected: Expectation, history: list[Ancestor], problem: str
) -> None:
    assert problem in (objection(expected, history) or "")


def test_the_check_reads_no_snapshot_below_the_first_carrier() -> None:
    """It runs inside each attempt: its cost must not grow with the number of commits before."""

    def history() -> Iterator[Ancestor]:
        yield Ancestor(3, 2, None)
        yield Ancestor(2, 1, "L2")
        raise AssertionError("read below the carrier")

    assert objection(Expectation("L2", frozenset({3})), history()) is None
    assert "L2" in (objection(Expectation("L1", frozenset({3})), history()) or "")
