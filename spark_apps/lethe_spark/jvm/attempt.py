"""One attempt to commit new metadata of a table, in two steps: make the metadata, then submit it to the catalog.

Iceberg's own `commit()` does both, and deletes the manifests of an attempt after each error that it takes for a refusal. But a
catalog may answer 400, 403 or 404 to a commit that succeeded, and then the manifests of a live snapshot would be deleted. This
module deletes the files of an attempt only if it certainly failed.
"""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lethe.base.errors import ConflictError, TransientError

from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a
from lethe_spark.jvm.gateway import each, java_list
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)

# Iceberg refuses metadata that is older than the last by more than this. It does not say which clock is wrong.
_CLOCKS_DIFFER_BY_MS: Final = 60_000

_TAG: Final = "lethe-staged-{}"


@dataclass(frozen=True)
class CommitAttempt:
    """New metadata that was not submitted to the catalog yet."""

    table: IcebergTable
    # The metadata that it was made from.
    base: Any
    made: Any

    @classmethod
    def make(cls, table: IcebergTable, change: Callable[[Any], None], staged: int | None = None) -> "CommitAttempt":
        """Refresh the table and change its metadata, manifests included.

        Args:
            change: Applies its updates to a transaction.
            staged: A snapshot that must exist until the catalog has accepted the change.
        Raises: ConflictError (`DataMoved`), if the snapshot does not exist; TransientError (`ClockBehindTable`); JvmError.
        """
        transaction = table.java.newTransaction()
        _check_clock(table, int(transaction.startMetadata().lastUpdatedMillis()))
        if staged is not None and transaction.startMetadata().snapshot(staged) is None:
            raise ConflictError(
                "DataMoved",
                f"{table.full_name}: another writer expired snapshot {staged}, which keeps the staged files of this run. Nothing "
                "was committed. The run writes the files again.",
            )
        change(transaction)
        if staged is not None:
            # A REST catalog compares only what a commit names. It refuses a tag on a snapshot that does not exist.
            tag = _TAG.format(uuid.uuid4().hex)
            transaction.manageSnapshots().createTag(tag, staged).commit()
            transaction.manageSnapshots().removeTag(tag).commit()
        return cls(table, transaction.startMetadata(), transaction.currentMetadata())

    def submit(self) -> None:
        """Ask the catalog to replace the base by the new metadata. Raises: JvmError, in some cases although it succeeded."""
        self.table.java.operations().commit(self.base, self.made)

    def discard(self) -> None:
        """Delete the manifests that it wrote. Call this only if the attempt certainly failed and cannot succeed later."""
        try:
            utility = self.table.jvm.org.apache.iceberg.CatalogUtil
            paths = java_list(self.table.jvm, self._written())
            utility.deleteFiles(self.table.java.io(), paths, "uncommitted manifests", True)
        except JvmError as e:
            log.warning("manifests of a refused commit could not be deleted: %s", type(e).__name__)

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
    """Whether the catalog reports that another commit came first, so that this one has failed."""
    return is_a(table.jvm, error, ICEBERG + "CommitFailedException")


def _check_clock(table: IcebergTable, last_updated_ms: int) -> None:
    """Raises: TransientError (`ClockBehindTable`), if Iceberg would refuse each commit because of its time."""
    now_ms = int(table.jvm.java.lang.System.currentTimeMillis())
    if last_updated_ms - now_ms <= _CLOCKS_DIFFER_BY_MS:
        return
    last, now = (f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}" for ms in (last_updated_ms, now_ms))
    raise TransientError(
        "ClockBehindTable",
        f"{table.full_name}: the last change of the table is of {last}, and the clock of this machine shows {now}. Iceberg "
        "refuses a commit that is older than the last one. Compare the clocks of the machines that write the table, and "
        "correct the one that is wrong. Nothing was committed; runs succeed once this clock has passed the last change.",
    )
