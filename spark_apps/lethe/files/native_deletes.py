"""Plans Iceberg's native deletes for a change of the ledger: which batches and positions they must hide, or show again. Pure.

The ledger stays the source of truth. A reverted batch is masked: native deletes hide its rows from readers without the ledger, in
the same snapshot as its tombstone. A file without other rows stays. An Undo removes the mask, if that shows every row of the
batch and no other row.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, TypeAlias

from pyroaring import BitMap64, FrozenBitMap64

from lethe.base.errors import InputError
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import IdIndex, Partitioned, spec_of, widened
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Interval, Ledger, get_many, within
from lethe.ledger.tombstone import (
    META_PARTITIONS,
    META_PURGED_BY,
    META_REASON,
    META_RESTATEMENTS,
    META_RUN,
    PURGED_BEFORE,
    PURGED_BESIDE,
    Mask,
    Tombstone,
)

Positions: TypeAlias = Mapping[str, FrozenBitMap64]
"""Positions of rows in a data file, by batch id."""
NO_POSITIONS: Final = FrozenBitMap64()

_HIDDEN = (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED)


@dataclass(frozen=True)
class Masking:
    """The native deletes that a change needs, by batch id."""

    mask: Mapping[str, Tombstone] = field(default_factory=dict)
    """Active after the change and not completely masked: new values."""
    lift: Mapping[str, Tombstone] = field(default_factory=dict)
    """Masked tombstones that the change removes."""
    existing_masks: Mapping[str, Mask] = field(default_factory=dict)
    """Existing masks of `mask`."""

    @property
    def is_empty(self) -> bool:
        """Whether the change needs no native deletes: no batch is masked, and no mask is removed."""
        return not (self.mask or self.lift)


def plan_masking(
    ledger: Ledger, delta: Delta, field_id: int, native: NativeDeletes | None, all_masked: bool
) -> Masking:
    """Plan the native deletes for a change of the ledger.

    Args:
        native: The kind to write. None: nothing is masked, but an Undo still removes existing masks.
        all_masked: Whether every active tombstone of this ledger has its mask. If not, all of them are checked.
    """
    named = {t.key for t in delta.add_tombstones if t.namespace == field_id}
    removed = {k for k in delta.remove_tombstones if k[0] == field_id}
    active = get_many(ledger.tombstones, named | removed)
    lift = {t.id: t for k, t in active.items() if k in removed - named and t.mask is not None}
    if native is None:
        return Masking(lift=lift)
    mask: dict[str, Tombstone] = {}
    if not all_masked:
        others = (t for k, t in ledger.tombstones.items() if k not in named | removed)
        mask |= {t.id: t for t in others if t.namespace == field_id and not t.is_masked}
    mask |= {t.id: t for t in delta.add_tombstones if t.namespace == field_id}
    masks_by_batch = {t.id: t.mask for t in active.values() if t.id in mask and t.mask is not None}
    masks_by_batch |= {i: t.mask for i, t in mask.items() if t.mask is not None}
    return Masking(mask, lift, masks_by_batch)


@dataclass(frozen=True)
class Masked:
    """What a search of the files found about batches to mask, by id."""

    rows: Mapping[str, int]
    """The number of rows in data files; missing: 0."""
    beside: Collection[str] = ()
    """Rows of these batches were deleted natively before, by other means."""
    unsure: Collection[str] = ()
    """These batches may have rows in a file that cannot be searched."""


def with_masks(delta: Delta, masking: Masking, masked: Masked, native: NativeDeletes | None) -> Delta:
    """The change, with its tombstones marked as masked, and also older active tombstones that had no mask."""
    if native is None or not masking.mask:
        return delta
    marked = {i: _marked(t, masked, native) for i, t in masking.mask.items()}
    named, ours = {t.key for t in delta.add_tombstones}, {t.key for t in marked.values()}
    return replace(
        delta,
        add_tombstones=(
            *(marked[t.id] if t.key in ours else t for t in delta.add_tombstones),
            *(t for t in marked.values() if t.key not in named),
        ),
    )


def _marked(tombstone: Tombstone, masked: Masked, native: NativeDeletes) -> Tombstone:
    t = tombstone.masked(Mask(native, masked.rows.get(tombstone.id, 0), tombstone.id not in masked.unsure))
    return replace(t, meta={META_PURGED_BY: PURGED_BESIDE, **t.meta}) if t.id in masked.beside else t


def with_purged(ledger: Ledger, delta: Delta, field_id: int, ids: Collection[str]) -> Delta:
    """The change, with the active tombstones of these batches marked as impossible to undo.

    Other deletes also apply to some of their natively deleted rows.
    """
    if not ids:
        return delta
    active = get_many(ledger.tombstones, [(field_id, i) for i in ids])
    marked = [replace(t, meta={META_PURGED_BY: PURGED_BESIDE, **t.meta}) for t in active.values()]
    return replace(delta, add_tombstones=(*delta.add_tombstones, *marked))


def check_lifted(
    name: str,
    lift: Mapping[str, Tombstone],
    rows: Mapping[str, int],
    unsure: Mapping[str, str],
    still_hidden: Mapping[str, int],
) -> None:
    """Check that removing the masks shows every row that was masked, and no other row.

    Args:
        name: Of the Undo, for errors.
        lift: The masked tombstones that the Undo removes, by batch id.
        rows: The number of rows in the data files by batch id, whether deleted natively or not.
        unsure: Why that number is unknown, for other batch ids.
        still_hidden: The number of rows, by batch id, that deletes of another writer for several data files hide too.

    Raises:
        InputError: AlreadyPurged, FileNotSearchable.
    """
    for batch_id, tombstone in lift.items():
        if batch_id in unsure:
            raise InputError(
                "FileNotSearchable",
                f"Restatement {name}: spec.undoes: rows of batch {batch_id!r} are deleted natively, and may be in a data file "
                f"that Lethe cannot search: {unsure[batch_id]}. Let its writer rewrite the file. Nothing was undone.",
            )
        mask, found = tombstone.mask, rows.get(batch_id, 0)
        if mask is not None and found != mask.rows:
            raise InputError(
                "AlreadyPurged",
                f"Restatement {name}: spec.undoes: {mask.rows} rows of batch {batch_id!r} were deleted natively, and the data "
                f"files hold {found}: some rows were purged or added since. Nothing was undone. Load the rows again under a new "
                "batch id.",
            )
        if hidden := still_hidden.get(batch_id, 0):
            raise InputError(
                "AlreadyPurged",
                f"Restatement {name}: spec.undoes: another writer's position deletes, which apply to several data files, also "
                f"delete {hidden} rows of batch {batch_id!r}. Nothing was undone. Load the rows again under a new batch id.",
            )


def every_position(rows: int) -> FrozenBitMap64:
    """The positions of all rows of a file."""
    positions = BitMap64()
    positions.add_range(0, rows)
    return FrozenBitMap64(positions)


@dataclass(frozen=True)
class DeletedPositions:
    """The positions of a data file under native deletes, by who may change these deletes."""

    ours: FrozenBitMap64 = NO_POSITIONS
    """The positions in Lethe's position deletes, or in the deletion vector, which all writers share."""
    theirs: tuple[FrozenBitMap64, ...] = ()
    """The positions in position deletes of other writers, each file for this data file only."""
    shared: FrozenBitMap64 = NO_POSITIONS
    """The positions in position deletes for several data files."""

    @property
    def all(self) -> FrozenBitMap64:
        """Every position that native deletes hide, of Lethe and of other writers."""
        return FrozenBitMap64.union(self.ours, self.shared, *self.theirs)


@dataclass(frozen=True)
class PositionsAfter:
    """The positions after a change."""

    ours: FrozenBitMap64
    """The positions in Lethe's next delete file."""
    taken_over: frozenset[int] = frozenset()
    """Which of `theirs` that file replaces."""
    still_hidden: FrozenBitMap64 = NO_POSITIONS
    """Positions to show that deletes for several data files still hide, so that the change is impossible."""

    def whole(self, before: DeletedPositions) -> FrozenBitMap64:
        """All positions, for a deletion vector: it replaces every other delete by position."""
        left = (p for n, p in enumerate(before.theirs) if n not in self.taken_over)
        return FrozenBitMap64.union(self.ours, before.shared, *left)


def positions_after(before: DeletedPositions, hide: FrozenBitMap64, show: FrozenBitMap64) -> PositionsAfter:
    """Hide some rows, and show others that Lethe hid.

    If Lethe's own deletes name the rows to show, those of other writers stay as they are: whoever deleted such a row at the same
    time as Lethe keeps it deleted. If they do not, another writer merged Lethe's deletes into its own, so these are replaced too.
    """
    elsewhere = show - before.ours
    taken_over = frozenset(n for n, p in enumerate(before.theirs) if p & elsewhere)
    ours = FrozenBitMap64.union(before.ours, hide, *(before.theirs[n] for n in taken_over)) - show
    return PositionsAfter(ours, taken_over, before.shared & elsewhere)


@dataclass(frozen=True)
class PositionsPlan:
    """How the native deletes by position change."""

    after: Mapping[str, PositionsAfter]
    """The data files whose deletes change, by path."""
    beside: frozenset[str]
    """The batches to hide with rows that were deleted before, other than by Lethe's mask."""
    still_hidden: Mapping[str, int]
    """The batches to show with rows that would stay hidden, and the number of these rows."""


def plan_positions(
    before: Mapping[str, DeletedPositions],
    found: Mapping[str, Positions],
    masking: Masking,
    native: NativeDeletes | None,
) -> PositionsPlan:
    """Plan the native deletes by position for a change of the ledger.

    A position is the number of a row in its file, from 0. Other writers may delete rows of the same file: their deletes stay, so
    an Undo shows no row that one of them deleted.

    Args:
        before: By path: the data files that may change.
        found: By path, the rows of the batches.
        native: The kind of the new masks.
    """
    mask = masking.mask.keys() if native is not None else frozenset[str]()
    lift = masking.lift.keys()
    after: dict[str, PositionsAfter] = {}
    deleted, still_hidden = Counter[str](), Counter[str]()
    for path, old in before.items():
        rows = found[path]
        taken = old.all
        deleted.update({i: len(taken & rows[i]) for i in rows.keys() & mask})
        new = positions_after(old, _union(rows, mask), _union(rows, lift))
        if new.ours != old.ours or new.taken_over:
            after[path] = new
        still_hidden.update({i: n for i in rows.keys() & lift if (n := len(rows[i] & new.still_hidden))})
    expected_rows = {i: m.rows for i, m in masking.existing_masks.items()}
    return PositionsPlan(after, frozenset(i for i, n in deleted.items() if n != expected_rows.get(i, 0)), still_hidden)


def _union(rows: Positions, ids: Set[str]) -> FrozenBitMap64:
    return FrozenBitMap64.union(NO_POSITIONS, *(rows[i] for i in rows.keys() & ids))


@dataclass(frozen=True)
class AddedFiles:
    """Live data files that snapshots without a ledger added; or, if `only_moved`, files that the change itself adds."""

    files: Collection[Partitioned]
    field_id: int
    """The field id of the batch column."""
    only_moved: bool = False
    """Their writer compacted other files: each row was in the table before, in the same partition unless the partition spec
    differs.
    """
    holds: Callable[[Collection[str]], Collection[str]] | None = None
    """Returns the ids that the files hold. None: bounds decide which tombstones to restore."""


def restore_tombstones(ledger: Ledger, delta: Delta, added: AddedFiles, now: datetime) -> Delta:
    """Return the change `delta`, planned on `ledger`, adapted to the added files.

    Without files it is unchanged. Otherwise, checks the batches and tombstones within the bounds of the files.

    A vacuum removes a tombstone when no row of it is left, but the batch stays `reverted`, `replaced` or `erased` in the ledger.
    If a commit without a ledger then adds files that might hold the batch, the next commit of Lethe restores its tombstone. Files
    of another writer may also add partitions to those that the ledger lists. Each commit of Lethe does both for all such commits
    before it, so later commits need not check them again.
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
    covered: Collection[str] = IdIndex(hidden).covered(added.files)
    if covered and added.holds is not None:
        covered = added.holds(covered)
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
        for i in sorted(covered)
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
