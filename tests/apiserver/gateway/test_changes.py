"""The stream of changes, from watches of a real API server."""

import json
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from lethe.kube import DATASETS, RESTATEMENTS, ROLE_BINDINGS

from tests.support.clock import wait_until
from tests.support.gateway_lake import dataset, restatement, run
from tests.support.gateway_site import Site
from tests.support.servers.gateway import binding, role, running
from tests.support.servers.kubernetes import kubectl

CHANGES = "/v1/namespaces/default/changes"


@dataclass(frozen=True)
class Event:
    name: str
    data: dict[str, Any]
    id: str  # "": it has none

    def __str__(self) -> str:
        what = self.data.get("run") or self.data.get("dataset") or self.data.get("restatement") or {}
        return f"{self.name} {self.data.get('change', '')} {what.get('name', '')}".strip()


class Stream:
    """Reads events in a thread."""

    def __init__(self, answer: httpx.Response) -> None:
        self._events: queue.Queue[Event | None] = queue.Queue()
        threading.Thread(target=self._read, args=(answer,), daemon=True).start()

    def next(self, seconds: float = 30) -> Event | None:
        """None: the stream has ended."""
        return self._events.get(timeout=seconds)

    def until(self, text: str) -> list[Event]:
        """The events up to one that reads so."""
        found: list[Event] = []
        while not found or str(found[-1]) != text:
            event = self.next()
            assert event is not None, f"the stream ended after {[str(e) for e in found]}"
            found.append(event)
        return found

    def _read(self, answer: httpx.Response) -> None:
        fields: dict[str, str] = {}
        try:
            for line in answer.iter_lines():
                if line:
                    key, _, value = line.partition(":")
                    fields[key] = value.strip()
                    continue
                if "data" in fields:
                    self._events.put(Event(fields["event"], json.loads(fields["data"]), fields.get("id", "")))
                fields = {}
        except httpx.HTTPError:
            pass
        self._events.put(None)


@contextmanager
def follow(client: httpx.Client, **given: Any) -> Iterator[Stream]:
    with client.stream("GET", CHANGES, **given) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer)


def test_changes_of_datasets_runs_and_restatements_are_reported_as_they_happen(
    site: Site, analyst: httpx.Client
) -> None:
    kube = site.server.kube
    with follow(analyst) as stream:
        stream.until("ready")
        kube.create(RESTATEMENTS, "default", restatement("seen"))
        assert [str(e) for e in stream.until("restatement added seen")] == ["restatement added seen"]
        kube.create(DATASETS, "default", dataset("watched", table="air.watched"))
        stream.until("dataset added watched")
        kube.patch(DATASETS, "default", "watched", {"status": {"runs": [run("watched-1")]}}, "status")
        assert [str(e) for e in stream.until("dataset modified watched")] == [
            "run modified watched-1",
            "dataset modified watched",
        ]
        more = [run("watched-2"), run("watched-1")]
        kube.patch(DATASETS, "default", "watched", {"status": {"runs": more}}, "status")
        assert [str(e) for e in stream.until("dataset modified watched")] == [
            "run modified watched-2",
            "dataset modified watched",
        ]
        kube.delete(DATASETS, "default", "watched")
        stream.until("dataset deleted watched")
        kube.delete(RESTATEMENTS, "default", "seen")
        stream.until("restatement deleted seen")


def test_another_replica_continues_after_the_last_event(site: Site, analyst: httpx.Client) -> None:
    kube = site.server.kube
    with follow(analyst) as stream:
        stream.until("ready")
        kube.create(RESTATEMENTS, "default", restatement("before"))
        last = stream.until("restatement added before")[-1].id
    kube.create(RESTATEMENTS, "default", restatement("meanwhile"))
    kube.delete(RESTATEMENTS, "default", "before")

    with (
        running(site.folder / "replica", **site.environ) as other,
        other.client(site.token("analyst")) as client,
        follow(client, headers={"Last-Event-ID": last}) as stream,
    ):
        events = [str(e) for e in stream.until("restatement deleted before")]

    kube.delete(RESTATEMENTS, "default", "meanwhile")
    assert events == ["ready", "restatement added meanwhile", "restatement deleted before"]


def test_a_stream_that_was_away_for_too_long_is_told_to_read_again(analyst: httpx.Client) -> None:
    with follow(analyst, headers={"Last-Event-ID": "1-1"}) as stream:
        events = [stream.next() for _ in range(3)]

    assert [e and e.name for e in events] == ["ready", "reset", "reset"]
    assert {e.data["kind"] for e in events[1:] if e} == {"Dataset", "Restatement"}


def test_a_stream_of_one_dataset_has_only_what_concerns_it(site: Site, analyst: httpx.Client) -> None:
    kube = site.server.kube
    with follow(analyst, params={"dataset": "mine"}) as stream:
        stream.until("ready")
        for name, of in (("other", "other"), ("mine", "mine")):
            kube.create(RESTATEMENTS, "default", restatement(f"of-{name}", of=of))
            kube.create(DATASETS, "default", dataset(name, table=f"air.{name}"))
        events = {str(stream.next()) for _ in range(2)}
    for name in ("other", "mine"):
        kube.delete(RESTATEMENTS, "default", f"of-{name}")
        kube.delete(DATASETS, "default", name)

    assert events == {"restatement added of-mine", "dataset added mine"}


def test_a_stream_ends_with_the_rights_of_its_caller(site: Site) -> None:
    with site.client("leaver") as client, follow(client) as stream:
        stream.until("ready")

        site.server.kube.delete(ROLE_BINDINGS, "default", "reader-leaver")

        end = stream.until("end")[-1]
        assert end.data["type"] == "https://lethe.dev/problems/not-found"
        assert stream.next() is None
    everything = role("reader", "default")
    kubectl(site.server, "apply", binding(everything, "leaver"))


def test_one_caller_has_a_limited_number_of_streams(analyst: httpx.Client) -> None:
    with follow(analyst), follow(analyst), follow(analyst), follow(analyst):
        refused = analyst.get(CHANGES)
    assert (refused.status_code, refused.json()["type"]) == (429, "https://lethe.dev/problems/too-many-requests")
    wait_until(lambda: _opens(analyst), 30)


def test_a_client_that_does_not_read_is_dropped(site: Site) -> None:
    """Its connection ends, and what waited for it is forgotten; others go on."""
    kube = site.server.kube
    limits = '{"streamEvents": 20}'
    token = site.token("analyst")
    with running(site.folder / "lagging", **{**site.environ, "LETHE_GATEWAY_LIMITS": limits}) as gateway:
        slow = socket.create_connection(("127.0.0.1", gateway.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(f"GET {CHANGES} HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        with gateway.client(token) as client, follow(client) as stream:
            stream.until("ready")
            kube.create(RESTATEMENTS, "default", restatement("long", reason="x" * 1000))
            stream.until("restatement added long")

            def change() -> None:
                kube.patch(RESTATEMENTS, "default", "long", {"metadata": {"annotations": {"n": str(next(numbers))}}})
                stream.until("restatement modified long")

            numbers = count()
            wait_until(lambda: _is_reset(gateway.port, slow), 240, before_each=change)
        kube.delete(RESTATEMENTS, "default", "long")
        slow.close()


def test_an_id_that_is_none_is_refused(analyst: httpx.Client) -> None:
    answer = analyst.get(CHANGES, headers={"Last-Event-ID": "1-1; DROP"})

    assert (answer.status_code, answer.json()["type"]) == (400, "https://lethe.dev/problems/invalid-request")


def _opens(client: httpx.Client) -> bool:
    with client.stream("GET", CHANGES) as answer:
        return answer.status_code == 200


def _is_reset(port: int, connection: socket.socket) -> bool:
    """Whether the server has ended a connection of which the client has read nothing."""
    local = f"{connection.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{local}"):
            return fields[3] != "01"
    return True
