"""Plans a vacuum: which files to rewrite or delete, by bounds, and at each commit, which tombstones to remove. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.contract.run import VacuumSpec
from lethe.files.bounds import FileBounds, outdated
from lethe.files.tombstone_index import Suspects
from lethe.ledger.erasure import Erasure
from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import META_PURGED_BY, Tombstone
from lethe.vacuum.estimate import Estimate
from lethe.vacuum.priority import PurgeDeadlines, by_priority, within_budget

WINDOW_CLOSED: Final = "WindowClosed"
MAX_RUN_SECONDS: Final = "MaxRunSeconds"


@dataclass(frozen=True)
class VacuumPlan:
    """The plan of a run, by bounds alone, or of one step."""

    snapshot_id: int
    delete: tuple[FileBounds, ...]  # files in which all rows are tombstoned
    rewrite: tuple[FileBounds, ...]  # files to rewrite without their deleted rows, in this order
    tombstones: tuple[Tombstone, ...]  # all that the run purges
    # The tombstones whose rows are purged: those that the files might hold or, after a search, do hold; and others whose rows
    # native deletes hide in these files.
    applied: tuple[Tombstone, ...]
    postponed: tuple[FileBounds, ...] = ()  # files left for the next vacuum

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(f.path for f in (*self.delete, *self.rewrite))

    @property
    def digest(self) -> str:
        """Identifies the plan: the same files and tombstones have the same digest."""
        files = [sorted(f.path for f in group) for group in (self.delete, self.rewrite)]
        marks = sorted([t.id, t.added_on.isoformat(), *t.restatements] for t in self.applied)
        document = json.dumps([*files, marks], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()[:32]


def tombstones_to_purge(ledger: Ledger, field_id: int, batch_ids: Collection[str] = ()) -> tuple[Tombstone, ...]:
    """All tombstones of the batch column, or those of these batches."""
    if batch_ids:
        return tuple(get_many(ledger.tombstones, [(field_id, i) for i in batch_ids]).values())
    return tuple(t for t in ledger.tombstones.values() if t.namespace == field_id)


def unpurged_record_erasures(ledger: Ledger, field_id: int) -> tuple[Erasure, ...]:
    """The open Erases by records that may have rows in files. While there is one, a vacuum also rewrites files with native
    deletes, because the hidden rows are still in these files."""
    return tuple(e for e in ledger.unpurged_erasures if e.field_id != field_id)


@dataclass(frozen=True)
class ScannedSnapshot:
    """What SCAN found in a snapshot, by bounds."""

    snapshot_id: int
    tombstones: tuple[Tombstone, ...]  # to purge
    suspects: Suspects  # of these tombstones
    must: Collection[FileBounds]  # files in which all rows are tombstoned: deleting them is free, so it needs no budget
    might: Collection[FileBounds]  # files that might hold tombstoned rows, or rows under native deletes to erase


def plan_vacuum(
    scanned: ScannedSnapshot, estimate: Estimate, deadlines: PurgeDeadlines, max_bytes: int | None = None
) -> VacuumPlan:
    """Choose the files of a snapshot to delete and to rewrite.

    Args:
        estimate: Of the files in `scanned.might`.
        max_bytes: Limit for the total size of files to rewrite; None: no limit.
    """
    ordered = by_priority(scanned.might, scanned.suspects, estimate, deadlines)
    rewrite, postponed = within_budget(ordered, max_bytes)
    ids = scanned.suspects.covered((*scanned.must, *rewrite))
    applied = tuple(t for t in scanned.tombstones if t.id in ids)
    return VacuumPlan(scanned.snapshot_id, tuple(scanned.must), rewrite, scanned.tombstones, applied, postponed)


def earliest_deadline(erasures: Iterable[Erasure]) -> datetime | None:
    return min((e.evict_by for e in erasures if e.evict_by is not None), default=None)


@dataclass(frozen=True)
class Purge:
    """Commit the planned files."""

    delta: Delta  # removes tombstones that can have no more rows, and marks those that were applied in part
    vacuumed: tuple[Tombstone, ...]  # all that were applied to a removed file, still active or not


@dataclass(frozen=True)
class PlanAgain:
    """The plan does not fit the head any more."""

    why: str


def plan_purge(
    plan: VacuumPlan,
    ledger: Ledger,
    files_now: Collection[FileBounds],
    run: str,
    cleared: Collection[str] = (),
) -> Purge | PlanAgain:
    """Decide whether the files written for `plan` may be committed on this ledger and this head.

    Args:
        ledger: Of the head to commit on, which may be newer than the head of the plan.
        files_now: The data files of that head: those of the plan that remain, and all others that might hold rows of the
            tombstones, by this ledger.
        cleared: Paths of files that hold no rows of the tombstones, as a search of the files found.
    """
    if why := outdated((*plan.delete, *plan.rewrite), files_now):
        return PlanAgain(why)
    active, applied = still_active(plan.tombstones, ledger), still_active(plan.applied, ledger)
    if len(applied) < len(plan.applied):
        return PlanAgain("the tombstone of a batch was removed or set again since the plan")
    # Assess all files of this head again: a file added after the plan might hold rows of a tombstone, which then must stay. So
    # must a tombstone that was not in the plan or was set again.
    remaining = [f for f in files_now if f.path not in plan.touched and f.path not in cleared]
    still_there = Suspects(active.values()).covered(remaining)
    gone = frozenset(key for key, t in active.items() if t.id not in still_there)
    vacuumed = tuple(applied[t.key] for t in plan.applied)
    purged_in_part = tuple(
        replace(t, meta={META_PURGED_BY: run, **t.meta}) for t in vacuumed if t.key not in gone and _unmarked(t)
    )
    return Purge(Delta(run, add_tombstones=purged_in_part, remove_tombstones=gone), vacuumed)


def still_active(tombstones: Iterable[Tombstone], ledger: Ledger) -> Mapping[tuple[int, str], Tombstone]:
    """The tombstones that this ledger still has from the same deletion, by key, as the ledger has them."""
    known = {t.key: t for t in tombstones}
    return {k: t for k, t in get_many(ledger.tombstones, known).items() if t.same_origin(known[k])}


def also_purged(
    ledger: Ledger, field_id: int, tombstones: Collection[Tombstone], files: Collection[FileBounds]
) -> tuple[Tombstone, ...]:
    """The other tombstones whose rows a rewrite of these files removes: native deletes hide the rows, so the rewrite does not
    copy them. An increment must report these rows as deleted, and an Undo must not expect them.

    Args:
        tombstones: Those that the run purges, as this ledger has them.
        files: The files to rewrite.
    """
    if len(ledger.tombstones) <= len(tombstones) or not files:
        return ()
    known = {t.key for t in tombstones}
    within = ledger.tombstones_within(field_id, [(f.lower, f.upper) for f in files])
    others = [t for t in within if t.mask is not None and t.key not in known]
    held = Suspects(others).covered(files)
    return tuple(t for t in others if t.id in held)


def _unmarked(tombstone: Tombstone) -> bool:
    return META_PURGED_BY not in tombstone.meta


def out_of_time(spec: VacuumSpec, elapsed: timedelta, now: datetime) -> str:
    """Why a vacuum run must start no further step; empty: it may.

    Args:
        elapsed: Since the start of the run, by a monotonic clock.
    """
    if spec.stop_by is not None and now >= spec.stop_by:
        return WINDOW_CLOSED
    if spec.max_seconds is not None and elapsed >= timedelta(seconds=spec.max_seconds):
        return MAX_RUN_SECONDS
    return ""
