"""The data files of a table's head that might hold rows of some tombstones, and what they are, as the head moves on. I/O: reads
manifests, no data.

A manifest never changes, and each is read once: to look at a head again costs what came since. Of a file that cannot hold any of
the tombstones nothing is kept but, for a while, its bounds.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Suspects
from lethe.iceberg.batch_column import BatchColumn
from lethe.iceberg.facts import bounds_of, live_entries
from lethe.iceberg.native_deletes import NativeDeletes, native_deletes
from lethe.ledger.tombstone import Tombstone
from lethe.vacuum.estimate import Drift

_READ_AT_ONCE: Final = 4
# Small files that hold nothing deleted are remembered to be merged with others; not more of them than this.
_SMALL_AT_MOST: Final = 10_000


@dataclass(frozen=True)
class Head:
    """A snapshot to look at.

    Args:
        foreign: The snapshots whose files may hold rows of a batch in a partition in which nobody remembers it, since no ledger
            has taken note of them yet; None: any file may be one of those.
    """

    io: FileIO
    snapshot_id: int
    manifests: Sequence[ManifestFile]
    column: BatchColumn
    foreign: frozenset[int] | None = frozenset()


@dataclass(frozen=True, slots=True)
class Suspect:
    """A live data file that might hold deleted rows. `must`: nothing else; `format_name` as Iceberg writes it."""

    bounds: FileBounds
    must: bool
    format_name: str
    spec_id: int
    manifest: str


# Of a manifest: suspects, small files that are none, and the bounds of all its files.
_Read: TypeAlias = "tuple[list[Suspect], list[Suspect], list[FileBounds]]"


class LiveSuspects:
    """Looks at heads of one table, each a descendant of the one before or the same.

    Args:
        erasing: Files with native deletes count as well, whatever their bounds.
        small_bytes: Smaller files that hold nothing deleted are kept in `small`.
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
        self._deletes = NativeDeletes({}, {})

    def learn(self, tombstones: Iterable[Tombstone]) -> None:
        """Go by these tombstones from now on. If one of them may have rows where it could have none before, all files are looked
        at anew the next time."""
        new = {t.key: t for t in tombstones}
        before = {k: t.partitions for k, t in self._known.items()}
        if {k: t.partitions for k, t in new.items()} == before:
            return
        self._known = new
        self.suspects = Suspects(new.values())
        if any(k not in before or before[k] != t.partitions for k, t in new.items()):
            self._forget()
            return
        judged = ((p, s, self._must(s.bounds)) for p, s in self.found.items())
        self.found = {p: replace(s, must=must) for p, s, must in judged if must is not None}

    def _must(self, file: FileBounds) -> bool | None:
        """Whether the file holds nothing but rows of tombstones; None: it can hold none of them."""
        must = self.suspects.must_hold(file)
        return must if must or self.suspects.might_hold(file) or (self.erasing and file.deletes) else None

    def look(self, head: Head) -> None:
        """Bring `found` (by path), `small` and, the first time, `sort_drift` up to date. Raises: what the storage raises."""
        if head.foreign is None:
            self._forget()
        data = [m for m in head.manifests if m.content is ManifestContent.DATA]
        there = frozenset(m.manifest_path for m in data)
        self._look_at_deletes(head)
        gone = self._read - there
        if gone:
            self.found = {p: s for p, s in self.found.items() if s.manifest not in gone}
            self.small = {p: s for p, s in self.small.items() if s.manifest not in gone}
        first, drift = not self._read, Drift()
        new = [m for m in data if m.manifest_path not in self._read]

        def read(manifest: ManifestFile) -> _Read:
            return self._look_into(head, manifest, keep_all=first)

        with ThreadPoolExecutor(max_workers=_READ_AT_ONCE) as pool:
            # A few at a time: what of a manifest is of no interest is let go before the next ones are read.
            for at in range(0, len(new), _READ_AT_ONCE):
                for found, small, every in pool.map(read, new[at : at + _READ_AT_ONCE]):
                    self.found |= {s.bounds.path: s for s in found}
                    self.small |= {s.bounds.path: s for s in small[: _SMALL_AT_MOST - len(self.small)]}
                    for f in every:
                        drift.add(f)
        if first:
            self.sort_drift = drift.mean_depth()
        self._read = there

    def _look_at_deletes(self, head: Head) -> None:
        manifests = [m for m in head.manifests if m.content is ManifestContent.DELETES]
        there = frozenset(m.manifest_path for m in manifests)
        if there == self._deletes_read:
            return
        self._deletes = native_deletes(head.io, manifests, with_ours=False)
        self._deletes_read = there
        for files in (self.found, self.small):
            for path, s in files.items():
                now = self._deletes.on(path, s.spec_id)
                if now != s.bounds.deletes:
                    files[path] = replace(s, bounds=replace(s.bounds, deletes=now))

    def _look_into(self, head: Head, manifest: ManifestFile, keep_all: bool) -> _Read:
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
            file = Suspect(f, bool(must), entry.data_file.file_format.value, spec_id, manifest.manifest_path)
            (small if must is None else found).append(file)
        return found, small, every
