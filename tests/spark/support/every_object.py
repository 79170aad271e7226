"""What every object below a folder or a bucket holds: bytes as they are, and what is compressed in them.

Libraries that are none of Lethe's take it apart."""

import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import fastavro
import pyarrow.orc as orc
import pyarrow.parquet as pq

from tests.support.servers.s3 import S3


def of_folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file below a folder, hidden ones too."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        yield str(path.relative_to(folder)), path.read_bytes()


def of_bucket(s3: S3, bucket: str) -> Iterator[tuple[str, bytes]]:
    """Every version of every object in a bucket; of deleted objects too."""
    for page in s3.client.get_paginator("list_object_versions").paginate(Bucket=bucket):
        for marker in page.get("DeleteMarkers", ()):
            yield marker["Key"], b""
        for o in page.get("Versions", ()):
            version = {} if o["VersionId"] == "null" else {"VersionId": o["VersionId"]}
            yield o["Key"], s3.client.get_object(Bucket=bucket, Key=o["Key"], **version)["Body"].read()


def objects_with(objects: Iterable[tuple[str, bytes]], *texts: str) -> list[str]:
    """The objects that hold one of the texts, in their names or their content, as they are or as parts of a path."""
    wanted = {
        text: {form.encode() for form in (text, quote(text), quote(text, safe=""), quote_plus(text))} for text in texts
    }
    found: list[str] = []
    for name, content in objects:
        whole = b"\n".join((name.encode(), content, _taken_apart(name, content)))
        found += [f"{name}: {text}" for text, forms in wanted.items() if any(form in whole for form in forms)]
    return found


def _taken_apart(name: str, content: bytes) -> bytes:
    if content.startswith(b"Obj\x01"):
        reader = fastavro.reader(io.BytesIO(content))
        return b"\n".join([repr(reader.metadata).encode(), *(_bytes(record) for record in reader)])
    if content.startswith(b"PAR1"):
        table = pq.ParquetFile(io.BytesIO(content))
        return f"{table.metadata.to_dict()}\n{table.read().to_pylist()}".encode()
    if content.startswith(b"ORC"):
        return f"{orc.ORCFile(io.BytesIO(content)).read().to_pylist()}".encode()
    if name.endswith(".gz") or content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    return b""


def _bytes(value: Any) -> bytes:
    """All that a record holds, bytes as they are."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict):
        return b"\n".join(part for k, v in value.items() for part in (str(k).encode(), _bytes(v)))
    if isinstance(value, list | tuple):
        return b"\n".join(_bytes(v) for v in value)
    return str(value).encode()
