"""What a vacuum does to a table: SCAN by bounds, and at each of its commits the tombstones that may go. Pure."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from lethe.files.bounds import FileBounds, outdated
from lethe.files.tombstone_index import Suspects
from lethe.ledger.erasure import Erasure
from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import META_PURGED_BY, Tombstone
from lethe.vacuum.estimate import Likely
from lethe.vacuum.priority import in_order, within_budget


@dataclass(frozen=True)
class VacuumPlan:
    """Of a whole run by bounds alone, or of a step of it.

    Args:
        delete: Files of only tombstoned rows, dropped by metadata.
        rewrite: Files written anew without what is deleted of them, in the order in which they are to go.
        tombstones: All that the run is about.
        applied: Those of them whose rows go: that the files might hold or, of a step that has looked, do hold; and others whose
            rows go along.
        postponed: Files that are left to the next vacuum.
    """

    snapshot_id: int
    delete: tuple[FileBounds, ...]
    rewrite: tuple[FileBounds, ...]
    tombstones: tuple[Tombstone, ...]
    applied: tuple[Tombstone, ...]
    postponed: tuple[FileBounds, ...] = ()

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(f.path for f in (*self.delete, *self.rewrite))

    @property
    def digest(self) -> str:
        """Names the plan: the same files and tombstones have the same."""
        files = [sorted(f.path for f in group) for group in (self.delete, self.rewrite)]
        marks = sorted([t.id, t.added_on.isoformat(), *t.restatements] for t in self.applied)
        document = json.dumps([*files, marks], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()[:32]


def chosen(ledger: Ledger, field_id: int, batch_ids: Collection[str] = ()) -> tuple[Tombstone, ...]:
    """The tombstones that a vacuum is about: all of the batch column, or those of these batches."""
    if batch_ids:
        return tuple(get_many(ledger.tombstones, [(field_id, i) for i in batch_ids]).values())
    return tuple(t for t in ledger.tombstones.values() if t.namespace == field_id)


def owed(ledger: Ledger, field_id: int) -> tuple[Erasure, ...]:
    """The obligations of Erases by records of which a file may be left: while there is one, files with native deletes are written
    anew as well, since what those hide is in the file still."""
    return tuple(e for e in ledger.unpurged_erasures if e.field_id != field_id)


def plan_of(
    snapshot_id: int,
    tombstones: tuple[Tombstone, ...],
    suspects: Suspects,
    likely: Likely,
    must: Collection[FileBounds],
    might: Collection[FileBounds],
    max_bytes: int | None = None,
    due_by: datetime | None = None,
    erase_by: datetime | None = None,
) -> VacuumPlan:
    """Which files of a snapshot go now, told apart by the bounds of what is tombstoned.

    Args:
        must: Files of nothing but tombstoned rows; they cost nothing and always go. `might`: those that might hold some, or rows
            under native deletes that are to be erased.
        max_bytes: Of files to rewrite. None: no limit.
        due_by: Files with rows that must be gone by then come first; `erase_by`: when the first of an Erase by records must.
    """
    rewrite, postponed = within_budget(in_order(might, suspects, likely, due_by, erase_by), max_bytes)
    ids = suspects.covered((*must, *rewrite))
    applied = tuple(t for t in tombstones if t.id in ids)
    return VacuumPlan(snapshot_id, tuple(must), rewrite, tombstones, applied, postponed)


def earliest(erasures: Iterable[Erasure]) -> datetime | None:
    return min((e.evict_by for e in erasures if e.evict_by is not None), default=None)


@dataclass(frozen=True)
class Purge:
    """Commit the planned files. `delta` removes the tombstones of which no row can be left, and marks those that were
    applied and stay; `vacuumed` are all that were applied to a removed file, still active or not."""

    delta: Delta
    vacuumed: tuple[Tombstone, ...]


@dataclass(frozen=True)
class PlanAnew:
    why: str


def plan_purge(
    plan: VacuumPlan,
    ledger: Ledger,
    files_now: Collection[FileBounds],
    run: str,
    cleared: Collection[str] = (),
) -> Purge | PlanAnew:
    """Say whether what was written for `plan` may be committed on this ledger and this head.

    Args:
        ledger: That of the head to commit on, perhaps newer than the one planned on.
        files_now: The data files of that head: those of the plan that are left, and all others that might hold one of the
            tombstones by what this ledger remembers of them.
        cleared: Paths of files of which is known that they hold no row of the tombstones, since somebody has looked.
    """
    if why := outdated((*plan.delete, *plan.rewrite), files_now):
        return PlanAnew(why)
    active, applied = still_active(plan.tombstones, ledger), still_active(plan.applied, ledger)
    if len(applied) < len(plan.applied):
        return PlanAnew("the tombstone of one batch was taken back or set again since the plan")
    # Counted anew on this head: files that came after the plan might hold an id, whose tombstone then has to stay. So has
    # one that was no part of the plan, or is not the one that was.
    remaining = [f for f in files_now if f.path not in plan.touched and f.path not in cleared]
    still_there = Suspects(active.values()).covered(remaining)
    gone = frozenset(key for key, t in active.items() if t.id not in still_there)
    vacuumed = tuple(applied[t.key] for t in plan.applied)
    purged_in_part = tuple(
        replace(t, meta={META_PURGED_BY: run, **t.meta}) for t in vacuumed if t.key not in gone and _unmarked(t)
    )
    return Purge(Delta(run, add_tombstones=purged_in_part, remove_tombstones=gone), vacuumed)


def still_active(tombstones: Iterable[Tombstone], ledger: Ledger) -> Mapping[tuple[int, str], Tombstone]:
    """Those of the tombstones that are the same act of deletion on this ledger, as they are there."""
    known = {t.key: t for t in tombstones}
    return {k: t for k, t in get_many(ledger.tombstones, known).items() if t.same_origin(known[k])}


def going_along(
    ledger: Ledger, field_id: int, tombstones: Collection[Tombstone], files: Collection[FileBounds]
) -> tuple[Tombstone, ...]:
    """Tombstones that a run is not about, and whose rows are lost all the same when files are written anew: native deletes hide
    them from who reads the files. Whoever asks what was deleted has to find them with the others, and no Undo may count on them.

    Args:
        tombstones: What the run is about, as it is on this ledger.
        files: Those that are written anew.
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
