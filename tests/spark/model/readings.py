"""Reads the real table with as little of Lethe's code as possible: snapshots, rows in data files, tombstones, and the marks in
all files below the table. I/O."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from lethe import ledger_store
from lethe.base import names
from lethe.iceberg.facts import observe
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table

from tests.model.rows import Rows, marks_in, of_values
from tests.spark.support.story import avro, local
from tests.support.file_contents import decoded

BATCH_COLUMN = "batch_id"


@dataclass
class Files:
    """A cache of file contents. Files of a table never change."""

    rows: dict[str, Rows] = field(default_factory=dict)  # by path
    # By path, modification time and size.
    marks: dict[tuple[str, int, int], frozenset[str]] = field(default_factory=dict)

    def rows_in(self, path: str) -> Rows:
        if path not in self.rows:
            self.rows[path] = of_values(pq.read_table(local(path), partitioning=None).to_pylist())
        return self.rows[path]

    def marks_below(self, folder: Path) -> dict[str, frozenset[str]]:
        """The marks of rows in each file below a folder, in its raw bytes and in its decoded content."""
        found: dict[str, frozenset[str]] = {}
        for path in (p for p in folder.rglob("*") if p.is_file() and not p.name.endswith(".crc")):
            stat = path.stat()
            key = (str(path), stat.st_mtime_ns, stat.st_size)
            if key not in self.marks:
                content = path.read_bytes()
                self.marks[key] = marks_in(content) | marks_in(decoded(path.name, content))
            if self.marks[key]:
                found[str(path)] = self.marks[key]
        return found


@dataclass(frozen=True)
class Seen:
    """The state of a table at one moment."""

    table: Table
    files: Files
    lineage: tuple[int, ...]  # the head and its retained ancestors, newest first
    others: tuple[int, ...]  # snapshots that are staged, on a branch, or not connected to the head
    states: Mapping[str, str]  # of batches, by the ledger
    verified: frozenset[str]  # names of erasures that are verified by the ledger

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
        """The sequence number of a snapshot."""
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return snapshot.sequence_number or 0

    @property
    def may_expire(self) -> bool:
        """Whether other writers may expire snapshots. The format forbids expiring a ledger that bare snapshots depend on. So no
        bare snapshot outside the lineage may be newer than the nearest ledger, which lists the older ones."""
        if self.bare == len(self.lineage):
            return False
        carrier = self.number(self.lineage[self.bare])
        return not any(self.is_bare(i) and self.number(i) > carrier for i in self.others)

    @property
    def bare(self) -> int:
        """The number of snapshots in the lineage since the nearest ledger. They are of other writers."""
        return next((n for n, i in enumerate(self.lineage) if not self.is_bare(i)), len(self.lineage))

    @property
    def refs(self) -> dict[str, int]:
        return {name: ref.snapshot_id for name, ref in self.table.refs().items() if name != "main"}

    def tombstones(self) -> frozenset[str]:
        """The ids of the active tombstones in the nearest ledger."""
        carrier = next((i for i in self.lineage if not self.is_bare(i)), None)
        return tombstones(self.keys(carrier)["tombstone.file"]) if carrier is not None else frozenset()

    def entries(self, snapshot_id: int | None = None) -> Iterator[tuple[DataFile, int | None]]:
        """The live files of a snapshot, by default the head, each with the snapshot that added it."""
        at = snapshot_id or self.head
        snapshot = self.table.snapshot_by_id(at) if at is not None else None
        for manifest in snapshot.manifests(self.table.io) if snapshot is not None else ():
            for entry in manifest.fetch_manifest_entry(self.table.io, discard_deleted=True):
                yield entry.data_file, entry.snapshot_id

    def physical(self, snapshot_id: int | None = None, added_by: int | None = None) -> Rows:
        """The rows in the data files of a snapshot, without applying deletes.

        Args:
            snapshot_id: None: the head.
            added_by: Only files that this snapshot added; None: all.
        """
        rows: Rows = Counter()
        for file, by in self.entries(snapshot_id):
            if file.content is DataFileContent.DATA and added_by in (None, by):
                rows.update(self.files.rows_in(file.file_path))
        return rows

    def has_foreign_equality_deletes(self, snapshot_id: int | None = None) -> bool:
        """Whether a snapshot, by default the head, has equality deletes of other writers. Only Spark reads such a snapshot."""
        return any(f.content is DataFileContent.EQUALITY_DELETES for f, _ in self.entries(snapshot_id))

    def has_dropped_columns_of(self, snapshot_id: int) -> bool:
        """Whether columns of a snapshot were dropped later. Spark cannot read an increment that ends at it."""
        snapshot = self.table.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        schema = self.table.schemas()[snapshot.schema_id] if snapshot.schema_id is not None else self.table.schema()
        return not {f.field_id for f in schema.fields} <= {f.field_id for f in self.table.schema().fields}

    @property
    def was_unpartitioned(self) -> bool:
        return any(not spec.fields for spec in self.table.specs().values())

    def location(self) -> Path:
        return Path(local(self.table.location()))


def tombstones(uri: str) -> frozenset[str]:
    """The ids in a tombstone file, read with an Avro library."""
    return frozenset(t["id"] for t in avro(uri))


def purged(uri: str) -> frozenset[str]:
    """The ids of tombstones with `purgedBy`: some of their rows are lost."""
    return frozenset(t["id"] for t in avro(uri) if "purgedBy" in _meta(t))


def masks(uri: str) -> dict[str, int]:
    """By id, how many rows native deletes hid when they were written."""
    return {t["id"]: int(m["mask"].split(" ")[1]) for t in avro(uri) if "mask" in (m := _meta(t))}


def _meta(tombstone: dict[str, Any]) -> dict[str, str]:
    meta = tombstone["meta"]
    return dict(meta) if isinstance(meta, dict) else {e["key"]: e["value"] for e in meta}
