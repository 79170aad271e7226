"""Which objects of a refused batch leave the buffer, and which are their producer's."""

import json
from typing import Any

import pytest
from lethe.buffer.layout import BufferedBatch, ListedObject
from lethe.buffer.promotion import is_judged, is_left, is_mixed, plan_removal, reason_uri, refused_folder
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject

from tests.support.builders import NOW, a_batch, ago, listed

BUFFER = "s3://lake/buffer"
FOLDER = f"{BUFFER}/batch_id=a%20b"
ONE, TWO = listed(f"{FOLDER}/day=1/p 1", 10, "e1", ago(hours=1)), listed(f"{FOLDER}/p2", 20, "e2", ago(hours=1))
MARKER = listed(f"{FOLDER}/_SUCCESS", 0, "m", ago(hours=1))
HINT = listed(f"{FOLDER}/_temporary/0/p", 7, "t", ago(hours=1))


def plain(*objects: ListedObject) -> tuple[BufferedObject, ...]:
    return tuple(BufferedObject(o.key, o.size, o.etag) for o in objects)


def refused(**changes: Any) -> BatchEntry:
    wanted: dict[str, Any] = {"refusal": "SchemaMismatch: p2: column v: text", "objects": plain(ONE, TWO)}
    return a_batch("a b", BatchState.REFUSED, **{"rows": None, "bytes": None, **wanted, **changes})


def test_a_refused_batch_goes_to_a_folder_of_its_own_with_its_reason_marker_first() -> None:
    removal = plan_removal(f"{BUFFER}/", refused(), [ONE, MARKER, TWO, HINT])

    assert removal is not None
    target = refused_folder(BUFFER, refused())
    assert target.startswith(f"{BUFFER}/_refused/batch_id=a%20b/")
    assert dict(removal.copies) == {plain(ONE)[0]: f"{target}/day=1/p 1", plain(TWO)[0]: f"{target}/p2"}
    assert removal.marker == plain(MARKER)[0]
    assert set(removal.objects) == set(plain(ONE, TWO))
    assert removal.reason_uri == reason_uri(BUFFER, refused()) == f"{target}/_REFUSED.json"


def test_the_reason_file_names_the_batch_the_reason_and_the_run() -> None:
    removal = plan_removal(BUFFER, refused(), [ONE, TWO])

    assert removal is not None
    assert json.loads(removal.reason) == {
        "batch": "a b",
        "reason": "SchemaMismatch",
        "message": "p2: column v: text",
        "run": refused().run,
        "refusedTime": "2026-03-01T12:00:00Z",
        "objects": [
            {"key": f"{FOLDER}/day=1/p 1", "size": 10, "etag": "e1"},
            {"key": f"{FOLDER}/p2", "size": 20, "etag": "e2"},
        ],
    }


def test_what_a_crash_has_left_goes_the_same_way() -> None:
    """The marker and some objects are gone; the rest is copied again and deleted."""
    whole, rest = plan_removal(BUFFER, refused(), [ONE, TWO, MARKER]), plan_removal(BUFFER, refused(), [TWO])

    assert whole is not None
    assert rest is not None
    assert (rest.objects, rest.marker) == (plain(TWO), None)
    assert dict(rest.copies).items() <= dict(whole.copies).items()
    assert (rest.reason_uri, rest.reason) == (whole.reason_uri, whole.reason)


@pytest.mark.parametrize(
    ("entry", "there"),
    [
        (refused(), []),
        (refused(), [MARKER]),
        (refused(), [ONE, TWO, MARKER, listed(f"{FOLDER}/p3")]),
        (refused(), [ONE, listed(TWO.key, 20, "other"), MARKER]),
        (refused(), [ONE, listed(TWO.key, 21, "e2"), MARKER]),
        (refused(objects=()), [ONE, TWO, MARKER]),
        (a_batch("a b", BatchState.PROMOTED, objects=plain(ONE, TWO)), [ONE, TWO, MARKER]),
        (a_batch("a b", BatchState.REVERTED), [ONE, TWO, MARKER]),
    ],
    ids=["gone", "marker", "added", "written over", "longer", "unjudged", "promoted", "taken back"],
)
def test_a_folder_that_holds_anything_else_is_left_alone(entry: BatchEntry, there: list[ListedObject]) -> None:
    """Its producer is mending it, or it is no refused batch at all."""
    assert plan_removal(BUFFER, entry, there) is None


@pytest.mark.parametrize("again", [ONE, MARKER])
def test_what_was_written_after_the_refusal_is_not_taken_for_what_was_refused(again: ListedObject) -> None:
    """A store calls the same bytes the same, whoever put them and when: but they have not been looked at."""
    there = [listed(o.key, o.size, o.etag, NOW if o is again else ago(hours=2)) for o in (ONE, TWO, MARKER)]

    assert plan_removal(BUFFER, refused(time=ago(hours=1)), there, until=ago(hours=1)) is None
    assert plan_removal(BUFFER, refused(time=ago(hours=1)), there) is not None


def buffered(*objects: ListedObject) -> BufferedBatch:
    return BufferedBatch("a b", FOLDER, plain(*objects), True, 30, min(o.modified for o in objects))


def test_a_batch_is_left_if_some_objects_are_older_than_the_refusal() -> None:
    later = listed(f"{FOLDER}/p3", modified=NOW)

    assert is_left(buffered(ONE, TWO), refused())
    assert is_left(buffered(TWO, later), refused())
    assert not is_left(buffered(later), refused())
    assert not is_left(buffered(ONE, TWO), None)
    assert not is_left(buffered(ONE, TWO), a_batch("a b", objects=plain(ONE, TWO)))
    assert not is_left(buffered(ONE, TWO), refused(time=ago(hours=3)))


def test_a_batch_is_mixed_if_it_has_refused_and_new_objects() -> None:
    """Written again as a whole it is not, though some of its files be the same to the byte."""
    new, again = listed(f"{FOLDER}/p3", modified=NOW), listed(ONE.key, ONE.size, ONE.etag, NOW)

    assert is_mixed(buffered(ONE, new), refused())
    assert not is_mixed(buffered(ONE, TWO), refused())
    assert not is_mixed(buffered(again, new), refused(time=ago(hours=1)))


FILE = listed(f"{BUFFER}/a%20b.csv.gz", 10, "e1", ago(hours=1))


def test_a_refused_file_goes_to_a_folder_of_its_own_under_its_name() -> None:
    entry = refused(objects=plain(FILE))

    removal = plan_removal(BUFFER, entry, [FILE])

    assert removal is not None
    target = refused_folder(BUFFER, entry)
    assert target.startswith(f"{BUFFER}/_refused/a%20b.csv.gz/")
    assert dict(removal.copies) == {plain(FILE)[0]: f"{target}/a%20b.csv.gz"}
    assert (removal.marker, removal.reason_uri) == (None, f"{target}/_REFUSED.json")


@pytest.mark.parametrize(
    "there",
    [
        [],
        [listed(FILE.key, 10, "e2", ago(hours=1))],
        [listed(FILE.key, 10, "e1", NOW)],  # the same bytes, written since: they are to be looked at again
    ],
)
def test_a_file_that_was_deleted_or_written_again_is_left_alone(there: list[ListedObject]) -> None:
    assert plan_removal(BUFFER, refused(objects=plain(FILE)), there, until=ago(minutes=1)) is None


def test_a_batch_counts_as_judged_while_its_objects_may_be_moved_away() -> None:
    """Those that lie there since before, and the very same bytes though they were written again; nothing else."""
    later = refused(time=ago(hours=3))  # than which both were written

    assert is_judged(buffered(TWO, listed(f"{FOLDER}/p3", modified=NOW)), refused())
    assert is_judged(buffered(ONE, TWO), later)
    assert is_judged(buffered(ONE), later)
    assert not is_judged(buffered(ONE, listed(f"{FOLDER}/p3", modified=NOW)), later)
    assert not is_judged(buffered(ONE, TWO), None)
    assert not is_judged(buffered(ONE, TWO), a_batch("a b", objects=plain(ONE, TWO)))
