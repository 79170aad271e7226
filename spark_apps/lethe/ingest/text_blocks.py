"""Reads JSON and CSV files in blocks, decompressed. I/O on an open file.

Invariant: no byte is lost. A compressed file that ends early, or is damaged, raises Damaged.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from lethe.decoder.limits import Limits
from lethe.ingest.buffer_store import BadFile, Damaged

ROWS_PER_BATCH: Final = 65_536

BLOCK_BYTES: Final = 8 * 1024 * 1024
"""How much is decoded at once; also the maximum length of a line."""
BOM: Final = b"\xef\xbb\xbf"
_OTHER_BOMS: Final = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"\x00\x00\xfe\xff": "UTF-32"}


@dataclass(frozen=True)
class OpenedFile:
    """The columns and rows of a file."""

    schema: pa.Schema
    """Known before any row is read."""
    tables: Iterable[pa.Table]
    """The rows in pieces with this schema, read lazily."""
    rows: int | None = None
    """The number of all rows, if the file announces it."""
    expanded: int | None = None
    """The bytes without compression, if the file announces it."""


@dataclass(frozen=True)
class JoinedFiles:
    """The rows of several files, which one call of Arrow has read: a call takes longer than a small file."""

    rows: pa.Table
    counts: Sequence[int]
    """Of the rows of each file, in their order."""


@dataclass(frozen=True)
class Compression:
    """How a file is compressed, as its first bytes show it."""

    name: str
    magic: bytes
    codec: str | None
    """Arrow's name of the codec; None: Lethe does not read it."""


COMPRESSIONS: Final = (
    Compression("gzip", b"\x1f\x8b", "gzip"),
    *(Compression("bzip2", b"BZh%d1AY&SY" % level, "bz2") for level in range(1, 10)),
    Compression("zstd", b"\x28\xb5\x2f\xfd", "zstd"),
    Compression("lz4", b"\x04\x22\x4d\x18", "lz4"),
    Compression("xz", b"\xfd7zXZ\x00", None),
    Compression("zip", b"PK\x03\x04", None),
    Compression("7z", b"7z\xbc\xaf\x27\x1c", None),
    Compression("snappy", b"\xff\x06\x00\x00sNaPpY", None),
    Compression("compress", b"\x1f\x9d", None),
)
HEAD_BYTES: Final = max(len(c.magic) for c in COMPRESSIONS)


def whole_lines(block: bytes) -> bytes:
    """The block with an end of its last line."""
    return block if not block or block.endswith(b"\n") else block + b"\n"


def compression_of(head: bytes) -> Compression | None:
    """The compression that the first bytes show, also one that Lethe does not read; None: it is none of those.

    Args:
        head: At least HEAD_BYTES, unless the file is shorter.
    """
    return next((c for c in COMPRESSIONS if head.startswith(c.magic)), None)


class TextFile:
    """The bytes of a text file."""

    def __init__(
        self,
        file: Any,
        compression: Compression | None = None,
        on_block: Callable[[int], object] = lambda _: None,
        nesting: int = Limits.nesting,
    ) -> None:
        """Create `TextFile`.

        Args:
            on_block: Called with the number of bytes of each block.
            nesting: The levels of objects and arrays that JSON may have.

        Raises:
            BadFile: The compression is not supported.
        """
        self._compression = compression
        self._on_block = on_block
        self.nesting = nesting
        if compression is None:
            self._file = file
        elif compression.codec is None:
            raise BadFile(
                "UnreadableFile",
                f"it is compressed by {compression.name}, expected gzip, zstd, bzip2, lz4 or no compression",
            )
        else:
            self._file = pa.CompressedInputStream(file, compression.codec)

    def blocks(self) -> Iterator[bytes]:
        """All bytes, in blocks of about BLOCK_BYTES, without a byte order mark.

        Raises:
            Damaged: What was read is not a whole file.
            BadFile: The file cannot be used, and reading it again does not change that.
        """
        block = self._read()
        for bom, name in _OTHER_BOMS.items():
            if block.startswith(bom):
                raise BadFile("UnreadableFile", f"it is {name}, expected UTF-8")
        block = block.removeprefix(BOM)
        while block:
            self._on_block(len(block))
            yield block
            block = self._read()

    def _read(self) -> bytes:
        try:
            block = bytes(self._file.read(BLOCK_BYTES))
            if self._compression is None or not block:
                return block
            parts, size = [block], len(block)
            while size < BLOCK_BYTES and (block := bytes(self._file.read(BLOCK_BYTES - size))):
                parts.append(block)
                size += len(block)
            return b"".join(parts)
        except (OSError, pa.ArrowException) as e:
            if self._compression is None:
                raise
            raise Damaged(f"its {self._compression.name} compression is truncated or damaged") from e
