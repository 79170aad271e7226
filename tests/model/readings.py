"""Readings of the real table that use as little of Lethe's code as can be: its snapshots, the rows in its data files, its
tombstones, and the marks that any file below it holds. I/O."""

import gzip
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.parquet as pq
from lethe.base import names
from lethe.iceberg.facts import observe
from lethe.ledger_store import store as ledger_store
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

from tests.model.rows import Rows, marks_in, of_values
from tests.spark.support.story import avro, local

BATCH_COLUMN = "batch_id"


@dataclass
class Files:
    """Every file is read once: none is ever changed."""

    rows: dict[str, Rows] = field(default_factory=dict)
    marks: dict[tuple[str, int, int], frozenset[str]] = field(default_factory=dict)

    def rows_in(self, path: str) -> Rows:
        if path not in self.rows:
            self.rows[path] = of_values(pq.read_table(local(path), partitioning=None).to_pylist())
        return self.rows[path]

    def marks_below(self, folder: Path) -> dict[str, frozenset[str]]:
        """The marks of rows in each file below a folder, in the file as it is and in what it decodes to."""
        found: dict[str, frozenset[str]] = {}
        for path in (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".crc")):
            stat = path.stat()
            key = (str(path), stat.st_mtime_ns, stat.st_size)
            if key not in self.marks:
                self.marks[key] = marks_in(path.read_bytes()) | marks_in(decoded(path))
            if self.marks[key]:
                found[str(path)] = self.marks[key]
        return found


def decoded(path: Path) -> bytes:
    """What is compressed or encoded in a file, as one text."""
    content = path.read_bytes()
    if content.startswith(b"Obj\x01"):
        with path.open("rb") as stream:
            return b"\n".join(_texts(list(fastavro.reader(stream))))
    if content.startswith(b"PAR1"):
        table = pq.read_table(path, partitioning=None)
        return "\n".join(str(v) for c in table.columns for v in c.to_pylist()).encode()
    return gzip.decompress(content) if path.name.endswith(".gz.metadata.json") else b""


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


@dataclass(frozen=True)
class Seen:
    """A table at one moment.

    Args:
        lineage: The head and its retained ancestors, newest first.
        others: Snapshots that are staged, on a branch, or cut off.
        states: Of batches, as the ledger says; `verified`: names of the erasures that it says are verified.
    """

    table: Table
    files: Files
    lineage: tuple[int, ...]
    others: tuple[int, ...]
    states: Mapping[str, str]
    verified: frozenset[str]

    @classmethod
    def of(cls, table: Table, files: Files) -> "Seen":
        parents = {s.snapshot_id: s.parent_snapshot_id for s in table.metadata.snapshots}
        lineage: list[int] = []
        at = table.metadata.current_snapshot_id
        while at is not None and at in parents:
            lineage.append(at)
            at = parents[at]
        ledger = ledger_store.load(table.io, observe(table, BATCH_COLUMN)).ledger
        states = {i: str(b.state) for i, b in ledger.batches.items()}
        assert {str(s): n for s, n in ledger.states.items() if n} == Counter(states.values())
        verified = (k for k, r in ledger.requests.items() if r.result.get("erasure"))
        others = tuple(i for i in parents if i not in lineage)
        return cls(table, files, tuple(lineage), others, states, frozenset(k.split("/")[1] for k in verified))

    def keys(self, snapshot_id: int) -> dict[str, str]:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        return dict(snapshot.summary.additional_properties)

    def operation(self, snapshot_id: int) -> str:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        assert snapshot.summary is not None
        return snapshot.summary.operation.value

    def parent(self, snapshot_id: int) -> int | None:
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return snapshot.parent_snapshot_id

    def is_bare(self, snapshot_id: int) -> bool:
        return names.LEDGER not in self.keys(snapshot_id)

    @property
    def head(self) -> int | None:
        return self.lineage[0] if self.lineage else None

    def number(self, snapshot_id: int) -> int:
        """Its sequence number."""
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return snapshot.sequence_number or 0

    @property
    def may_expire(self) -> bool:
        """The format asks other writers not to expire a ledger that only bare snapshots lead to: no bare one beside the head's
        line may be newer than the nearest ledger, which lists those that are older."""
        if self.bare == len(self.lineage):
            return False
        carrier = self.number(self.lineage[self.bare])
        return not any(self.is_bare(i) and self.number(i) > carrier for i in self.others)

    @property
    def bare(self) -> int:
        """How many snapshots of others lie above the nearest ledger."""
        return next((n for n, i in enumerate(self.lineage) if not self.is_bare(i)), len(self.lineage))

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref.snapshot_id for name, ref in self.table.refs().items() if name != "main"}

    def tombstones(self) -> frozenset[str]:
        """The active ones, of the nearest ledger, in whatever files it has them."""
        carrier = next((i for i in self.lineage if not self.is_bare(i)), None)
        return tombstones(self.keys(carrier)["tombstone.file"]) if carrier is not None else frozenset()

    def entries(self, snapshot_id: int | None = None) -> Iterator[tuple[DataFile, int | None]]:
        """The live files of a snapshot, and which snapshot added each."""
        at = snapshot_id or self.head
        snapshot = self.table.snapshot_by_id(at) if at is not None else None
        for manifest in snapshot.manifests(self.table.io) if snapshot is not None else ():
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True):
                yield entry.data_file, entry.snapshot_id

    def physical(self, snapshot_id: int | None = None, added_by: int | None = None) -> Rows:
        """The rows in the data files of a snapshot, whatever deletes say; or in those only that a snapshot added."""
        rows: Rows = Counter()
        for file, by in self.entries(snapshot_id):
            if file.content is DataFileContent.DATA and added_by in (None, by):
                rows.update(self.files.rows_in(file.file_path))
        return rows

    def has_foreign_equality_deletes(self, snapshot_id: int | None = None) -> bool:
        """Lethe's readers without Spark refuse such a snapshot, by default the head."""
        return any(
            f.content is DataFileContent.EQUALITY_DELETES
            and not f.file_path.rpartition("/")[2].startswith(names.EQUALITY_DELETES_PREFIX)
            for f, _ in self.entries(snapshot_id)
        )

    @property
    def was_unpartitioned(self) -> bool:
        return any(not spec.fields for spec in self.table.specs().values())

    def location(self) -> Path:
        return Path(local(self.table.location()))


def tombstones(uri: str) -> frozenset[str]:
    """The ids that a summary's file names, by an Avro library."""
    return frozenset(t["id"] for t in avro(uri))


def purged(uri: str) -> frozenset[str]:
    """Those of the tombstones that say that their rows cannot all be brought back."""
    return frozenset(t["id"] for t in avro(uri) if "purgedBy" in _meta(t))


def masks(uri: str) -> dict[str, int]:
    """How many rows of a batch native deletes hid when they were written."""
    return {t["id"]: int(m["mask"].split(" ")[1]) for t in avro(uri) if "mask" in (m := _meta(t))}


def _meta(tombstone: dict[str, Any]) -> dict[str, str]:
    meta = tombstone["meta"]
    return dict(meta) if isinstance(meta, dict) else {e["key"]: e["value"] for e in meta}
