"""Files that a table's metadata names beside its data: delete files as Iceberg's own objects, and statistics. I/O."""

from collections.abc import Collection
from typing import Any

from lethe_spark.jvm.errors import JvmError, reading, transient
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.table import IcebergTable


@reading("reading delete files")
def delete_files_at(table: IcebergTable, snapshot_id: int, paths: Collection[str]) -> tuple[Any, ...]:
    """Iceberg's own objects of the live delete files of a snapshot with these paths."""
    api, io = table.jvm.org.apache.iceberg, table.java.io()
    found: list[Any] = []
    for manifest in each(table.java.snapshot(snapshot_id).deleteManifests(io)):
        reader = api.ManifestFiles.readDeleteManifest(manifest, io, table.java.specs())
        try:
            found += [file.copy() for file in each(reader) if str(file.location()) in paths]
        finally:
            reader.close()
    return tuple(found)


def forget_statistics(table: IcebergTable) -> tuple[str, ...]:
    """Drop all statistics of the table, in one commit without a snapshot. Returns: the paths of their files, which stay.

    Raises: TransientError.
    """
    table.refresh()
    statistics = list(each(table.java.statisticsFiles()))
    of_partitions = list(each(table.java.partitionStatisticsFiles()))
    if not statistics and not of_partitions:
        return ()
    try:
        transaction = table.java.newTransaction()
        update = transaction.updateStatistics()
        for file in statistics:
            update = update.removeStatistics(file.snapshotId())
        update.commit()
        partitions = transaction.updatePartitionStatistics()
        for file in of_partitions:
            partitions = partitions.removePartitionStatistics(file.snapshotId())
        partitions.commit()
        transaction.commitTransaction()
    except JvmError as e:
        raise transient(e, f"dropping the statistics of {table.full_name}") from e
    table.refresh()
    return tuple(str(file.path()) for file in (*statistics, *of_partitions))
