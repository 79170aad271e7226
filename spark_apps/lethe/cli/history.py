"""Makes the log of a table's snapshots, newest first, with the counts of each ledger. Pure.

The ledgers of two successive commits differ by one or two chunks. Merging every list of chunks from its start would read the
whole ledger for each snapshot. Here, counting a list compares its chunks pairwise and keeps the comparisons; comparing two lists
reads the chunks that only one of them has.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.base import names
from lethe.ledger.lineage import Snapshot
from lethe.ledger.root import Chunk


@dataclass(frozen=True)
class ChunkKeys:
    """The keys of a chunk's entries."""

    keys: frozenset[Hashable]
    lower: str | None = None
    """The smallest text of a key; None: the chunk is empty."""
    upper: str | None = None
    """The greatest text of a key; None: the chunk is empty."""

    def overlaps(self, other: "ChunkKeys") -> bool:
        """Whether the ranges of keys intersect, ends included. An empty chunk overlaps none."""
        if self.lower is None or self.upper is None or other.lower is None or other.upper is None:
            return False
        return self.lower <= other.upper and other.lower <= self.upper


class Layers:
    """Counts lists of chunks, each ordered oldest first, by the keys in their files."""

    def __init__(self, files: Mapping[str, ChunkKeys]) -> None:
        self._files = files
        self._shared_keys: dict[tuple[str, str], frozenset[Hashable]] = {}

    def has_read(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the files of all these chunks are readable."""
        return all(c.file in self._files for c in chunks)

    def size(self, chunks: Sequence[Chunk]) -> int:
        """Count the keys that are set: of each chunk, those that no later chunk sets or removes."""
        total = 0
        for n, chunk in enumerate(chunks):
            if chunk.removes:
                continue
            later = [self._shared(chunk.file, c.file) for c in chunks[n + 1 :]]
            superseded = frozenset().union(*(s for s in later if s)) if any(later) else ()
            total += len(self._files[chunk.file].keys) - len(superseded)
        return total

    def changed(self, before: Sequence[Chunk], after: Sequence[Chunk]) -> tuple[int, int]:
        """Count the keys that are set only in `after`, and those that are set only in `before`."""
        common = {c.file for c in before} & {c.file for c in after}
        keys = {k for c in (*before, *after) if c.file not in common for k in self._files[c.file].keys}
        are_set = [(self._is_set(before, k), self._is_set(after, k)) for k in keys]
        return sum(now and not then for then, now in are_set), sum(then and not now for then, now in are_set)

    def _is_set(self, chunks: Sequence[Chunk], key: Hashable) -> bool:
        last = next((c for c in reversed(chunks) if key in self._files[c.file].keys), None)
        return last is not None and not last.removes

    def _shared(self, older: str, newer: str) -> frozenset[Hashable]:
        pair = (older, newer)
        if pair not in self._shared_keys:
            older_file, newer_file = self._files[older], self._files[newer]
            self._shared_keys[pair] = (
                older_file.keys & newer_file.keys if older_file.overlaps(newer_file) else frozenset()
            )
        return self._shared_keys[pair]


@dataclass(frozen=True)
class SnapshotLine:
    """One snapshot. The counts are of tombstones; None: the snapshot's summary has no such number."""

    snapshot_id: int
    time: datetime
    operation: str
    run_kind: str | None
    """The kind of the run; None: another writer committed the snapshot."""
    run_id: str | None
    """The id of the run; None: another writer committed the snapshot."""
    added: int | None
    deleted: int | None
    total: int | None
    vacuumed: int | None
    bare: bool
    """It has no ledger of its own."""
    refs: tuple[str, ...]
    """Branches and tags."""


def lines(
    snapshots: Mapping[int, Snapshot], head_id: int | None, refs: Mapping[str, int], *, everything: bool = False
) -> tuple[SnapshotLine, ...]:
    """The head and its retained ancestors; with `everything`, also staged snapshots and those of other branches."""
    if everything:
        chosen = sorted(snapshots.values(), key=lambda s: (s.sequence_number, s.timestamp_ms), reverse=True)
    else:
        chosen = []
        while head_id is not None and head_id in snapshots:
            chosen.append(snapshots[head_id])
            head_id = snapshots[head_id].parent_id
    named: dict[int, list[str]] = {}
    for name, snapshot_id in sorted(refs.items()):
        named.setdefault(snapshot_id, []).append(name)
    return tuple(_line(s, tuple(named.get(s.id, ()))) for s in chosen)


def _line(snapshot: Snapshot, refs: tuple[str, ...]) -> SnapshotLine:
    summary = snapshot.summary
    return SnapshotLine(
        snapshot_id=snapshot.id,
        time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
        operation=summary.get("operation", ""),
        run_kind=summary.get(names.RUN_KIND),
        run_id=summary.get(names.RUN_ID),
        added=count(summary, names.TOMBSTONE_ADDED),
        deleted=count(summary, names.TOMBSTONE_DELETED),
        total=count(summary, names.TOMBSTONE_TOTAL),
        vacuumed=count(summary, names.TOMBSTONE_VACUUM_COUNT),
        bare=snapshot.ledger is None,
        refs=refs,
    )


def count(summary: Mapping[str, str], key: str) -> int | None:
    """The number under a summary key; None: the key is missing or not a number."""
    value = summary.get(key, "")
    return int(value) if value.isdigit() else None
