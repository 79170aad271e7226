"""The root of a ledger: a small versioned JSON document that names the parts. Pure.

Each part is a list of chunks. A chunk is an immutable Avro file; today every part is written as one chunk, or none
when it is empty, except the tombstones, of which there is always at least one (an empty set is an empty file).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from lethe.errors import LedgerError

FORMAT_VERSION = 1
PARTS = ("tombstones", "batches", "requests", "erasures", "carriers")


@dataclass(frozen=True)
class Chunk:
    """`file` is relative to the root's own folder, `records` its number of entries, `bytes` its size."""

    file: str
    records: int
    bytes: int


@dataclass(frozen=True)
class Root:
    table_uuid: str
    ledger_version: int
    run: str
    parts: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        document = {
            "format-version": FORMAT_VERSION,
            "table-uuid": self.table_uuid,
            "ledger-version": self.ledger_version,
            "run": self.run,
            "parts": {
                name: [{"file": c.file, "records": c.records, "bytes": c.bytes} for c in self.parts.get(name, ())]
                for name in PARTS
            },
        }
        return json.dumps(document, indent=1).encode()


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
            {
                name: tuple(Chunk(c["file"], c["records"], c["bytes"]) for c in document["parts"][name])
                for name in PARTS
            },
        )
    except (ValueError, KeyError, TypeError) as e:
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
    for chunks in root.parts.values():
        for chunk in chunks:
            if "/" in chunk.file or "\\" in chunk.file or chunk.file in ("", ".", ".."):
                raise LedgerError("LedgerUnreadable", f"{uri} names {chunk.file!r}, which lies outside its own folder.")
    return root
