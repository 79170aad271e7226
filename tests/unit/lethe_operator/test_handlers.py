"""From what a watch or a listing tells to what is reconciled."""

import asyncio
from typing import Any

import pytest
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES, WATCHED
from lethe_operator.cluster.queue import WARM_DRIVER, Key, WorkQueue
from lethe_operator.cluster.schedule import Priority
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.handlers import WatchEvents, all_keys, datasets_of, resync
from lethe_operator.main import registry
from lethe_operator.probes import OperatorHealth

from tests.support.fake_cluster import FakeCluster, watched
from tests.support.resources import a_dataset_body, a_restatement_body

FLIGHTS = Key("Dataset", "ns", "flights")


class Keys(WorkQueue):
    """What is asked for."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.added: list[Key] = []
        self.priorities: list[Priority] = []

    def add(self, key: Key, delay: float | None = None, priority: Priority = Priority.CHANGED) -> None:
        assert delay is None
        self.added.append(key)
        self.priorities.append(priority)


def a_server(**spec: Any) -> FakeCluster:
    return FakeCluster((DATASETS, a_dataset_body()), (RESTATEMENTS, a_restatement_body(**spec)))


def test_a_restatement_is_a_cause_to_look_at_its_dataset_unless_the_operator_wrote_it_itself() -> None:
    """Each of thousands of statuses would be one more look at thousands of Restatements."""
    server, queue, objects = a_server(), Keys(), WatchedObjects()
    events = WatchEvents(queue, OperatorHealth(lambda: 0.0, 600), objects)

    def told(body: Any, type: str = "MODIFIED") -> int:
        before = len(queue.added)
        events.record(RESTATEMENTS, type, body)
        return len(queue.added) - before

    assert told(server.get(RESTATEMENTS, "ns", "revert-a"), "ADDED") == 1
    own = server.patch(RESTATEMENTS, "ns", "revert-a", {"status": {"phase": "Queued"}}, "status")
    objects.written(RESTATEMENTS, own)
    assert told(own) == 0
    assert told(server.patch(RESTATEMENTS, "ns", "revert-a", {"spec": {"suspend": True}})) == 1
    assert told(server.get(RESTATEMENTS, "ns", "revert-a"), "DELETED") == 1
    assert set(queue.added) == {FLIGHTS}


def test_what_is_reconciled_periodically_includes_datasets_that_only_restatements_name() -> None:
    """The status of these Restatements shows that the Dataset does not exist."""
    objects = watched(a_server(datasetRef={"name": "nobody"}))

    found = all_keys(objects, ["ns"])

    assert set(found) == {Key(WARM_DRIVER, "ns", ""), FLIGHTS, Key("Dataset", "ns", "nobody")}


def test_a_version_is_news_once_and_a_listing_is_less_urgent_than_a_change() -> None:
    """A watch that starts again reports all objects again."""
    queue = Keys()
    events = WatchEvents(queue, OperatorHealth(lambda: 0.0, 600), WatchedObjects())
    first, second = (a_dataset_body(meta={"resourceVersion": v}) for v in ("1", "2"))

    for type, body in ((None, first), (None, first), ("MODIFIED", second), (None, second), ("DELETED", second)):
        events.record(DATASETS, type, body)

    assert queue.added == [FLIGHTS] * 3
    assert queue.priorities == [Priority.DUE, Priority.CHANGED, Priority.CHANGED]


def test_a_policy_that_is_gone_matters_to_all_of_its_namespace() -> None:
    queue = Keys()
    events = WatchEvents(queue, OperatorHealth(lambda: 0.0, 600), WatchedObjects())
    WorkQueue.add(queue, FLIGHTS)
    WorkQueue.add(queue, Key("Dataset", "other", "flights"))
    body = {"metadata": {"namespace": "ns", "name": "air", "uid": "u", "resourceVersion": "7"}, "spec": {}}
    events.record(VACUUM_POLICIES, "ADDED", body)
    queue.added.clear()

    events.record(VACUUM_POLICIES, "DELETED", body)

    assert queue.added == [Key("VacuumPolicy", "ns", "air"), FLIGHTS]


def test_a_resync_adds_what_the_queue_does_not_know() -> None:
    """When to look at a known key is decided by its reconciles."""
    queue, objects = Keys(), watched(a_server())
    WorkQueue.add(queue, FLIGHTS)

    async def until_it_adds() -> None:
        task = asyncio.create_task(resync(queue, objects, a_server(), ["ns"], 0.0))  # type: ignore[arg-type]
        while len(queue.added) < 3:
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(until_it_adds(), 10))

    assert set(queue.added) == {Key(WARM_DRIVER, "ns", "")}
    assert set(queue.priorities) == {Priority.PERIODIC}


def test_no_handler_needs_a_finalizer() -> None:
    """kopf adds one for handlers of changes, timers and daemons. A deletion would then wait for the operator."""
    handlers = {kind: found.get_all_handlers() for kind, found in vars(registry()).items()}

    assert {kind for kind, found in handlers.items() if list(found)} == {"_activities", "_watching"}
    assert [h.id for h in handlers["_watching"]] == [f"on_{kind.plural}" for kind in WATCHED]


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"ownerReferences": [{"kind": "Dataset", "name": "a"}]}, {"a"}),
        ({"ownerReferences": [{"kind": "Job", "name": "j"}], "annotations": {"lethe.dev/dataset": "a"}}, {"a"}),
        ({"ownerReferences": [{"kind": "Job", "name": "j"}]}, set()),
        ({}, set()),
    ],
    ids=["a Job", "a driver's pod", "somebody's pod", "nothing"],
)
def test_an_event_wakes_the_dataset_that_the_object_belongs_to(metadata: Any, found: set[str]) -> None:
    assert datasets_of({"metadata": metadata}) == found
