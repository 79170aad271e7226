"""Snapshot ids as text beside the numbers: most of them are larger than what a number in JavaScript holds exactly. Pure."""

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
