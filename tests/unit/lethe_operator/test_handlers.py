"""From what a watch or a listing tells to what is reconciled."""

import asyncio
from typing import Any

import pytest
from lethe_operator.handlers import resync as pulse
from lethe_operator.handlers import watch_events
from lethe_operator.health import OperatorHealth
from lethe_operator.kube import DATASETS, RESTATEMENTS
from lethe_operator.observe.restatements import RestatementCache
from lethe_operator.work_queue import SHARED_RUNS, Key, WorkQueue

from tests.support.fake_cluster import Client, FakeCluster
from tests.support.resources import a_dataset_body, a_restatement_body

FLIGHTS = Key("Dataset", "ns", "flights")


class Keys(WorkQueue):
    """What is asked for."""

    def __init__(self) -> None:
        self.added: list[Key] = []

    def add(self, key: Key, delay: float | None = None) -> None:
        assert delay is None
        self.added.append(key)


def a_server(**spec: Any) -> FakeCluster:
    return FakeCluster((DATASETS, a_dataset_body()), (RESTATEMENTS, a_restatement_body(**spec)))


def test_a_restatement_is_a_cause_to_look_at_its_dataset_unless_the_operator_wrote_it_itself() -> None:
    """Each of thousands of statuses would be one more look at thousands of Restatements."""
    server, known, queue = a_server(), RestatementCache(), Keys()
    health = OperatorHealth(lambda: 0.0, 15)

    def told(body: Any, deleted: bool = False) -> int:
        before = len(queue.added)
        watch_events.restatement(queue, health, known, deleted, body)
        return len(queue.added) - before

    assert told(server.get(RESTATEMENTS, "ns", "revert-a")) == 1
    own = server.patch(RESTATEMENTS, "ns", "revert-a", {"status": {"phase": "Queued"}}, "status")
    known.record_write(own)
    assert told(own) == 0
    assert told(server.patch(RESTATEMENTS, "ns", "revert-a", {"spec": {"suspend": True}})) == 1
    assert told(server.get(RESTATEMENTS, "ns", "revert-a"), deleted=True) == 1
    assert set(queue.added) == {FLIGHTS}


def test_what_is_listed_every_time_leaves_restatements_out_and_finds_their_datasets() -> None:
    """Also of a Dataset that does not exist: its Restatements show that."""
    client, known = Client(a_server(datasetRef={"name": "nobody"})), RestatementCache()
    known.list(client, "ns")  # type: ignore[arg-type]
    client.requests.clear()

    found = pulse.list_everything(client, known, ["ns"])  # type: ignore[arg-type]

    assert set(found.keys) == {Key(SHARED_RUNS, "ns", ""), FLIGHTS, Key("Dataset", "ns", "nobody")}
    assert client.requests == ["list Dataset", "list VacuumPolicy"]


@pytest.mark.parametrize("every_seconds", [3600.0, 0.0])
def test_restatements_are_listed_when_their_time_has_come(
    monkeypatch: pytest.MonkeyPatch, every_seconds: float
) -> None:
    client, queue, known = Client(a_server()), Keys(), RestatementCache()
    monkeypatch.setattr(pulse, "RESTATEMENTS_LISTED_EVERY_SECONDS", every_seconds)

    async def three_rounds() -> None:
        task = asyncio.create_task(
            pulse.resync(queue, OperatorHealth(lambda: 0.0, 15), client, known, ["ns"], 0.0)  # type: ignore[arg-type]
        )
        while queue.added.count(FLIGHTS) < 3:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(three_rounds(), 10))

    listings = client.requests.count("list Restatement")
    assert listings >= 3 if every_seconds == 0 else listings == 1
