"""The native deletes of a change of the ledger, and the protocol of writing them. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lethe.base.errors import LetheError
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import NativeDeletes
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import Tombstone

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Change, DeleteFiles, RowDelta
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.deletes import DeleteChanges

# Undos by key, each with the batches that it shows again.
Lifts: TypeAlias = Mapping[str, tuple[RestatementRequest, Collection[str]]]


@dataclass(frozen=True)
class Masks:
    """The native deletes of a change of the ledger, written and not yet committed."""

    delta: Delta
    """The change, with its tombstones marked as masked."""
    # The kind that was written. None: none was written.
    native: NativeDeletes | None = None
    deletes: DeleteChanges = field(default_factory=DeleteChanges)
    dropped: tuple[DataFile, ...] = ()
    """Data files that are removed whole."""
    applied: tuple[Tombstone, ...] | None = None
    """The tombstones for `tombstone.vacuum.file`. None: no such file."""
    everything: bool = False
    """Whether every active tombstone is masked."""

    def change(self, added: tuple[DataFile, ...], head_id: int | None) -> Change | None:
        """The change of the table for this head, with new data files. None: nothing was written."""
        if head_id is None or self.native is None:
            return None
        if self.dropped and not (added or self.deletes.added or self.deletes.replaced):
            return DeleteFiles(self.dropped)
        return RowDelta(self.deletes, added, head_id, self.dropped)


class Masker(Protocol):
    """Writes native deletes for tombstones."""

    native: NativeDeletes | None
    """The kind to write. None: it writes none, but an Undo still removes existing ones."""
    written: list[str]
    """The paths of all files that it wrote."""

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True) -> Masks:
        """Write what a change of the ledger needs on this base.

        Args:
            mask: Whether to mask tombstones. False: a later commit does.

        Raises:
            CannotLift: An Undo cannot show exactly the rows of its batches again.
            Exception: The errors of the storage.
        """


class CannotLift(Exception):
    """An Undo cannot show exactly the rows of its batches again. `key` is the key of its request."""

    def __init__(self, key: str, error: LetheError, again: bool = False) -> None:
        super().__init__(str(error))
        self.key = key
        self.error = error
        self.again = again  # whether a later attempt may succeed
