"""What a run takes from a listing of its buffer, and that it keeps no more of it than it needs."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

from lethe.buffer.batch_rows import BUFFERED
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.buffer.selection import SelectedBatches, find
from lethe.ledger.ledger import BatchEntry, BatchState

from tests.support.builders import NOW, a_batch, ago, an_object

MIB = 1024 * 1024


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


def test_the_ledger_entries_of_the_found_batches_are_returned_too() -> None:
    known = {"A": a_batch("A", BatchState.REFUSED), "B": a_batch("B")}

    found = gone_through([buffered("A"), buffered("B"), buffered("C")], "A", "C", known=known)

    assert found.entries == {"A": known["A"]}


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


def many(count: int) -> Iterator[BufferedBatch]:
    """The youngest first, as a listing may well have them."""
    return (buffered(f"b{n}", oldest_time=NOW + timedelta(seconds=n)) for n in range(count - 1, -1, -1))


def test_so_many_waiting_batches_are_shown_and_no_more() -> None:
    rows = gone_through(many(40_003)).waiting_but()

    assert (len(rows), rows[0].batch_id, rows[-1].batch_id) == (20_000, "b0", "b19999")
