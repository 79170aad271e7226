"""Changes as one, and a ledger under changes: both are what the changes make of it one after the other."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.erasure import Erasure, PurgedFile
from lethe.ledger.ledger import (
    BatchState,
    Delta,
    Interval,
    Ledger,
    RequestEntry,
    apart,
    apply,
    counted,
    get_many,
    within,
)
from lethe.ledger.overlay import Folding
from lethe.ledger.tombstone import META_PARTITIONS, META_PURGED_BY, Tombstone

from tests.support.builders import FIELD, NOW, RUN, a_batch, a_ledger, a_tombstone, ago, on_files

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


@given(ledgers(), deltas, deltas, deltas)
def test_it_does_not_matter_which_two_of_three_changes_are_joined_first(
    ledger: Ledger, one: Delta, two: Delta, three: Delta
) -> None:
    assert after(ledger, one.then(two).then(three)) == after(ledger, one.then(two.then(three)))


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
