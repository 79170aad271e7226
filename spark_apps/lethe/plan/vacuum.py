"""What a vacuum does to a table: SCAN by bounds, and at its commit the tombstones that may go. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import META_PURGED_BY, Tombstone
from lethe.plan.bounds import FileBounds, IdIndex, split_by_bounds
from lethe.plan.vacuum_budget import within_budget


@dataclass(frozen=True)
class VacuumPlan:
    """`delete`: files of only tombstoned rows, dropped by metadata; `rewrite`: files written anew without what is deleted
    of them; `tombstones`: all that were active; `applied`: those of them that the files might hold, and whose rows go;
    `postponed`: files that were left to the next vacuum."""

    snapshot_id: int
    delete: tuple[FileBounds, ...]
    rewrite: tuple[FileBounds, ...]
    tombstones: tuple[Tombstone, ...]
    applied: tuple[Tombstone, ...]
    postponed: tuple[FileBounds, ...] = ()

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(f.path for f in (*self.delete, *self.rewrite))


def plan_vacuum(
    ledger: Ledger,
    snapshot_id: int,
    files: Iterable[FileBounds],
    field_id: int,
    max_bytes: int | None = None,
    due_by: datetime | None = None,
) -> VacuumPlan:
    """SCAN: which files of the snapshot can hold a tombstone of the batch column, and which of them go now.

    While the ledger holds an obligation of an Erase by records, files with native deletes are written anew as well: what those
    hide is in the file still.

    Args:
        max_bytes: Of files to rewrite; files of only tombstoned rows cost nothing and always go. None: no limit.
        due_by: With a limit, files with rows that must be gone by then come first, those of such an Erase included.
    """
    tombstones = tuple(t for t in ledger.tombstones.values() if t.namespace == field_id)
    index = IdIndex([t.id for t in tombstones])
    split = split_by_bounds(files, {t.id for t in tombstones})
    owed = [e for e in ledger.erasures if e.field_id != field_id]
    erase_by = min((e.evict_by for e in owed if e.evict_by is not None), default=None)
    might = (*split.might, *(f for f in split.cannot if f.deletes and owed))
    rewrite, postponed = within_budget(might, tombstones, max_bytes, due_by, erase_by)
    ids = index.covered((*split.must, *rewrite))
    applied = tuple(t for t in tombstones if t.id in ids)
    return VacuumPlan(snapshot_id, split.must, rewrite, tombstones, applied, postponed)


@dataclass(frozen=True)
class Purge:
    """Commit the planned files. `delta` removes the tombstones of which no row can be left, and marks those that were
    applied and stay; `vacuumed` are all that were applied to a removed file, still active or not."""

    delta: Delta
    vacuumed: tuple[Tombstone, ...]


@dataclass(frozen=True)
class PlanAnew:
    why: str


def plan_purge(plan: VacuumPlan, ledger: Ledger, files_now: Collection[FileBounds], run: str) -> Purge | PlanAnew:
    """Say whether what was written for `plan` may be committed on this ledger and this head.

    Args:
        ledger: That of the head to commit on, perhaps newer than the one planned on.
        files_now: The data files of that head.
    """
    by_path = {f.path: f for f in files_now}
    for f in (*plan.delete, *plan.rewrite):
        now = by_path.get(f.path)
        if now is None:
            return PlanAnew(f"{f.path} is no longer part of the table")
        if not now.deletes <= f.deletes:
            return PlanAnew(f"rows of {f.path} were deleted since the plan")
    active = get_many(ledger.tombstones, [t.key for t in plan.tombstones])
    for t in plan.applied:
        found = active.get(t.key)
        if found is None or not found.same_origin(t):
            return PlanAnew("the tombstone of one batch was taken back or set again since the plan")
    # Counted anew on this head: files that came after the plan might hold an id, whose tombstone then has to stay. So has
    # one that was no part of the plan, or is not the one that was.
    remaining = [f for f in files_now if f.path not in plan.touched]
    still_there = IdIndex([t.id for t in plan.tombstones]).covered(remaining)
    ended = [t for t in plan.tombstones if t.id not in still_there]
    gone = frozenset(t.key for t in ended if (found := active.get(t.key)) is not None and found.same_origin(t))
    vacuumed = tuple(active[t.key] for t in plan.applied)
    purged_in_part = tuple(
        replace(t, meta={META_PURGED_BY: run, **t.meta}) for t in vacuumed if t.key not in gone and _unmarked(t)
    )
    return Purge(Delta(run, add_tombstones=purged_in_part, remove_tombstones=gone), vacuumed)


def _unmarked(tombstone: Tombstone) -> bool:
    return META_PURGED_BY not in tombstone.meta
