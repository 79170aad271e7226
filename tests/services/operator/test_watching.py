"""kopf's watches feed the store, and what they lose is found: with kopf itself, on a server whose watches fail."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lethe_operator.handlers import AFTER_LISTING_SECONDS

from tests.support.clock import wait_until
from tests.support.large_api import LargeApi, large_api
from tests.support.watcher import Watcher, watching

SECONDS = 60
ROOT = Path(__file__).parents[3]


@pytest.fixture
def server() -> Iterator[LargeApi]:
    with large_api(5) as found:
        yield found


def of_server(server: LargeApi) -> dict[str, str]:
    return {name: str(stored.version) for name, stored in server.objects.items()}


def wait_until_known(watcher: Watcher, server: LargeApi) -> None:
    wait_until(lambda: watcher.versions() == of_server(server), SECONDS)


def test_what_a_watch_reports_is_known_and_queued_once(server: LargeApi) -> None:
    watcher = Watcher(server.url)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: watcher.events == 5 and server.count("watch") == 1, SECONDS)
        assert watcher.queue.added == []  # kopf's own list shows nothing new
        server.put("new", "c")
        server.put("r00001", "edited")
        server.delete("r00002")
        wait_until_known(watcher, server)

    assert len(watcher.queue.added) == 3


def test_a_watch_that_forwards_nothing_is_requested_again_and_loses_nothing(server: LargeApi) -> None:
    watcher = Watcher(server.url)
    watcher.list()
    with watching(watcher, inactive_seconds=0.5):
        wait_until(lambda: server.count("watch") >= 1, SECONDS)
        server.stall()
        server.put("r00001", "edited")
        server.delete("r00002")
        wait_until_known(watcher, server)

    assert server.count("list") == 2  # the store's and kopf's: nothing was listed again


def test_after_an_expired_version_everything_is_listed_again_and_what_was_deleted_meanwhile_is_found(
    server: LargeApi,
) -> None:
    watcher = Watcher(server.url)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: server.count("watch") == 1, SECONDS)
        server.put("r00001", "edited", is_reported=False)
        server.delete("r00002", is_reported=False)
        server.forget()
        wait_until(lambda: watcher.versions().get("r00001") == of_server(server)["r00001"], SECONDS)
        assert "r00002" in watcher.versions()  # kopf does not report deletions that it has missed
        wait_until(lambda: server.count("watch") == 3, SECONDS)
    watcher.clock.now += AFTER_LISTING_SECONDS + 1
    for kind, namespace in watcher.objects.listed_by_watches(watcher.clock()):
        watcher.objects.catch_up(watcher.kube, [namespace], [kind])

    assert watcher.versions() == of_server(server)


def test_a_watch_that_loses_changes_makes_the_operator_unhealthy(server: LargeApi) -> None:
    """A relist repairs the store at once. If the watch still does not report the change, it is dead."""
    watcher = Watcher(server.url)
    watcher.list()
    with watching(watcher):
        wait_until(lambda: server.count("watch") == 1, SECONDS)
        server.put("r00001", "edited", is_reported=False)
        watcher.list()
        assert watcher.versions() == of_server(server)
        watcher.clock.now += 121
        assert "no watch has reported it" in (watcher.health.trouble(0, watcher.clock.now) or "")
        server.put("r00001", "edited again")
        wait_until(lambda: watcher.health.trouble(0, watcher.clock.now) is None, SECONDS)


# --- memory ------------------------------------------------------------------------------------------------------------


@contextmanager
def a_process(server: LargeApi) -> Iterator[Any]:
    """A function that sends a command and returns the answer."""
    command = [sys.executable, "-m", "tests.support.watcher", server.url]
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


@pytest.mark.parametrize("count", [3_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_relist_of_very_many_objects_misses_nothing_and_needs_little_memory(count: int) -> None:
    """The store of finished Restatements takes 2.5 kB for each. Neither kopf's list nor a relist adds more than some pages."""
    with large_api(count) as server, a_process(server) as ask:
        before = ask("look")
        wait_until(lambda: ask("look")["events"] == count, 1200)
        listed = ask("list")
        assert listed["known"] == count
        for n in range(0, count, count // 50):
            server.put(f"r{n:05}", "edited", is_reported=False)
        for n in range(1, count, count // 50):
            server.delete(f"r{n:05}", is_reported=False)
        server.put("new", "c", is_reported=False)
        server.requests.clear()

        found = ask("list")

        expected = [stored.version for stored in server.objects.values()]
        assert (found["known"], found["versions"]) == (len(expected), sum(expected))
        assert server.count("metadata") == -(-len(expected) // 500)
        assert server.count("get") + 11 * server.count("list") <= 60 + 11 * 5
        room = count * 3.5 / 1024  # MiB
        assert listed["peak"] - before["now"] < room + 60
        assert found["peak"] - listed["now"] < 40
