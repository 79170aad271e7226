"""What it takes to list many objects of an S3 server: through Lethe's ObjectStore, and through boto3 as a yardstick.

    python -m bench.listing [--objects 200000]

The server is a versitygw of its own on a temporary folder. The objects are made as files in that folder, so that nothing but the
listing is measured; each batch has 100 of them. Needs `dev/tools.sh versitygw`.
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from lethe.storage.object_store import open_store
from lethe.storage.s3 import S3Requests

from tests.support.servers import s3 as servers

BATCH_OBJECTS = 100
BUCKET, FOLDER = "lake", "buffer"


def make_objects(root: Path, count: int) -> None:
    for first in range(0, count, BATCH_OBJECTS):
        folder = root / FOLDER / f"batch_id={first:09}"
        folder.mkdir(parents=True)
        for n in range(min(BATCH_OBJECTS, count - first)):
            (folder / f"part-{n:05}.parquet").write_bytes(b"1")


def measured(name: str, listing: Callable[[], Iterable[object]], expected: int) -> None:
    """Print how long a listing takes, and how much of that this process works."""
    began, worked = time.monotonic(), time.process_time()
    found = sum(1 for _ in listing())
    seconds, cpu_seconds = time.monotonic() - began, time.process_time() - worked
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    assert found == expected, f"{name} listed {found} of {expected} objects"
    print(
        f"{name:12} {found:8,} objects  {seconds:7.1f} s  {cpu_seconds:6.1f} s of CPU  peak {peak_mib} MiB", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=200_000)
    count = parser.parse_args().objects
    with servers.running() as s3:
        s3.bucket(BUCKET)
        make_objects(s3.folder / BUCKET, count)
        store, requests = open_store(f"s3://{BUCKET}", s3.properties()), S3Requests(s3.properties())
        pages = lambda: requests.pages(BUCKET, f"{FOLDER}/", "", 1000)  # noqa: E731
        measured("ObjectStore", lambda: store.list(f"s3://{BUCKET}/{FOLDER}"), count)
        measured("boto3", lambda: (o for page in pages() for o in page), count)


if __name__ == "__main__":
    main()
