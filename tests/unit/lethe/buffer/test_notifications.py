"""Event notifications only say where to look; the ledger and the listing say what is settled."""

import json
from typing import Any

import pytest
from lethe.base.objects import BufferedObject
from lethe.buffer.layout import BufferedBatch, Directories, Files
from lethe.buffer.notifications import (
    NotANotification,
    Notice,
    Written,
    folders_to_list,
    is_later,
    is_over,
    is_settled,
    latest,
    read,
    with_sequencer,
)
from lethe.ledger.ledger import BatchEntry, BatchState

from tests.support.builders import NOW, a_batch

BUFFER = "s3://lake/buffer/flights"
LAYOUT = Directories("batch_id")
FOLDER = f"{BUFFER}/batch_id=A"
PART = f"{FOLDER}/p.parquet"


def a_record(key: str, name: str = "ObjectCreated:Put", bucket: str = "lake", **reported: Any) -> dict[str, Any]:
    return {"eventName": name, "s3": {"bucket": {"name": bucket}, "object": {"key": key, **reported}}}


def s3(*records: Any) -> str:
    return json.dumps({"Records": list(records)})


def from_s3(key: str, **changes: Any) -> Notice:
    return read(s3(a_record(key, **changes)), BUFFER, LAYOUT)


def a_write(key: str = PART, etag: str = "e", sequencer: str = "05", batch_id: str = "A") -> Written:
    return Written(batch_id, f"batch_id={batch_id}", key, etag, sequencer)


def test_a_file_that_is_a_batch_of_its_own_is_whole_when_it_is_there() -> None:
    """Where each file is a batch, nothing else says that it is complete; folders are none."""
    body = s3(*(a_record(f"buffer/flights/{name}", eTag="e") for name in ("a%2520b.csv.gz", "_x.csv", "x/y.csv", "x/")))

    notice = read(body, BUFFER, Files())

    assert notice == Notice((Written("a b", "a%20b.csv.gz", f"{BUFFER}/a%20b.csv.gz", "e"),))
    assert folders_to_list([(notice.written[0], True)], frozenset()) == ["a%20b.csv.gz"]


@pytest.mark.parametrize(
    ("key", "folder", "batch_id", "uri"),
    [
        ("batch_id%3Da+b/red+flower.parquet", "batch_id=a b", "a b", "batch_id=a b/red flower.parquet"),
        # The folder's name is percent-encoded by its producer, and S3 encodes it once more.
        ("batch_id%3Da%2520b/p%2B1.parquet", "batch_id=a%20b", "a b", "batch_id=a%20b/p+1.parquet"),
        ("batch_id%3D%C3%BC%252F1/p", "batch_id=ü%2F1", "ü/1", "batch_id=ü%2F1/p"),
    ],
)
def test_keys_are_decoded_once(key: str, folder: str, batch_id: str, uri: str) -> None:
    (written,) = from_s3(f"buffer/flights/{key}").written

    assert (written.folder, written.batch_id, written.key) == (folder, batch_id, f"{BUFFER}/{uri}")


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"}),
        s3(a_record("buffer/flights/batch_id=A/p.parquet", "ObjectRemoved:Delete")),
        s3(a_record("buffer/flights/_refused/batch_id=A/0123/p.parquet")),
        s3(a_record("buffer/flights/readme.txt")),
        s3(a_record("buffer/flights/batch_id=A/")),
        s3(a_record("buffer/flights/other=A/p.parquet")),
        s3(a_record(f"buffer/flights/batch_id={'x' * 300}/p.parquet")),
        s3(),
    ],
)
def test_a_message_of_which_nothing_comes(body: str) -> None:
    """It is acknowledged without waiting for anything."""
    assert read(body, BUFFER, LAYOUT) == Notice()


@pytest.mark.parametrize(
    "record",
    [
        a_record("buffer/flights2/batch_id=A/p.parquet"),
        a_record("buffer/batch_id=A/p.parquet"),
        a_record("buffer/flights/batch_id=A/p.parquet", bucket="lake2"),
    ],
)
def test_a_message_about_other_places_is_somebody_elses(record: Any) -> None:
    assert read(s3(record), BUFFER, LAYOUT) == Notice(elsewhere=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_message_about_this_buffer_and_other_places_counts_for_both(first: bool) -> None:
    """Whichever its first record is about."""
    ours, others = a_record(PART.removeprefix("s3://lake/"), eTag="e", sequencer="05"), a_record("other/batch_id=A/p")

    found = read(s3(*((ours, others) if first else (others, ours))), BUFFER, LAYOUT)

    assert found == Notice((a_write(),), elsewhere=True)


@pytest.mark.parametrize(
    "body",
    [
        *("", "rows", "[]", "3", "{}", "null", '{"Records": 3}', '{"Records": [{}]}', '{"Message": "x"}'),
        s3(a_record("buffer/flights/batch_id=%ff/p")),
        s3(a_record("buffer/flights/batch_id=\ud800/p")),
        s3(a_record(f"buffer/flights/batch_id=A/{'x' * 1024}")),
        s3(a_record("")),
        "[" * 60_000,
    ],
)
def test_a_message_that_is_no_notification_is_unreadable(body: str) -> None:
    with pytest.raises(NotANotification):
        read(body, BUFFER, LAYOUT)


def test_notifications_may_come_by_sns_and_eventbridge() -> None:
    direct = s3(a_record("buffer/flights/batch_id=A/p.parquet", eTag="e", sequencer="05"))
    by_sns = json.dumps({"Type": "Notification", "Message": direct})
    reported = {"key": "buffer/flights/batch_id=A/p.parquet", "etag": "e", "sequencer": "05"}
    by_eventbridge = {"source": "aws.s3", "detail-type": "Object Created"}
    detail = {"bucket": {"name": "lake"}, "object": reported}

    found = [read(b, BUFFER, LAYOUT) for b in (direct, by_sns, json.dumps({**by_eventbridge, "detail": detail}))]
    gone = read(json.dumps({**by_eventbridge, "detail-type": "Object Deleted", "detail": detail}), BUFFER, LAYOUT)

    assert found == [Notice((a_write(),))] * 3
    assert gone == Notice()


@pytest.mark.parametrize(
    ("later", "earlier"),
    [("0A", "09"), ("10", "0F"), ("100", "FF"), ("0055AED6DCD90281E6", "0055AED6DCD90281E5"), ("b", "A"), ("1", "")],
)
def test_sequencers_are_hexadecimal_numbers_of_any_length(later: str, earlier: str) -> None:
    assert is_later(later, earlier)
    assert not is_later(earlier, later)
    assert not is_later(later, f"000{later.lower()}")


def judged(state: BatchState, sequencer: str | None = None, etag: str = "e") -> BatchEntry:
    return a_batch("A", state, objects=(BufferedObject(PART, 10, etag, sequencer),))


@pytest.mark.parametrize(
    ("entry", "write", "settled"),
    [
        (None, a_write(), False),
        (judged(BatchState.PROMOTED), a_write(sequencer="06", etag="other"), True),
        (judged(BatchState.REVERTED), a_write(f"{FOLDER}/_SUCCESS"), True),
        (a_batch("A", BatchState.REPLACED), a_write(), True),
        (judged(BatchState.REFUSED, "05"), a_write(), True),
        (judged(BatchState.REFUSED, "06", "other"), a_write(), True),  # doubled or late: an older write of the key
        (judged(BatchState.REFUSED, "04"), a_write(), False),  # written again, to be looked at again
        (judged(BatchState.REFUSED), a_write(), True),
        (judged(BatchState.REFUSED, etag="other"), a_write(), False),
        (judged(BatchState.REFUSED), a_write(etag="", sequencer=""), False),
        (judged(BatchState.REFUSED, "05"), a_write(f"{FOLDER}/_SUCCESS"), False),
    ],
)
def test_the_ledger_alone_decides_whether_a_write_is_settled(
    entry: BatchEntry | None, write: Written, settled: bool
) -> None:
    assert is_settled(write, entry) is settled


def a_folder(*objects: BufferedObject, complete: bool = True) -> BufferedBatch:
    marker = (BufferedObject(f"{FOLDER}/_SUCCESS", 0, "s"),) if complete else ()
    return BufferedBatch("A", FOLDER, (*objects, *marker), complete, 10, NOW)


HELD = BufferedObject(PART, 10, "e")


@pytest.mark.parametrize(
    ("folder", "entry", "over"),
    [
        (None, None, True),  # its producer took it back
        (a_folder(), None, True),
        (a_folder(BufferedObject(PART, 10, "later")), None, True),
        (a_folder(HELD), None, False),
        (a_folder(HELD, complete=False), None, False),
        (a_folder(HELD), judged(BatchState.REFUSED), True),
        (a_folder(HELD), judged(BatchState.REFUSED, etag="other"), False),
        (a_folder(HELD), judged(BatchState.PROMOTED), True),
    ],
)
def test_the_listing_decides_whether_a_write_can_become_a_batch(
    folder: BufferedBatch | None, entry: BatchEntry | None, over: bool
) -> None:
    assert is_over(a_write(), folder, entry) is over


def test_only_folders_that_may_be_complete_are_listed() -> None:
    """A batch of a thousand files is listed once, not a thousand times; one whose marker came first is listed again."""
    marker = Written("B", "batch_id=B", f"{BUFFER}/batch_id=B/_SUCCESS")
    window = [(a_write(), True), (marker, True), (marker, True), (a_write(batch_id="C"), False)]

    assert folders_to_list(window, frozenset()) == ["batch_id=B", "batch_id=C"]
    assert folders_to_list([(a_write(), True)], frozenset({"batch_id=A"})) == ["batch_id=A"]


def test_of_several_writes_of_a_key_the_latest_counts() -> None:
    """In whatever order they come."""
    first, second = a_write(sequencer="FF"), a_write(sequencer="100", etag="later")
    others = (a_write(sequencer=""), a_write(f"{FOLDER}/_SUCCESS"), a_write("s3://x/y", batch_id="B"))

    found = latest((first, second, *others)), latest((*others, second, first))

    assert found[0] == found[1] == {"A": {PART: second}, "B": {"s3://x/y": others[2]}}


def test_a_sequencer_goes_with_the_write_that_is_promoted() -> None:
    assert with_sequencer(HELD, "e", "05").sequencer == "05"
    assert with_sequencer(HELD, "", "05").sequencer == "05"
    assert with_sequencer(HELD, "another", "05").sequencer is None
    assert with_sequencer(HELD, "e", "05") == HELD  # for retention it is the same object
