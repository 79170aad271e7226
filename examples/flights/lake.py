"""Access to the demo's bucket and catalog from this machine, with the exports of `make env`. I/O only."""

import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.config import Config
from lethe_local.demo.story import BATCH_COLUMN, Batch
from pyarrow.fs import S3FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

WANTED = (
    *("KUBECONFIG", "LETHE_S3_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
    *("LETHE_CATALOG_NAME", "LETHE_CATALOG_URI", "LETHE_WAREHOUSE"),
)
WRITERS = 16


@dataclass(frozen=True)
class Lake:
    """`files` writes many small objects at a fraction of the CPU that `s3`, a boto3 client, needs; that lists and deletes.
    Both are safe to share between threads."""

    s3: Any
    files: S3FileSystem
    catalog: Catalog

    def put_batches(self, folder: str, batches: Iterable[Batch]) -> Iterator[int]:
        """Write batches into a buffer, many at a time. Yields the number of complete batches.

        A batch is complete when its folder holds _SUCCESS, so that is written last.
        """
        with ThreadPoolExecutor(WRITERS) as pool:
            pending, done = set(), 0
            for batch in batches:
                pending.add(pool.submit(self.put_batch, batch_uri(folder, batch.id), batch))
                if len(pending) >= 4 * WRITERS:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    done += len([one.result() for one in finished])
                    yield done
            for one in pending:
                one.result()
                done += 1
            yield done

    def put_batch(self, folder: str, batch: Batch) -> None:
        self.put(f"{folder}/part-0.parquet", batch.parquet)
        self.put(f"{folder}/_SUCCESS", b"")

    def put(self, uri: str, content: bytes) -> None:
        with self.files.open_output_stream(uri.removeprefix("s3://")) as stream:
            stream.write(content)

    def keys(self, folder: str) -> set[str]:
        """The URIs of all objects below a folder."""
        bucket, prefix = split(folder)
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
        return {f"s3://{bucket}/{one['Key']}" for page in pages for one in page.get("Contents", ())}

    def clear(self, folder: str) -> int:
        """Delete all objects below a folder. Returns their number."""
        bucket, _ = split(folder)
        keys = sorted(split(uri)[1] for uri in self.keys(folder))
        for start in range(0, len(keys), 1000):
            objects = [{"Key": key} for key in keys[start : start + 1000]]
            self.s3.delete_objects(Bucket=bucket, Delete={"Objects": objects, "Quiet": True})
        return len(keys)

    def drop_table(self, name: str) -> None:
        """Drop a table, if it exists, with everything below its location."""
        try:
            location = self.catalog.load_table(name).location()
        except (NoSuchTableError, NoSuchNamespaceError):
            return
        self.catalog.drop_table(name)
        self.clear(location)

    def tombstones(self, name: str) -> int:
        """The number of active tombstones in the summary of the current snapshot."""
        head = self.catalog.load_table(name).current_snapshot()
        return (
            int(head.summary["tombstone.metrics.total.count"] or 0)
            if head is not None and head.summary is not None
            else 0
        )

    def data_files(self, name: str) -> dict[str, int]:
        """The data files of the current snapshot and their row counts, read with PyIceberg."""
        files = self.catalog.load_table(name).inspect.files()
        return dict(zip(files["file_path"].to_pylist(), files["record_count"].to_pylist(), strict=True))


def connect() -> Lake:
    """The lake that the environment names. Without these variables, the program ends with a hint."""
    missing = [name for name in WANTED if not os.environ.get(name)]
    if missing:
        sys.exit(f'{", ".join(missing)} not set. Run `make demo-cluster`, or first `eval "$(make -s env)"`.')
    endpoint, region = os.environ["LETHE_S3_ENDPOINT"], os.environ["AWS_REGION"]
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    s3 = boto3.client("s3", endpoint_url=endpoint, region_name=region, config=config)
    # Without these two settings, an object takes three requests instead of one, and another thread.
    files = S3FileSystem(endpoint_override=endpoint, region=region, allow_delayed_open=True, background_writes=False)
    catalog = load_catalog(
        os.environ["LETHE_CATALOG_NAME"],
        **{
            "type": "sql",
            "uri": os.environ["LETHE_CATALOG_URI"],
            "warehouse": os.environ["LETHE_WAREHOUSE"],
            "init_catalog_tables": "false",
            "s3.endpoint": endpoint,
            "s3.region": region,
            "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
            "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        },
    )
    return Lake(s3, files, catalog)


def batch_uri(buffer: str, batch_id: str) -> str:
    return f"{buffer.rstrip('/')}/{BATCH_COLUMN}={quote(batch_id, safe='')}"


def split(uri: str) -> tuple[str, str]:
    """Bucket and key of an `s3://` URI; a folder's key without its slash."""
    parts = urlsplit(uri)
    return parts.netloc, parts.path.strip("/")
