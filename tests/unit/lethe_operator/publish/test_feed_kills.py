"""The publisher dies at any of its steps, again and again, while the history goes on: without duplicates, a consumer has
received what the ledger's history says, in its order."""

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.ledger.ledger import BatchState
from lethe_operator.publish.cursor_files import CursorMoved
from lethe_operator.publish.delivery import SinkError
from lethe_operator.publish.events import EventType
from lethe_operator.publish.feed import FeedState
from lethe_operator.reasons import Reason

from tests.support.builders import a_batch, a_tombstone
from tests.support.publishing import LedgerHistory, RememberingSink, deduplicated, publish, told, view_of
from tests.support.steps import Killed


def history_in(home: Path) -> LedgerHistory:
    """Three versions, one of them with several events."""
    history = LedgerHistory(home)
    history.commit(a_batch("A"), a_batch("B"))
    history.commit(a_batch("A", BatchState.REVERTED, restatement="ns/r/1"), a_tombstone("A"))
    history.commit(remove_tombstones=frozenset({a_tombstone("A").key}))
    return history


def dying_at(number: int) -> Callable[[str], None]:
    """Die at the step of this number."""
    left = itertools.count()

    def at_step(_: str) -> None:
        if next(left) == number:
            raise Killed

    return at_step


def test_a_publisher_killed_at_any_step_repeats_events_and_loses_none(tmp_path: Path) -> None:
    steps: list[str] = []
    whole = RememberingSink()
    publish(history_in(tmp_path / "whole"), whole, at_step=steps.append)
    assert {"before-cursor", "started", "begun", "before-send", "sent", "finished"} == set(steps)
    for number, name in enumerate(steps):
        history = history_in(tmp_path / str(number))
        sink = RememberingSink()
        with pytest.raises(Killed):
            publish(history, sink, at_step=dying_at(number))

        publish(history, sink)

        assert told(deduplicated(sink.received)) == told(whole.received), name
        repeated = len(sink.received) - len(whole.received)
        assert 0 <= repeated <= 2, name  # at most the events of one step
        assert [e.id for e in deduplicated(sink.received)] == sorted({e.id for e in sink.received}), name


def test_a_process_with_an_old_cursor_learns_it_before_it_moves_it(tmp_path: Path) -> None:
    """Such as one whose write was not answered, or that was paused."""
    history, sink, old = history_in(tmp_path), RememberingSink(), FeedState()
    publish(history, sink, old)
    history.commit(a_batch("C"))
    publish(history, RememberingSink())  # by another process
    history.commit(a_batch("D"))

    with pytest.raises(CursorMoved):
        publish(history, sink, old)
    assert old.numbered is None
    publish(history, sink, old)

    assert told(sink.received)[-1] == ("batch.promoted", "D")


class Life:
    """A table's history and its publisher, which may die at any step."""

    def __init__(self, home: Path) -> None:
        self.history = LedgerHistory(home)
        self.sink = RememberingSink()
        self.state = FeedState()
        self.expected: list[tuple[str, str]] = []  # of versions that were committed, if nothing was skipped
        self.lines: list[int | None] = [None]

    def commit(self, id: str, state: BatchState) -> None:
        is_taken_back = state not in (BatchState.PROMOTED, BatchState.REFUSED, BatchState.HELD)
        restatement = f"ns/r/{self.history.made}" if is_taken_back else None
        known = self.history.states().get(id)
        entry = a_batch(id, state, restatement=restatement, **_refusal(state, self.history.made))
        self.history.commit(entry)
        self.lines.append(self.history.head_id)
        deleted = known in ("reverted", "replaced", "erased")
        if state is BatchState.PROMOTED:
            # Of a promoted batch, the same entry in a new version has another snapshot.
            self.expected.append(("batch.restored" if deleted else "batch.promoted", id))
        else:
            self.expected.append((f"batch.{state}", id))

    def publish(self, die_at: int | None, failures: int, delivered: int) -> None:
        self.sink.failures = [SinkError(Reason.SINK_UNAVAILABLE, "away", delivered=delivered)] * failures
        kill = dying_at(die_at) if die_at is not None else lambda _: None
        try:
            publish(self.history, self.sink, self.state, at_step=kill)
        except Killed:
            self.state = FeedState()
        except SinkError:
            pass

    def roll_back(self, to: int) -> None:
        retained = [i for i in self.lines if i is None or i in self.history.snapshots]
        self.history.roll_back(retained[to % len(retained)])

    def expire(self, number: int) -> None:
        ancestors = [i for i in sorted(self.history.snapshots) if i != self.history.head_id]
        gone = ancestors[:number]
        if gone:
            self.history.expire(*gone)


def _refusal(state: BatchState, number: int) -> dict[str, str]:
    is_refused = state in (BatchState.REFUSED, BatchState.HELD)
    return {"refusal": f"BadSchema: number {number}"} if is_refused else {}


COMMIT = st.tuples(st.just("commit"), st.sampled_from("ABC"), st.sampled_from(list(BatchState)))
PUBLISH = st.tuples(st.just("publish"), st.one_of(st.none(), st.integers(0, 12)), st.integers(0, 2), st.integers(0, 1))
ROLL_BACK = st.tuples(st.just("roll_back"), st.integers(0, 8))
EXPIRE = st.tuples(st.just("expire"), st.integers(1, 4))


@given(st.lists(st.one_of(COMMIT, PUBLISH), max_size=14))
def test_for_any_commits_and_crashes_the_deduplicated_events_are_the_history(acts: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as home:
        life = Life(Path(home))
        for name, *arguments in acts:
            getattr(life, name)(*arguments)
        life.publish(None, 0, 0)

        received = deduplicated(life.sink.received)
        assert [t for t in told(received) if t[0].startswith("batch.")] == life.expected
        assert [e.sequence for e in received] == sorted({e.sequence for e in received})
        assert view_of(life.sink.received) == life.history.states()


@given(st.lists(st.one_of(COMMIT, PUBLISH, ROLL_BACK), max_size=16))
def test_for_any_rollbacks_and_crashes_a_consumer_ends_with_the_states_of_the_ledger(acts: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as home:
        life = Life(Path(home))
        for name, *arguments in acts:
            getattr(life, name)(*arguments)
        life.publish(None, 0, 0)

        received = deduplicated(life.sink.received)
        assert view_of(life.sink.received) == life.history.states()
        assert [e.sequence for e in received] == sorted({e.sequence for e in received})


@given(st.lists(st.one_of(COMMIT, PUBLISH, ROLL_BACK, EXPIRE), max_size=18))
def test_for_any_expiry_a_consumer_has_the_states_of_the_ledger_or_is_told_of_the_gap(acts: list[Any]) -> None:
    """After HistoryExpired, it may still know batches that were forgotten. What it knows of others is right."""
    with tempfile.TemporaryDirectory() as home:
        life = Life(Path(home))
        for name, *arguments in acts:
            getattr(life, name)(*arguments)
        life.publish(None, 0, 0)

        known, actual = view_of(life.sink.received), life.history.states()
        gaps = [e for e in life.sink.received if e.type == EventType.HISTORY_GAP and "HistoryExpired" in e.data]
        if not gaps:
            assert known == actual
        assert {i: known.get(i) for i in actual} == actual
