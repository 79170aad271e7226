"""The entries of a ledger's parts as Avro records, whose fields have Iceberg field ids. Pure: values in, bytes out.

Any Avro reader can read these files. The schema of tombstones is that of the Tombstone Extension.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import fastavro

from lethe.contract.refusal import Refusal
from lethe.ledger import chunk_file
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker, PurgedFile
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Carrier, RequestEntry
from lethe.ledger.parts import Ranges
from lethe.ledger.tombstone import Tombstone

K = TypeVar("K")
T = TypeVar("T")

_TIME = {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}


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
    text: Callable[[K], str]  # of a key: files are sorted by it
    text_field: str  # the field of the record with that text

    def encode(self, entries: Iterable[T]) -> chunk_file.Encoded:
        sorted_ = sorted(((self.text(self.key(e)), e) for e in entries), key=lambda pair: pair[0])
        return chunk_file.encode(self.schema, [self.to_record(e) for _, e in sorted_], [k for k, _ in sorted_])

    def decode(self, content: bytes) -> list[T]:
        """Raises: what fastavro raises on a truncated or foreign file; the ledger store adds the name of the file."""
        return self.entries(chunk_file.decode(self.schema, content))

    def entries(self, records: Iterable[Any], wanted: Container[str] | Ranges | None = None) -> list[T]:
        """The entries of the records, or only those with wanted keys: making an entry takes as long as decoding its record."""
        return [self.of_record(r) for r in records if wanted is None or r[self.text_field] in wanted]

    def found_in(self, index: chunk_file.Index, block: bytes, keys: Container[str] | Ranges, last: str) -> list[T]:
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
        refusal=None if r["refusal"] is None else Refusal.parse(r["refusal"]),
        objects=tuple(BufferedObject(o["key"], o["size"], o["etag"], o["sequencer"]) for o in r["objects"]),
        partitions=None if r["partitions"] is None else tuple(r["partitions"]),
        evict_by=r["evictBy"],
        registered=bool(r["registered"]),
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

# Every part of a ledger, by its name in the root.
FORMATS: Mapping[str, PartFormat[Any, Any]] = {
    "tombstones": TOMBSTONES,
    "batches": BATCHES,
    "requests": REQUESTS,
    "erasures": ERASURES,
    "carriers": CARRIERS,
    "purged-files": PURGED_FILES,
}
