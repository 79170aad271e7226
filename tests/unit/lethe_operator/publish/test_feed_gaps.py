"""Histories with missing versions, rollbacks and other tables: a consumer is told, and what follows corrects what it knows."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from lethe.ledger.ledger import BatchState
from lethe_operator.publish.delivery import SinkError
from lethe_operator.publish.events import Origin
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import StartedFrom

from tests.support.builders import NOW, a_batch
from tests.support.publishing import UUID, LedgerHistory, RememberingSink, publish, told, view_of


@pytest.fixture
def history(tmp_path: Path) -> LedgerHistory:
    return LedgerHistory(tmp_path)


@pytest.fixture
def sink() -> RememberingSink:
    return RememberingSink()


def test_versions_that_expired_are_a_gap_and_the_net_changes_follow(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    first = history.commit(a_batch("A"))
    publish(history, sink)
    gone = [history.commit(a_batch("B")), history.commit(a_batch("B", BatchState.REVERTED, restatement="ns/r/1"))]
    last = history.commit(a_batch("C"))
    history.expire(*gone)
    assert set(history.snapshots) == {first, last}

    publish(history, sink)

    assert told(sink.received[2:]) == [("history.gap", ""), ("batch.reverted", "B"), ("batch.promoted", "C")]
    gap = json.loads(sink.received[2].data)
    assert (gap["reason"], gap["fromVersion"], gap["ledgerVersion"]) == ("VersionsExpired", 1, 4)
    assert view_of(sink.received) == history.states()


def test_if_the_published_version_is_gone_the_present_state_of_what_is_newer_follows_a_gap(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    old = history.commit(a_batch("A", time=NOW - timedelta(days=1)))
    publish(history, sink)
    history.commit(a_batch("B", time=NOW), a_batch("A2", time=NOW - timedelta(days=1)))
    history.expire(old)

    publish(history, sink)

    assert told(sink.received[2:]) == [("history.gap", ""), ("batch.promoted", "B")]
    gap = json.loads(sink.received[2].data)
    assert (gap["reason"], gap["states"]) == ("HistoryExpired", {"promoted": 3})


def test_a_rollback_is_told_with_what_it_changes_and_the_new_line_follows(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    first = history.commit(a_batch("A"))
    history.commit(a_batch("B"))
    history.commit(a_batch("A", BatchState.REVERTED, restatement="ns/r/1"))
    publish(history, sink)
    before = len(sink.received)
    history.roll_back(first)
    history.commit(a_batch("C"))

    publish(history, sink)

    assert told(sink.received[before:]) == [
        ("table.rolled-back", ""),
        ("batch.restored", "A"),
        ("batch.forgotten", "B"),
        ("batch.promoted", "C"),
    ]
    assert len({e.id for e in sink.received}) == len(sink.received)
    assert view_of(sink.received) == history.states()


def test_another_table_at_the_same_location_starts_again_and_names_the_one_before(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    history.commit(a_batch("A"))
    publish(history, sink)
    other = LedgerHistory(history.home, uuid="6b5a3f0c-0000-4000-8000-000000000002")
    other.commit(a_batch("B"))

    publish(other, sink)

    assert told(sink.received[2:]) == [("publishing.started", ""), ("batch.promoted", "B")]
    assert json.loads(sink.received[2].data)["replacesTable"] == history.uuid
    assert sink.received[2].sequence > sink.received[1].sequence


@pytest.mark.parametrize("uuid", ["6b5a3f0c-0000-4000-8000-000000000002", UUID])
def test_a_table_of_another_dataset_at_the_location_does_not_move_the_cursor_and_no_event_is_lost(
    history: LedgerHistory, sink: RememberingSink, uuid: str
) -> None:
    """Whoever may create tables may put one at the location of another, and may write any UUID into its metadata."""
    history.commit(a_batch("A"))
    publish(history, sink)
    intruder, of_intruder = LedgerHistory(history.home, uuid=uuid, dataset="other/intruder"), RememberingSink()
    intruder.commit(a_batch("X"))
    publish(intruder, of_intruder, origin=Origin("other", "intruder"))
    history.commit(a_batch("B"))
    intruder.commit(a_batch("Y"))
    publish(intruder, of_intruder, origin=Origin("other", "intruder"))

    publish(history, sink)

    assert told(sink.received) == [("publishing.started", ""), ("batch.promoted", "A"), ("batch.promoted", "B")]
    assert told(of_intruder.received) == [("publishing.started", ""), ("batch.promoted", "X"), ("batch.promoted", "Y")]
    assert "replacesTable" not in json.loads(of_intruder.received[0].data)


def test_a_step_is_finished_even_if_its_version_was_rolled_back_meanwhile(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    """What was sent of it is then corrected."""
    first = history.commit(a_batch("A"))
    publish(history, sink)
    history.commit(a_batch("B"), a_batch("C"))
    sink.failures.append(SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1))
    with pytest.raises(SinkError):
        publish(history, sink)
    history.roll_back(first)

    publish(history, sink)

    assert told(sink.received[2:]) == [
        ("batch.promoted", "B"),
        ("batch.promoted", "C"),
        ("table.rolled-back", ""),
        ("batch.forgotten", "B"),
        ("batch.forgotten", "C"),
    ]


def test_a_step_whose_version_is_gone_ends_with_a_gap(history: LedgerHistory, sink: RememberingSink) -> None:
    first = history.commit(a_batch("A"))
    publish(history, sink)
    gone = history.commit(a_batch("B"), a_batch("C"))
    sink.failures.append(SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1))
    with pytest.raises(SinkError):
        publish(history, sink)
    history.roll_back(first)
    history.expire(gone)

    publish(history, sink)

    assert told(sink.received[3:]) == [("history.gap", ""), ("batch.promoted", "A")]
    assert json.loads(sink.received[3].data)["reason"] == "HistoryExpired"


def test_if_the_version_after_a_gap_is_gone_too_another_gap_leads_to_the_head(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    """A publisher ended within the first gap, and came back after that version had expired as well."""
    first = history.commit(a_batch("A"))
    publish(history, sink)
    second = history.commit(a_batch("B"))
    history.expire(first)
    sink.failures.append(SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1))  # of the events of the gap
    with pytest.raises(SinkError):
        publish(history, sink)
    history.commit(a_batch("C"))
    history.expire(second)

    publish(history, sink)

    assert told(sink.received)[-4:] == [("history.gap", ""), *(("batch.promoted", id) for id in "ABC")]
    assert view_of(sink.received) == history.states()


def test_a_table_whose_first_versions_have_expired_is_not_taken_for_a_new_one(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    """Its cursor was deleted to give up an event that a sink refuses, long after events were enabled."""
    first = history.commit(a_batch("A"))
    history.commit(a_batch("B"))
    history.expire(first)

    publish(history, sink, start=StartedFrom.HEAD, enabled_ms=lambda: 0)
    history.commit(a_batch("C"))
    publish(history, sink, start=StartedFrom.HEAD, enabled_ms=lambda: 0)

    assert told(sink.received) == [("publishing.started", ""), ("batch.promoted", "C")]
