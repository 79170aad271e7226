"""The threads that publish: what they cost when nothing happens, and what a failing sink holds up."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from lethe.kube import NotLeading
from lethe_operator.publish.cursor_files import CursorFiles
from lethe_operator.publish.delivery import FailureScope, SinkError
from lethe_operator.publish.feed import OpenTable, PublishedDataset
from lethe_operator.publish.publisher import TROUBLE_SECONDS, Publisher
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    NO_TROUBLE,
    EventsSettings,
    HttpSinkSettings,
    NoTable,
    StartedFrom,
    TableView,
)

from tests.support.builders import a_batch
from tests.support.publishing import LedgerHistory, RememberingSink, told, wait_for
from tests.support.resources import a_dataset

SECONDS = 20
SETTINGS = EventsSettings(
    enabled=True,
    http=HttpSinkSettings(url="http://sink"),
    start=StartedFrom.BEGINNING,
    retry_base_seconds=0.01,
    retry_max_seconds=0.02,
)


@dataclass
class Clock:
    """Monotonic time that a test also sets forward."""

    more: float = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.more


@dataclass
class Lake:
    """The tables of some Datasets, and a publisher of them."""

    home: Path
    sink: RememberingSink = field(default_factory=RememberingSink)
    histories: dict[str, LedgerHistory] = field(default_factory=dict)
    opened: list[str] = field(default_factory=list)  # names of tables that were loaded
    acting: bool = True
    clock: Clock = field(default_factory=Clock)
    changed: list[str] = field(default_factory=list)
    failures: list[Reason] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)

    def history(self, name: str = "flights") -> LedgerHistory:
        if name not in self.histories:
            number = len(self.histories) + 1
            uuid = f"6b5a3f0c-0000-4000-8000-{number:012}"
            self.histories[name] = LedgerHistory(self.home / name, uuid=uuid)
        return self.histories[name]

    def __call__(self, target: PublishedDataset) -> OpenTable | None:
        self.opened.append(target.name)
        return self.histories[target.name].opened()

    def cursors(self, target: PublishedDataset) -> CursorFiles:
        return self.histories[target.name].opened().cursors

    def publisher(self, settings: EventsSettings = SETTINGS) -> Publisher:
        made = Publisher(settings, self.sink, self, lambda _: 0, lambda _: self.acting, self.clock)
        made.on_change = lambda meta: self.changed.append(meta.name)
        made.on_failure = self.failures.append
        made.on_sent = lambda _, name, number: self.sent.append((name, number))
        return made

    def seen(self, publisher: Publisher, name: str = "flights") -> Dataset:
        """A reconcile sees the table as it is."""
        history, dataset = self.histories[name], a_dataset(name)
        ledger = history.snapshots[history.head_id].ledger if history.head_id is not None else None
        claim = dataset.claim
        view = TableView(history.uuid, history.location, 2, history.head_id, None, claim, None, True, ledger_uri=ledger)
        publisher.table_seen(dataset, view)
        return dataset


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.fixture
def publisher(lake: Lake) -> Iterator[Publisher]:
    made = lake.publisher()
    made.start()
    yield made
    made.stop()


def test_a_commit_that_a_reconcile_saw_is_published(lake: Lake, publisher: Publisher) -> None:
    lake.history().commit(a_batch("A"))

    lake.seen(publisher)

    wait_for(lambda: told(lake.sink.received) == [("publishing.started", ""), ("batch.promoted", "A")])
    wait_for(lambda: sum(n for _, n in lake.sent) == 2)


def test_an_idle_dataset_costs_nothing(lake: Lake, publisher: Publisher) -> None:
    """However often it is reconciled: neither the table nor its cursor is read."""
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    wait_for(lambda: publisher.lags()[0].seconds == 0 and lake.opened)
    lake.opened.clear()
    lake.cursors = lambda _: pytest.fail("the cursor was read")  # type: ignore[method-assign]

    for _ in range(50):
        lake.seen(publisher)

    assert publisher._pacing.next_time() is None
    assert lake.opened == []


def test_after_a_start_a_published_table_is_not_loaded(lake: Lake, publisher: Publisher) -> None:
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    wait_for(lambda: len(lake.sink.received) == 2 and publisher.lags()[0].seconds == 0)
    lake.opened.clear()
    other = lake.publisher()
    other.start()

    lake.seen(other)

    wait_for(lambda: other.lags()[0].seconds == 0 and not other._datasets["ns/flights"].busy)
    assert other._datasets["ns/flights"].state.published is not None
    assert lake.opened == []
    other.stop()


def test_only_the_dataset_that_claims_a_table_publishes_it(lake: Lake, publisher: Publisher) -> None:
    lake.history().commit(a_batch("A"))
    dataset = a_dataset("flights")
    view = TableView("u", "file:///t", 2, 1, None, "ns/another", None, True, ledger_uri="r")

    publisher.table_seen(dataset, view)
    publisher.table_seen(dataset, NoTable())

    assert publisher.lags() == []


def test_a_sink_that_hangs_delays_no_reconcile_and_no_question(lake: Lake, publisher: Publisher) -> None:
    release = threading.Event()
    lake.sink.on_send = lambda: release.wait(SECONDS)
    for name in ("a", "b", "c", "d"):
        lake.history(name).commit(a_batch("A"))
        lake.seen(publisher, name)
    wait_for(lambda: lake.sink.calls == SETTINGS.workers)

    for name in ("a", "b", "c", "d"):
        dataset = lake.seen(publisher, name)
        assert publisher.view(dataset) == NO_TROUBLE
    lags = publisher.lags()

    assert lake.sink.calls == SETTINGS.workers, "a send ended, so something has waited for it"
    assert len(lags) == 4
    assert min(lag.seconds for lag in lags) > 0
    release.set()
    wait_for(lambda: sum(lag.seconds for lag in publisher.lags()) == 0)
    assert len(lake.sink.received) == 8


def test_while_a_sink_is_away_it_is_asked_rarely_whatever_the_number_of_datasets(lake: Lake) -> None:
    """A pause of the sink is a pause of all."""
    publisher = lake.publisher(SETTINGS.model_copy(update={"retry_base_seconds": 60, "retry_max_seconds": 60}))
    lake.sink.failures = [SinkError(Reason.SINK_UNAVAILABLE, "away")] * 100
    for n in range(30):
        lake.history(f"d{n}").commit(a_batch("A"))
        lake.seen(publisher, f"d{n}")
    publisher.start()
    wait_for(lambda: lake.failures and not any(d.busy for d in publisher._datasets.values()))

    assert lake.sink.calls <= SETTINGS.workers
    lake.sink.failures = []
    lake.clock.more = 200
    with publisher._changed:
        publisher._changed.notify_all()

    wait_for(lambda: len(lake.sink.received) == 60)
    publisher.stop()


def test_a_message_that_is_refused_holds_up_only_its_dataset_and_is_retried(lake: Lake, publisher: Publisher) -> None:
    refused = SinkError(Reason.MESSAGE_REFUSED, "http://sink answers 400.", scope=FailureScope.MESSAGE)
    lake.sink.failures = [refused] * 3
    lake.history("bad").commit(a_batch("A"))
    bad = lake.seen(publisher, "bad")
    wait_for(lambda: lake.changed or lake.sink.received)
    assert lake.changed[:1] == ["bad"]
    shown = [publisher.view(bad)]
    lake.history("good").commit(a_batch("B"))
    lake.seen(publisher, "good")

    wait_for(lambda: len(lake.sink.received) == 4)

    assert lake.failures == [Reason.MESSAGE_REFUSED] * 3
    assert [e.subject for e in lake.sink.received if e.source.endswith("bad")] == ["", "A"]
    assert shown[0].reason in ("", "MessageRefused")


def test_a_short_trouble_of_the_sink_is_not_shown(lake: Lake) -> None:
    publisher = lake.publisher()
    lake.sink.failures = [SinkError(Reason.SINK_UNAVAILABLE, "away")] * 3
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    publisher.start()

    wait_for(lambda: len(lake.sink.received) == 2)

    assert lake.changed == []
    lake.sink.failures = [SinkError(Reason.SINK_UNAVAILABLE, "away")] * 1000
    lake.history().commit(a_batch("B"))
    dataset = lake.seen(publisher)
    wait_for(lambda: len(lake.failures) > 4)
    lake.clock.more = TROUBLE_SECONDS
    wait_for(lambda: lake.changed)
    assert publisher.view(dataset).reason == "SinkUnavailable"
    publisher.stop()


def test_a_trouble_of_the_sink_is_shown_by_all_datasets_that_wait_for_it(lake: Lake) -> None:
    """Also by those that did not try it: one at a time does. Those that are published are not concerned."""
    publisher = lake.publisher(SETTINGS.model_copy(update={"retry_base_seconds": 60, "retry_max_seconds": 60}))
    lake.history("done").commit(a_batch("A"))
    done = lake.seen(publisher, "done")
    publisher.start()
    wait_for(lambda: len(lake.sink.received) == 2 and publisher.lags()[0].seconds == 0)
    lake.sink.failures = [SinkError(Reason.SINK_NOT_FOUND, "the topic events does not exist.")] * 100
    waiting = []
    for n in range(10):
        lake.history(f"d{n}").commit(a_batch("A"))
        waiting.append(lake.seen(publisher, f"d{n}"))

    wait_for(lambda: all(publisher.view(d).reason == "SinkNotFound" for d in waiting))
    assert publisher.view(done) == NO_TROUBLE
    assert len(lake.failures) < len(waiting)
    lake.changed.clear()
    lake.sink.failures = []
    lake.clock.more = 200
    with publisher._changed:
        publisher._changed.notify_all()

    wait_for(lambda: {d.meta.name for d in waiting} <= set(lake.changed))
    assert {publisher.view(d) for d in waiting} == {NO_TROUBLE}
    publisher.stop()


def test_a_process_that_ceases_to_act_publishes_nothing_and_takes_up_again(lake: Lake, publisher: Publisher) -> None:
    lake.acting = False
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    wait_for(lambda: publisher.lags() == [])
    assert lake.sink.received == []
    lake.acting = True

    lake.seen(publisher)

    wait_for(lambda: len(lake.sink.received) == 2)


def test_after_another_process_has_acted_the_cursor_is_read_again(lake: Lake, publisher: Publisher) -> None:
    """Otherwise it would take a number of a cursor that the other process has written and removed."""
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    # Until the cursor is written, which is after the events were sent: else another process would send them again.
    wait_for(lambda: len(lake.sink.received) == 2 and publisher.lags()[0].seconds == 0)

    publisher.forget_all(["other"])
    assert publisher.lags() != []
    publisher.forget_all(["ns"])
    assert publisher.lags() == []

    lake.history().commit(a_batch("B"))
    lake.seen(publisher)
    wait_for(lambda: len(lake.sink.received) == 3)


def test_a_commit_during_the_publishing_is_published_next(lake: Lake, publisher: Publisher) -> None:
    history = lake.history()
    history.commit(a_batch("A"))

    def commit_once() -> None:
        if history.made == 1:
            history.commit(a_batch("B"))
            lake.seen(publisher)

    lake.sink.on_send = commit_once
    lake.seen(publisher)

    wait_for(lambda: [e.subject for e in lake.sink.received] == ["", "A", "B"])


def test_a_damaged_cursor_is_shown(lake: Lake, publisher: Publisher) -> None:
    history = lake.history()
    history.commit(a_batch("A"))
    folder = history.home / "flights" / "_events" / history.uuid / "ns.flights"
    folder.mkdir(parents=True)
    (folder / f"{7:016}.json").write_text("{}")
    dataset = lake.seen(publisher)

    wait_for(lambda: publisher.view(dataset).reason == "CursorUnreadable")
    assert f"{folder}/{7:016}.json" in publisher.view(dataset).message
    (folder / f"{7:016}.json").unlink()

    wait_for(lambda: len(lake.sink.received) == 2)


def test_a_forgotten_dataset_is_not_published(lake: Lake) -> None:
    publisher = lake.publisher()
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)

    publisher.forget("ns/flights")

    assert publisher._pacing.take(time.monotonic() + 9) is None
    assert publisher.lags() == []


def test_a_dataset_with_another_table_starts_anew(lake: Lake, publisher: Publisher) -> None:
    lake.history().commit(a_batch("A"))
    lake.seen(publisher)
    wait_for(lambda: len(lake.sink.received) == 2)
    lake.histories["flights"] = LedgerHistory(lake.home / "elsewhere", uuid="6b5a3f0c-0000-4000-8000-00000000000f")
    lake.history().commit(a_batch("B"))

    lake.seen(publisher)

    wait_for(lambda: told(lake.sink.received[2:]) == [("publishing.started", ""), ("batch.promoted", "B")])


def test_after_a_start_a_new_commit_goes_before_tables_that_are_only_looked_at(lake: Lake) -> None:
    """A new leader looks at the cursors of ten thousand tables, which takes minutes."""
    publisher = lake.publisher()
    for n in range(5):
        lake.history(f"d{n}").commit(a_batch("A"))
        lake.seen(publisher, f"d{n}")
    lake.history("d3").commit(a_batch("B"))
    lake.seen(publisher, "d3")

    taken = [publisher._pacing.take(time.monotonic()) for _ in range(5)]

    assert taken[0] == "ns/d3"
    assert sorted(taken, key=str) == [f"ns/d{n}" for n in range(5)]


def test_not_leading_is_no_failure(lake: Lake, publisher: Publisher) -> None:
    lake.history().commit(a_batch("A"))

    def lose() -> None:
        raise NotLeading("ns")

    lake.sink.on_send = lose
    lake.seen(publisher)

    wait_for(lambda: publisher.lags() == [])
    assert lake.failures == []
