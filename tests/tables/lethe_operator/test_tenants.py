"""Two tenants, one operator: the queue, its threads and the reconciles are real, the API server is in memory."""

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lethe.base import names
from lethe.kube import DATASETS, JOBS, RESTATEMENTS, Document, ResourceKind
from lethe_operator.cluster.queue import AddKey, WorkQueue
from lethe_operator.cluster.schedule import Key, Start
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.handlers import keys_of
from lethe_operator.reconcile import Reconciler
from lethe_operator.restatement import status as restatement_status

from tests.support.fake_cluster import FakeCluster, an_operator
from tests.support.resources import a_dataset_body, a_restatement_body
from tests.support.tables import catalog_in, new_table

PATIENCE_SECONDS = 600
BIG, SMALL = "big", "small"


class Watches:
    """Reports the changes of the server to the queue, from whatever thread makes them."""

    def __init__(self, objects: WatchedObjects, add: AddKey) -> None:
        self._objects, self._add = objects, add

    def record_event(self, kind: ResourceKind, type: str | None, body: Mapping[str, Any]) -> bool:
        if not self._objects.record_event(kind, type, body):
            return False
        for key in keys_of(kind, body):
            self._add(key)
        return True


class SharedServer(FakeCluster):
    """One that several threads may use at once."""

    def __init__(self, *objects: tuple[ResourceKind, Document]) -> None:
        self._lock = threading.RLock()
        super().__init__(*objects)

    def create(self, *args: Any) -> Document:
        with self._lock:
            return super().create(*args)

    def patch(self, *args: Any) -> Document:
        with self._lock:
            return super().patch(*args)

    def list(self, *args: Any) -> list[Document]:
        with self._lock:
            return super().list(*args)

    def get(self, *args: Any) -> Document:
        with self._lock:
            return super().get(*args)


def a_tenants_dataset(home: Path, namespace: str) -> Document:
    table, buffer = {"catalog": "lite", "name": f"air.{namespace}"}, {"uri": f"file://{home}/{namespace}"}
    meta = {"namespace": namespace, "uid": f"uid-{namespace}"}
    return a_dataset_body(meta=meta, table=table, buffer=buffer, restatements={"windowSeconds": 0})


def a_tenants_restatement(name: str, namespace: str) -> Document:
    # A user must act: nothing that it names exists. Statuses that say so are written without delay.
    meta = {"namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return a_restatement_body(name, meta=meta, batchIds=[name], operation="Undo", undoes={"name": "nothing"})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedServer:
    """Both tenants have a Dataset and a table."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    catalog = catalog_in(tmp_path)
    for namespace in (BIG, SMALL):
        new_table(catalog, f"air.{namespace}", **{names.CLAIM: f"{namespace}/flights"})
    return SharedServer(*((DATASETS, a_tenants_dataset(tmp_path, n)) for n in (BIG, SMALL)))


def shown(server: FakeCluster) -> int:
    objects = server.objects.copy()  # at once, because workers change it meanwhile
    return sum("phase" in (o.get("status") or {}) for (kind, _, _), o in objects.items() if kind == "Restatement")


@pytest.mark.parametrize("count", [200, pytest.param(15_000, marks=pytest.mark.long)])
def test_the_first_restatement_of_a_tenant_starts_while_thousands_of_another_are_worked_on(
    server: SharedServer, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Also with one worker: it is the next to start, when a part of the statuses of the others is written."""
    monkeypatch.setattr(restatement_status, "STATUSES_AT_ONCE", count // 4)
    for n in range(count):
        server.create(RESTATEMENTS, BIG, a_tenants_restatement(f"r{n:05}", BIG))
    operator: Reconciler = an_operator(server)
    starts: list[tuple[float, Start]] = []  # with the time of each
    queue = WorkQueue(
        operator, gather_seconds=0.01, workers=1, on_start=lambda start: starts.append((time.monotonic(), start))
    )

    async def story() -> None:
        running = asyncio.create_task(queue.run())
        add = queue.from_threads()
        server.watchers[:] = [Watches(operator.objects, add)]  # type: ignore[list-item]
        queue.add(Key("Dataset", BIG, "flights"))
        while not 0 < shown(server) < count:
            await asyncio.sleep(0.001)
        first = a_restatement_body("first", meta={"namespace": SMALL, "uid": "uid-first"}, batchIds=["A"])
        await asyncio.to_thread(server.create, RESTATEMENTS, SMALL, first)
        while not server.list(JOBS, SMALL):
            await asyncio.sleep(0.001)
        at_launch = shown(server)
        began, ours = next((at, s) for at, s in starts if s.key.namespace == SMALL)
        due = began - ours.late_seconds
        assert sum(due <= at < began for at, _ in starts) <= 1  # one may have been taken from the queue already
        assert at_launch < count
        while shown(server) < count:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(asyncio.wait_for(story(), PATIENCE_SECONDS))
