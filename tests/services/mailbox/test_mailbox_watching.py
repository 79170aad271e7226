"""The mailbox as the API server tells of it: nothing that lies in it is missed, whatever becomes of connections."""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest
from lethe_spark.mailbox import Watching

from tests.support import api_server
from tests.support.api_server import ApiServer

BOX = "lethe-committer"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    with api_server.running(tmp_path) as running:
        running.create("another", data={"x": "not ours"})
        yield running


@dataclass
class Reader:
    """Follows the mailbox in a thread, and keeps what it was told."""

    server: ApiServer
    seen: list[dict[str, str]] = field(default_factory=list)
    received: int = 0

    def __enter__(self) -> "Reader":
        self.watching = Watching(self.server.api, BOX, self._put, self._received, watch_seconds=30)
        self.thread = threading.Thread(target=self.watching.follow)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.watching.stopped.set()
        until = monotonic() + 20
        while self.thread.is_alive() and monotonic() < until:
            self.server.cut_watches()  # also one that was just about to begin
            self.thread.join(timeout=0.1)
        assert not self.thread.is_alive()

    def _put(self, data: Mapping[str, str]) -> None:
        with self.server.news:
            self.seen.append(dict(data))
            self.server.news.notify_all()

    def _received(self) -> None:
        self.received += 1

    def wait_for(self, **data: str) -> None:
        """Until this is what was told last."""
        self.server.wait_for(lambda: self.seen[-1:] == [data], 20, f"{data}; there was {self.seen[-3:]}")

    def wait_for_watches(self, number: int) -> None:
        self.server.wait_for(lambda: len(self.server.watches) >= number, 20, f"{number} watches")


def test_existing_entries_and_changes_are_delivered_in_order(server: ApiServer) -> None:
    server.create(BOX, data={"a": "1"})
    with Reader(server) as reader:
        reader.wait_for(a="1")
        reader.wait_for_watches(1)
        server.put(BOX, b="2")
        server.put(BOX, a=None)
        server.put(BOX, c="3")
        reader.wait_for(b="2", c="3")

    assert reader.seen == [{"a": "1"}, {"a": "1", "b": "2"}, {"b": "2"}, {"b": "2", "c": "3"}]


def test_a_mailbox_that_is_not_there_yet_is_empty_and_one_that_goes_is_empty_again(server: ApiServer) -> None:
    with Reader(server) as reader:
        reader.wait_for()
        server.create(BOX, data={"a": "1"})
        reader.wait_for(a="1")
        server.delete(BOX)
        reader.wait_for()
        server.create(BOX)
        server.put(BOX, b="2")
        reader.wait_for(b="2")


def test_changes_during_a_lost_connection_are_delivered(server: ApiServer) -> None:
    server.create(BOX)
    with Reader(server) as reader:
        reader.wait_for_watches(1)
        server.refusals += [("GET", "configmaps", 503), ("GET", "configmaps", 0)]
        server.cut_watches()
        server.put(BOX, a="1")
        reader.wait_for(a="1")

    assert not server.refusals


def test_a_watch_that_ends_as_it_should_goes_on_from_there_without_a_list(server: ApiServer) -> None:
    server.create(BOX, data={"a": "1"})
    with Reader(server) as reader:
        reader.watching.watch_seconds = 1
        reader.wait_for_watches(3)
        server.put(BOX, a="2")
        reader.wait_for(a="2")

    assert reader.seen == [{"a": "1"}, {"a": "2"}]
    assert reader.received >= 4


@pytest.mark.parametrize("as_event", [True, False])
def test_a_version_that_is_forgotten_is_made_up_for_by_a_list(server: ApiServer, as_event: bool) -> None:
    """410 Gone, in the place of the watch or inside of it."""
    server.gone_as_event = as_event
    server.create(BOX, data={"a": "1"})
    with Reader(server) as reader:
        reader.watching.watch_seconds = 1
        reader.wait_for_watches(1)
        with server.news:
            server.put(BOX, a="2")
            server.forget()
        reader.wait_for(a="2")
        server.put(BOX, a="3")
        reader.wait_for(a="3")


def test_missing_rights_are_logged_and_the_request_is_repeated(
    server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.create(BOX, data={"a": "1"})
    server.refusals += [("GET", "configmaps", 403)] * 2
    with Reader(server) as reader:
        reader.wait_for(a="1")

    assert "403" in caplog.text
    assert server.folder.token not in caplog.text
