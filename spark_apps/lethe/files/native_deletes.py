"""Iceberg's own deletes beside the ledger: which batches they have to hide, or to show again, with a change. Pure.

The ledger stays the truth. A batch taken back is masked: native deletes hide its rows from readers that know no ledger, in the
snapshot of its tombstone. A file of nothing else is dropped. An Undo lifts the mask, if that brings back every row of the batch
and no other.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from lethe.base.errors import InputError
from lethe.files.bounds import BoundsSplit, FileBounds, split_by_bounds
from lethe.ledger.ledger import Delta, Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import (
    META_PURGED_BY,
    PURGED_AT_ONCE,
    PURGED_BESIDE,
    Mask,
    Tombstone,
)

LEDGER: Final = "Ledger"
DELETION_VECTORS: Final = "DeletionVectors"
EQUALITY_DELETES: Final = "EqualityDeletes"


@dataclass(frozen=True)
class Masking:
    """What a change asks of native deletes, by batch ids.

    Args:
        mask: Tombstones that are active after the change and not masked yet, as they will be.
        lift: Masked tombstones that are removed, as they are.
        known: What is masked of those of `mask` already.
    """

    mask: Mapping[str, Tombstone] = field(default_factory=dict)
    lift: Mapping[str, Tombstone] = field(default_factory=dict)
    known: Mapping[str, Mask] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return not (self.mask or self.lift)


def plan_masking(ledger: Ledger, delta: Delta, field_id: int, mode: str, all_masked: bool) -> Masking:
    """What a change of the ledger asks for.

    Args:
        mode: As `spec.deletes`. By `Ledger` nothing is masked, but what is masked is shown again by an Undo.
        all_masked: Whether no active tombstone of this ledger lacks its mask; else all of them are looked at.
    """
    named = {t.key for t in delta.add_tombstones if t.namespace == field_id}
    removed = {k for k in delta.remove_tombstones if k[0] == field_id}
    active = get_many(ledger.tombstones, named | removed)
    lift = {t.id: t for k, t in active.items() if k in removed - named and t.mask is not None}
    if mode == LEDGER:
        return Masking(lift=lift)
    mask: dict[str, Tombstone] = {}
    if not all_masked:
        others = (t for k, t in ledger.tombstones.items() if k not in named | removed)
        mask |= {t.id: t for t in others if t.namespace == field_id and not t.is_masked}
    mask |= {t.id: t for t in delta.add_tombstones if t.namespace == field_id}
    known = {t.id: t.mask for t in active.values() if t.id in mask and t.mask is not None}
    known |= {i: t.mask for i, t in mask.items() if t.mask is not None}
    return Masking(mask, lift, known)


def files_to_mask(files: Iterable[FileBounds], masking: Masking) -> BoundsSplit:
    """The data files of the head by what can be in them of the batches: `must` are dropped, `might` are masked."""
    return split_by_bounds(files, masking.mask)


@dataclass(frozen=True)
class Masked:
    """What was found of batches that are masked with a commit.

    Args:
        rows: Of each, how many rows the data files hold, 0 if it is not named.
        dropped: Those of which whole files go.
        beside: Those of which rows were deleted natively before, by other means.
        unsure: Those that may have rows in a file that cannot be searched.
    """

    rows: Mapping[str, int]
    dropped: Collection[str] = ()
    beside: Collection[str] = ()
    unsure: Collection[str] = ()


def with_masks(delta: Delta, masking: Masking, found: Masked, mode: str) -> Delta:
    """The change, its tombstones marked as masked; those that were active before without a mask as well."""
    if not masking.mask:
        return delta
    marked = {i: _marked(t, found, mode) for i, t in masking.mask.items()}
    named, ours = {t.key for t in delta.add_tombstones}, {t.key for t in marked.values()}
    return replace(
        delta,
        add_tombstones=(
            *(marked[t.id] if t.key in ours else t for t in delta.add_tombstones),
            *(t for t in marked.values() if t.key not in named),
        ),
    )


def _marked(tombstone: Tombstone, found: Masked, mode: str) -> Tombstone:
    t = tombstone.masked(Mask(mode, found.rows.get(tombstone.id, 0), tombstone.id not in found.unsure))
    why = PURGED_AT_ONCE if t.id in found.dropped else PURGED_BESIDE if t.id in found.beside else None
    return t if why is None else replace(t, meta={META_PURGED_BY: why, **t.meta})


def with_purged(ledger: Ledger, delta: Delta, field_id: int, ids: Collection[str]) -> Delta:
    """The change, the active tombstones of these batches marked as not to be undone: some of their rows, deleted natively
    already, were deleted by other means as well."""
    if not ids:
        return delta
    active = get_many(ledger.tombstones, [(field_id, i) for i in ids])
    marked = [replace(t, meta={META_PURGED_BY: PURGED_BESIDE, **t.meta}) for t in active.values()]
    return replace(delta, add_tombstones=(*delta.add_tombstones, *marked))


def refuse_masked(name: str, masking: Masking) -> None:
    """For whoever cannot lift masks. Raises: InputError (`NotSupported`), if the Undo of this name would have to."""
    for batch_id in masking.lift:
        raise InputError(
            "NotSupported",
            f"{name}: the rows of batch {batch_id!r} are deleted natively too, which only a Restatement with operation Undo "
            "takes back. Nothing was undone.",
        )


def check_lifted(name: str, lift: Mapping[str, Tombstone], rows: Mapping[str, int], unsure: Mapping[str, str]) -> None:
    """Whether an Undo may lift masks: only if that shows every row that was masked, and no other.

    Args:
        name: Of the Undo, for messages.
        lift: The masked tombstones that it removes, by batch id.
        rows: How many rows of each the data files hold, whatever native deletes say.
        unsure: Why that cannot be said of others.
    Raises: InputError (AlreadyPurged, FileNotSearchable).
    """
    for batch_id, tombstone in lift.items():
        if batch_id in unsure:
            raise InputError(
                "FileNotSearchable",
                f"Restatement {name}: spec.undoes: rows of batch {batch_id!r} are deleted natively, and may lie in a data file "
                f"that cannot be searched: {unsure[batch_id]}. Let the engine that wrote it write it anew. Nothing was undone.",
            )
        mask, there = tombstone.mask, rows.get(batch_id, 0)
        if mask is not None and there != mask.rows:
            raise InputError(
                "AlreadyPurged",
                f"Restatement {name}: spec.undoes: {mask.rows} rows of batch {batch_id!r} were deleted natively, and the data "
                f"files hold {there}: some were purged since, or came since. Nothing was undone. Load the rows again under a new "
                "batch id.",
            )
