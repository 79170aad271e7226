"""What a Dataset says of its events, and which of two may read a queue."""

from dataclasses import replace
from typing import Any

import pytest
from lethe.base import names
from lethe.buffer.digest import BufferDigest
from lethe.buffer.notifications import Written
from lethe_operator.dataset.buffer_events import EventSources
from lethe_operator.dataset.consolidation import CHEAP_OBJECTS, OBJECTS_PER_BATCH_TAKEN
from lethe_operator.dataset.listing import Listings
from lethe_operator.dataset.observe import looks_for_new, needs_listing, taken_by
from lethe_operator.guards.preconditions import other_reader
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, EventsView, NotListed, Unavailable

from tests.support.builders import NOW, a_history, a_snapshot, ago
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_consolidation,
    a_dataset,
    a_restatement,
    a_restatement_run,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import decide

RUN, REVERT = a_consolidation(), a_restatement_run(a_restatement())
SUCCEEDED = AttemptState.SUCCEEDED
SEEN = BufferDigest(head_id=a_table().head_id)
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/flights"


def with_events(name: str = "flights", url: str = QUEUE, **changes: Any) -> Dataset:
    buffer = {"uri": f"s3://lake/buffer/{name}", "events": {"queueUrl": url}}
    return a_dataset(name, **{"buffer": buffer, **changes})


def status(events: EventsView | None) -> dict[str, Any]:
    found = decide(with_events(), a_world(a_buffered(age_seconds=900), events=events), NOW, SETTINGS).dataset_status
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("events", "ready"),
    [
        (EventsView(), ("Unknown", "QueueNotAsked")),
        (EventsView(is_read=True), ("True", "QueueRead")),
        (EventsView(trouble=Unavailable("QueueNotFound", "there is no queue")), ("False", "QueueNotFound")),
    ],
)
def test_how_the_queue_is_read_is_a_condition_that_stops_nothing(events: EventsView, ready: tuple[str, str]) -> None:
    found = status(events)

    assert condition(found, "EventsReady") == ready
    assert condition(found, "Ready")[0] == "True"
    assert found["consolidation"]["decision"] == "Due"


def test_the_condition_says_why_a_queue_cannot_be_read() -> None:
    assert message(status(EventsView(trouble=Unavailable("QueueNotFound", "no queue"))), "EventsReady") == "no queue"


def test_who_asks_for_no_events_hears_nothing_of_them() -> None:
    assert "EventsReady" not in {c["type"] for c in status(None)["conditions"]}


def test_a_run_gets_the_objects_of_its_own_batches() -> None:
    """The run id does not depend on them: an operator without notifications starts the same run."""
    heard = {
        i: {f"s3://lake/buffer/flights/batch_id={i}/p": Written(i, f"batch_id={i}", "k" + i, "e", "05")} for i in "AB"
    }
    worlds = [a_world(a_buffered(age_seconds=900), events=EventsView(True, writes=w)) for w in (heard, {})]

    told, silent = (decide(with_events(), w, NOW, SETTINGS).launches[0].run for w in worlds)

    assert told.consolidation is not None
    assert [(o.key, o.etag, o.sequencer) for o in told.consolidation.seen_objects] == [("kA", "e", "05")]
    assert told.run_id == silent.run_id


def test_a_queue_belongs_to_the_oldest_dataset_that_reads_it() -> None:
    older = with_events("older", meta={"creationTimestamp": ago(days=2).isoformat()})
    other = with_events("other", url=f"{QUEUE}-2", meta={"creationTimestamp": ago(days=3).isoformat()})
    silent = a_dataset("silent", meta={"creationTimestamp": ago(days=4).isoformat()})
    own = with_events()

    assert other_reader(own, [older, other, silent]) == older
    assert other_reader(older, [own, other, silent]) is None
    assert other_reader(silent, [older, own]) is None


def test_the_batches_of_the_run_that_has_ended_are_not_counted_for_the_next_ones() -> None:
    other = a_consolidation(a_buffered("Z"))

    assert taken_by([a_run(RUN), a_run(other), a_run(REVERT)], [an_attempt(RUN, SUCCEEDED)]) == {"A"}
    assert taken_by([a_run(RUN)], []) == frozenset()


@pytest.mark.parametrize(
    ("ended", "calls"),
    [
        ([], False),
        ([an_attempt(RUN, SUCCEEDED, result=a_result(RUN))], False),
        ([an_attempt(RUN, SUCCEEDED, result=a_result(RUN, message="1 batches are not in the buffer"))], True),
        ([an_attempt(RUN, SUCCEEDED, result=a_result(RUN, "NothingToDo"))], True),
        ([an_attempt(RUN, AttemptState.FAILED)], True),
        ([an_attempt(REVERT, SUCCEEDED, result=a_result(REVERT))], True),  # the status counts what it withholds
    ],
)
def test_only_the_end_of_a_run_that_promoted_all_its_batches_calls_for_no_listing(
    ended: list[Attempt], calls: bool
) -> None:
    assert needs_listing(ended, True, SEEN, a_table(), (), 2) is calls


def test_a_large_buffer_is_not_listed_after_each_restatement_only_after_an_undo() -> None:
    """Batches that were withheld may be promoted after it."""
    history = a_history(
        a_snapshot(1), a_snapshot(2, 1), a_snapshot(3, 2, ledger="L3", **{names.TOMBSTONE_DELETED: "1"})
    )
    ended, large = [an_attempt(REVERT, SUCCEEDED, result=a_result(REVERT))], CHEAP_OBJECTS + 1

    for head, listed, calls in ((2, 1, False), (3, 1, True), (3, 3, False)):
        known, table = BufferDigest(objects=large, head_id=listed), a_table(head_id=head, ancestry=history)
        assert needs_listing(ended, False, known, table, (), 2) is calls
        assert not needs_listing([], False, known, table, (), 2)


@pytest.mark.parametrize(
    ("ended", "events_come", "known", "looks"),
    [
        ([an_attempt(RUN, SUCCEEDED)], False, BufferDigest(objects=CHEAP_OBJECTS + 1), True),
        ([an_attempt(RUN, SUCCEEDED)], True, BufferDigest(objects=CHEAP_OBJECTS + 1), False),  # they name new batches
        ([an_attempt(RUN, SUCCEEDED)], False, BufferDigest(objects=CHEAP_OBJECTS), False),  # all is listed
        ([an_attempt(RUN, SUCCEEDED)], False, NotListed(), False),
        ([an_attempt(REVERT, SUCCEEDED)], False, BufferDigest(objects=CHEAP_OBJECTS + 1), False),
        ([], False, BufferDigest(objects=CHEAP_OBJECTS + 1), False),
    ],
)
def test_new_batches_of_a_large_buffer_are_looked_for_when_a_consolidation_ends(
    ended: list[Attempt], events_come: bool, known: Any, looks: bool
) -> None:
    assert looks_for_new(ended, events_come, known) is looks


MANY = tuple(f"b{n}" for n in range(600))


@pytest.mark.parametrize(
    ("events_come", "batches", "taken", "calls"),
    [
        (False, 600, MANY, True),
        (False, 899, MANY, True),
        (False, 900, MANY, False),  # enough are known for the next run
        (False, 500, MANY[:500], False),  # a listing of all costs too much for so few
        (True, 600, MANY, False),
    ],
)
def test_a_large_buffer_is_listed_after_a_run_that_took_many_batches_and_left_few(
    events_come: bool, batches: int, taken: tuple[str, ...], calls: bool
) -> None:
    done, large = an_attempt(RUN, SUCCEEDED, result=a_result(RUN)), OBJECTS_PER_BATCH_TAKEN * len(MANY) - 1
    waiting = a_buffer(*(a_buffered(f"b{n}") for n in range(batches)))
    known = replace(waiting, objects=large, head_id=a_table().head_id)

    assert needs_listing([done], events_come, known, a_table(), taken, 50_000) is calls


WAITING = replace(a_buffer(*(a_buffered(f"b{n}") for n in range(9)), names=8), head_id=a_table().head_id)


@pytest.mark.parametrize(
    ("events_come", "known", "taken", "run_takes", "calls"),
    [
        (True, NotListed(), (), 2, True),
        (False, replace(SEEN, objects=CHEAP_OBJECTS), (), 2, True),  # new batches are found as soon as possible
        (False, replace(SEEN, objects=CHEAP_OBJECTS + 1), (), 2, False),  # after a pause in proportion to its cost
        (False, WAITING, (), 4, False),  # it names the batches of two more runs
        (True, WAITING, (), 4, False),
        (False, WAITING, ("b0",), 4, True),  # one of them is of the run that has ended
        (False, WAITING, (), 5, True),  # it is listed while the run of the last five works
        (True, WAITING, (), 5, True),
    ],
)
def test_the_end_of_a_run_calls_for_a_listing_before_the_known_batches_are_used_up(
    events_come: bool, known: Any, taken: tuple[str, ...], run_takes: int, calls: bool
) -> None:
    done = an_attempt(RUN, SUCCEEDED, result=a_result(RUN))

    assert needs_listing([done], events_come, known, a_table(), taken, run_takes) is calls
    assert not needs_listing([], events_come, known, a_table(), taken, run_takes)


@pytest.mark.parametrize(
    ("changes", "others", "reason"),
    [
        ({"consolidation": {"suspend": True}}, "", "Suspended"),
        ({"meta": {"annotations": {"lethe.dev/paused": "true"}}}, "", "Paused"),
        ({"buffer": {"uri": "file:///b", "events": {"queueUrl": QUEUE}}}, "", "NotSupported"),
        ({}, "older", "QueueShared"),
    ],
)
def test_a_queue_is_left_alone_while_nothing_would_come_of_it(
    changes: dict[str, Any], others: str, reason: str
) -> None:
    """Each time it were received, a message would come nearer to the end of its redrive policy."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("the queue was opened")

    found = EventSources(Listings(), open_queue=refuse).view(with_events(**changes), {}, {}, others)

    assert found is not None
    assert found.trouble is not None
    assert (found.is_read, found.trouble.reason) == (False, reason)
