"""What compressed and encoded files of a table contain, as one text in which values can be searched. Pure."""

import gzip
import io
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow.parquet as pq


def decoded(name: str, content: bytes) -> bytes:
    """The values in an Avro or Parquet file, or a decompressed metadata file. Empty for others, whose bytes are their text."""
    if content.startswith(b"Obj\x01"):
        return b"\n".join(_texts(list(fastavro.reader(io.BytesIO(content)))))
    if content.startswith(b"PAR1"):
        table = pq.read_table(io.BytesIO(content))
        return "\n".join(str(v) for c in table.columns for v in c.to_pylist()).encode()
    return gzip.decompress(content) if name.endswith(".gz.metadata.json") else b""


def _texts(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, str):
        yield value.encode()
    elif isinstance(value, dict):
        for v in value.values():
            yield from _texts(v)
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _texts(v)
