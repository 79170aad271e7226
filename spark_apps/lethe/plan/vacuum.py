"""What a vacuum does to a table: SCAN by bounds, and at its commit the tombstones that may go. Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.tombstone import Tombstone
from lethe.plan.bounds import FileBounds, IdIndex, split_by_bounds


@dataclass(frozen=True)
class VacuumPlan:
    """`delete`: files of only tombstoned rows, dropped by metadata; `rewrite`: files written anew without them;
    `tombstones`: the active ones the plan was made for, every one of which is applied to these files."""

    snapshot_id: int
    delete: tuple[FileBounds, ...]
    rewrite: tuple[FileBounds, ...]
    tombstones: tuple[Tombstone, ...]

    @property
    def touched(self) -> frozenset[str]:
        return frozenset(f.path for f in (*self.delete, *self.rewrite))


def plan_vacuum(ledger: Ledger, snapshot_id: int, files: Iterable[FileBounds], field_id: int) -> VacuumPlan:
    """SCAN: which files of the snapshot can hold a tombstone of the batch column."""
    tombstones = tuple(t for t in ledger.tombstones.values() if t.namespace == field_id)
    split = split_by_bounds(files, {t.id for t in tombstones})
    return VacuumPlan(snapshot_id, split.must, split.might, tombstones)


@dataclass(frozen=True)
class Purge:
    """Commit the planned files. `delta` removes the tombstones of which no row can be left; `vacuumed` are all that were
    applied to a removed file, still active or not."""

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
        if now.has_deletes and not f.has_deletes:
            return PlanAnew(f"rows of {f.path} were deleted since the plan")
    for t in plan.tombstones:
        active = ledger.tombstones.get(t.key)
        if active is None or not active.same_origin(t):
            return PlanAnew("the tombstone of one batch was taken back or set again since the plan")
    remaining = [f for f in files_now if f.path not in plan.touched]
    index = IdIndex([t.id for t in plan.tombstones])
    # Counted anew on this head: files that came after the plan might hold an id, whose tombstone then has to stay.
    still_there = {i for f in remaining for i in index.within(f)}
    gone = frozenset(t.key for t in plan.tombstones if t.id not in still_there)
    applied = {i for f in (*plan.delete, *plan.rewrite) for i in index.within(f)}
    vacuumed = tuple(ledger.tombstones[t.key] for t in plan.tombstones if t.id in applied)
    return Purge(Delta(run, remove_tombstones=gone), vacuumed)
