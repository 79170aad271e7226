"""The cursor on S3 (versitygw) and in local folders: only one of several writers moves it, also if answers are lost."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from lethe.uri import Backend
from lethe_operator.publish.cursor import Cursor, PublishedPosition, UnreadableCursor
from lethe_operator.publish.cursor_files import KEPT, CursorFiles, CursorMoved, Numbered
from lethe_operator.publish.feed import FeedState

from tests.support.builders import a_batch
from tests.support.publishing import LedgerHistory, RememberingSink, a_feed, deduplicated
from tests.support.servers.faulty_proxy import Fault, before, forward_to
from tests.support.servers.stores import Place, Stores


@pytest.fixture
def place(stores: Stores) -> Place:
    return stores[Backend.S3].place(uuid.uuid4().hex)


def a_cursor(epoch: int) -> Cursor:
    return Cursor("u", epoch, PublishedPosition())


def test_one_of_many_writers_moves_the_cursor(place: Place) -> None:
    first = CursorFiles(place.store, place.uri, "u", "ns/flights").create(a_cursor(0), None)

    def move(epoch: int) -> Numbered | None:
        try:
            return CursorFiles(place.store, place.uri, "u", "ns/flights").create(a_cursor(epoch), first)
        except CursorMoved:
            return None

    with ThreadPoolExecutor(8) as pool:
        moved = [m for m in pool.map(move, range(1, 17)) if m is not None]

    assert len(moved) == 1
    assert CursorFiles(place.store, place.uri, "u", "ns/flights").load() == moved[0]


def test_few_files_are_kept_however_often_it_moves(place: Place) -> None:
    files = CursorFiles(place.store, place.uri, "u", "ns/flights")
    current: Numbered | None = None
    for epoch in range(7):
        current = files.create(a_cursor(epoch), current)

    assert len(place.names()) == KEPT
    assert files.load() == current


def test_files_of_a_writer_that_was_left_behind_change_nothing_and_are_removed(place: Place) -> None:
    files = CursorFiles(place.store, place.uri, "u", "ns/flights")
    current: Numbered | None = None
    for epoch in range(5):
        current = files.create(a_cursor(epoch), current)
    files.create(a_cursor(99), Numbered(1, a_cursor(0)))  # its next number was deleted long ago

    assert files.load() == current
    assert len(place.names()) == KEPT


def test_a_damaged_file_is_named_and_the_one_before_it_counts_once_it_is_deleted(place: Place) -> None:
    files = CursorFiles(place.store, place.uri, "u", "ns/flights")
    first = files.create(a_cursor(1), None)
    place.store.put(f"{files.folder}/{2:016}.json", b"damaged")
    place.store.put(f"{files.folder}/notes.txt", b"of a person")
    with pytest.raises(UnreadableCursor, match=f"{2:016}"):
        files.load()

    place.store.remove(f"{files.folder}/{2:016}.json")

    assert files.load() == first


def test_a_lost_answer_of_any_write_repeats_events_and_loses_none(stores: Stores, tmp_path: Path) -> None:
    """The ledger is local; the cursor is on S3, behind a proxy."""
    with before(forward_to(stores[Backend.S3].endpoint)) as proxy:
        for number in range(4):
            history = LedgerHistory(tmp_path / str(number))
            for batch in "ABC":
                history.commit(a_batch(batch))
            place = stores[Backend.S3].place(uuid.uuid4().hex, proxy.endpoint)
            sink, state, puts = RememberingSink(), FeedState(), 0

            def lose(step: str, number: int = number) -> None:
                nonlocal puts
                if step == "before-cursor":
                    if puts == number:
                        proxy.arm(Fault.LOST_ANSWER, "PUT")
                    puts += 1

            for _ in range(5):
                table = history.opened()
                object.__setattr__(table, "cursors", CursorFiles(place.store, place.uri, history.uuid, "ns/flights"))
                try:
                    a_feed(sink, at_step=lose).publish(table, state)
                    break
                except CursorMoved:
                    continue

            assert [e.subject for e in deduplicated(sink.received)] == ["", "A", "B", "C"], number
