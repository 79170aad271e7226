import json

import pytest
from lethe_operator.publish.cursor import (
    Cursor,
    Move,
    PublishedPosition,
    PublishingStep,
    UnreadableCursor,
    decode,
    encode,
    generator_of,
    started,
)
from lethe_operator.resources.observed import StartedFrom

AT = PublishedPosition("s3://lake/t/_tombstones/1-root.json", 1, 11, 21, 1767225600123)
TO = PublishedPosition("s3://lake/t/_tombstones/2-root.json", 2, 12, 22, None)
STEP = PublishingStep(Move.NEXT, TO, "1:65536", sent=7)


@pytest.mark.parametrize(
    "cursor",
    [
        Cursor("u", 5, AT),
        Cursor("u", 5, PublishedPosition(), STEP),
        Cursor("u", 5, AT, PublishingStep(Move.START, AT, "1:65536", start=StartedFrom.HEAD, replaces="v")),
    ],
)
def test_a_cursor_is_read_as_it_was_written(cursor: Cursor) -> None:
    assert decode(encode(cursor, "ns/flights"), "file") == cursor


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{}", b"[]", b"null", b'{"format-version": 1}', encode(Cursor("u", 5, AT), "d")[:50], b"[" * 100_000),
        encode(Cursor("u", 5, AT), "d").replace(b'"epoch": 5', b'"epoch": 1e999'),
    ],
)
def test_a_damaged_cursor_names_its_file_and_what_to_do(content: bytes) -> None:
    with pytest.raises(UnreadableCursor, match=r"s3://lake/c\.json is not a readable cursor .* Delete it"):
        decode(content, "s3://lake/c.json")


def test_a_cursor_of_a_newer_version_is_not_guessed() -> None:
    newer = json.dumps({"format-version": 2}).encode()

    with pytest.raises(UnreadableCursor, match="format version 2; this version of Lethe reads up to 1"):
        decode(newer, "file")


def test_an_epoch_grows_although_the_clock_goes_back() -> None:
    cursor = started("u", AT, StartedFrom.HEAD, "1:65536", 1000).finished()

    assert cursor.begun(PublishingStep(Move.ROLL_BACK, TO, "1:65536"), 10).epoch == 1001
    assert cursor.begun(PublishingStep(Move.SKIP, TO, "1:65536"), 5000).epoch == 5000
    assert cursor.begun(STEP, 5000).epoch == 1000


def test_a_step_goes_on_unless_its_events_would_differ() -> None:
    cursor = Cursor("u", 5, AT, STEP)

    assert cursor.resumed("1:65536", 9) is cursor
    other = cursor.resumed(generator_of(1000), 9)
    assert other.step is not None
    assert (other.epoch, other.step.sent, other.step.generator) == (9, 0, "1:1000")
