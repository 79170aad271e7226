"""Plans Iceberg's native deletes for a change of the ledger: which batches they must hide, or show again. Pure.

The ledger stays the source of truth. A reverted batch is masked: native deletes hide its rows from readers without the ledger, in
the same snapshot as its tombstone. A file without other rows is dropped. An Undo removes the mask, if that shows every row of the
batch and no other row.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from lethe.base.errors import InputError
from lethe.contract.settings import NativeDeletes
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


@dataclass(frozen=True)
class Masking:
    """The native deletes that a change needs, by batch id."""

    mask: Mapping[str, Tombstone] = field(
        default_factory=dict
    )  # active after the change and not completely masked: new values
    lift: Mapping[str, Tombstone] = field(default_factory=dict)  # masked tombstones that the change removes
    known: Mapping[str, Mask] = field(default_factory=dict)  # existing masks of `mask`

    @property
    def is_empty(self) -> bool:
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
    known = {t.id: t.mask for t in active.values() if t.id in mask and t.mask is not None}
    known |= {i: t.mask for i, t in mask.items() if t.mask is not None}
    return Masking(mask, lift, known)


def files_to_mask(files: Iterable[FileBounds], masking: Masking) -> BoundsSplit:
    """The data files of the head: drop `must`, mask rows in `might`."""
    return split_by_bounds(files, masking.mask)


@dataclass(frozen=True)
class Masked:
    """What a search of the files found about batches to mask, by id."""

    rows: Mapping[str, int]  # the number of rows in data files; missing: 0
    dropped: Collection[str] = ()  # whole files of these batches are dropped
    beside: Collection[str] = ()  # rows of these batches were deleted natively before, by other means
    unsure: Collection[str] = ()  # these batches may have rows in a file that cannot be searched


def with_masks(delta: Delta, masking: Masking, found: Masked, native: NativeDeletes | None) -> Delta:
    """The change, with its tombstones marked as masked, and also older active tombstones that had no mask."""
    if native is None or not masking.mask:
        return delta
    marked = {i: _marked(t, found, native) for i, t in masking.mask.items()}
    named, ours = {t.key for t in delta.add_tombstones}, {t.key for t in marked.values()}
    return replace(
        delta,
        add_tombstones=(
            *(marked[t.id] if t.key in ours else t for t in delta.add_tombstones),
            *(t for t in marked.values() if t.key not in named),
        ),
    )


def _marked(tombstone: Tombstone, found: Masked, native: NativeDeletes) -> Tombstone:
    t = tombstone.masked(Mask(native, found.rows.get(tombstone.id, 0), tombstone.id not in found.unsure))
    why = PURGED_AT_ONCE if t.id in found.dropped else PURGED_BESIDE if t.id in found.beside else None
    return t if why is None else replace(t, meta={META_PURGED_BY: why, **t.meta})


def with_purged(ledger: Ledger, delta: Delta, field_id: int, ids: Collection[str]) -> Delta:
    """The change, with the active tombstones of these batches marked as impossible to undo: other deletes also apply to some of
    their natively deleted rows."""
    if not ids:
        return delta
    active = get_many(ledger.tombstones, [(field_id, i) for i in ids])
    marked = [replace(t, meta={META_PURGED_BY: PURGED_BESIDE, **t.meta}) for t in active.values()]
    return replace(delta, add_tombstones=(*delta.add_tombstones, *marked))


def refuse_masked(name: str, masking: Masking) -> None:
    """For callers that cannot remove masks. Raises: InputError (`NotSupported`), if the Undo of this name needs that."""
    for batch_id in masking.lift:
        raise InputError(
            "NotSupported",
            f"{name}: the rows of batch {batch_id!r} also have native deletes, which only a Restatement with operation Undo can "
            "remove. Nothing was undone.",
        )


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
    Raises: InputError (AlreadyPurged, FileNotSearchable).
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
