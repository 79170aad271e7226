"""Lists the files of all retained snapshots, including branches, tags and staged snapshots. I/O: reads manifests.

Manifests are immutable, and snapshots share most of them: each is read once.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import fastavro
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from lethe.erasure.holders import Ref
from lethe.erasure.progress import DATA, DELETES, HeldFile, History
from lethe.iceberg.batch_column import BatchColumn
from lethe.iceberg.facts import TableFacts, bounds_of
from lethe.iceberg.native_deletes import DELETED, holds_values, native_deletes, referenced
from lethe.ledger.erasure import BlockerKind

PARALLEL_READS = 8


@dataclass
class Manifests:
    """The content of the manifests read so far, by their paths."""

    known: dict[str, tuple[HeldFile, ...]] = field(default_factory=dict)  # live files
    gone: dict[str, tuple[HeldFile, ...]] = field(default_factory=dict)  # removed files

    def history(self, table: Table, facts: TableFacts, field_id: int) -> History:
        """The retained snapshots and their files.

        Args:
            field_id: Of the batch column.
        """
        listed = self._listed(table)
        manifests = {m.manifest_path: m for found in listed.values() for m in found}
        column = BatchColumn.of(table.specs(), field_id)
        self._read(table.io, [m for path, m in manifests.items() if path not in self.known], column)
        head = listed.get(facts.head_id, ()) if facts.head_id is not None else ()
        deletes = native_deletes(table.io, head)
        files = {f.path: f for path in manifests for f in self.known[path]}
        for m in head:
            for f in self.known[m.manifest_path]:
                if f.content == DATA and deletes.on(f.path, m.partition_spec_id):
                    files[f.path] = HeldFile(
                        f.path, f.size, f.content, f.sequence_number, f.lower, f.upper, deletes=True
                    )
        named = {path: tuple(f.path for f in self.known[path]) for path in manifests}
        return History(
            facts.snapshots,
            facts.head_id,
            files,
            frozenset(p for m in head for p in named[m.manifest_path]),
            {i: tuple(m.manifest_path for m in found) for i, found in listed.items()},
            named,
            {path: self.gone[path] for path in manifests if self.gone[path]},
        )

    def _listed(self, table: Table) -> dict[int, tuple[ManifestFile, ...]]:
        snapshots = table.metadata.snapshots
        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            found = pool.map(lambda s: tuple(s.manifests(table.io)), snapshots)
        return {s.snapshot_id: manifests for s, manifests in zip(snapshots, found, strict=True)}

    def _read(self, io: FileIO, manifests: Iterable[ManifestFile], column: BatchColumn) -> None:
        def read(manifest: ManifestFile) -> tuple[str, list[tuple[bool, HeldFile]]]:
            of_data = manifest.content == ManifestContent.DATA
            return manifest.manifest_path, list(_data(io, manifest, column) if of_data else _deletes(io, manifest))

        with ThreadPoolExecutor(PARALLEL_READS) as pool:
            for path, entries in pool.map(read, manifests):
                self.known[path] = tuple(f for is_live, f in entries if is_live)
                self.gone[path] = tuple(f for is_live, f in entries if not is_live)


def refs_of(table: Table, facts: TableFacts) -> tuple[Ref, ...]:
    """All tags, and all branches except main."""
    found: list[Ref] = []
    for name, ref in table.metadata.refs.items():
        if name == "main":
            continue
        kind = BlockerKind.TAG if ref.snapshot_ref_type is SnapshotRefType.TAG else BlockerKind.BRANCH
        snapshot = facts.snapshots.get(ref.snapshot_id)
        until = None
        if ref.max_ref_age_ms is not None and snapshot is not None:
            made = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
            until = made + timedelta(milliseconds=min(ref.max_ref_age_ms, 10**14))
        found.append(Ref(name, kind, ref.snapshot_id, until))
    return tuple(found)


def _data(io: FileIO, manifest: ManifestFile, column: BatchColumn) -> Iterator[tuple[bool, HeldFile]]:
    """The files of a manifest, and whether each is live. The others were removed."""
    for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
        if entry.data_file.content != DataFileContent.DATA:
            continue
        f = bounds_of(entry.data_file, column)
        is_live = entry.status != ManifestEntryStatus.DELETED
        yield is_live, HeldFile(f.path, f.size, DATA, entry.file_sequence_number, f.lower, f.upper)


def _deletes(io: FileIO, manifest: ManifestFile) -> Iterator[tuple[bool, HeldFile]]:
    """As `_data`."""
    with io.new_input(manifest.manifest_path).open() as stream:
        entries = list(fastavro.reader(stream))
    for entry in entries:
        file, sequence_number = entry["data_file"], entry.get("file_sequence_number")
        path = str(file["file_path"])
        added = manifest.sequence_number if sequence_number is None else int(sequence_number)
        held = HeldFile(
            path,
            int(file["file_size_in_bytes"]),
            DELETES,
            added,
            of=referenced(file),
            values=holds_values(file),
        )
        yield entry["status"] != DELETED, held
