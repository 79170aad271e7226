"""How fresh an answer is, and snapshot ids as text. Pure.

Most snapshot ids are larger than what a number in JavaScript holds exactly, so answers have them as text beside the numbers.
"""

from datetime import datetime

from lethe.contract.schema import ApiModel
from pydantic import computed_field


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


class SnapshotIdText(ApiModel):
    """Adds `snapshotIdText` to a model with `snapshotId`."""

    snapshot_id: int | None = None

    @computed_field(description="`snapshotId` as text, for clients whose numbers have 53 bits.")  # type: ignore[prop-decorator]
    @property
    def snapshot_id_text(self) -> str | None:
        """The id in decimal digits."""
        return _text(self.snapshot_id)


class VacuumSnapshotIdText(ApiModel):
    """Adds `vacuumSnapshotIdText` to a model with `vacuumSnapshotId`."""

    vacuum_snapshot_id: int | None = None

    @computed_field(description="`vacuumSnapshotId` as text, for clients whose numbers have 53 bits.")  # type: ignore[prop-decorator]
    @property
    def vacuum_snapshot_id_text(self) -> str | None:
        """The id in decimal digits."""
        return _text(self.vacuum_snapshot_id)


class ResourceFreshness(ApiModel):
    """Of an answer from the API server."""

    read_time: datetime
    """When the resources were read."""
    resource_version: str | None = None
    """The version of the resource or the list."""


class TableFreshness(SnapshotIdText):
    """Of an answer from a table of batches and a ledger."""

    read_time: datetime
    """When the catalog was last asked for the current state of the table."""
    snapshot_id: int | None = None
    """The snapshot of the table of batches that is shown. Absent: it is empty."""
    ledger_version: int | None = None
    """The version of the ledger that the table of batches shows."""
    head_ledger_version: int
    """The version of the ledger of the table's head."""
    commits_behind: int | None = None
    """Commits of the ledger that the table of batches does not show yet. Absent: it shows another lineage."""
    listed_time: datetime | None = None
    """When a consolidation last listed the buffer: buffered batches are as of then."""


def commits_behind(shown: int | None, head: int) -> int | None:
    """None: the version that is shown is unknown, or newer than that of the head, as after a rollback of the table."""
    return head - shown if shown is not None and shown <= head else None
