"""A ledger under changes, alone or joined: what it holds, what it counts, and how little of it is read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.ledger import (
    BatchState,
    Delta,
    Interval,
    Ledger,
    Ranges,
    RequestEntry,
    apart,
    apply,
    counted,
    get_many,
    resolve_delta,
    settled_batch,
    settled_request,
    within,
)
from lethe.ledger.overlay import Folding, Thresholds, fold, kept
from lethe.ledger.root import Chunk
from lethe.ledger.tombstone import (
    META_PARTITIONS,
    META_PURGED_BY,
    META_RESTATEMENTS,
    Erasure,
    PurgedFile,
    Tombstone,
    merge,
)

from tests.support.builders import (
    FIELD,
    NOW,
    RUN,
    a_batch,
    a_carrier,
    a_ledger,
    a_request_entry,
    a_tombstone,
    ago,
    on_files,
)


def test_apply_adds_removes_and_sets_and_leaves_the_ledger_before_as_it_was() -> None:
    before = a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)
    delta = Delta(
        "run-5",
        add_tombstones=(a_tombstone("C"),),
        remove_tombstones=frozenset({(7, "A")}),
        set_batches=(a_batch("B", BatchState.REVERTED), a_batch("D")),
        set_requests=(a_request_entry("ns/r/1"),),
    )

    after = apply(before, delta, (a_carrier(3, 4),))

    assert (after.version, after.pending_run) == (5, "run-5")
    assert after.ids(7) == {"B", "C"}
    assert {i: b.state for i, b in after.batches.items()} == {"A": "promoted", "B": "reverted", "D": "promoted"}
    assert set(after.requests) == {"ns/r/1"}
    assert after.carriers == (a_carrier(3, 4),)
    assert before == a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")], version=4)


def test_a_batch_taken_back_keeps_the_snapshot_that_promoted_it() -> None:
    entry = a_batch("A", BatchState.REVERTED, snapshot_id=11)

    assert settled_batch(entry, 22).snapshot_id == 11
    assert settled_batch(replace(entry, snapshot_id=None), 22).snapshot_id == 22


def test_a_refused_request_has_no_snapshot_to_be_filled_in() -> None:
    refused = RequestEntry("k", RUN, NOW, {"succeeded": False})

    assert settled_request(refused, 22) == refused
    assert settled_request(a_request_entry("k"), 22).result["snapshotId"] == 22


COUNTS = [
    (a_ledger(), Delta(RUN), (0, 0, 0)),
    (a_ledger(), Delta(RUN, add_tombstones=(a_tombstone("A"), a_tombstone("B"))), (2, 0, 2)),
    (a_ledger("A", "B"), Delta(RUN, (a_tombstone("C"),), frozenset({(7, "A")})), (1, 1, 2)),
    (a_ledger("A"), Delta(RUN, remove_tombstones=frozenset({(7, "A")})), (0, 1, 0)),
    (a_ledger("A"), Delta(RUN, remove_tombstones=frozenset({(7, "Z")})), (0, 0, 1)),
    (a_ledger("A"), Delta(RUN, (a_tombstone("A", restatements=["r2"]),)), (0, 0, 1)),
    (a_ledger("A"), Delta(RUN, (a_tombstone("A"),), frozenset({(7, "A")})), (0, 0, 1)),
]


@pytest.mark.parametrize(("before", "delta", "counts"), COUNTS)
def test_tombstones_are_counted_as_active_before_and_after(
    before: Ledger, delta: Delta, counts: tuple[int, int, int]
) -> None:
    made = resolve_delta(before, delta)

    assert (made.added, made.deleted, made.statistics.tombstones) == counts


def test_the_statistics_after_a_delta_equal_a_new_count() -> None:
    before = a_ledger(
        a_tombstone("A", added_on=ago(days=3), evict_by=NOW),
        a_tombstone("B", added_on=ago(days=2), evict_by=NOW + timedelta(days=1)),
        batches=[a_batch("A", BatchState.REVERTED), a_batch("B", BatchState.REVERTED), a_batch("C")],
    )
    delta = Delta(
        RUN,
        add_tombstones=(a_tombstone("C", added_on=NOW),),
        remove_tombstones=frozenset({(7, "A")}),
        set_batches=(a_batch("C", BatchState.REPLACED), a_batch("D")),
        forget_batches=frozenset({"A"}),
    )

    after = apply(before, delta)

    assert after.statistics == counted(after)
    assert (after.oldest_added_on, after.next_evict_by) == (ago(days=2), NOW + timedelta(days=1))
    assert after.states == {"reverted": 1, "replaced": 1, "promoted": 1}


def test_tombstones_are_found_by_column_and_by_range() -> None:
    ledger = a_ledger("A", "B", "C", a_tombstone("B", namespace=8))

    assert [t.id for t in ledger.tombstones_within(7, [("B", None)])] == ["B", "C"]
    assert [t.id for t in ledger.tombstones_within(7, [(None, "A"), ("C", "C")])] == ["A", "C"]
    assert ledger.tombstones_within(7, []) == []


# --- rows that tombstones hide ---------------------------------------------------------------------------------------
def hidden(ledger: Ledger) -> int | None:
    return ledger.statistics.tombstoned_rows


def test_the_rows_that_tombstones_hide_follow_what_is_taken_back_undone_and_purged() -> None:
    """An id that was never promoted, or whose rows nobody counted, adds none."""
    promoted = (a_batch("A", rows=3), a_batch("B", rows=5), a_batch("C", rows=None))
    reverted = (a_batch("A", BatchState.REVERTED, rows=3), a_batch("B", BatchState.REVERTED, rows=5))
    ledger = a_ledger(batches=promoted)

    taken_back = apply(ledger, Delta(RUN, tuple(map(a_tombstone, "ABCX")), set_batches=reverted))
    undone = apply(taken_back, Delta(RUN, remove_tombstones=frozenset({(7, "A")}), set_batches=promoted[:1]))
    purged = apply(undone, Delta(RUN, remove_tombstones=frozenset({(7, "B")})))

    assert [hidden(x) for x in (ledger, taken_back, undone, purged)] == [0, 8, 5, 0]
    assert all(hidden(x) == counted(x).tombstoned_rows for x in (taken_back, undone, purged))


def test_a_ledger_without_counts_is_counted_again() -> None:
    """Such as one of before they were counted, or of another writer."""
    ledger = a_ledger("A", batches=[a_batch("A", rows=3), a_batch("B", rows=5)])
    uncounted = replace(ledger, recorded=replace(counted(ledger), tombstoned_rows=None))

    assert hidden(uncounted) is None
    assert hidden(apply(uncounted, Delta(RUN, (a_tombstone("B"),)))) == 8


ids = st.sampled_from("ABCD")
requests = st.builds(lambda key, n: RequestEntry(key, RUN, NOW, {"n": n}), st.sampled_from("rst"), st.integers(0, 9))
erasures = st.builds(Erasure, st.sampled_from("rst"), st.just(FIELD), st.sampled_from((NOW, ago(hours=1))))
purged = st.builds(PurgedFile, st.sampled_from("fgh"), st.integers(0, 9), st.just("data"), st.just(("r",)))
batches = st.builds(
    lambda i, state, rows: a_batch(i, state, rows=rows), ids, st.sampled_from(BatchState), st.integers()
)


@st.composite
def tombstones(draw: st.DrawFn) -> Tombstone:
    meta = {k: v for k in (META_PARTITIONS, META_PURGED_BY, "reason") if (v := draw(st.sampled_from(("", "x", "y"))))}
    return a_tombstone(
        draw(ids),
        namespace=draw(st.sampled_from((FIELD, 8))),
        added_on=ago(hours=draw(st.integers(0, 3))),
        evict_by=draw(st.none() | st.integers(0, 3).map(lambda h: NOW + timedelta(hours=h))),
        restatements=draw(st.lists(st.sampled_from(("r1", "r2", "r3")), max_size=2, unique=True)),
        meta=meta,
    )


def several(one: st.SearchStrategy) -> st.SearchStrategy:  # type: ignore[type-arg]
    return st.lists(one, max_size=3).map(tuple)


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    obligations = {e.restatement: e for e in draw(several(erasures))}
    return a_ledger(
        *draw(several(tombstones())),
        batches=draw(several(batches)),
        requests=draw(several(requests)),
        erasures=tuple(obligations.values()),
    )


keys = st.frozensets(tombstones().map(lambda t: t.key), max_size=2)
deltas = st.builds(
    Delta,
    st.just(RUN),
    several(tombstones()),
    keys,
    several(batches),
    several(requests),
    st.frozensets(ids, max_size=2),
    several(erasures),
    st.frozensets(st.sampled_from("rst"), max_size=2),
    several(purged),
    st.frozensets(st.sampled_from("fgh"), max_size=2),
)


def after(ledger: Ledger, *changes: Delta) -> Ledger:
    for delta in changes:
        ledger = apply(ledger, delta)
    # The order of erasures says nothing
    return replace(ledger, version=0, erasures=tuple(sorted(ledger.erasures, key=lambda e: e.restatement)))


@given(ledgers(), deltas, deltas)
def test_two_changes_as_one_make_of_a_ledger_what_they_make_one_after_the_other(
    ledger: Ledger, one: Delta, other: Delta
) -> None:
    together = after(ledger, one.then(other))

    assert together == after(ledger, one, other)
    assert together.statistics == counted(together)


@given(ledgers(), st.lists(deltas, max_size=5))
def test_a_ledger_under_changes_answers_as_if_they_were_made(ledger: Ledger, changes: list[Delta]) -> None:
    folding = Folding(ledger, RUN)
    for delta in changes:
        folding.add(delta)

    found, wanted = folding.ledger, after(ledger, *changes)
    for part in ("tombstones", "batches", "requests"):
        over, plain = getattr(found, part), getattr(wanted, part)
        everything = [*plain, (FIELD, "Z"), "Z"]
        assert get_many(over, everything) == get_many(plain, everything) == dict(over)
        assert len(over) == len(plain)
        assert [k in over for k in everything] == [k in plain for k in everything]
    between: list[Interval] = [(None, "A"), ("C", "C")]
    of = str
    assert _sorted(within(found.batches, between, of)) == _sorted(within(wanted.batches, between, of))
    assert _sorted(found.tombstones_within(8, between)) == _sorted(wanted.tombstones_within(8, between))
    assert found.statistics == wanted.statistics
    assert _sorted(found.erasures) == _sorted(wanted.erasures)
    assert after(ledger, folding.delta) == replace(wanted, pending_run=RUN)


def _sorted(values: Sequence[object]) -> list[str]:
    return sorted(map(repr, values))


def test_a_part_apart_does_not_learn_of_later_changes() -> None:
    folding = Folding(a_ledger(batches=[a_batch("A")]), RUN)
    before = apart(folding.ledger.batches)

    folding.add(Delta(RUN, set_batches=(a_batch("B"),)))

    assert (list(before), list(folding.ledger.batches)) == (["A"], ["A", "B"])


def test_nothing_is_read_of_the_ledger_below_but_what_a_change_names() -> None:
    folding = Folding(on_files(a_ledger("A", "B", batches=[a_batch("A"), a_batch("B")])), RUN)

    folding.add(Delta(RUN, (a_tombstone("A", restatements=["r2"]),), frozenset({(FIELD, "B")})))
    folding.add(Delta(RUN, set_batches=(a_batch("C"),), forget_batches=frozenset("A")))

    assert get_many(folding.ledger.tombstones, [(FIELD, "A"), (FIELD, "B")]).keys() == {(FIELD, "A")}
    assert get_many(folding.ledger.batches, "ABC").keys() == {"B", "C"}
    assert (len(folding.ledger.tombstones), len(folding.ledger.batches)) == (1, 2)


UNITED: list[tuple[list[Interval], tuple[Interval, ...]]] = [
    ([], ()),
    ([("b", "c"), ("a", "a")], (("a", "a"), ("b", "c"))),
    ([("a", "c"), ("b", "d")], (("a", "d"),)),
    ([("a", "d"), ("b", "c")], (("a", "d"),)),
    ([("c", None), ("a", "b"), ("d", "e")], (("a", "b"), ("c", None))),
    ([(None, "b"), ("b", None)], ((None, None),)),
]


@pytest.mark.parametrize(("intervals", "united"), UNITED)
def test_intervals_that_touch_become_one(intervals: list[Interval], united: tuple[Interval, ...]) -> None:
    assert Ranges(intervals).intervals == united


T = Thresholds(floor=4, cap=64)


def sizes_after(adds: list[int], thresholds: Thresholds = T) -> tuple[list[int], int]:
    """The chunk sizes after so many additions of distinct entries, and how many entries were written for them."""
    sizes: list[int] = []
    written = 0
    for n in adds:
        stay = kept([Chunk("", s, 0) for s in sizes], n, sum(sizes) + n, thresholds)
        size = sum(sizes[stay:]) + n
        sizes = [*sizes[:stay], size]
        written += size
    return sizes, written


@pytest.mark.parametrize("k", [1, 3, 10])
def test_what_is_written_grows_with_what_is_added_and_hardly_with_what_is_there(k: int) -> None:
    added = 4096
    sizes, written = sizes_after([k] * (added // k))

    assert written <= added * (math.log2(T.cap) + T.floor / k + 2)
    assert len(sizes) <= added / T.cap + math.log2(T.cap) + 2


@pytest.mark.parametrize(
    ("chunks", "new", "entries", "stay"),
    [
        ([Chunk("", 64, 0), Chunk("", 2, 0)], 2, 68, 1),
        ([Chunk("", 2, 0), Chunk("", 1, 0)], 1, 4, 0),
        ([Chunk("", 64, 0), Chunk("", 64, 0, removes=True)], 10, 54, 0),
    ],
    ids=["one that reached the cap is left alone", "a small part is one chunk", "most of it is garbage"],
)
def test_chunks_stay_unless_they_are_small_or_garbage(chunks: list[Chunk], new: int, entries: int, stay: int) -> None:
    assert kept(chunks, new, entries, T) == stay


chunk_layers = st.lists(st.tuples(st.booleans(), st.dictionaries(st.sampled_from("abcd"), st.integers())), max_size=5)


@given(chunk_layers, chunk_layers)
def test_merging_some_chunks_changes_nothing_of_what_all_of_them_say(
    older: list[tuple[bool, dict[str, int]]], newer: list[tuple[bool, dict[str, int]]]
) -> None:
    entries, removed = fold(newer)

    assert fold([*older, (True, removed), (False, entries)])[0] == fold([*older, *newer])[0]


EARLY, LATE = ago(days=-1), ago(days=-9)


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [(EARLY, LATE, EARLY), (LATE, EARLY, EARLY), (None, LATE, LATE), (LATE, None, LATE), (None, None, None)],
)
def test_a_merge_never_postpones_or_forgets_an_eviction(old: object, new: object, kept: object) -> None:
    """A revert without a deadline after one with it must not make the bytes stay."""
    result = merge(a_tombstone(evict_by=old), a_tombstone(evict_by=new, restatements=["ns/s/2"]))  # type: ignore[arg-type]

    assert kept == result.evict_by


def test_a_merge_keeps_every_restatement_once_and_the_older_origin() -> None:
    old = a_tombstone(added_on=ago(days=1), restatements=["r1", "r2"], meta={"reason": "old"})
    new = a_tombstone(added_on=NOW, restatements=["r2", "r3"], meta={"reason": "new", "run": "x"})

    result = merge(old, new)

    assert result.restatements == ("r1", "r2", "r3")
    assert result.added_on == ago(days=1)
    assert dict(result.meta) == {META_RESTATEMENTS: "r1\nr2\nr3", "reason": "old", "run": "x"}


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (a_tombstone(), True),
        (a_tombstone(evict_by=EARLY), True),
        (a_tombstone(added_on=ago(seconds=1)), False),  # undone, and set again
        (a_tombstone(restatements=["ns/r/2"]), False),
        (a_tombstone("B"), False),
        (a_tombstone(namespace=8), False),
    ],
)
def test_a_tombstone_set_again_after_an_undo_is_of_another_origin(other: object, same: bool) -> None:
    assert same is a_tombstone().same_origin(other)  # type: ignore[arg-type]
