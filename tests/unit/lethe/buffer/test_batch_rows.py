"""Rows of batches made of the ledger's entries, totals that can be kept up, and which files are written together."""

from hypothesis import given
from hypothesis import strategies as st
from lethe.buffer.batch_rows import BUFFERED, Sizes, Total, Totals, row_of, to_merge
from lethe.ledger.ledger import BatchState

from tests.support.builders import NOW, RUN, a_batch, ago

SIZES = Sizes(floor=10, cap=100)


def test_a_refusal_is_split_into_reason_and_message() -> None:
    row = row_of(a_batch("A", BatchState.REFUSED, refusal="SchemaMismatch: the file f: a column is missing"))

    assert (row.refusal_reason, row.refusal_message) == ("SchemaMismatch", "the file f: a column is missing")


def test_a_refusal_without_a_reason_is_a_message() -> None:
    row = row_of(a_batch("A", BatchState.REFUSED, refusal="nobody knows why"))

    assert (row.refusal_reason, row.refusal_message) == (None, "nobody knows why")


def test_a_row_names_the_run_that_set_the_state_and_the_time() -> None:
    row = row_of(
        a_batch("A", BatchState.REPLACED, time=ago(days=1), restatement="ns/r/1", replaced_by="B", evict_by=NOW)
    )

    assert (row.state, row.state_time, row.run_id) == ("replaced", ago(days=1), RUN)
    assert (row.restatement, row.replaced_by, row.evict_by) == ("ns/r/1", "B", NOW)


totals = st.dictionaries(
    st.sampled_from(["promoted", "reverted", BUFFERED]),
    st.builds(Total, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
).map(lambda found: Totals({s: t for s, t in found.items() if t != Total()}))


@given(totals, totals)
def test_totals_that_are_added_and_taken_away_again_are_what_they_were(some: Totals, others: Totals) -> None:
    assert some.plus(others).minus(others) == some


@given(totals)
def test_totals_come_back_from_a_snapshots_summary(some: Totals) -> None:
    assert Totals.of_summary(some.as_summary()) == some


def test_totals_agree_with_a_ledger_that_counts_the_same_whatever_waits() -> None:
    found = Totals({"promoted": Total(2, 10, 10), BUFFERED: Total(7)})

    assert found.agree_with({"promoted": 2, "reverted": 0})
    assert not found.agree_with({"promoted": 2, "reverted": 1})
    assert not found.agree_with({"promoted": 3})


def test_small_files_join_what_is_new() -> None:
    assert to_merge([100, 8, 60, 9], 1, SIZES) == (1, 3)


def test_a_file_no_larger_than_what_is_merged_already_joins_too() -> None:
    """So that there are never many of one size."""
    assert to_merge([17, 100, 30], 18, SIZES) == (0, 2)


def test_a_full_file_is_left_alone() -> None:
    assert to_merge([100, 101], 500, SIZES) == ()


def test_nothing_is_merged_with_itself() -> None:
    assert to_merge([5], 0, SIZES) == ()
    assert to_merge([5, 6], 0, SIZES) == (0, 1)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=300))
def test_files_stay_few_however_rows_come(appended: list[int]) -> None:
    files: list[int] = []
    for new in appended:
        chosen = to_merge(files, new, SIZES)
        rows = new + sum(files[at] for at in chosen)
        files = [f for at, f in enumerate(files) if at not in chosen]
        while rows > 0:
            files.append(min(rows, SIZES.cap))
            rows -= SIZES.cap

    assert len(files) <= sum(files) / SIZES.cap + 6
