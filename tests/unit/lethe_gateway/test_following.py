"""Lists that are read once and then followed, for each caller with the caller's own token."""

import threading
from collections.abc import Iterator
from queue import Queue
from typing import Any

import pytest
from lethe.kube import DATASETS
from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources import following
from lethe_gateway.resources.client import ResourcePage
from lethe_gateway.resources.following import FollowedList, Followers

ANA, BO = Caller("ana", "u1", token="a"), Caller("bo", "u2", token="b")


def named(name: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


class Server:
    """Pages and events that a test gives, for whoever has a token that is known."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.tokens = {"a", "b"}
        self.events: Queue[dict[str, Any] | None] = Queue()
        """None: the watch ends."""
        self.asked: list[str] = []
        self.handled = threading.Semaphore(0)
        """Released when a watch asks for what follows an event."""

    def page(self, caller: Caller, _kind: Any, _namespace: str, after: str, _limit: int) -> ResourcePage:
        self.asked.append(caller.token)
        if caller.token not in self.tokens:
            raise not_found()
        start = int(after or 0)
        more = str(start + 2) if start + 2 < len(self.names) else ""
        return ResourcePage([named(n) for n in self.names[start : start + 2]], more, "7")

    def watch(self, *_: Any) -> Iterator[dict[str, Any]]:
        while (event := self.events.get()) is not None:
            yield event
            self.handled.release()

    def tell(self, kind: str, resource: dict[str, Any]) -> None:
        """Report a change, and wait until it was taken."""
        self.events.put({"type": kind, "object": resource})
        assert self.handled.acquire(timeout=10)


@pytest.fixture
def server() -> Server:
    return Server("a", "b", "c", "d", "e")


@pytest.fixture
def clock() -> list[float]:
    """The time in its only item."""
    return [0.0]


@pytest.fixture
def followers(server: Server, clock: list[float]) -> Iterator[Followers]:
    followers = Followers(server, clock=lambda: clock[0])  # type: ignore[arg-type]
    yield followers
    followers.close()
    for _ in range(3):
        server.events.put(None)


def rows(followers: Followers, caller: Caller = ANA, patience_seconds: float = 10) -> FollowedList[str]:
    return followers.follow(caller, DATASETS, "ns", lambda r: str(r["metadata"]["name"]).upper()).rows(patience_seconds)


def test_a_list_is_read_once_and_then_changes_with_its_resources(server: Server, followers: Followers) -> None:
    assert list(rows(followers).rows) == ["a", "b", "c", "d", "e"]
    server.tell("DELETED", named("a", 8))
    server.tell("ADDED", named("f", 9))
    server.tell("BOOKMARK", {"metadata": {"resourceVersion": "10"}})

    found = rows(followers)

    assert sorted(found.rows.items()) == [(n, n.upper()) for n in "bcdef"]
    assert (found.is_complete, found.problem) == (True, None)
    assert server.asked == ["a"] * 3


def test_each_caller_reads_with_the_own_token_and_gets_only_what_it_may_see(
    server: Server, followers: Followers
) -> None:
    rows(followers)
    server.tokens = {"a"}

    with pytest.raises(Problem) as error:
        rows(followers, BO)

    assert error.value.kind is Kind.NOT_FOUND
    assert len(rows(followers).rows) == 5


def test_a_list_that_takes_long_is_shown_as_far_as_it_was_read(server: Server, followers: Followers) -> None:
    """In the order of names, so the first page of a list is right at once."""
    second = threading.Event()
    page = server.page

    def slow(caller: Caller, kind: Any, namespace: str, after: str, limit: int) -> ResourcePage:
        if after:
            assert second.wait(10)
        return page(caller, kind, namespace, after, limit)

    server.page = slow  # type: ignore[method-assign]
    found = rows(followers, patience_seconds=0)
    while not found.rows:
        found = rows(followers, patience_seconds=0)
    second.set()

    assert (list(found.rows), found.is_complete) == (["a", "b"], False)
    assert rows(followers).is_complete


def test_after_changes_that_the_server_has_forgotten_the_list_is_read_again(
    server: Server, followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.0)
    rows(followers)
    server.names = ["a", "z"]
    server.events.put({"type": "ERROR", "object": {"code": 410}})
    server.tell("MODIFIED", named("a", 9))

    assert list(rows(followers).rows) == ["a", "z"]


def test_an_api_server_that_is_away_is_named_and_the_rows_of_before_stay(
    server: Server, followers: Followers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "PAUSE_SECONDS", 0.0)
    away = Problem(Kind.API_SERVER_AWAY, "The API server does not answer.")
    failed = threading.Event()

    def watch(*_: Any) -> Iterator[dict[str, Any]]:
        if failed.is_set():
            return iter(())
        failed.set()
        raise away

    server.watch = watch  # type: ignore[method-assign]
    rows(followers)
    assert failed.wait(10)
    found = rows(followers)
    while found.problem is None:
        found = rows(followers)

    assert (found.problem, len(found.rows)) == (away, 5)


def test_a_list_that_nobody_asks_for_is_forgotten(server: Server, followers: Followers, clock: list[float]) -> None:
    others = set(threading.enumerate())
    rows(followers)
    clock[0] = following.IDLE_SECONDS + 1
    server.events.put(None)
    for thread in set(threading.enumerate()) - others:
        thread.join(10)
    rows(followers)

    assert server.asked == ["a"] * 6


def test_with_too_many_rows_the_list_of_the_longest_ago_is_forgotten(
    server: Server, followers: Followers, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "ROWS_AT_MOST", 4)
    for caller in (ANA, BO, ANA):
        clock[0] += 1
        rows(followers, caller)

    assert server.asked == ["a"] * 3 + ["b"] * 3 + ["a"] * 3
