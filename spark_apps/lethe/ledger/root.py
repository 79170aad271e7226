"""The root of a ledger: a small versioned JSON document that names the parts. Pure.

Each part is a list of chunks, oldest first. A chunk is an immutable Avro file of entries that were set or, with `removes`,
removed. If two chunks contain a key, the later one counts.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from lethe.base.errors import LedgerError

FORMAT_VERSION = 1
PARTS = ("tombstones", "batches", "requests", "erasures", "carriers", "purged-files")

Location: TypeAlias = tuple[str, Mapping[str, str]]
"""A table location, and the properties that put data or metadata elsewhere."""


@dataclass(frozen=True)
class Chunk:
    """One file of a part."""

    file: str
    """Name in the root's folder."""
    records: int
    """Number of entries."""
    bytes: int
    """Size of the file."""
    removes: bool = False
    """Its entries were removed, not set."""
    lower: str | None = None
    """The smallest key; None: it is empty."""
    upper: str | None = None
    """The greatest key; None: it is empty."""
    header_bytes: int = 0
    """Size of the Avro header, which contains the index of a large chunk."""
    snapshot_id: int | None = (
        None  # the snapshot of entries that name none; None: the snapshot that points to this root
    )

    def may_hold(self, lower: str | None, upper: str | None) -> bool:
        """Whether one of its keys may be between two bounds, both inclusive; None is open."""
        if self.lower is None or self.upper is None:
            return False
        return (upper is None or self.lower <= upper) and (lower is None or lower <= self.upper)

    def to_json(self) -> dict[str, Any]:
        """What the root's document says of this chunk. Optional fields with their default values are left out."""
        document: dict[str, Any] = {"file": self.file, "records": self.records, "bytes": self.bytes}
        optional = {
            "removes": self.removes or None,
            "lower": self.lower,
            "upper": self.upper,
            "header-bytes": self.header_bytes or None,
            "snapshot-id": self.snapshot_id,
        }
        return document | {k: v for k, v in optional.items() if v is not None}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> "Chunk":
        """Read what `to_json` wrote. Missing optional fields get their default values."""
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
    """Facts that are needed so often that reading them must cost nothing."""

    tombstones: int = 0
    """Active."""
    batches: int = 0
    requests: int = 0
    states: Mapping[str, int] = field(default_factory=dict)
    """Batches by state."""
    oldest_added_on: datetime | None = None
    """When the oldest active tombstone was added; None: there are none."""
    next_evict_by: datetime | None = None
    """The next deadline of the active tombstones; None: none has a deadline."""
    tombstoned_rows: int | None = field(default=0, compare=False)
    """Rows of tombstoned batches, where known; None: not counted."""

    def to_json(self) -> dict[str, Any]:
        """What the root's document says of them: times in ISO 8601, and only states that some batch has."""
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
        """Read what `to_json` wrote. A document without `tombstoned-rows` gives None for them: not counted."""

        def time(text: str | None) -> datetime | None:
            return datetime.fromisoformat(text) if text else None

        return cls(
            int(document["tombstones"]),
            int(document["batches"]),
            int(document["requests"]),
            {str(k): int(n) for k, n in document["states"].items()},
            time(document["oldest-added-on"]),
            time(document["next-evict-by"]),
            int(rows) if (rows := document.get("tombstoned-rows")) is not None else None,
        )


@dataclass(frozen=True)
class Root:
    """What a ledger's root file says. `ledger_version` counts Lethe's commits in the lineage; `run` wrote the file."""

    table_uuid: str
    ledger_version: int
    run: str
    parts: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    statistics: Statistics = Statistics()
    locations: tuple[Location, ...] = ()
    """All locations that a commit of Lethe has seen, oldest first."""

    def encode(self) -> bytes:
        """The root file as indented JSON. It names every part, even one without chunks."""
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
    """Parse a root.

    Raises:
        LedgerError: Naming the file: LedgerUnreadable, LedgerTooNew, LedgerOfAnotherTable.
    """
    try:
        document = json.loads(content)
        version = document["format-version"]
        if version > FORMAT_VERSION:
            raise LedgerError(
                "LedgerTooNew",
                f"{uri} has format version {version}; this version of Lethe reads up to {FORMAT_VERSION}. Upgrade Lethe.",
            )
        root = Root(
            document["table-uuid"],
            document["ledger-version"],
            document["run"],
            {name: _chunks(document["parts"], name) for name in PARTS},
            Statistics.of_json(document["statistics"]),
            tuple((str(d["location"]), dict(d["properties"])) for d in document.get("locations", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as e:
        raise LedgerError(
            "LedgerUnreadable",
            f"{uri} is not a ledger root ({type(e).__name__}). Restore the file, or roll the table back.",
        ) from e
    if root.table_uuid != table_uuid:
        raise LedgerError(
            "LedgerOfAnotherTable",
            f"{uri} belongs to table {root.table_uuid}, but the snapshot that refers to it belongs to table "
            f"{table_uuid}.",
        )
    if not root.parts["tombstones"]:
        raise LedgerError("LedgerUnreadable", f"{uri} names no file of tombstones. Restore the file, or roll back.")
    for name in root.files:
        if "/" in name or "\\" in name or name in ("", ".", ".."):
            raise LedgerError("LedgerUnreadable", f"{uri} names {name!r}, which is outside its folder.")
    return root


def _chunks(parts: Mapping[str, Any], name: str) -> tuple[Chunk, ...]:
    return tuple(map(Chunk.of_json, parts[name]))
