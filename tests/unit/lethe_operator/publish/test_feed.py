"""What a consumer receives of a table's ledger, whatever happens to the publisher, the history and the sink."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from lethe import ledger_chunks
from lethe.contract.result import ErasureOutcome
from lethe.contract.run import Provenance
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchState, RequestEntry
from lethe_operator.publish.cursor_files import CursorMoved
from lethe_operator.publish.delivery import SinkError
from lethe_operator.publish.feed import NOTED_EVERY, FeedState
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import StartedFrom

from tests.support.builders import NOW, a_batch, a_request_entry, a_tombstone
from tests.support.publishing import CHUNK, LedgerHistory, RememberingSink, a_feed, deduplicated, publish, told, view_of


@pytest.fixture
def history(tmp_path: Path) -> LedgerHistory:
    return LedgerHistory(tmp_path)


@pytest.fixture
def sink() -> RememberingSink:
    return RememberingSink()


def ms(**delta: float) -> int:
    return int((NOW + timedelta(**delta)).timestamp() * 1000)


def test_each_commit_of_each_operation_is_told_once_and_in_order(history: LedgerHistory, sink: RememberingSink) -> None:
    history.commit(a_batch("A"), a_batch("B"), a_batch("C"), a_batch("D", BatchState.REFUSED, refusal="BadSchema: no"))
    of_revert = a_request_entry("ns/r/1", operation=Operation.REVERT)
    history.commit(a_batch("A", BatchState.REVERTED, restatement="ns/r/1"), a_tombstone("A"), of_revert)
    history.commit(
        a_batch("B", BatchState.REPLACED, replaced_by="B2", restatement="ns/p/1"),
        a_batch("B2", restatement="ns/p/1"),
        a_tombstone("B", restatements=["ns/p/1"]),
        a_request_entry("ns/p/1", operation=Operation.REPLAY, rows_added=3),
    )
    history.commit(a_batch("A"), remove_tombstones=frozenset({a_tombstone("A").key}))
    history.append_of_another()
    history.commit(a_batch("C", BatchState.ERASED, restatement="ns/e/1"), a_tombstone("C"))
    history.commit(remove_tombstones=frozenset({a_tombstone("C").key, a_tombstone("B").key}))
    closed = ErasureOutcome(restatement="ns/e/1", verified_time=NOW, record="s3://r", record_sha256="ab")
    history.commit(a_request_entry("ns/e/1", operation=Operation.ERASE, erasure=closed))

    publish(history, sink)

    assert told(sink.received) == [
        ("publishing.started", ""),
        ("batch.promoted", "A"),
        ("batch.promoted", "B"),
        ("batch.promoted", "C"),
        ("batch.refused", "D"),
        ("batch.reverted", "A"),
        ("restatement.committed", "ns/r/1"),
        ("batch.replaced", "B"),
        ("batch.promoted", "B2"),
        ("restatement.committed", "ns/p/1"),
        ("batch.restored", "A"),
        ("batch.erased", "C"),
        ("tombstones.purged", ""),
        ("restatement.committed", "ns/e/1"),
        ("erasure.verified", "ns/e/1"),
    ]
    purged = json.loads(sink.received[12].data)
    assert purged["batchIds"] == ["B", "C"]
    assert view_of(sink.received) == history.states()


def test_versions_that_differ_too_much_to_be_compared_are_read_whole(
    history: LedgerHistory, sink: RememberingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a merge of all chunks of a large ledger; the events are those of a comparison."""
    history.commit(*(a_batch(f"{n:03}") for n in range(20)), a_batch("gone", BatchState.REVERTED, rows=None))
    history.commit(*(a_batch(f"{n:03}", BatchState.REVERTED) for n in range(5)), *map(a_tombstone, ("000", "001")))
    history.commit(remove_tombstones=frozenset({a_tombstone("000").key}), forget_batches=frozenset({"gone"}))
    publish(history, sink)
    (history.home / "flights/_events").rename(history.home / "before")
    whole = RememberingSink()
    monkeypatch.setattr(ledger_chunks, "MAX_COMPARED", 0)

    publish(history, whole)

    assert sorted(told(whole.received)) == sorted(told(sink.received))
    assert view_of(whole.received) == history.states()
    assert told(whole.received)[-2:] == [("batch.forgotten", "gone"), ("tombstones.purged", "")]


def test_what_was_published_is_not_published_again(history: LedgerHistory, sink: RememberingSink) -> None:
    history.commit(a_batch("A"))
    state = publish(history, sink)
    assert told(sink.received) == [("publishing.started", ""), ("batch.promoted", "A")]

    publish(history, sink)  # another process
    publish(history, sink, state)
    assert len(sink.received) == 2
    history.commit(a_batch("B"))
    publish(history, sink)

    assert told(sink.received[2:]) == [("batch.promoted", "B")]
    sequences = [e.sequence for e in sink.received]
    assert sequences == sorted(set(sequences))


def test_an_existing_table_starts_at_its_head_if_this_is_set(history: LedgerHistory, sink: RememberingSink) -> None:
    history.commit(a_batch("A"))
    later = ms(hours=1)  # events were enabled after the first commit

    publish(history, sink, start=StartedFrom.HEAD, enabled_ms=lambda: later)
    history.commit(a_batch("B"))
    publish(history, sink, start=StartedFrom.HEAD, enabled_ms=lambda: later)

    assert told(sink.received) == [("publishing.started", ""), ("batch.promoted", "B")]
    first = json.loads(sink.received[0].data)
    assert (first["start"], first["ledgerVersion"], first["states"]) == ("Head", 1, {"promoted": 1})


def test_a_table_that_was_created_after_events_were_enabled_is_published_whole(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    """Its first commit may have been made before any operator saw the table."""
    history.commit(a_batch("A"))

    publish(history, sink, start=StartedFrom.HEAD, enabled_ms=lambda: ms(hours=-1))

    assert told(sink.received) == [("publishing.started", ""), ("batch.promoted", "A")]


def test_a_failed_event_is_sent_again_with_the_same_id_and_those_before_it_are_not(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    history.commit(*(a_batch(f"{n:04d}") for n in range(2 * CHUNK)))
    sink.failures += [
        SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=0),
        SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1),
    ]
    for _ in range(2):
        with pytest.raises(SinkError):
            publish(history, sink)
    sink.failures.append(SinkError(Reason.MESSAGE_REFUSED, "no", delivered=7))
    with pytest.raises(SinkError):
        publish(history, sink)
    publish(history, sink)

    assert [e.subject for e in sink.received] == ["", *(f"{n:04d}" for n in range(2 * CHUNK))]


def test_a_large_step_notes_its_progress(history: LedgerHistory, sink: RememberingSink) -> None:
    number = NOTED_EVERY + 3 * CHUNK
    history.commit(*(a_batch(f"{n:05d}") for n in range(number)))
    noted: list[str] = []

    class Died(BaseException):
        pass

    def die(step: str) -> None:
        noted.append(step)
        if step == "sent" and noted.count("noted") == 1:
            raise Died

    with pytest.raises(Died):
        publish(history, sink, at_step=die)
    again = RememberingSink()
    publish(history, again)

    assert [e.subject for e in again.received] == [f"{n:05d}" for n in range(NOTED_EVERY, number)]


def test_an_upgrade_in_the_middle_of_a_step_repeats_all_of_it_with_new_ids(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    """Another version might number the events differently, so an old id could be that of another event."""
    history.commit(a_batch("A"), a_batch("B"))
    publish_until_started = SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1)
    sink.failures += [publish_until_started]
    with pytest.raises(SinkError):
        publish(history, sink)
    sink.failures += [SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=1)]
    with pytest.raises(SinkError):
        publish(history, sink)
    assert told(sink.received)[-1] == ("batch.promoted", "A")

    publish(history, sink, max_event_bytes=32 * 1024)

    assert told(sink.received[2:]) == [("batch.promoted", "A"), ("batch.promoted", "B")]
    assert len({e.id for e in sink.received}) == 4


def test_long_lists_are_divided_and_every_message_is_within_the_limit(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    ids = [f"batch-{n:06d}-{'x' * 200}" for n in range(300)]
    tombstones = [a_tombstone(i) for i in ids]
    history.commit(*(a_batch(i, BatchState.REVERTED) for i in ids), *tombstones)
    publish(history, sink)
    before = len(sink.received)
    history.commit(remove_tombstones=frozenset(t.key for t in tombstones))

    publish(history, sink, max_event_bytes=16 * 1024)

    parts = [json.loads(e.data) for e in sink.received[before:]]
    assert [i for p in parts for i in p["batchIds"]] == ids
    assert [p["part"] for p in parts] == list(range(1, len(parts) + 1))
    assert {p["parts"] for p in parts} == {len(parts)}
    assert len(parts) > 1
    assert max(len(e.data.encode()) for e in sink.received[before:]) <= 16 * 1024


def test_an_erased_restatement_is_told_without_its_batch_ids_or_values(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    entry = a_request_entry("ns/e/1", operation=Operation.ERASE, batch_ids=("S3CRET",))
    history.commit(RequestEntry(entry.key, entry.run, entry.time, {**entry.result, "valuesDigest": "DIG3ST"}))

    publish(history, sink)

    assert "S3CRET" not in sink.received[1].data
    assert "DIG3ST" not in sink.received[1].data


def test_who_asked_for_a_restatement_and_why_is_told_once_with_it(
    history: LedgerHistory, sink: RememberingSink
) -> None:
    asked = Provenance(reason="sent twice", ticket="LAKE-7", marks={"lethe.dev/requested-by": "ana"})
    history.commit(a_request_entry("ns/r/1", operation=Operation.REVERT, provenance=asked))
    history.commit(a_request_entry("ns/old/1", operation=Operation.REVERT))

    publish(history, sink)

    contents = [json.loads(e.data) for e in sink.received[1:]]
    assert [[c.get(name) for name in ("reason", "ticket", "requestedBy")] for c in contents] == [
        ["sent twice", "LAKE-7", "ana"],
        [None, None, None],
    ]


def test_two_publishers_at_once_lose_nothing(history: LedgerHistory) -> None:
    """The second one takes over in the middle of a step of the first one, which then learns it from the cursor."""
    for n in range(3):
        history.commit(a_batch(f"A{n}"))
    second = RememberingSink()
    state = FeedState()
    first = RememberingSink()

    def take_over() -> None:
        if first.calls == 2:
            publish(history, second)

    first.on_send = take_over
    with pytest.raises(CursorMoved):
        a_feed(first).publish(history.opened(), state)
    history.commit(a_batch("B"))
    a_feed(first).publish(history.opened(), state)

    subjects = [e.subject for e in deduplicated([*first.received[:1], *second.received, *first.received[1:]])]
    assert subjects == ["", "A0", "A1", "A2", "B"]


def test_a_process_that_may_not_act_sends_and_writes_nothing(history: LedgerHistory, sink: RememberingSink) -> None:
    history.commit(a_batch("A"))

    def refuse() -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        publish(history, sink, check=refuse)

    assert sink.received == []
    assert history.opened().cursors.load() is None
