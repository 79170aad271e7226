"""Reads Avro of each codec that Iceberg writes. fastavro needs further packages for two of them, and Arrow has both. Pure."""

import io
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import fastavro
import pyarrow as pa
from fastavro.read import BLOCK_READERS

CODECS: Final = ("null", "deflate", "bzip2", "xz", "snappy", "zstandard")
"""The codecs that are read, by their names in a file."""
_SNAPPY_RATIO: Final = 64
"""More than the format can compress."""


def plain(codec: str, content: bytes) -> bytes:
    """A block of an Avro file without its compression by snappy or zstandard.

    Raises:
        ValueError: It is damaged.
        OSError: The same.
        pa.ArrowException: The same.
    """
    if codec == "zstandard":
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            return bytes(stream.read())
    packed, checksum = content[:-4], content[-4:]
    # The block begins with the size of its content, in the form of Protocol Buffers.
    size = _first_varint(packed)
    if size > len(packed) * _SNAPPY_RATIO:
        raise ValueError("a block is damaged")
    found = bytes(pa.Codec("snappy").decompress(packed, size, asbytes=True))
    if zlib.crc32(found).to_bytes(4, "big") != checksum:
        raise ValueError("a block does not match its checksum")
    return found


def _first_varint(content: bytes) -> int:
    value = shift = 0
    for byte in content[:10]:
        value |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
    return value


def _block(codec: str, stream: Any) -> io.BytesIO:
    content: Any = fastavro.schemaless_reader(stream, "bytes", None)
    return io.BytesIO(plain(codec, content))


BLOCK_READERS |= {codec: partial(_block, codec) for codec in ("snappy", "zstandard")}
# With the readers above.
reader: Final[Callable[..., Any]] = fastavro.reader
block_reader: Final[Callable[..., Any]] = fastavro.block_reader
