"""Expiry keeps what a reader, a ref, a bare snapshot or a run under way still needs."""

import pytest
from lethe.contract.run import SnapshotLimits
from lethe.ledger.lineage import Snapshot
from lethe.vacuum.housekeeping import SnapshotTree, plan_expiry, too_many

from tests.support.builders import NOW, a_carrier, a_history, a_snapshot, ago


def a_line(*days_ago: int) -> list[Snapshot]:
    """Snapshots 1, 2, … of ours, each the next one's parent."""
    return [a_snapshot(i, i - 1 or None, ledger=f"L{i}", at=ago(days=d)) for i, d in enumerate(days_ago, 1)]


def limits(days: float = 5, keep: int = 1, count: int = 1000) -> SnapshotLimits:
    return SnapshotLimits(max_age_seconds=int(days * 86400), min_to_keep=keep, max_count=count)


@pytest.mark.parametrize(
    ("given", "gone"),
    [
        (limits(days=5), (1, 2)),
        (limits(days=5, keep=3), (1,)),
        (limits(days=5, keep=9), ()),
        (limits(days=5, count=1), (1, 2, 3)),
        (limits(days=100, count=2), (1, 2)),
        (limits(days=100, count=1, keep=3), (1,)),
        (limits(days=0), (1, 2, 3)),
        (limits(days=0, keep=0), (1, 2, 3)),
    ],
)
def test_age_number_kept_and_number_allowed(given: SnapshotLimits, gone: tuple[int, ...]) -> None:
    """The oldest first; the head never."""
    assert gone == plan_expiry(SnapshotTree(a_history(*a_line(9, 8, 4, 1)), 4, {"main": 4}), given, NOW)


def test_the_head_stays_however_old_it_is() -> None:
    assert plan_expiry(SnapshotTree(a_history(*a_line(99)), 1, {"main": 1}), limits(days=0, keep=0), NOW) == ()


def test_a_table_without_snapshots_expires_none() -> None:
    assert plan_expiry(SnapshotTree({}, None, {}), limits(), NOW) == ()


def test_a_tag_holds_its_snapshot_and_not_those_before_it() -> None:
    assert plan_expiry(SnapshotTree(a_history(*a_line(9, 8, 7, 1)), 4, {"main": 4, "audit": 2}), limits(), NOW) == (
        1,
        3,
    )


def test_a_branch_of_its_own_keeps_its_whole_history() -> None:
    """How long a branch lives is its owner's to say."""
    history = a_history(*a_line(9, 8, 1), a_snapshot(7, 1, at=ago(days=8)), a_snapshot(8, 7, at=ago(days=8)))

    assert plan_expiry(SnapshotTree(history, 3, {"main": 3, "side": 8}), limits(), NOW) == (2,)


def test_the_carrier_of_a_bare_snapshot_that_stays_does_stay_too() -> None:
    """A tagged foreign commit whose carrier went would be read without its tombstones, or not at all."""
    history = a_history(
        a_snapshot(1, ledger="L1", at=ago(days=9)),
        a_snapshot(2, 1, at=ago(days=8)),
        a_snapshot(3, 2, at=ago(days=8)),  # tagged
        a_snapshot(4, 3, ledger="L4", at=ago(days=7)),
        a_snapshot(5, 4, ledger="L5", at=ago(days=1)),
    )

    assert plan_expiry(SnapshotTree(history, 5, {"main": 5, "audit": 3}), limits(), NOW) == (4,)


def test_a_bare_head_keeps_everything_down_to_its_ledger() -> None:
    history = a_history(
        *a_line(9, 8),
        a_snapshot(3, 2, at=ago(days=7)),
        a_snapshot(4, 3, at=ago(days=6)),
        a_snapshot(5, 4, at=ago(days=6)),
    )

    assert plan_expiry(SnapshotTree(history, 5, {"main": 5}), limits(), NOW) == (1,)


def test_a_bare_snapshot_whose_carrier_expired_before_does_not_stop_expiry() -> None:
    history = a_history(a_snapshot(3, 2, at=ago(days=8)), *(a_line(9, 9, 9, 8, 1)[3:]))

    assert plan_expiry(SnapshotTree(history, 5, {"main": 5, "audit": 3}, (a_carrier(2, 3),)), limits(), NOW) == (4,)
    assert plan_expiry(SnapshotTree(history, 5, {"main": 5, "audit": 3}), limits(), NOW) == (4,)


def staged(id: int, parent: int, run: str, **age: float) -> Snapshot:
    return a_snapshot(id, parent, at=ago(**age), wap__id=run, lethe__run_id=run)


def test_files_staged_by_a_run_under_way_are_not_expired_under_it_whatever_the_limits() -> None:
    """A vacuum runs beside a consolidation: expiring what was staged a minute ago would delete the files that the
    consolidation is about to commit."""
    history = a_history(*a_line(9, 1), staged(3, 2, "r", minutes=1))

    assert plan_expiry(SnapshotTree(history, 2, {"main": 2}), limits(days=0), NOW) == (1,)


def test_an_unpublished_staged_snapshot_of_a_dead_run_expires_when_it_is_old() -> None:
    history = a_history(*a_line(9, 1), staged(3, 1, "r", days=8))

    assert plan_expiry(SnapshotTree(history, 2, {"main": 2}), limits(), NOW) == (1, 3)


def test_a_staged_snapshot_that_was_published_goes_at_once() -> None:
    """It names every file that was live then: kept for its age, it would hold back what a vacuum has purged, and a
    table of many commits would carry one more snapshot for each."""
    published = a_snapshot(4, 2, ledger="L4", at=NOW, lethe__run_id="r")
    history = a_history(*a_line(2, 1), staged(3, 2, "r", minutes=1), published)

    assert plan_expiry(SnapshotTree(history, 4, {"main": 4}), limits(), NOW) == (3,)


def test_a_staged_snapshot_younger_than_the_last_commit_of_its_run_is_that_runs_next_work() -> None:
    """The same run id may stage again: a batch that was incomplete the first time has come."""
    published = a_snapshot(3, 2, ledger="L3", at=ago(minutes=9), lethe__run_id="r")
    history = a_history(*a_line(2, 1), published, staged(4, 3, "r", minutes=1))

    assert plan_expiry(SnapshotTree(history, 3, {"main": 3}), limits(), NOW) == ()


# --- by number alone ------------------------------------------------------------------------------------------------


def test_without_age_only_what_is_too_much_goes_however_old_the_rest_is() -> None:
    """Old snapshots within the number allowed are somebody's time travel, on a table that no policy vacuums."""
    history = a_history(*a_line(99, 98, 97, 1))

    assert plan_expiry(SnapshotTree(history, 4, {"main": 4}), limits(days=5, count=3), NOW, by_age=False) == (1,)
    assert plan_expiry(SnapshotTree(history, 4, {"main": 4}), limits(days=5, count=4), NOW, by_age=False) == ()


def test_a_history_is_cut_when_it_is_longer_than_allowed_by_a_tenth() -> None:
    """At every commit would be one expiry for each."""
    lengths = {n: too_many(n, limits(count=10)) for n in range(9, 14)}

    assert lengths == {9: False, 10: False, 11: False, 12: True, 13: True}
