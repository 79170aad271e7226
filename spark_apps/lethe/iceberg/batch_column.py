"""The batch column of data files: a column in the file, or the value of its partition. Pure.

If the table is partitioned by the column itself (transform `identity`), rows of a file without the column have the value of the
file's partition, by Iceberg's rules. Such files exist where another engine added files of a Hive table unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform


@dataclass(frozen=True)
class BatchColumn:
    """The batch column of a table."""

    field_id: int | None
    """The field id of the batch column; None: the table has no batch column."""
    positions: Mapping[int, int] = field(default_factory=dict)
    """By partition spec id, the position of the column's value in the partition tuple (`identity_positions`)."""

    @classmethod
    def of(cls, specs: Mapping[int, PartitionSpec], field_id: int | None) -> "BatchColumn":
        """The batch column with its position in the partitions of each spec.

        Args:
            specs: All partition specs of the table, by id: old data files keep theirs.
            field_id: None: the table has no batch column.
        """
        return cls(field_id, identity_positions(specs, field_id))

    def partition_value(self, file: DataFile) -> str | None:
        """The batch id in a file's partition; None: the partition has none, or it is null."""
        position = self.positions.get(file.spec_id)
        value = None if position is None else file.partition[position]
        return value if isinstance(value, str) else None


def identity_positions(specs: Mapping[int, PartitionSpec], field_id: int | None) -> dict[int, int]:
    """By partition spec id, the position of the column's value in the partition tuple. Leaves out specs without the column."""
    return {
        spec_id: position
        for spec_id, spec in specs.items()
        for position, f in enumerate(spec.fields)
        if f.source_id == field_id and isinstance(f.transform, IdentityTransform)
    }
