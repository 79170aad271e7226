"""One attempt to commit new metadata of a table, in two steps: make it, then ask the catalog to take it.

Iceberg's own `commit()` does both, and deletes the manifests of an attempt after any error that it takes for a refusal. A
catalog may answer 400, 403 or 404 to a commit that has landed: the manifests of a live snapshot would be gone. So the catalog
is asked here, and what an attempt wrote is deleted only when it is known that it did not land.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from lethe.base.errors import ConflictError

from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a
from lethe_spark.jvm.gateway import each, java_list
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)

_TAG: Final = "lethe-staged-{}"


@dataclass(frozen=True)
class Attempt:
    """Metadata that nobody but this process knows yet."""

    table: IcebergTable
    base: Any  # the metadata that it was made from
    made: Any

    @classmethod
    def make(cls, table: IcebergTable, change: Callable[[Any], None], staged: int | None = None) -> "Attempt":
        """Refresh the table and change its metadata, manifests included.

        Args:
            change: Does its updates on the transaction that it is given.
            staged: A snapshot that must be there as long as the catalog has not taken the change.
        Raises: ConflictError (`DataMoved`), if it is not; JvmError.
        """
        transaction = table.java.newTransaction()
        if staged is not None and transaction.startMetadata().snapshot(staged) is None:
            raise ConflictError(
                "DataMoved",
                f"{table.full_name}: snapshot {staged}, which keeps the staged files of this run, was expired by another writer. "
                "Nothing was committed; the run writes the files again.",
            )
        change(transaction)
        if staged is not None:
            # A REST catalog compares only what a commit names. It refuses a reference to a snapshot that it does not know.
            tag = _TAG.format(uuid.uuid4().hex)
            transaction.manageSnapshots().createTag(tag, staged).commit()
            transaction.manageSnapshots().removeTag(tag).commit()
        return cls(table, transaction.startMetadata(), transaction.currentMetadata())

    def submit(self) -> None:
        """Ask the catalog to put it in the place of what it was made from. Raises: JvmError, also after it has landed."""
        self.table.java.operations().commit(self.base, self.made)

    def discard(self) -> None:
        """Delete the manifests that it wrote. Only if it certainly did not land and never will."""
        try:
            utility = self.table.jvm.org.apache.iceberg.CatalogUtil
            paths = java_list(self.table.jvm, self._written())
            utility.deleteFiles(self.table.java.io(), paths, "uncommitted manifests", True)
        except JvmError as e:
            log.warning("manifests of an attempt that was refused stay in storage: %s", type(e).__name__)

    def _written(self) -> list[str]:
        io, found = self.table.java.io(), []
        for snapshot in each(self.made.snapshots()):
            number = int(snapshot.snapshotId())
            if self.base.snapshot(number) is not None:
                continue
            own = [m for m in each(snapshot.allManifests(io)) if m.snapshotId() == number]
            found += [str(m.path()) for m in own] + [str(snapshot.manifestListLocation())]
        return found


def lost_the_race(table: IcebergTable, error: BaseException) -> bool:
    """Whether the catalog says that another commit came first, so that this one cannot land any more."""
    return is_a(table.jvm, error, ICEBERG + "CommitFailedException")
