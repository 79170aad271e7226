"""Streams of changes over watches in memory."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from lethe.kube import DATASETS, RESTATEMENTS, ResourceKind
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.changes import Reported, StreamPlace, events_of, heartbeat, text_of
from lethe_gateway.resources.client import OnOpen, ResourcePage, Watched
from lethe_gateway.services import Services
from lethe_gateway.settings import CallerLimits, GatewaySettings
from lethe_gateway.streaming import ChangeStream

from tests.support.gateway_lake import run
from tests.support.gateway_parts import READER, OneTable, Resources, Rights, Writer
from tests.support.resources import a_dataset_body, a_restatement_body


def added(n: int) -> dict[str, Any]:
    return {"type": "ADDED", "object": a_restatement_body(f"r{n}", meta={"resourceVersion": str(100 + n)})}


@dataclass
class Watches(Resources):
    """Each watch of Restatements gives the next of these; afterwards they stay empty."""

    answers: list[Callable[[], Iterator[dict[str, Any]]]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)  # versions

    def page(self, *_: Any) -> ResourcePage:
        return ResourcePage([], "", "900")

    def watch(self, *given: Any) -> Iterator[dict[str, Any]]:
        _, kind, _, watched, on_open = given
        return self._watch(kind, watched, on_open)

    def _watch(self, kind: ResourceKind, watched: Watched, on_open: OnOpen) -> Iterator[dict[str, Any]]:
        ended = threading.Event()
        on_open(ended.set)
        if kind is RESTATEMENTS and self.answers:
            self.begun.append(watched.after)
            yield from self.answers.pop(0)()
        else:
            ended.wait(30)


def read(
    watches: Watches, until: Callable[[list[str]], bool], events: int = 1000, identity: Rights | None = None
) -> list[str]:
    """The names and ids that a stream sends until a condition holds, or until its end."""

    async def run() -> list[str]:
        settings = GatewaySettings(namespaces=("ns",), limits=CallerLimits(stream_events=events))
        services = Services(settings, identity or Rights(), watches, OneTable(), Writer(Resources()))
        stream = ChangeStream(services, READER, "ns", "", StreamPlace("1", "1"))
        stream.open()
        seen: list[str] = []
        try:
            async with asyncio.timeout(30):
                while not until(seen):
                    if identity is not None:
                        await stream.check()
                    texts = await stream.next(0.5)
                    if not texts or stream.lagging.is_set():
                        return [*seen, "lagging" if stream.lagging.is_set() else "ended"]
                    seen += [t.decode().partition("\ndata")[0] for t in texts if b"event" in t]
        finally:
            stream.close()
        return seen

    return asyncio.run(run())


def test_many_events_at_once_arrive_in_order_and_do_not_end_the_stream() -> None:
    watches = Watches(answers=[lambda: (added(n) for n in range(900))])

    seen = read(watches, lambda seen: len(seen) >= 900)

    assert seen == [f"id: 1-{100 + n}\nevent: restatement" for n in range(900)]


def test_a_watch_continues_where_the_one_before_ended() -> None:
    watches = Watches(answers=[lambda: iter([added(1)]), lambda: iter([added(2)]), lambda: iter([added(3)])])

    read(watches, lambda seen: len(seen) >= 3)

    assert watches.begun == ["1", "101", "102"]


def test_when_the_api_server_has_forgotten_the_place_the_stream_says_so_and_goes_on() -> None:
    def expired() -> Iterator[dict[str, Any]]:
        raise Problem(Kind.CURSOR_EXPIRED, "gone")
        yield {}

    error = {"type": "ERROR", "object": {"code": 410}}
    watches = Watches(answers=[expired, lambda: iter([error]), lambda: iter([added(1)])])

    seen = read(watches, lambda seen: len(seen) >= 3)

    assert seen == ["id: 1-900\nevent: reset", "id: 1-900\nevent: reset", "id: 1-101\nevent: restatement"]


def test_a_resource_with_a_value_of_another_version_is_reported_without_it() -> None:
    foreign = added(1)
    foreign["object"]["status"] = {"queuePosition": "first", "phase": "Parked"}
    watches = Watches(answers=[lambda: iter([foreign, added(2)])])

    ((_, data),) = events_of(RESTATEMENTS, foreign, Reported(), "")

    assert data["restatement"]["phase"] == "Parked"
    assert "queuePosition" not in data["restatement"]
    assert read(watches, lambda seen: len(seen) >= 2) == [f"id: 1-{n}\nevent: restatement" for n in (101, 102)]


def test_a_stream_ends_when_its_caller_may_no_longer_list() -> None:
    assert read(Watches(), lambda _: False, identity=Rights(rights=frozenset())) == ["event: end", "ended"]
    assert read(Watches(), lambda _: False, identity=Rights(callers={})) == ["event: end", "ended"]


def test_a_watch_that_is_forbidden_ends_the_stream() -> None:
    def forbidden() -> Iterator[dict[str, Any]]:
        raise not_found()
        yield {}

    assert read(Watches(answers=[forbidden]), lambda _: False) == ["event: end", "ended"]


def test_a_reader_that_lags_behind_loses_its_stream() -> None:
    all_came = threading.Event()

    def many() -> Iterator[dict[str, Any]]:
        try:
            yield from (added(n) for n in range(50))
        finally:  # the watch ends with the stream
            all_came.set()

    def slow(_: list[str]) -> bool:
        """Reads nothing until more events wait than may."""
        assert all_came.wait(30)
        return False

    seen = read(Watches(answers=[many]), slow, events=20)

    assert seen[-1] == "lagging"


def test_a_heartbeat_does_not_pass_events_that_wait() -> None:
    """A client that had its id would never get them."""

    class Never(asyncio.Event):
        """As if the notice came a moment too late."""

        async def wait(self) -> Literal[True]:
            await asyncio.sleep(60)
            return True

    async def run() -> list[bytes]:
        services = Services(GatewaySettings(namespaces=("ns",)), Rights(), Watches(), OneTable(), Writer(Resources()))
        stream = ChangeStream(services, READER, "ns", "", StreamPlace("1", "1"))
        stream._loop, stream._news = asyncio.get_running_loop(), Never()
        stream._take(RESTATEMENTS, added(1))
        return await stream.next(0.01) + await stream.next(0.01)

    first, second = asyncio.run(run())

    assert b"event: restatement" in first
    assert second == heartbeat("1-101")


def names(type: str, runs: list[object], reported: Reported, only: str = "") -> list[str]:
    body = a_dataset_body(status={"runs": runs})
    found = events_of(DATASETS, {"type": type, "object": body}, reported, only)
    return [f"{name} {(data.get('run') or data['dataset'])['name']}" for name, data in found]


def test_only_runs_that_changed_are_reported() -> None:
    reported = Reported()
    old, ended = run("a"), run("b", phase="Succeeded")

    assert names("ADDED", [old, ended, run("c", phase="Failed")], reported) == ["run a", "dataset flights"]
    assert names("MODIFIED", [old, ended], reported) == ["dataset flights"]
    assert names("MODIFIED", [{**old, "progress": "1/2"}, ended], reported) == ["run a", "dataset flights"]
    assert names("MODIFIED", [run("new"), old, ended], reported) == ["run new", "run a", "dataset flights"]


def test_bookmarks_and_other_datasets_are_no_events() -> None:
    assert names("BOOKMARK", [], Reported()) == []
    assert names("ADDED", [run("a")], Reported(), only="other") == []
    restatement = {"type": "ADDED", "object": a_restatement_body("r")}
    assert [n for n, _ in events_of(RESTATEMENTS, restatement, Reported(), "other")] == []
    assert [n for n, _ in events_of(RESTATEMENTS, restatement, Reported(), "flights")] == ["restatement"]


def test_texts_of_events() -> None:
    assert text_of("run", {"a": "x\ny"}, "1-2") == b'id: 1-2\nevent: run\ndata: {"a":"x\\ny"}\n\n'
    assert text_of("run", {}) == b"event: run\ndata: {}\n\n"
    assert heartbeat("1-2") == b": heartbeat\nid: 1-2\n\n"
