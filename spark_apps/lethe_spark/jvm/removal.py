"""What goes for good: snapshots by their ids, and files of the table that nobody needs."""

from collections.abc import Collection, Iterable

from lethe.base.errors import ConflictError, InputError

from lethe_spark.jvm.errors import JvmError, java_message, transient
from lethe_spark.jvm.gateway import each, java_list
from lethe_spark.jvm.table import IcebergTable


def expire(table: IcebergTable, snapshot_ids: Collection[int]) -> int:
    """Expire exactly these snapshots, and delete the files that no remaining snapshot reaches.

    Iceberg would also expire whatever is older than five days: the age limit is set to the epoch so that nothing is.

    Returns: How many were there to expire.
    Raises: ConflictError (`SnapshotReferenced`), if a tag or branch holds one of them; TransientError.
    """
    table.refresh()
    there = {int(s.snapshotId()) for s in each(table.java.snapshots())}
    going = sorted(there.intersection(snapshot_ids))
    if not going:
        return 0
    update = table.java.expireSnapshots().expireOlderThan(0).cleanExpiredFiles(True)
    for snapshot_id in going:
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
        raise transient(e, f"expiring {len(going)} snapshots of {table.full_name}") from e
    table.refresh()
    return len(going)


def remove_files(table: IcebergTable, paths: Iterable[str]) -> int:
    """Delete files through the table's own storage. Those already gone are no error.

    Raises: InputError (`OutsideTable`), before anything is deleted, for a path outside the table's folders.
    """
    wanted = sorted(set(paths))
    allowed = {table.location, table.properties.get("write.data.path", table.location)}
    folders = tuple(f"{_plain(folder).rstrip('/')}/" for folder in allowed)
    for path in wanted:
        if not _plain(path).startswith(folders) or ".." in path.split("/"):
            raise InputError(
                "OutsideTable", f"{table.full_name}: refusing to delete {path}, not below {table.location}"
            )
    try:
        utility = table.jvm.org.apache.iceberg.CatalogUtil
        utility.deleteFiles(table.java.io(), java_list(table.jvm, wanted), "unpublished", True)
    except JvmError as e:
        raise transient(e, f"deleting {len(wanted)} files of {table.full_name}") from e
    return len(wanted)


def _plain(uri: str) -> str:
    """`file:/x`, `file:///x` and `/x` are one place; Java writes the first, Python the second."""
    return "/" + uri.removeprefix("file:").lstrip("/") if uri.startswith("file:") else uri
