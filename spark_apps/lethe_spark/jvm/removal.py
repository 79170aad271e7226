"""Remove snapshots by id, unneeded files of the table, and statistics. I/O."""

from collections.abc import Collection, Iterable

from lethe.base.errors import ConflictError, InputError
from lethe.uri import local_path

from lethe_spark.jvm.errors import JvmError, java_message, transient
from lethe_spark.jvm.gateway import each, java_list
from lethe_spark.jvm.table import IcebergTable


def expire(table: IcebergTable, snapshot_ids: Collection[int]) -> int:
    """Expire exactly these snapshots, and delete the files that no remaining snapshot reaches.

    Iceberg would also expire all snapshots older than five days. Setting the age limit to the epoch prevents that.

    Returns: the number of expired snapshots.
    Raises: ConflictError (`SnapshotReferenced`), if a tag or branch holds one of them; TransientError.
    """
    table.refresh()
    existing = {int(s.snapshotId()) for s in each(table.java.snapshots())}
    expiring = sorted(existing.intersection(snapshot_ids))
    if not expiring:
        return 0
    update = table.java.expireSnapshots().expireOlderThan(0).cleanExpiredFiles(True)
    for snapshot_id in expiring:
        update = update.expireSnapshotId(snapshot_id)
    try:
        update.commit()
    except JvmError as e:
        if "referenced" in java_message(e):
            raise ConflictError(
                "SnapshotReferenced",
                f"{table.full_name}: a tag or branch holds one of the snapshots to expire "
                f"({java_message(e).splitlines()[0][:200]}). Nothing was expired.",
            ) from e
        raise transient(e, f"expiring {len(expiring)} snapshots of {table.full_name}") from e
    table.refresh()
    return len(expiring)


def remove_files(table: IcebergTable, paths: Iterable[str]) -> int:
    """Delete files through the table's FileIO. A file that does not exist is not an error.

    Raises: InputError (`OutsideTable`), before anything is deleted, for a path outside the table's folders.
    """
    wanted = sorted(set(paths))
    allowed = {table.location, table.properties.get("write.data.path", table.location)}
    folders = tuple(f"{local_path(folder).rstrip('/')}/" for folder in allowed)
    for path in wanted:
        if not local_path(path).startswith(folders) or ".." in path.split("/"):
            raise InputError(
                "OutsideTable", f"{table.full_name}: did not delete {path}, because it is not below {table.location}"
            )
    try:
        utility = table.jvm.org.apache.iceberg.CatalogUtil
        utility.deleteFiles(table.java.io(), java_list(table.jvm, wanted), "unpublished", True)
    except JvmError as e:
        raise transient(e, f"deleting {len(wanted)} files of {table.full_name}") from e
    return len(wanted)


def forget_statistics(table: IcebergTable) -> tuple[str, ...]:
    """Remove all statistics from the table's metadata, in one commit without a snapshot.

    Returns: the paths of their files, which stay in storage.
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
