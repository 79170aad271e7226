"""Native deletes beside a change of the ledger, and who writes them: with Spark, or not at all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from lethe.base.errors import LetheError
from lethe.contract.run import Deletes, RestatementRequest
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import Tombstone

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Change, DeleteFiles, RowDelta
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.deletes import NativeDeletes

# Undos by their keys, each with the batches that it takes back.
Lifts: TypeAlias = Mapping[str, tuple[RestatementRequest, Collection[str]]]


@dataclass(frozen=True)
class Masks:
    """Native deletes of a change of the ledger, written and not committed.

    Args:
        delta: The change, its tombstones marked as masked.
        mode: As `spec.deletes`, of what is written; "": nothing is.
        applied: The tombstones that `tombstone.vacuum.file` has to name; None: none.
        dropped: Files that go whole.
        everything: Whether each tombstone that is active then is masked.
    """

    delta: Delta
    mode: str = ""
    deletes: NativeDeletes = field(default_factory=NativeDeletes)
    dropped: tuple[DataFile, ...] = ()
    applied: tuple[Tombstone, ...] | None = None
    everything: bool = False

    def change(self, added: tuple[DataFile, ...], head_id: int | None) -> Change | None:
        """What to commit on this head, with new data files; None: nothing was written."""
        if head_id is None or not self.mode:
            return None
        if self.dropped and not (added or self.deletes.added or self.deletes.replaced):
            return DeleteFiles(self.dropped)
        return RowDelta(self.deletes, added, head_id, self.dropped)


class Masker(Protocol):
    """Who writes native deletes for tombstones: `mode` as `spec.deletes`, `written` the paths of all files that were."""

    mode: Deletes
    written: list[str]

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True) -> Masks:
        """What a change of the ledger needs on this base.

        Args:
            mask: False: what is not masked yet is left to a later commit.
        Raises: CannotLift; whatever the storage raises.
        """


class CannotLift(Exception):
    """An Undo, by the key of its request, that would not bring back exactly the rows of its batches."""

    def __init__(self, key: str, error: LetheError, again: bool = False) -> None:
        super().__init__(str(error))
        self.key = key
        self.error = error
        self.again = again  # whether it may be carried out later as it is
