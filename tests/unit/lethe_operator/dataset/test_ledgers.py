"""What decisions need of a ledger is looked up by key, however large the ledger is."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from lethe.ledger.ledger import BatchState, Interval, Ledger
from lethe_operator.dataset.tables import LedgerKeys, Lookup, asked_by

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_policy,
    a_replay,
    a_restatement,
    a_restatement_run,
    a_run,
    a_table,
    a_world,
)
from tests.support.statuses import decide


class Large(Mapping[Any, Any]):
    """A part of a ledger that lies in files: it notes what is looked up and does not let itself be read whole."""

    def __init__(self, entries: Mapping[Any, Any]) -> None:
        self.entries = entries
        self.asked: list[Any] = []

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError(f"{key} was looked up by itself")

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("it was read whole")

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        wanted = list(keys)
        self.asked += wanted
        return {k: self.entries[k] for k in wanted if k in self.entries}

    def apart(self) -> Mapping[Any, Any]:
        return self

    def within(self, intervals: Iterable[Interval]) -> list[Any]:
        raise AssertionError(f"it was searched within {intervals}")


def in_files(ledger: Ledger) -> Ledger:
    parts = {name: Large(getattr(ledger, name)) for name in ("tombstones", "batches", "requests")}
    return replace(ledger, **parts, recorded=ledger.statistics)  # type: ignore[arg-type]


def test_only_keys_of_buffered_restated_or_running_batches_are_looked_up() -> None:
    replay = a_replay("P", "Q")
    batches, other = a_consolidation(a_buffered("B")), a_restatement("other")
    runs = (a_run(batches), a_run(a_restatement_run(other)))
    gone = a_buffered("S")
    refused, promoted = (
        a_batch("F", BatchState.REFUSED, objects=()),
        a_batch("S", time=ago(days=9), objects=gone.data_objects),
    )
    ledger = a_ledger(batches=[refused, promoted, a_batch("OLD")])
    buffered = (a_buffered("A"), a_buffered("F"), gone, a_buffered("OLD"))

    asked = asked_by(a_dataset(), (replay, a_restatement(batchIds=["R"])), runs, a_buffer(*buffered, ledger=ledger))

    assert asked.batch_ids == {"A", "B", "P", "F"}
    assert asked.request_keys == {replay.key, a_restatement(batchIds=["R"]).key, other.key}


def test_a_decision_reads_no_part_of_a_ledger_whole() -> None:
    """And with what was looked up it says the same as with all of it."""
    entries = [a_batch("A"), a_batch("F", BatchState.REFUSED, refusal="SchemaMismatch: x"), a_batch("OLD")]
    done = a_restatement("done")
    whole = a_ledger(*"WXYZ", batches=entries, requests=[a_request_entry(done.key)])
    buffered = (a_buffered("A"), a_buffered("B"), a_buffered("F"))
    world = a_world(*buffered, restatements=(done, a_replay("A", "A2")), policies=(a_policy(),), table=a_table(whole))
    asked = asked_by(a_dataset(), world.restatements, world.runs, world.buffer)

    known = Lookup().known(in_files(whole), asked)

    assert set(known.batches) == {"A", "F"}
    seen = replace(world, table=a_table(known))
    assert decide(a_dataset(), seen, NOW, SETTINGS) == decide(a_dataset(), world, NOW, SETTINGS)


def test_a_refused_batch_stays_in_the_status_after_it_and_its_run_are_gone() -> None:
    """Until the batch is promoted."""
    ledger = a_ledger(batches=[a_batch("F", BatchState.REFUSED, refusal="SchemaMismatch: x")])
    before = a_dataset(status={"batches": {"refusedBatches": [{"batchId": "F", "message": "x"}]}})

    def listed(ledger: Ledger) -> list[dict[str, str]]:
        known = Lookup().known(in_files(ledger), asked_by(before, (), (), a_buffer()))
        status = decide(before, a_world(table=a_table(known)), NOW, SETTINGS).dataset_status
        assert status is not None
        return list(status["batches"].get("refusedBatches") or ())

    assert [b["batchId"] for b in listed(ledger)] == ["F"]
    assert listed(a_ledger(batches=[a_batch("F")])) == []


def test_the_same_ledger_is_asked_for_a_key_once() -> None:
    """An idle table costs no look-ups, also of what it does not know."""
    ledger, lookup = in_files(a_ledger(batches=[a_batch("A")])), Lookup()

    for keys in ({"A", "B"}, {"A", "B"}, {"B", "C"}):
        found = lookup.known(ledger, LedgerKeys(frozenset(keys)))

    assert sorted(ledger.batches.asked) == ["A", "B", "C"]  # type: ignore[attr-defined]
    assert set(found.batches) == set()
    assert lookup.batches.keys() == {"B", "C"}  # what is not asked any more is not kept


def test_a_cache_for_the_next_ledger_asks_for_what_the_one_before_lacked_alone() -> None:
    asked = LedgerKeys(frozenset({"A", "B", "C", "D"}))
    first = in_files(a_ledger(batches=[a_batch("A"), a_batch("B")]))
    second = in_files(a_ledger(batches=[a_batch("A", BatchState.REVERTED), a_batch("C")]))
    lookup = Lookup()
    lookup.known(first, asked)

    for later in (lookup.later(first), lookup.later(first).later(first)):
        assert later.earlier == (first.batches, frozenset({"C", "D"}))
        assert not later.has(asked)
        known = later.known(second, asked)
        assert {i: b.state for i, b in known.batches.items()} == {"A": BatchState.REVERTED, "C": BatchState.PROMOTED}
        assert later.has(asked)
        assert later.earlier is None
        assert later.later(second).earlier == (second.batches, frozenset({"B", "D"}))
