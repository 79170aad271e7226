"""Removes what killed runs left in the storage of a table, as docs/erasure.md says: it holds erasures for a day. I/O only."""

from pyiceberg.table import Table

from tests.cluster.lake import ClusterLake, split


def remove_leftovers(lake: ClusterLake, table: str) -> list[str]:
    """Abort the unfinished uploads of a table, and delete its data files, manifests and manifest lists that no snapshot names.

    No run may be active.

    Returns: the URIs of what it removed.
    """
    loaded = lake.catalog.load_table(table)
    bucket, prefix = split(loaded.location())
    removed = []
    for upload in lake.s3.list_multipart_uploads(Bucket=bucket, Prefix=f"{prefix}/").get("Uploads", ()):
        lake.s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        removed.append(f"s3://{bucket}/{upload['Key']} (upload)")
    for uri in sorted(written(lake, loaded) - named(loaded)):
        lake.s3.delete_object(Bucket=bucket, Key=split(uri)[1])
        removed.append(uri)
    return removed


def written(lake: ClusterLake, table: Table) -> set[str]:
    """The data files, manifests and manifest lists that are there."""
    data, metadata = (lake.keys(f"{table.location()}/{folder}") for folder in ("data", "metadata"))
    return {uri for uri in data if not uri.endswith("/")} | {uri for uri in metadata if uri.endswith(".avro")}


def named(table: Table) -> set[str]:
    """Those that a snapshot names."""
    lists = {snapshot.manifest_list for snapshot in table.snapshots()}
    columns = (table.inspect.all_files()["file_path"], table.inspect.all_manifests()["path"])
    return lists | {uri for column in columns for uri in column.to_pylist()}
