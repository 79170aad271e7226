"""The bytes of a chunk: an Avro file, sorted by key, with an index in its header. Pure: bytes in, bytes out.

Any Avro reader can read the file. A large file has blocks of a few entries, and an index in the metadata of its header, so that
looking up a key decodes at most one block, and mostly none. The index has two entries: `lethe.blocks`, the first key and the
offset (from the end of the header) of each block, as JSON, deflated (zlib) and in base64; and `lethe.crc32`, the sorted CRC-32 of
all keys (big-endian), in base64, which excludes most missing keys without decoding anything else.
"""

import base64
import io
import json
import zlib
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import fastavro
import numpy as np
from fastavro.write import Writer

from lethe.ledger.parts import Ranges

# A look-up decodes half a block. With 64 entries, a thousand look-ups take four times as long; the file is a third smaller.
ENTRIES_PER_BLOCK: Final = 16
INDEXED_FROM: Final = 1024  # entries; decoding a smaller file is faster than reading its index
SYNC_BYTES: Final = 16
_BLOCKS: Final = "lethe.blocks"
_HASHES: Final = "lethe.crc32"


@dataclass(frozen=True)
class Encoded:
    content: bytes
    header_bytes: int


def encode(schema: Any, records: Sequence[Any], keys: Sequence[str]) -> Encoded:
    """Encode records that are sorted by key.

    Args:
        records: In the form that fastavro needs.
        keys: The key of each record, in the same order.
    """
    indexed = len(records) >= INDEXED_FROM
    out = io.BytesIO()
    writer = Writer(out, schema, codec="deflate", sync_interval=1 << 30)
    writer.dump()
    plain_header = out.tell()
    firsts: list[tuple[str, int]] = []
    step = ENTRIES_PER_BLOCK if indexed else max(1, len(records))
    for start in range(0, len(records), step):
        firsts.append((keys[start], out.tell() - plain_header))
        for record in records[start : start + step]:
            writer.write(record)
        writer.dump()
    content = out.getvalue()
    if not indexed:
        return Encoded(content, plain_header)
    header = io.BytesIO()
    blocks = json.dumps(firsts, ensure_ascii=False, separators=(",", ":")).encode()
    metadata = {_BLOCKS: _base64(zlib.compress(blocks, 1)), _HASHES: _base64(_hashes(keys))}
    Writer(
        header,
        schema,
        codec="deflate",
        metadata=metadata,
        sync_marker=content[plain_header - SYNC_BYTES : plain_header],
    )
    return Encoded(header.getvalue() + content[plain_header:], header.tell())


def decode(schema: Any, content: bytes) -> Iterator[Any]:
    """Decode all records. Raises: what fastavro raises on a truncated or foreign file."""
    reader = fastavro.reader(io.BytesIO(content))
    if _differs(reader.writer_schema, schema):
        reader = fastavro.reader(io.BytesIO(content), reader_schema=schema)
    return iter(reader)


def _differs(written: Any, schema: Any) -> bool:
    """Whether a file's schema differs from ours and must be resolved, which doubles the time of decoding."""
    return _bare(written) != _bare(schema)


def _bare(schema: Any) -> dict[str, Any]:
    """Without what fastavro has added."""
    return {k: v for k, v in schema.items() if not k.startswith("__")}


class Index:
    """The index in the header of a chunk: finds the blocks of a key or of a range of keys."""

    def __init__(self, header: bytes, schema: Any) -> None:
        """`schema`: the one that records are wanted in. Raises: ValueError, or what fastavro raises, if it is not a header."""
        reader = fastavro.reader(io.BytesIO(header))
        metadata = reader.metadata
        self._sync = header[-SYNC_BYTES:]
        self._codec = metadata["avro.codec"]
        self._schemas = reader.writer_schema, schema
        self._of_keys: dict[str, Any] = {}
        # Parsed only if a key may be in the chunk: most look-ups end at the hashes.
        self._blocks = metadata.get(_BLOCKS)
        hashes = base64.b64decode(metadata[_HASHES]) if _HASHES in metadata else None
        self._hashes = np.frombuffer(hashes, ">u4").astype(np.uint32) if hashes is not None else None

    @property
    def is_present(self) -> bool:
        return self._blocks is not None and self._hashes is not None

    @cached_property
    def _starts(self) -> tuple[list[str], list[int]]:
        blocks = json.loads(zlib.decompress(base64.b64decode(self._blocks or "")))
        return [str(first) for first, _ in blocks], [int(offset) for _, offset in blocks]

    @property
    def offsets(self) -> list[int]:
        """The start of each block, from the end of the header."""
        return self._starts[1]

    @cached_property
    def _resolved(self) -> tuple[Any, Any]:
        """The schemas of a record: as it is written, and as it is wanted; None: the same."""
        written, wanted = self._schemas
        return fastavro.parse_schema(written), wanted if _differs(written, wanted) else None

    def maybe_there(self, keys: Sequence[str]) -> list[str]:
        """The keys that the file may contain. Very few of them are not in it."""
        assert self._hashes is not None
        wanted = np.fromiter((_crc32(k) for k in keys), np.uint32, len(keys))
        at = np.searchsorted(self._hashes, wanted)
        hit = self._hashes[np.minimum(at, len(self._hashes) - 1)] == wanted
        return [k for k, found in zip(keys, hit, strict=True) if found]

    def blocks_of(self, keys: Iterable[str]) -> dict[int, str]:
        """The blocks that these keys would be in, in order, and of each the last key that it would have. If a key is the first of
        a block, it may also be the last of the block before, because keys can repeat: one id under several columns."""
        firsts, found = self._starts[0], dict[int, str]()
        for key in sorted(keys):
            at = bisect_right(firsts, key) - 1
            while at >= 0:
                found[at] = key
                if firsts[at] != key:
                    break
                at -= 1
        return dict(sorted(found.items()))

    def blocks_within(self, ranges: Ranges) -> list[int]:
        """The blocks that may contain keys of these ranges."""
        firsts, found = self._starts[0], set[int]()
        for lower, upper in ranges.intervals:
            start = 0 if lower is None else next(iter(self.blocks_of([lower])), 0)
            end = len(firsts) if upper is None else bisect_right(firsts, upper)
            found.update(range(start, end))
        return sorted(found)

    def span(self, block: int, data_bytes: int) -> tuple[int, int]:
        """The start and end of a block, from the end of the header. `data_bytes`: the size of the file without the header."""
        end = self.offsets[block + 1] if block + 1 < len(self.offsets) else data_bytes
        return self.offsets[block], end

    def decode_block(self, block: bytes) -> Iterator[Any]:
        """The records of one block, without decoding the header again, which takes longer than a block.

        Raises: ValueError, or what fastavro raises, if it is not a whole block.
        """
        stream, count = self._opened(block)
        for _ in range(count):
            yield fastavro.schemaless_reader(stream, *self._resolved)
        _require_end(stream, count)

    def find_in_block(self, block: bytes, key_field: str, keys: Container[str] | Ranges, last: str) -> Iterator[Any]:
        """The records with these keys. Of the others only the key is decoded, which takes half as long.

        Args:
            last: None of the keys is greater, so the records after it are not decoded.
        Raises: as `decode_block`, for what it decodes.
        """
        stream, count = self._opened(block)
        key_alone = self._with_key_alone(key_field)
        for _ in range(count):
            start = stream.tell()
            key = fastavro.schemaless_reader(stream, self._resolved[0], key_alone)[key_field]
            if key > last:
                return
            if key in keys:
                stream.seek(start)
                yield fastavro.schemaless_reader(stream, *self._resolved)
        _require_end(stream, count)

    def _opened(self, block: bytes) -> tuple[io.BytesIO, int]:
        """The records of a block, and their number."""
        count, at = _long(block, 0)
        size, at = _long(block, at)
        if block[at + size :] != self._sync or self._codec not in ("null", "deflate"):
            raise ValueError("not a whole block")
        data = block[at : at + size]
        return io.BytesIO(data if self._codec == "null" else zlib.decompress(data, -zlib.MAX_WBITS)), count

    def _with_key_alone(self, key_field: str) -> Any:
        if key_field not in self._of_keys:
            fields = [f for f in self._schemas[1]["fields"] if f["name"] == key_field]
            self._of_keys[key_field] = fastavro.parse_schema({**_bare(self._schemas[1]), "fields": fields})
        return self._of_keys[key_field]


def _require_end(stream: io.BytesIO, count: int) -> None:
    if stream.read(1):
        raise ValueError(f"a block that has more than its {count} records")


def _long(content: bytes, at: int) -> tuple[int, int]:
    """A variable-length integer of Avro, and the position after it."""
    shift = number = 0
    while True:
        byte = content[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at


def _crc32(key: str) -> int:
    return zlib.crc32(key.encode())


def _hashes(keys: Sequence[str]) -> bytes:
    return bytes(np.sort(np.fromiter((_crc32(k) for k in keys), np.uint32, len(keys))).astype(">u4").tobytes())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
