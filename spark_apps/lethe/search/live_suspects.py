"""Finds the data files of a table's head that might hold tombstoned rows, and keeps the answer current as the head moves. I/O:
reads manifests, no data.

Manifests are immutable, and each is read once: observing a new head reads only new manifests. For a file that cannot hold
tombstoned rows, only the bounds are kept, and only during the call.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Suspects
from lethe.iceberg.batch_column import BatchColumn
from lethe.iceberg.facts import TableFacts, bounds_of, live_entries
from lethe.iceberg.native_deletes import NativeDeleteFiles, native_deletes
from lethe.ledger.lineage import Resolution, is_gapless
from lethe.ledger.tombstone import Tombstone
from lethe.vacuum.estimate import Drift

_PARALLEL_READS: Final = 4
# Small files without tombstoned rows are kept, because a vacuum can merge them with others; at most this many.
_MAX_SMALL_FILES: Final = 10_000


@dataclass(frozen=True)
class Head:
    """A snapshot to observe."""

    io: FileIO
    snapshot_id: int
    manifests: Sequence[ManifestFile]
    column: BatchColumn
    # Ids of the snapshots that no ledger covers yet: their files may hold rows of a batch in a partition that its tombstone does
    # not list. None: any file may be such a file.
    foreign: frozenset[int] | None = frozenset()


def head_of(table: Table, facts: TableFacts, resolution: Resolution, field_id: int) -> Head | None:
    """The head of a table; None: the table is empty. Reads its list of manifests.

    Args:
        resolution: How the ledger of the head was found.
        field_id: Of the batch column.
    """
    head = table.metadata.snapshot_by_id(facts.head_id) if facts.head_id is not None else None
    if head is None:
        return None
    foreign = frozenset(resolution.bare) if is_gapless(facts.snapshots, resolution) else None
    column = BatchColumn.of(table.specs(), field_id)
    return Head(table.io, head.snapshot_id, head.manifests(table.io), column, foreign)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A live data file that might hold tombstoned rows."""

    bounds: FileBounds
    must: bool  # all its rows are tombstoned
    format_name: str  # as Iceberg writes it
    spec_id: int
    manifest: str
    # Row groups; 0: its entry does not say where they begin.
    groups: int = 0
    sort_order_id: int | None = None  # None: its entry names none


# Of a manifest: its suspects, its other small files, and the bounds of all its files.
_Read: TypeAlias = "tuple[list[Suspect], list[Suspect], list[FileBounds]]"


class LiveSuspects:
    """Observes heads of one table, each the same as the one before or a descendant of it.

    Args:
        erasing: Files with native deletes are suspects too, whatever their bounds.
        small_bytes: `small` keeps smaller files that hold no tombstoned rows.
    """

    def __init__(self, tombstones: Iterable[Tombstone], erasing: bool = False, small_bytes: int = 0) -> None:
        self.erasing = erasing
        self._small_bytes = small_bytes
        self._known = {t.key: t for t in tombstones}
        self.suspects = Suspects(self._known.values())
        self._forget()

    def _forget(self) -> None:
        self.found: dict[str, Suspect] = {}
        self.small: dict[str, Suspect] = {}
        self.sort_drift: float | None = None
        self._read: frozenset[str] = frozenset()
        self._deletes_read: frozenset[str] = frozenset()
        self._deletes = NativeDeleteFiles({}, {})

    def use(self, tombstones: Iterable[Tombstone]) -> None:
        """Use these tombstones from now on. If one of them may have rows in more files than before, the next `observe` reads all
        manifests again."""
        new = {t.key: t for t in tombstones}
        before = {k: t.partitions for k, t in self._known.items()}
        if {k: t.partitions for k, t in new.items()} == before:
            return
        self._known = new
        self.suspects = Suspects(new.values())
        if any(k not in before or before[k] != t.partitions for k, t in new.items()):
            self._forget()
            return
        assessed = ((p, s, self._must(s.bounds)) for p, s in self.found.items())
        self.found = {p: replace(s, must=must) for p, s, must in assessed if must is not None}

    def _must(self, file: FileBounds) -> bool | None:
        """True: all rows are tombstoned; False: some might be; None: no row can be."""
        must = self.suspects.must_hold(file)
        return must if must or self.suspects.might_hold(file) or (self.erasing and file.deletes) else None

    def observe(self, head: Head) -> None:
        """Update `found` (by path), `small` and, the first time, `sort_drift`. Raises: what the storage raises."""
        if head.foreign is None:
            self._forget()
        data = [m for m in head.manifests if m.content == ManifestContent.DATA]
        paths = frozenset(m.manifest_path for m in data)
        self._observe_deletes(head)
        gone = self._read - paths
        if gone:
            self.found = {p: s for p, s in self.found.items() if s.manifest not in gone}
            self.small = {p: s for p, s in self.small.items() if s.manifest not in gone}
        first, drift = not self._read, Drift()
        new = [m for m in data if m.manifest_path not in self._read]

        def read(manifest: ManifestFile) -> _Read:
            return self._read_manifest(head, manifest, keep_all=first)

        with ThreadPoolExecutor(max_workers=_PARALLEL_READS) as pool:
            # A few at a time, to free the memory of one group before reading the next.
            for at in range(0, len(new), _PARALLEL_READS):
                for found, small, every in pool.map(read, new[at : at + _PARALLEL_READS]):
                    self.found |= {s.bounds.path: s for s in found}
                    self.small |= {s.bounds.path: s for s in small[: _MAX_SMALL_FILES - len(self.small)]}
                    for f in every:
                        drift.add(f)
        if first:
            self.sort_drift = drift.mean_depth()
        self._read = paths

    def _observe_deletes(self, head: Head) -> None:
        manifests = [m for m in head.manifests if m.content == ManifestContent.DELETES]
        paths = frozenset(m.manifest_path for m in manifests)
        if paths == self._deletes_read:
            return
        self._deletes = native_deletes(head.io, manifests)
        self._deletes_read = paths
        for files in (self.found, self.small):
            for path, s in files.items():
                now = self._deletes.on(path, s.spec_id)
                if now != s.bounds.deletes:
                    files[path] = replace(s, bounds=replace(s.bounds, deletes=now))

    def _read_manifest(self, head: Head, manifest: ManifestFile, keep_all: bool) -> _Read:
        found: list[Suspect] = []
        small: list[Suspect] = []
        every: list[FileBounds] = []
        spec_id = manifest.partition_spec_id
        for entry in live_entries(head.io, manifest):
            deletes = self._deletes.on(entry.data_file.file_path, spec_id)
            f = bounds_of(entry.data_file, head.column, deletes, entry.snapshot_id)
            if keep_all:
                every.append(f)
            if head.foreign is None or f.added_by in head.foreign:
                f = replace(f, partition=None)
            must = self._must(f)
            if must is None and f.size >= self._small_bytes:
                continue
            data = entry.data_file
            groups, order = len(data.split_offsets or ()), data.sort_order_id
            file = Suspect(f, bool(must), data.file_format.value, spec_id, manifest.manifest_path, groups, order)
            (small if must is None else found).append(file)
        return found, small, every
