"""The root of a ledger: a small versioned JSON document that names the parts. Pure.

Each part is a list of chunks, oldest first. A chunk is an immutable Avro file of entries that were set, or, with
`removes`, of entries that were removed: of two chunks that hold a key, the later one says what became of it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from lethe.base.errors import LedgerError

FORMAT_VERSION = 1
PARTS = ("tombstones", "batches", "requests", "erasures", "carriers", "purged-files")
LATER_PARTS = frozenset({"purged-files"})  # that a root of an earlier Lethe does not name: it had none

# Where a table's files lay: its location, and the properties by which data or metadata went elsewhere.
Location: TypeAlias = tuple[str, Mapping[str, str]]


@dataclass(frozen=True)
class Chunk:
    """One file of a part.

    Args:
        file: Its name in the root's own folder.
        records: Its number of entries.
        bytes: Its size.
        removes: Whether its entries were removed rather than set.
        lower, upper: The least and the greatest key in it, None when it is empty.
        header_bytes: The size of the Avro header, which holds the index of a large chunk.
        snapshot_id: The snapshot meant by entries without one of their own; None while that is the snapshot that
            points to this very root.
    """

    file: str
    records: int
    bytes: int
    removes: bool = False
    lower: str | None = None
    upper: str | None = None
    header_bytes: int = 0
    snapshot_id: int | None = None

    def may_hold(self, lower: str | None, upper: str | None) -> bool:
        """Whether some key of it may lie between two bounds, both inclusive, None being open."""
        if self.lower is None or self.upper is None:
            return False
        return (upper is None or self.lower <= upper) and (lower is None or lower <= self.upper)

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"file": self.file, "records": self.records, "bytes": self.bytes}
        optional = {
            "removes": self.removes or None,
            "lower": self.lower,
            "upper": self.upper,
            "header-bytes": self.header_bytes or None,
            "snapshot-id": self.snapshot_id,
        }
        return found | {k: v for k, v in optional.items() if v is not None}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> "Chunk":
        return cls(
            str(document["file"]),
            int(document["records"]),
            int(document["bytes"]),
            bool(document.get("removes", False)),
            document.get("lower"),
            document.get("upper"),
            int(document.get("header-bytes", 0)),
            document.get("snapshot-id"),
        )


@dataclass(frozen=True)
class Statistics:
    """What is asked so often that it must cost no reading: how many entries each of the large parts has, batches by
    state, the earliest `addedOn` and `evictBy` of the active tombstones, and how many rows the batches have that these hide.

    `tombstoned_rows` is as good as what the batches' entries tell of them; None: nobody counted."""

    tombstones: int = 0
    batches: int = 0
    requests: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    oldest_added_on: datetime | None = None
    next_evict_by: datetime | None = None
    tombstoned_rows: int | None = field(default=0, compare=False)

    def to_json(self) -> dict[str, Any]:
        return {
            "tombstones": self.tombstones,
            "batches": self.batches,
            "requests": self.requests,
            "states": {k: n for k, n in sorted(self.states.items()) if n},
            "oldest-added-on": self.oldest_added_on.isoformat() if self.oldest_added_on else None,
            "next-evict-by": self.next_evict_by.isoformat() if self.next_evict_by else None,
            "tombstoned-rows": self.tombstoned_rows,
        }

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> "Statistics":
        def moment(text: str | None) -> datetime | None:
            return datetime.fromisoformat(text) if text else None

        return cls(
            int(document["tombstones"]),
            int(document["batches"]),
            int(document["requests"]),
            {str(k): int(n) for k, n in document["states"].items()},
            moment(document["oldest-added-on"]),
            moment(document["next-evict-by"]),
            int(rows) if (rows := document.get("tombstoned-rows")) is not None else None,
        )


@dataclass(frozen=True)
class Root:
    table_uuid: str
    ledger_version: int
    run: str
    parts: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    statistics: Statistics = Statistics()
    locations: tuple[Location, ...] = ()  # every one that a commit of ours has seen, the oldest first

    def encode(self) -> bytes:
        document = {
            "format-version": FORMAT_VERSION,
            "table-uuid": self.table_uuid,
            "ledger-version": self.ledger_version,
            "run": self.run,
            "statistics": self.statistics.to_json(),
            "parts": {name: [c.to_json() for c in self.parts.get(name, ())] for name in PARTS},
            "locations": [{"location": uri, "properties": dict(properties)} for uri, properties in self.locations],
        }
        return json.dumps(document, indent=1).encode()

    @property
    def files(self) -> frozenset[str]:
        """The names of all its chunks' files."""
        return frozenset(c.file for chunks in self.parts.values() for c in chunks)


def decode_root(content: bytes, uri: str, table_uuid: str) -> Root:
    """Parse a root. Raises: LedgerError, naming the file: LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable."""
    try:
        document = json.loads(content)
        version = document["format-version"]
        if version > FORMAT_VERSION:
            raise LedgerError(
                "LedgerTooNew",
                f"{uri} has format version {version}; this Lethe reads up to {FORMAT_VERSION}: upgrade it.",
            )
        root = Root(
            document["table-uuid"],
            document["ledger-version"],
            document["run"],
            {name: _chunks(document["parts"], name) for name in PARTS},
            Statistics.of_json(document["statistics"]),
            tuple((str(d["location"]), dict(d["properties"])) for d in document.get("locations", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise LedgerError(
            "LedgerUnreadable",
            f"{uri} is not a ledger root ({type(e).__name__}): restore the file, or roll the table back.",
        ) from e
    if root.table_uuid != table_uuid:
        raise LedgerError(
            "LedgerOfAnotherTable",
            f"{uri} belongs to table {root.table_uuid}, the snapshot that names it to {table_uuid}.",
        )
    if not root.parts["tombstones"]:
        raise LedgerError("LedgerUnreadable", f"{uri} names no file of tombstones: restore the file, or roll back.")
    for name in root.files:
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            raise LedgerError("LedgerUnreadable", f"{uri} names {name!r}, which lies outside its own folder.")
    return root


def _chunks(parts: Mapping[str, Any], name: str) -> tuple[Chunk, ...]:
    found = parts.get(name, ()) if name in LATER_PARTS else parts[name]
    return tuple(map(Chunk.of_json, found))
