"""Decides which positions of a data file Lethe's native deletes name after a change. Pure.

A position is the number of a row in its file, from 0. Other writers may delete rows of the same file: their deletes stay, so an
Undo shows no row that one of them deleted.
"""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyroaring import FrozenBitMap64

from lethe.contract.settings import NativeDeletes
from lethe.files.native_deletes import Masking

Positions: TypeAlias = Mapping[str, FrozenBitMap64]  # rows of a data file, by batch id
NO_POSITIONS: Final = FrozenBitMap64()


@dataclass(frozen=True)
class DeletedPositions:
    """The positions of a data file under native deletes, by who may change these deletes."""

    # In Lethe's position deletes, or in the deletion vector, which all writers share.
    ours: FrozenBitMap64 = NO_POSITIONS
    # In position deletes of other writers, each file for this data file only.
    theirs: tuple[FrozenBitMap64, ...] = ()
    # In position deletes for several data files.
    shared: FrozenBitMap64 = NO_POSITIONS

    @property
    def all(self) -> FrozenBitMap64:
        return FrozenBitMap64.union(self.ours, self.shared, *self.theirs)


@dataclass(frozen=True)
class PositionsAfter:
    """The positions after a change."""

    # In Lethe's next delete file.
    ours: FrozenBitMap64
    # Which of `theirs` that file replaces.
    taken_over: frozenset[int] = frozenset()
    # Positions to show that deletes for several data files still hide, so that the change is impossible.
    still_hidden: FrozenBitMap64 = NO_POSITIONS

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

    # By path: the data files whose deletes change.
    after: Mapping[str, PositionsAfter]
    # The batches to hide with rows that were deleted before, other than by Lethe's mask.
    beside: frozenset[str]
    # The batches to show with rows that would stay hidden, and the number of these rows.
    still_hidden: Mapping[str, int]


def plan_positions(
    before: Mapping[str, DeletedPositions],
    found: Mapping[str, Positions],
    masking: Masking,
    native: NativeDeletes | None,
) -> PositionsPlan:
    """Plan the native deletes by position for a change of the ledger.

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
    known = {i: m.rows for i, m in masking.known.items()}
    return PositionsPlan(after, frozenset(i for i, n in deleted.items() if n != known.get(i, 0)), still_hidden)


def _union(rows: Positions, ids: Set[str]) -> FrozenBitMap64:
    return FrozenBitMap64.union(NO_POSITIONS, *(rows[i] for i in rows.keys() & ids))
