"""The batch column as data files have it: a column of their own, or the value of their partition. Pure.

By Iceberg's rules for reading, rows of a file without a column hold the value of the file's partition, if the table is
partitioned by that column itself (transform `identity`). Such files exist where another engine added a Hive table's as they were.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform


@dataclass(frozen=True)
class BatchColumn:
    """The batch column of a table.

    Args:
        field_id: Iceberg's; None: the table has no such column.
        positions: By partition spec id, the position of the column's own value in the partition tuple; specs without it are left
            out.
    """

    field_id: int | None
    positions: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, specs: Mapping[int, PartitionSpec], field_id: int | None) -> "BatchColumn":
        return cls(field_id, identity_positions(specs, field_id))

    def partition_value(self, file: DataFile) -> str | None:
        """The batch id that is the value of a file's partition; None: the partition has none, or it is null."""
        at = self.positions.get(file.spec_id)
        value = None if at is None else file.partition[at]
        return value if isinstance(value, str) else None


def identity_positions(specs: Mapping[int, PartitionSpec], field_id: int | None) -> dict[int, int]:
    """By partition spec id, where in the partition tuple a column's own value is; specs without it are left out."""
    return {
        spec_id: at
        for spec_id, spec in specs.items()
        for at, f in enumerate(spec.fields)
        if f.source_id == field_id and isinstance(f.transform, IdentityTransform)
    }
