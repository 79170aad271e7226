"""Adapts a change of the ledger to files that commits without a ledger added: restores tombstones and adds partitions. Pure.

A vacuum removes a tombstone when no row of it is left, but the batch stays `reverted`, `replaced` or `erased` in the ledger. If a
bare snapshot then adds files that might hold the batch, the next commit of Lethe restores its tombstone. The ledger also lists
the partitions that a batch or tombstone has rows in; files of another writer may add some. Each commit of Lethe does both for all
bare snapshots before it, so later commits need not check these snapshots again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from lethe.files.bounds import IdIndex
from lethe.files.partitions import Partitioned, spec_of, widened
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger
from lethe.ledger.parts import Interval, within
from lethe.ledger.tombstone import (
    META_PARTITIONS,
    META_PURGED_BY,
    META_REASON,
    META_RESTATEMENTS,
    META_RUN,
    PURGED_BEFORE,
    Tombstone,
)

_HIDDEN = (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED)


@dataclass(frozen=True)
class AddedFiles:
    """Live data files that snapshots without a ledger added; or, if `only_moved`, files that the change itself adds."""

    files: Collection[Partitioned]
    field_id: int  # of the batch column
    # Their writer compacted other files: each row was in the table before, in the same partition unless the partition spec
    # differs.
    only_moved: bool = False
    # Returns the ids that the files hold. None: bounds decide which tombstones to restore.
    holds: Callable[[Collection[str]], Collection[str]] | None = None


def rearmed(ledger: Ledger, delta: Delta, added: AddedFiles, now: datetime) -> Delta:
    """Return the change `delta`, planned on `ledger`, adapted to the added files.

    Without files it is unchanged. Otherwise, checks the batches and tombstones within the bounds of the files.
    """
    bare_files, field_id, only_moved = added.files, added.field_id, added.only_moved
    if not bare_files:
        return delta
    intervals: list[Interval] = [(f.lower, f.upper) for f in bare_files]
    batches = {b.id: b for b in within(ledger.batches, intervals, str)}
    active = {t.id: t for t in ledger.tombstones_within(field_id, intervals)}
    armed = () if only_moved else _armed_again(batches, active.keys(), added, delta.run, now)
    # The change was planned without these files, so what it sets is adapted as well.
    set_ids = {b.id for b in delta.set_batches}
    staying = {i: b for i, b in batches.items() if i not in set_ids and i not in delta.forget_batches}
    set_wider = _wider({b.id: b.partitions for b in delta.set_batches}, bare_files, only_moved)
    wider = _wider({i: b.partitions for i, b in staying.items()}, bare_files, only_moved)
    still_active = [t for t in active.values() if t.key not in delta.remove_tombstones]
    new = [t for t in delta.add_tombstones if t.namespace == field_id]
    new_wider = _wider({t.id: t.partitions for t in new}, bare_files, only_moved)
    stale = set() if only_moved else IdIndex([t.id for t in still_active if t.is_masked]).covered(bare_files)
    active_wider = _wider({t.id: t.partitions for t in still_active}, bare_files, only_moved)
    return replace(
        delta,
        add_tombstones=(
            *(_with_partitions(t, new_wider) if t.namespace == field_id else t for t in delta.add_tombstones),
            *(
                _with_partitions(_stale(t) if t.id in stale else t, active_wider)
                for t in still_active
                if t.id in active_wider or t.id in stale
            ),
            *armed,
        ),
        set_batches=(
            *(replace(b, partitions=set_wider[b.id]) if b.id in set_wider else b for b in delta.set_batches),
            *(replace(staying[i], partitions=p) for i, p in sorted(wider.items())),
        ),
    )


def _armed_again(
    batches: Mapping[str, BatchEntry],
    active: Collection[str],
    added: AddedFiles,
    run: str,
    now: datetime,
) -> tuple[Tombstone, ...]:
    """Tombstones for batches that are reverted, replaced or erased, have no tombstone, and might have rows in the files.

    A tombstone that hides no row is harmless: the id of such a batch is never valid again.
    """
    hidden = [b.id for b in batches.values() if b.state in _HIDDEN and b.id not in active]
    found: Collection[str] = IdIndex(hidden).covered(added.files)
    if found and added.holds is not None:
        found = added.holds(found)
    return tuple(
        Tombstone(
            id=i,
            namespace=added.field_id,
            added_on=now,
            evict_by=batches[i].evict_by,
            meta={
                META_REASON: "a commit without a ledger added rows of a deleted batch",
                META_RUN: run,
                META_PURGED_BY: PURGED_BEFORE,
                **({META_RESTATEMENTS: batches[i].restatement or ""} if batches[i].restatement else {}),
            },
        )
        for i in sorted(found)
    )


def _wider(
    partitions: Mapping[str, tuple[str, ...] | None], files: Collection[Partitioned], only_moved: bool
) -> dict[str, tuple[str, ...] | None]:
    """The new value of the ids whose partitions change."""
    if not only_moved:
        return widened(partitions, files)
    # A compaction within one partition spec leaves each row in its partition, which the ledger lists already.
    found: dict[str, tuple[str, ...] | None] = {}
    by_spec: dict[str | None, list[Partitioned]] = {}
    for f in files:
        by_spec.setdefault(None if f.partition is None else spec_of(f.partition), []).append(f)
    for spec, moved in by_spec.items():
        others = {i: p for i, p in partitions.items() if p is not None and any(spec_of(text) != spec for text in p)}
        for i, p in widened({i: found.get(i, p) for i, p in others.items()}, moved).items():
            found[i] = p
    return found


def _stale(tombstone: Tombstone) -> Tombstone:
    """No native delete applies to rows that were added without a ledger, so the mask is not whole any more."""
    return tombstone if tombstone.mask is None else tombstone.masked(replace(tombstone.mask, whole=False))


def _with_partitions(tombstone: Tombstone, wider: Mapping[str, tuple[str, ...] | None]) -> Tombstone:
    if tombstone.id not in wider:
        return tombstone
    meta = {k: v for k, v in tombstone.meta.items() if k != META_PARTITIONS}
    partitions = wider[tombstone.id]
    return replace(tombstone, meta=meta if partitions is None else {**meta, META_PARTITIONS: "\n".join(partitions)})
