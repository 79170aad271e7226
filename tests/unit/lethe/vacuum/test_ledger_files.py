"""No file goes that a retained snapshot, a commit under way or a reader may need; every other one does, in the end."""

from datetime import datetime, timedelta

import pytest
from lethe.base.errors import LedgerError
from lethe.buffer.layout import ListedObject
from lethe.vacuum.housekeeping import Cleanup, just_superseded, named_files, needed_roots, plan_cleanup

from tests.support.builders import NOW, a_carrier, a_history, a_snapshot, ago, listed

LEDGERS = "s3://lake/t/_tombstones"
OLD = ago(days=2)


def a_ledger_file(
    version: int, what: str = "root.json", modified: datetime = OLD, nonce: str = "0a1b2c3d"
) -> ListedObject:
    return listed(f"{LEDGERS}/{version:08d}-0123456789ab-{nonce}-{what}", modified=modified)


def name(o: ListedObject) -> str:
    return o.key.rpartition("/")[2]


def test_old_unneeded_files_are_removed_and_roots_first() -> None:
    root, part, needed = a_ledger_file(1), a_ledger_file(1, "batches.avro"), a_ledger_file(2, "tombstones.avro")

    assert plan_cleanup([part, root, needed], {name(needed)}, NOW) == Cleanup((root.key,), (part.key,))


def test_a_file_that_a_commit_under_way_may_have_written_stays() -> None:
    young = [a_ledger_file(3, what, ago(hours=23)) for what in ("root.json", "tombstones.avro")]

    assert plan_cleanup(young, (), NOW) == Cleanup()


@pytest.mark.parametrize(
    "key",
    [f"{LEDGERS}/notes.json", f"{LEDGERS}/backup/{'0' * 8}-a-0a1b2c3d-root.json", "s3://lake/t/data/00000001-a.avro"],
)
def test_names_that_lethe_does_not_give_are_none_of_its_business(key: str) -> None:
    assert plan_cleanup([listed(key, modified=OLD)], (), NOW) == Cleanup()


def test_stage_documents_are_removed_with_their_snapshot_and_run_files_after_a_week() -> None:
    runs = "s3://lake/t/_runs"
    staged, dead = f"{runs}/r1-stage-0a1b2c3d.json", f"{runs}/r2-stage-0a1b2c3d.json"
    recent_run_file, old_run_file = f"{runs}/r3.json", f"{runs}/r4.json"
    files = [
        *(listed(k, modified=OLD) for k in (staged, dead, recent_run_file)),
        listed(old_run_file, modified=ago(days=8)),
    ]

    plan = plan_cleanup(files, named_files([a_snapshot(1, lethe__stage=staged)]), NOW)

    assert plan == Cleanup((), (dead, old_run_file))


def test_every_file_that_a_retained_snapshot_names_is_needed() -> None:
    keys = {"tombstone__file": "f/t.avro", "tombstone__vacuum__file": "f/v.avro", "lethe__stage": "f/s.json"}

    assert named_files([a_snapshot(1, ledger="f/root.json", **keys)]) == {"root.json", "t.avro", "v.avro", "s.json"}


# --- which roots are needed -----------------------------------------------------------------------------------------


def test_every_ledger_that_a_retained_snapshot_leads_to_is_needed() -> None:
    """Its own; that of a bare snapshot's ancestor; and one known from the carriers list only."""
    history = a_history(
        a_snapshot(3, 2, at=ago(days=9)),  # bare, tagged; its carrier 2 is gone
        a_snapshot(6, 5, ledger="L6"),
        a_snapshot(7, 6),  # staged by a run under way, or a foreign writer's
        a_snapshot(8, 6, ledger="L8"),
    )

    assert needed_roots(history, (a_carrier(2, 3),), "t", None) == {"L2", "L6", "L8"}


def test_nothing_is_known_to_be_superfluous_when_a_snapshot_has_lost_its_ledger() -> None:
    history = a_history(a_snapshot(3, 2), a_snapshot(6, 5, ledger="L6"))

    with pytest.raises(LedgerError, match="LedgerLost"):
        needed_roots(history, (), "t", None)


def test_snapshots_from_before_the_first_ledger_need_none() -> None:
    assert needed_roots(a_history(a_snapshot(3, 2), a_snapshot(6, 5, ledger="L6")), (), "t", 3) == {"L6"}


# --- readers at a ledger whose snapshot has just gone ---------------------------------------------------------------


def test_a_root_that_was_succeeded_a_moment_ago_may_still_be_read() -> None:
    """It was written days ago, and was the head's until a minute ago."""
    first, second = a_ledger_file(1), a_ledger_file(2)
    third = a_ledger_file(3, modified=ago(minutes=1))

    assert just_superseded([first, second, third], NOW) == (second.key, third.key)


def test_an_old_failed_attempt_supersedes_no_root() -> None:
    """Version 2 was tried in vain two days ago and made a minute ago: until then, version 1 was read."""
    first, failed = a_ledger_file(1, modified=ago(days=3)), a_ledger_file(2, nonce="ffffffff")
    second = a_ledger_file(2, modified=ago(minutes=1))

    assert first.key in just_superseded([first, failed, second], NOW)


def test_a_listing_of_long_ago_has_no_reader() -> None:
    files = [a_ledger_file(n, modified=NOW - timedelta(days=10 - n)) for n in range(5)]

    assert just_superseded(files, NOW) == ()
