"""The history of a batch."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import ErasureOutcome, RequestResult
from lethe.ledger.erasure import Erasure
from lethe_gateway.tables.records import (
    BatchFacts,
    ErasureState,
    EventType,
    PurgeFacts,
    PurgeState,
    TombstoneFacts,
    erasure_of,
    history_of,
    purge_of,
)

from tests.support.builders import NOW

KEY = "ns/erase-1/ab"


def facts(state: str = "reverted", *, rows: int | None = 3, **changes: Any) -> BatchFacts:
    row = BatchRow("A", state, NOW, rows=rows, snapshot_id=11, run_id="r", restatement=KEY)
    unknown = dict.fromkeys(BatchFacts.__dataclass_fields__)
    return BatchFacts(**{**unknown, "row": row, "shows_head": True, **changes})


def types(of: BatchFacts) -> list[EventType]:
    return [e.type for e in history_of(of)]


def test_a_taken_back_batch_waits_for_its_purge_as_long_as_it_has_a_tombstone() -> None:
    tombstone = TombstoneFacts(NOW, None, False)

    assert purge_of(facts(tombstone=tombstone)).state is PurgeState.PENDING
    assert purge_of(facts(tombstone=replace(tombstone, partly=True))).state is PurgeState.PARTLY
    assert purge_of(facts()).state is PurgeState.DONE
    assert purge_of(facts(shows_head=False)).state is PurgeState.UNKNOWN, "an Undo may have brought its rows back"
    assert purge_of(facts(tombstone=tombstone, shows_head=False)).state is PurgeState.PENDING
    assert EventType.PURGED not in types(facts(shows_head=False))
    assert types(facts(tombstone=tombstone)) == [EventType.PROMOTED, EventType.REVERTED]


def test_the_vacuum_is_named_as_long_as_its_snapshot_is_retained() -> None:
    later = NOW + timedelta(days=1)
    purged = history_of(facts(purge=PurgeFacts(12, later)))[-1]

    assert (purged.type, purged.time, purged.snapshot_id) == (EventType.PURGED, later, 12)
    assert history_of(facts())[-1].time is None


def test_a_batch_that_was_taken_back_before_it_came_was_never_promoted_nor_purged() -> None:
    late = facts(rows=None)

    assert types(late) == [EventType.REVERTED]
    assert (purge_of(late).state, history_of(late)[0].snapshot_id) == (PurgeState.NONE, 11)


def test_the_time_of_a_promotion_is_unknown_once_its_snapshot_has_expired() -> None:
    assert history_of(facts())[0].time is None
    assert history_of(facts(promoted_time=NOW))[0].time == NOW
    assert history_of(facts("promoted"))[0].time == NOW  # the time of its state


def test_an_erasure_goes_through_its_states() -> None:
    pending = Erasure(KEY, 1, NOW)
    outcome = ErasureOutcome(restatement=KEY, verified_time=NOW, record="s3://r.json", record_sha256="ab")
    request = RequestResult(key=KEY, name="ns/erase-1", succeeded=True, erasure=outcome)

    def state(**of: Any) -> ErasureState | None:
        found = erasure_of(facts("erased", **of))
        return found.state if found else None

    assert state(erasure=pending) is ErasureState.ROWS_IN_TABLE
    assert state(erasure=replace(pending, purged_at=3)) is ErasureState.NOT_VERIFIED
    assert state(erasure=replace(pending, purged_at=3, blockers_count=2)) is ErasureState.BLOCKED
    assert state(request=request) is ErasureState.VERIFIED
    assert state() is None
    assert types(facts("erased", request=request))[-1] is EventType.ERASURE_VERIFIED
