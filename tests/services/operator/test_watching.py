"""kopf's watches feed the store, and what they lose is found: with kopf itself, on a server whose watches fail."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import RESTATEMENTS
from lethe_operator.handlers import AFTER_LISTING_SECONDS

from tests.support import api_server
from tests.support.api_server import NAMESPACE, ApiServer
from tests.support.clock import wait_until
from tests.support.watcher import Watcher, watching

SECONDS = 60
ROOT = Path(__file__).parents[3]


def finished(name: str) -> dict[str, Any]:
    """A finished Restatement, with what nobody needs."""
    ended = "2026-03-01T12:00:00Z"
    fields: dict[str, Any] = {f"f:{n}": {f"f:{m}": {} for m in range(8)} for n in range(6)}
    condition = {"status": "True", "reason": "Succeeded", "message": "3 rows deleted.", "lastTransitionTime": ended}
    return {
        "apiVersion": "lethe.dev/v1beta1",
        "kind": "Restatement",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": f"00000000-0000-4000-8000-0000000{name}",
            "generation": 1,
            "creationTimestamp": ended,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 300},
            "managedFields": [{"manager": "kubectl", "operation": "Apply", "time": ended, "fieldsV1": fields}],
        },
        "spec": {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["b"]},
        "status": {
            "observedGeneration": 1,
            "phase": "Succeeded",
            "conditions": [{"type": "Succeeded", "observedGeneration": 1, **condition}],
            "result": {"snapshotId": 7423456789012345678, "rowsDeleted": 3},
        },
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server.running(tmp_path) as found:
        put_finished(found, 5)
        yield found


def put_finished(server: ApiServer, count: int) -> None:
    server.create_all(RESTATEMENTS, [finished(f"r{n:05}") for n in range(count)])


def edit(server: ApiServer, name: str, batch: str = "edited", is_reported: bool = True) -> None:
    server.patch(name, RESTATEMENTS, {"spec": {"batchIds": [batch]}}, is_reported)


def of_server(server: ApiServer) -> dict[str, str]:
    return {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in server.all_of(RESTATEMENTS)}


def wait_until_known(watcher: Watcher, server: ApiServer) -> None:
    wait_until(lambda: watcher.versions() == of_server(server), SECONDS)


def test_what_a_watch_reports_is_known_and_queued_once(server: ApiServer) -> None:
    watcher = Watcher(server.folder.path)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: watcher.events == 5 and server.counted["watch"] == 1, SECONDS)
        assert watcher.queue.added == []  # kopf's own list shows nothing new
        server.create_all(RESTATEMENTS, [finished("new")])
        edit(server, "r00001")
        server.delete("r00002", RESTATEMENTS)
        wait_until_known(watcher, server)

    assert len(watcher.queue.added) == 3


def test_a_watch_that_forwards_nothing_is_requested_again_and_loses_nothing(server: ApiServer) -> None:
    watcher = Watcher(server.folder.path)
    watcher.list()
    with watching(watcher, inactive_seconds=0.5):
        wait_until(lambda: server.counted["watch"] >= 1, SECONDS)
        server.stall()
        edit(server, "r00001")
        server.delete("r00002", RESTATEMENTS)
        wait_until_known(watcher, server)

    assert server.counted["list"] == 2  # the store's and kopf's: nothing was listed again


def test_after_an_expired_version_everything_is_listed_again_and_what_was_deleted_meanwhile_is_found(
    server: ApiServer,
) -> None:
    watcher = Watcher(server.folder.path)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: server.counted["watch"] == 1, SECONDS)
        edit(server, "r00001", is_reported=False)
        server.delete("r00002", RESTATEMENTS, is_reported=False)
        server.forget()
        wait_until(lambda: watcher.versions().get("r00001") == of_server(server)["r00001"], SECONDS)
        assert "r00002" in watcher.versions()  # kopf does not report deletions that it has missed
        wait_until(lambda: server.counted["watch"] == 3, SECONDS)
    watcher.clock.now += AFTER_LISTING_SECONDS + 1
    for kind, namespace in watcher.objects.listed_by_watches(watcher.clock()):
        watcher.objects.catch_up(watcher.kube, [namespace], [kind])

    assert watcher.versions() == of_server(server)


def test_a_watch_that_loses_changes_makes_the_operator_unhealthy(server: ApiServer) -> None:
    """A relist repairs the store at once. If the watch still does not report the change, it is dead."""
    watcher = Watcher(server.folder.path)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: server.counted["watch"] == 1, SECONDS)
        edit(server, "r00001", is_reported=False)
        watcher.list()
        assert watcher.versions() == of_server(server)
        watcher.clock.now += 121
        assert "no watch has reported it" in (watcher.health.trouble(0, watcher.clock.now) or "")
        edit(server, "r00001", "edited again")
        wait_until(lambda: watcher.health.trouble(0, watcher.clock.now) is None, SECONDS)


# --- memory ------------------------------------------------------------------------------------------------------------


@contextmanager
def a_process(server: ApiServer) -> Iterator[Any]:
    """A function that sends a command and returns the answer."""
    command = [sys.executable, "-m", "tests.support.watcher", str(server.folder.path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def ask(what: str) -> dict[str, Any]:
            given.write(f"{what}\n")
            given.flush()
            found: dict[str, Any] = json.loads(answers.readline())
            return found

        try:
            yield ask
        finally:
            given.close()
            process.wait(60)


@pytest.mark.parametrize("count", [1_200, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_relist_of_very_many_objects_misses_nothing_and_needs_little_memory(count: int, tmp_path: Path) -> None:
    """The store of finished Restatements takes 2.5 kB for each. Neither kopf's list nor a relist adds more than some pages."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(api_server.running(tmp_path))
        put_finished(server, count)
        ask = stack.enter_context(a_process(server))
        before = ask("look")
        wait_until(lambda: ask("look")["events"] == count, 1200)
        listed = ask("list")
        assert listed["known"] == count
        for n in range(0, count, count // 50):
            edit(server, f"r{n:05}", is_reported=False)
        for n in range(1, count, count // 50):
            server.delete(f"r{n:05}", RESTATEMENTS, is_reported=False)
        server.counted.clear()

        found = ask("list")

        expected = list(map(int, of_server(server).values()))
        assert (found["known"], found["versions"]) == (len(expected), sum(expected))
        assert server.counted["metadata"] == -(-len(expected) // 500)
        assert server.counted["get"] + 11 * server.counted["list"] <= 60 + 11 * 5
        room = count * 3.5 / 1024  # MiB
        assert listed["peak"] - before["now"] < room + 60
        assert found["peak"] - listed["now"] < 40
