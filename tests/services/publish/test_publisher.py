"""Tables, reconciles, publishers and a receiver together, put together as the operator does it."""

import time
from pathlib import Path

import pytest
from lethe_operator.publish.publisher import Publishers, publishers_of
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.observed import EventsSettings, HttpSinkSettings, OpenLineageSettings
from lethe_operator.settings import Settings
from prometheus_client import CollectorRegistry, generate_latest

from tests.support.fake_cluster import an_operator
from tests.support.publishing import wait_for
from tests.support.servers.receiver import HANG, RESET, Answer, Receiver, a_receiver
from tests.support.small_lake import FLIGHTS, SmallLake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = SmallLake.make(tmp_path)
    made.create_table()
    made.put("A", "B", "C")
    return made


def settings_for(receiver: Receiver, lineage: Receiver | None = None) -> EventsSettings:
    return EventsSettings(
        enabled=True,
        http=HttpSinkSettings(url=receiver.url, timeout_seconds=1),
        open_lineage=OpenLineageSettings(url=lineage.url, timeout_seconds=1) if lineage is not None else None,
        retry_base_seconds=0.05,
        retry_max_seconds=0.1,
    )


def started(lake: SmallLake, events: EventsSettings, registry: CollectorRegistry) -> tuple[Reconciler, Publishers]:
    operator = an_operator(lake.cluster)
    kube = lake.cluster
    publishers = publishers_of(Settings(events=events), kube, operator.tables.opened, lambda _: True, registry)  # type: ignore[arg-type]
    assert publishers is not None
    object.__setattr__(operator, "publishers", publishers)
    publishers.start()
    return operator, publishers


def test_events_arrive_in_order_through_every_kind_of_fault_and_no_reconcile_waits(
    lake: SmallLake, receiver: Receiver
) -> None:
    receiver.answers = [
        Answer(503),
        HANG,
        Answer(204),
        RESET,
        Answer(429, {"retry-after": "0"}),
        Answer(400),
        Answer(404),
    ]
    operator, publishers = started(lake, settings_for(receiver), CollectorRegistry())
    longest = 0.0
    for batch in "ABC":
        lake.commit(lake.promoted(batch))
        began = time.monotonic()
        operator(FLIGHTS)
        longest = max(longest, time.monotonic() - began)

    wait_for(lambda: len(receiver.events) == 4)
    publishers.stop()

    assert receiver.subjects == ["", "A", "B", "C"]
    assert longest < 5  # the receiver alone held up its requests for longer, all together


def test_a_receiver_that_is_away_is_shown_and_a_successor_delivers_everything(lake: SmallLake) -> None:
    receiver, registry = a_receiver(), CollectorRegistry()
    operator, publishers = started(lake, settings_for(receiver), registry)
    lake.commit(lake.promoted("A"))
    operator(FLIGHTS)
    wait_for(
        lambda: 'failures_total{output="StatusEvents",reason="SinkUnavailable"}' in generate_latest(registry).decode()
    )
    publishers.stop()
    lake.commit(lake.promoted("B"))
    with receiver.up():
        operator, publishers = started(lake, settings_for(receiver), CollectorRegistry())
        operator(FLIGHTS)
        wait_for(lambda: len(receiver.events) == 3)
        publishers.stop()

    assert receiver.subjects == ["", "A", "B"]


def test_a_lineage_server_that_is_away_does_not_hold_up_status_events(lake: SmallLake, receiver: Receiver) -> None:
    lineage = a_receiver()  # it does not listen
    operator, publishers = started(lake, settings_for(receiver, lineage), CollectorRegistry())
    lake.commit(lake.promoted("A"))

    operator(FLIGHTS)

    wait_for(lambda: receiver.subjects == ["", "A"])
    publishers.stop()
