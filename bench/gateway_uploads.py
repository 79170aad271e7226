"""Uploads through the gateway: small batches at a time, and one large file compared with a plain PUT. I/O."""

import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
from lethe_local.folder import NAMESPACE

from bench.gateway_scales import GatewayScale
from bench.gateway_site import UPLOADED, Site
from bench.timing import Case, Sample, in_turns, say, spread

CLIENTS: Final = 2
ROWS: Final = 10
PLAIN, UPLOAD = "plain PUT", "upload"
_CHUNK: Final = 64 * 1024 * 1024
_COLUMNS: Final = pa.schema([("v", pa.int64()), ("payload", pa.binary())])


def uploads(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """Both on an S3 server of this machine, so the network is no limit."""
    with _client(site) as client:
        small = _small(site, client, scale)
        say(f"  {small['per_second']:.1f} small batches per second")
        large = _large(site, client, scale)
    return {"results": large, "small": small, "bytes": scale.large_bytes, "memory_mib": site.memory_mib()}


@contextmanager
def _client(site: Site) -> Iterator[lethe.Ingest]:
    with lethe.Ingest(f"http://127.0.0.1:{site.port}", NAMESPACE, UPLOADED, site.token) as client:
        yield client


def _small(site: Site, client: lethe.Ingest, scale: GatewayScale) -> dict[str, Any]:
    """Batches of one small file, from several clients: opened, sent to the store, checked and completed."""
    folder = site.folder / "small"
    folder.mkdir(exist_ok=True)
    rows = pa.table({"v": range(ROWS), "payload": [b"row"] * ROWS}, _COLUMNS)
    pq.write_table(rows, folder / "part-0.parquet")

    def one(number: int) -> float:
        began = time.perf_counter()
        client.put(f"small-{uuid.uuid4().hex[:8]}-{number}", folder)
        return time.perf_counter() - began

    one(-1)
    before, began = site.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = list(pool.map(one, range(scale.small_batches)))
    took = time.perf_counter() - began
    return {
        "batches": scale.small_batches,
        "clients": CLIENTS,
        "per_second": round(scale.small_batches / took, 2),
        "cpu_seconds": round((site.cpu_seconds() - before) / scale.small_batches, 4),
        "seconds": spread([round(s, 4) for s in seconds]),
    }


def _large(site: Site, client: lethe.Ingest, scale: GatewayScale) -> list[dict[str, Any]]:
    """One file, sent whole by boto3, and as a batch through presigned URLs with checksums."""
    folder = site.folder / "large"
    folder.mkdir(exist_ok=True)
    file = folder / "part-0.parquet"
    _write(file, scale.large_bytes)
    size = file.stat().st_size

    def plain(number: int) -> Sample:
        key = f"plain/{number}-{uuid.uuid4().hex[:8]}"
        began = time.perf_counter()
        with file.open("rb") as body:
            site.s3.client.put_object(Bucket=site.bucket, Key=key, Body=body)
        took = time.perf_counter() - began
        site.s3.client.delete_object(Bucket=site.bucket, Key=key)
        return Sample(took, size)

    def upload(number: int) -> Sample:
        batch_id = f"large-{number}-{uuid.uuid4().hex[:8]}"
        began = time.perf_counter()
        client.put(batch_id, folder)
        took = time.perf_counter() - began
        for found in site.s3.client.list_objects_v2(Bucket=site.bucket, Prefix=f"buffer/batch_id={batch_id}")[
            "Contents"
        ]:
            site.s3.client.delete_object(Bucket=site.bucket, Key=found["Key"])
        return Sample(took, size)

    cases = [Case({"kind": kind}, act, scale.rounds) for kind, act in ((PLAIN, plain), (UPLOAD, upload))]
    return in_turns(cases)


def _write(file: Path, size: int) -> None:
    """Values that cannot be compressed, so the file is about as large as asked."""
    with pq.ParquetWriter(file, _COLUMNS, compression="none", use_dictionary=False) as writer:
        for begin in range(0, size, _CHUNK):
            values = [os.urandom(min(_CHUNK, size - begin) // 64) for _ in range(64)]
            writer.write_table(pa.table({"v": range(64), "payload": values}, _COLUMNS))
