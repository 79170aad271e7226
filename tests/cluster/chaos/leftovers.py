"""Removes what killed runs left in the storage of a table, as docs/erasure.md says: it holds erasures for a day. I/O only."""

from tests.cluster.lake import ClusterLake, split


def remove_leftovers(lake: ClusterLake, table: str) -> list[str]:
    """Abort the unfinished uploads of a table, and delete its data files that no snapshot names. No run may be active.

    Returns: the URIs of what it removed.
    """
    loaded = lake.catalog.load_table(table)
    bucket, prefix = split(loaded.location())
    removed = []
    for upload in lake.s3.list_multipart_uploads(Bucket=bucket, Prefix=f"{prefix}/").get("Uploads", ()):
        lake.s3.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        removed.append(f"s3://{bucket}/{upload['Key']} (upload)")
    named = set(loaded.inspect.all_files()["file_path"].to_pylist())
    for uri in sorted(lake.keys(f"{loaded.location()}/data") - named):
        if not uri.endswith("/"):
            lake.s3.delete_object(Bucket=bucket, Key=split(uri)[1])
            removed.append(uri)
    return removed
