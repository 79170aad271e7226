"""The entries of a ledger's parts as Avro files, sorted by key, with an index in the header. Pure.

Any Avro reader can read these files. The schema of tombstones is that of the Tombstone Extension.
"""

import base64
import io
import json
import zlib
from bisect import bisect_right
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import fastavro
import numpy as np
from fastavro.write import Writer

from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject
from lethe.ledger.ledger import BatchEntry, BatchState, Carrier, Ranges, RequestEntry
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker, PurgedFile, Tombstone

ENTRIES_PER_BLOCK: Final = 16
"""A look-up decodes half a block. With 64 entries, a thousand look-ups take four times as long; the file is a third smaller."""
INDEXED_FROM: Final = 1024
"""The least number of entries for an index: decoding a smaller file is faster than reading its index."""
SYNC_BYTES: Final = 16
_BLOCKS: Final = "lethe.blocks"
_HASHES: Final = "lethe.crc32"

K = TypeVar("K")
T = TypeVar("T")

_TIME = {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}


@dataclass(frozen=True)
class Encoded:
    """A chunk as it is written. The first `header_bytes` of `content` are its Avro header, with any index."""

    content: bytes
    header_bytes: int


def encode(schema: Any, records: Sequence[Any], keys: Sequence[str]) -> Encoded:
    """Encode records that are sorted by key.

    A large file has blocks of a few entries, and an index in the metadata of its header, so that looking up a key decodes at most
    one block, and mostly none. The index has two entries: `lethe.blocks`, the first key and the offset (from the end of the
    header) of each block, as JSON, deflated (zlib) and in base64; and `lethe.crc32`, the sorted CRC-32 of all keys (big-endian),
    in base64, which excludes most missing keys without decoding anything else.

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


def _hashes(keys: Sequence[str]) -> bytes:
    return bytes(np.sort(np.fromiter((_crc32(k) for k in keys), np.uint32, len(keys))).astype(">u4").tobytes())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def decode(schema: Any, content: bytes) -> Iterator[Any]:
    """Decode all records.

    Raises:
        Exception: What fastavro raises on a truncated or foreign file.
    """
    reader = fastavro.reader(io.BytesIO(content))
    if _differs(reader.writer_schema, schema):
        reader = fastavro.reader(io.BytesIO(content), reader_schema=schema)
    return iter(reader)


def _differs(written: Any, schema: Any) -> bool:
    """Whether a file's schema differs from ours and must be resolved, which doubles the time of decoding."""
    return _bare(written) != _bare(schema)


def _bare(schema: Any) -> dict[str, Any]:
    """The schema without what fastavro has added."""
    return {k: v for k, v in schema.items() if not k.startswith("__")}


class Index:
    """The index in the header of a chunk: finds the blocks of a key or of a range of keys."""

    def __init__(self, header: bytes, schema: Any) -> None:
        """`schema`: the one that records are wanted in.

        Raises:
            ValueError: Or what fastavro raises, if it is not a header.
        """
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
        """Whether the header has an index. `encode` writes none for fewer than `INDEXED_FROM` entries."""
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
        written, reader_schema = self._schemas
        return fastavro.parse_schema(written), reader_schema if _differs(written, reader_schema) else None

    def maybe_there(self, keys: Sequence[str]) -> list[str]:
        """The keys that the file may contain. Very few of them are not in it."""
        assert self._hashes is not None
        hashes = np.fromiter((_crc32(k) for k in keys), np.uint32, len(keys))
        positions = np.searchsorted(self._hashes, hashes)
        hit = self._hashes[np.minimum(positions, len(self._hashes) - 1)] == hashes
        return [k for k, found in zip(keys, hit, strict=True) if found]

    def blocks_of(self, keys: Iterable[str]) -> dict[int, str]:
        """The blocks that these keys would be in, in order, and of each the last key that it would have.

        If a key is the first of a block, it may also be the last of the block before, because keys can repeat: one id under
        several columns.
        """
        firsts, found = self._starts[0], dict[int, str]()
        for key in sorted(keys):
            block_number = bisect_right(firsts, key) - 1
            while block_number >= 0:
                found[block_number] = key
                if firsts[block_number] != key:
                    break
                block_number -= 1
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

        Raises:
            ValueError: Or what fastavro raises, if it is not a whole block.
        """
        stream, count = self._opened(block)
        for _ in range(count):
            yield fastavro.schemaless_reader(stream, *self._resolved)
        _require_end(stream, count)

    def find_in_block(self, block: bytes, key_field: str, keys: Container[str] | Ranges, last: str) -> Iterator[Any]:
        """The records with these keys. Of the others only the key is decoded, which takes half as long.

        Args:
            last: None of the keys is greater, so the records after it are not decoded.

        Raises:
            Exception: As `decode_block`, for what it decodes.
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
        count, position = _long(block, 0)
        size, position = _long(block, position)
        if block[position + size :] != self._sync or self._codec not in ("null", "deflate"):
            raise ValueError("not a whole block")
        data = block[position : position + size]
        return io.BytesIO(data if self._codec == "null" else zlib.decompress(data, -zlib.MAX_WBITS)), count

    def _with_key_alone(self, key_field: str) -> Any:
        if key_field not in self._of_keys:
            fields = [f for f in self._schemas[1]["fields"] if f["name"] == key_field]
            self._of_keys[key_field] = fastavro.parse_schema({**_bare(self._schemas[1]), "fields": fields})
        return self._of_keys[key_field]


def _require_end(stream: io.BytesIO, count: int) -> None:
    if stream.read(1):
        raise ValueError(f"a block that has more than its {count} records")


def _long(content: bytes, position: int) -> tuple[int, int]:
    """A variable-length integer of Avro, and the position after it."""
    shift = number = 0
    while True:
        byte = content[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position


def _crc32(key: str) -> int:
    return zlib.crc32(key.encode())


def _optional(kind: Any) -> dict[str, Any]:
    return {"type": ["null", kind], "default": None}


def _object_record(o: BufferedObject) -> dict[str, Any]:
    return {"key": o.key, "size": o.size, "etag": o.etag, "sequencer": o.sequencer}


@dataclass(frozen=True)
class PartFormat(Generic[K, T]):
    """How one kind of ledger entry is written."""

    schema: Any
    to_record: Callable[[T], Mapping[str, Any]]
    of_record: Callable[[Mapping[str, Any]], T]
    key: Callable[[T], K]
    text: Callable[[K], str]
    """The text of a key: files are sorted by it."""
    text_field: str
    """The field of the record with that text."""

    def encode(self, entries: Iterable[T]) -> Encoded:
        """A chunk of these entries, which may come in any order: it is sorted by the texts of their keys."""
        sorted_ = sorted(((self.text(self.key(e)), e) for e in entries), key=lambda pair: pair[0])
        return encode(self.schema, [self.to_record(e) for _, e in sorted_], [k for k, _ in sorted_])

    def decode(self, content: bytes) -> list[T]:
        """The entries in the content of a file.

        Raises:
            Exception: What fastavro raises on a truncated or foreign file. The ledger store adds the name of the file.
        """
        return self.entries(decode(self.schema, content))

    def entries(self, records: Iterable[Any], keys: Container[str] | Ranges | None = None) -> list[T]:
        """The entries of the records, or only those with wanted keys: making an entry takes as long as decoding its record."""
        return [self.of_record(r) for r in records if keys is None or r[self.text_field] in keys]

    def found_in(self, index: Index, block: bytes, keys: Container[str] | Ranges, last: str) -> list[T]:
        """The entries of a block with these keys, of which none is greater than `last`."""
        return [self.of_record(r) for r in index.find_in_block(block, self.text_field, keys, last)]


TOMBSTONES: PartFormat[tuple[int, str], Tombstone] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "tombstone",
            "fields": [
                {"name": "id", "type": "string", "field-id": 1},
                {"name": "namespace", "type": "int", "field-id": 2},
                {"name": "addedOn", "type": _TIME, "field-id": 3},
                {"name": "evictBy", **_optional(_TIME), "field-id": 4},
                {
                    "name": "meta",
                    "type": {"type": "map", "values": "string", "key-id": 6, "value-id": 7},
                    "field-id": 5,
                },
            ],
        }
    ),
    lambda t: {
        "id": t.id,
        "namespace": t.namespace,
        "addedOn": t.added_on,
        "evictBy": t.evict_by,
        "meta": dict(t.meta),
    },
    lambda r: Tombstone(r["id"], r["namespace"], r["addedOn"], r["evictBy"], r["meta"]),
    lambda t: t.key,
    lambda k: k[1],
    "id",
)

BATCHES: PartFormat[str, BatchEntry] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "batch",
            "fields": [
                {"name": "id", "type": "string", "field-id": 1},
                {"name": "state", "type": "string", "field-id": 2},
                {"name": "run", "type": "string", "field-id": 3},
                {"name": "time", "type": _TIME, "field-id": 4},
                {"name": "restatement", **_optional("string"), "field-id": 5},
                {"name": "replacedBy", **_optional("string"), "field-id": 6},
                {"name": "rows", **_optional("long"), "field-id": 7},
                {"name": "bytes", **_optional("long"), "field-id": 8},
                {"name": "snapshotId", **_optional("long"), "field-id": 9},
                {"name": "refusal", **_optional("string"), "field-id": 10},
                {
                    "name": "objects",
                    "field-id": 11,
                    "type": {
                        "type": "array",
                        "element-id": 12,
                        "items": {
                            "type": "record",
                            "name": "object",
                            "fields": [
                                {"name": "key", "type": "string", "field-id": 13},
                                {"name": "size", "type": "long", "field-id": 14},
                                {"name": "etag", "type": "string", "field-id": 15},
                                {"name": "sequencer", **_optional("string"), "field-id": 20},
                            ],
                        },
                    },
                },
                {
                    "name": "partitions",
                    "field-id": 16,
                    **_optional({"type": "array", "items": "string", "element-id": 17}),
                },
                {"name": "evictBy", **_optional(_TIME), "field-id": 18},
                {"name": "registered", **_optional("boolean"), "field-id": 19},
                {"name": "reference", **_optional("string"), "field-id": 21},
            ],
        }
    ),
    lambda b: {
        "id": b.id,
        "state": str(b.state),
        "run": b.run,
        "time": b.time,
        "restatement": b.restatement,
        "replacedBy": b.replaced_by,
        "rows": b.rows,
        "bytes": b.bytes,
        "snapshotId": b.snapshot_id,
        "refusal": None if b.refusal is None else str(b.refusal),
        "objects": [_object_record(o) for o in b.objects],
        "partitions": None if b.partitions is None else list(b.partitions),
        "evictBy": b.evict_by,
        "registered": b.registered or None,
        "reference": b.reference,
    },
    lambda r: BatchEntry(
        id=r["id"],
        state=BatchState(r["state"]),
        run=r["run"],
        time=r["time"],
        restatement=r["restatement"],
        replaced_by=r["replacedBy"],
        rows=r["rows"],
        bytes=r["bytes"],
        snapshot_id=r["snapshotId"],
        refusal=None if r["refusal"] is None else Verdict.parse(r["refusal"]),
        objects=tuple(BufferedObject(o["key"], o["size"], o["etag"], o["sequencer"]) for o in r["objects"]),
        partitions=None if r["partitions"] is None else tuple(r["partitions"]),
        evict_by=r["evictBy"],
        registered=bool(r["registered"]),
        reference=r["reference"],
    ),
    lambda b: b.id,
    str,
    "id",
)

REQUESTS: PartFormat[str, RequestEntry] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "request",
            "fields": [
                {"name": "key", "type": "string", "field-id": 1},
                {"name": "run", "type": "string", "field-id": 2},
                {"name": "time", "type": _TIME, "field-id": 3},
                {"name": "result", "type": "string", "field-id": 4},
            ],
        }
    ),
    lambda e: {"key": e.key, "run": e.run, "time": e.time, "result": json.dumps(dict(e.result), sort_keys=True)},
    lambda r: RequestEntry(r["key"], r["run"], r["time"], json.loads(r["result"])),
    lambda e: e.key,
    str,
    "key",
)

ERASURES: PartFormat[str, Erasure] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "erasure",
            "fields": [
                {"name": "restatement", "type": "string", "field-id": 1},
                {"name": "fieldId", "type": "int", "field-id": 2},
                {"name": "evictBy", **_optional(_TIME), "field-id": 3},
                {"name": "purgedBy", **_optional("long"), "field-id": 4},
                {"name": "purgedAt", **_optional("long"), "field-id": 5},
                {"name": "purgedTime", **_optional(_TIME), "field-id": 6},
                {
                    "name": "blockers",
                    "field-id": 7,
                    "default": None,
                    "type": [
                        "null",
                        {
                            "type": "array",
                            "element-id": 11,
                            "items": {
                                "type": "record",
                                "name": "blocker",
                                "fields": [
                                    {"name": "kind", "type": "string", "field-id": 12},
                                    {"name": "name", "type": "string", "field-id": 13},
                                    {"name": "until", **_optional(_TIME), "field-id": 14},
                                    {"name": "why", "type": "string", "field-id": 15},
                                ],
                            },
                        },
                    ],
                },
                {"name": "blockersCount", **_optional("int"), "field-id": 8},
                {"name": "lookAgain", **_optional(_TIME), "field-id": 9},
                {"name": "verified", **_optional("boolean"), "field-id": 10},
            ],
        }
    ),
    lambda e: {
        "restatement": e.restatement,
        "fieldId": e.field_id,
        "evictBy": e.evict_by,
        "purgedBy": e.purged_by,
        "purgedAt": e.purged_at,
        "purgedTime": e.purged_time,
        "blockers": [{"kind": str(b.kind), "name": b.name, "until": b.until, "why": b.why} for b in e.blockers] or None,
        "blockersCount": e.blockers_count or None,
        "lookAgain": e.look_again,
        "verified": e.verified or None,
    },
    lambda r: Erasure(
        r["restatement"],
        r["fieldId"],
        r["evictBy"],
        r["purgedBy"],
        r["purgedAt"],
        r["purgedTime"],
        tuple(ErasureBlocker(BlockerKind(b["kind"]), b["name"], b["until"], b["why"]) for b in r["blockers"] or ()),
        r["blockersCount"] or 0,
        r["lookAgain"],
        bool(r["verified"]),
    ),
    lambda e: e.restatement,
    str,
    "restatement",
)

PURGED_FILES: PartFormat[str, PurgedFile] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "purged_file",
            "fields": [
                {"name": "path", "type": "string", "field-id": 1},
                {"name": "bytes", "type": "long", "field-id": 2},
                {"name": "content", "type": "string", "field-id": 3},
                {
                    "name": "restatements",
                    "type": {"type": "array", "items": "string", "element-id": 5},
                    "field-id": 4,
                },
            ],
        }
    ),
    lambda f: {"path": f.path, "bytes": f.bytes, "content": f.content, "restatements": list(f.restatements)},
    lambda r: PurgedFile(r["path"], r["bytes"], r["content"], tuple(r["restatements"])),
    lambda f: f.path,
    str,
    "path",
)

CARRIERS: PartFormat[int, Carrier] = PartFormat(
    fastavro.parse_schema(
        {
            "type": "record",
            "name": "carrier",
            "fields": [
                {"name": "snapshotId", "type": "long", "field-id": 1},
                {"name": "sequenceNumber", "type": "long", "field-id": 2},
                {"name": "ledger", "type": "string", "field-id": 3},
                {"name": "bare", "type": {"type": "array", "items": "long", "element-id": 5}, "field-id": 4},
            ],
        }
    ),
    lambda c: {
        "snapshotId": c.snapshot_id,
        "sequenceNumber": c.sequence_number,
        "ledger": c.ledger,
        "bare": list(c.bare),
    },
    lambda r: Carrier(r["snapshotId"], r["sequenceNumber"], r["ledger"], tuple(r["bare"])),
    lambda c: c.snapshot_id,
    str,
    "snapshotId",
)

FORMATS: Mapping[str, PartFormat[Any, Any]] = {
    "tombstones": TOMBSTONES,
    "batches": BATCHES,
    "requests": REQUESTS,
    "erasures": ERASURES,
    "carriers": CARRIERS,
    "purged-files": PURGED_FILES,
}
"""Every part of a ledger, by its name in the root."""
