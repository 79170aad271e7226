"""What a run takes from a listing of its buffer, the rows of the table of batches, and which of its files are merged."""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.buffer.batch_rows import BUFFERED, Sizes, Total, Totals, row_of, to_merge
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.buffer.selection import SelectedBatches, find
from lethe.ledger.ledger import BatchEntry, BatchState

from tests.support.builders import NOW, RUN, a_batch, ago, an_object


def buffered(id: str, complete: bool = True, files: int = 1, name: str = "", **changes: datetime) -> BufferedBatch:
    folder = f"s3://lake/buffer/batch_id={name or id}"
    objects = tuple(an_object(f"{folder}/part-{n}.parquet") for n in range(files))
    return BufferedBatch(id, folder, objects, complete, 10 * files, changes.get("oldest_time", NOW))


def gone_through(
    folders: Iterable[BufferedBatch | NoBatch], *wanted: str, known: Mapping[str, BatchEntry] | None = None
) -> SelectedBatches:
    entries = known or {}
    return find(folders, frozenset(wanted), lambda ids: {i: entries[i] for i in ids if i in entries})


def test_what_was_asked_for_is_found_whole_or_not_at_all() -> None:
    folders = [buffered("A"), buffered("B"), buffered("unfinished", complete=False), buffered("empty", files=0)]

    found = gone_through([*folders, NoBatch("x", "no batch")], "A", "unfinished", "empty", "elsewhere")

    assert sorted(found.batches) == ["A", "empty"]


def test_a_batch_under_two_names_is_not_taken_from_either() -> None:
    """Also when one of them is not complete yet, and whichever comes first."""
    twins = [buffered("A b", name="A%20b", complete=False), buffered("A b", name="A b")]

    found = [gone_through(listing, "A b") for listing in (twins, twins[::-1], [*twins, twins[0]])]

    assert [(f.batches, f.waiting_but()) for f in found] == [({}, ())] * 3
    assert gone_through([buffered("C"), buffered("C", name="%43")]).waiting_but() == ()


def test_remains_of_refused_batches_are_left_and_those_that_came_again_are_not() -> None:
    """What was written after the refusal is the producer's new try."""
    batch, again = buffered("A", oldest_time=ago(hours=2)), buffered("B", oldest_time=NOW)
    known = {b.id: a_batch(b.id, BatchState.REFUSED, objects=b.data_objects, time=ago(hours=1)) for b in (batch, again)}

    found = gone_through([batch, again], known=known)

    assert found.left == ["A"]


def test_only_complete_batches_that_the_ledger_does_not_know_wait_the_oldest_first() -> None:
    listed = [
        buffered("young", oldest_time=NOW),
        buffered("old", oldest_time=ago(hours=1)),
        buffered("unfinished", complete=False),
        buffered("empty", files=0),
        buffered("promoted"),
        buffered("refused"),
    ]
    known = {"promoted": a_batch("promoted"), "refused": a_batch("refused", BatchState.REFUSED)}

    rows = gone_through(listed, known=known).waiting_but()

    assert [(r.batch_id, r.state, r.state_time) for r in rows] == [
        ("old", BUFFERED, ago(hours=1)),
        ("young", BUFFERED, NOW),
    ]
    assert (rows[0].bytes, rows[0].objects, rows[0].run_id) == (10, 1, None)


def test_what_was_asked_for_waits_unless_it_is_settled() -> None:
    found = gone_through([buffered("A"), buffered("B"), buffered("C")], "A", "B")

    assert [r.batch_id for r in found.waiting_but({"A"}, ())] == ["B", "C"]


def test_so_many_waiting_batches_are_shown_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest, though the listing has the youngest first."""
    monkeypatch.setattr("lethe.buffer.selection.BUFFERED_AT_MOST", 20)
    youngest_first = (buffered(f"b{n}", oldest_time=NOW + timedelta(seconds=n)) for n in range(42, -1, -1))

    assert [r.batch_id for r in gone_through(youngest_first).waiting_but()] == [f"b{n}" for n in range(20)]


SIZES = Sizes(floor=10, cap=100)


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


@pytest.mark.parametrize(
    ("files", "new", "merged"),
    [
        ([100, 8, 60, 9], 1, (1, 3)),
        ([17, 100, 30], 18, (0, 2)),  # no larger than what is merged already: there are never many of one size
        ([100, 101], 500, ()),
        ([5], 0, ()),
        ([5, 6], 0, (0, 1)),
    ],
)
def test_small_files_join_what_is_new(files: list[int], new: int, merged: tuple[int, ...]) -> None:
    assert to_merge(files, new, SIZES) == merged


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
