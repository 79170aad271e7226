"""What was looked at since a listing becomes part of its digest, and nothing is counted twice."""

from dataclasses import replace
from datetime import timedelta

from lethe.buffer.digest import BufferDigest, Folders, digest, with_folders
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject

from tests.support.builders import NOW, a_batch

ROOT = "s3://lake/buffer/flights"


def a_folder(id: str, *, minutes: float = 60, size: int = 10, complete: bool = True, name: str = "") -> BufferedBatch:
    """One that is so many minutes old."""
    uri = f"{ROOT}/{name or f'batch_id={id}'}"
    objects = (
        BufferedObject(f"{uri}/p", size, "e"),
        *([BufferedObject(f"{uri}/_SUCCESS", 0, "s")] if complete else ()),
    )
    return BufferedBatch(id, uri, objects, complete, size, NOW - timedelta(minutes=minutes))


def listed(*found: BufferedBatch, takes: int = 10) -> BufferDigest:
    return digest(found, lambda _: {}, takes, 0, NOW)


def folders_of(*found: BufferedBatch) -> Folders:
    return {b.folder.rpartition("/")[2]: b for b in found}


def ids(known: BufferDigest) -> list[str]:
    return [b.id for b in known.oldest]


def test_a_batch_that_came_since_waits_like_any_other() -> None:
    """The digest is the one that a listing of all would have made."""
    before, came = (a_folder("A"), a_folder("C")), (a_folder("B", minutes=90, size=5), a_folder("D", minutes=1))

    assert with_folders(listed(*before), folders_of(*came), {}, 10).oldest == listed(*before, *came).oldest
    assert with_folders(listed(*before), folders_of(*came), {}, 10).bytes == 35


def test_a_batch_with_two_notifications_is_counted_once() -> None:
    known = listed(a_folder("A"), a_folder("B"))

    again = with_folders(known, folders_of(a_folder("A", size=30)), {}, 10)

    assert (again.batches, again.bytes, ids(again)) == (2, 40, ["A", "B"])
    assert with_folders(again, folders_of(a_folder("A", size=30)), {}, 10) == again


def test_a_folder_that_emptied_or_is_no_batch_does_not_wait() -> None:
    known = listed(a_folder("A"), a_folder("B"), a_folder("C"))

    left = with_folders(known, {"batch_id=A": None, "batch_id=B": NoBatch("batch_id=B", "why")}, {}, 10)

    assert (left.batches, left.bytes, ids(left)) == (1, 10, ["C"])


def test_what_the_ledger_has_settled_or_is_incomplete_does_not_wait() -> None:
    entries = {"P": a_batch("P"), "R": _refused(a_folder("R")), "N": _refused(a_folder("N", size=3))}
    folders = folders_of(a_folder("P"), a_folder("R"), a_folder("N"), a_folder("I", complete=False))

    assert ids(with_folders(listed(), folders, entries, 10)) == ["N"]  # refused with other objects than these


def _refused(folder: BufferedBatch) -> BatchEntry:
    return a_batch(folder.id, BatchState.REFUSED, objects=folder.data_objects)


def test_two_folders_of_one_id_are_no_batch() -> None:
    known = listed(a_folder("a b", name="batch_id=a b"), a_folder("C"))

    twins = with_folders(known, folders_of(a_folder("a b", name="batch_id=a%20b")), {}, 10)

    assert ids(twins) == ["C"]


def test_only_what_a_run_takes_is_known_and_then_nothing_changes_until_the_next_listing() -> None:
    """Who is not known cannot be told from who is new."""
    full = with_folders(listed(a_folder("A"), a_folder("B")), folders_of(a_folder("C", minutes=90)), {}, 2)

    assert (full.batches, ids(full), full.is_cut) == (3, ["C", "A"], True)
    assert with_folders(full, folders_of(a_folder("B")), {}, 2) == full


def test_other_counts_stay_those_of_the_listing() -> None:
    known = replace(listed(a_folder("A")), incomplete=4, promoted=5, objects=99)

    after = with_folders(known, folders_of(a_folder("B")), {}, 10)

    assert (after.incomplete, after.promoted, after.objects) == (4, 5, 99)
