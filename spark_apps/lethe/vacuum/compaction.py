"""Plans which small data files a vacuum merges, and in which groups. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from lethe.files.bounds import FileBounds, IdIndex, spec_of

SMALL: Final = 0.5
"""Fraction of the target size below which a file is small."""

Bin: TypeAlias = tuple[FileBounds, ...]


@dataclass(frozen=True)
class CompactionPlan:
    """Which files to merge."""

    snapshot_id: int
    bins: tuple[Bin, ...] = ()
    """Files of one partition that become one file, if their rows fit into one."""
    left: int = 0
    """The number of bins beyond the budget, left for later."""

    @property
    def files(self) -> Bin:
        """The files of all bins, in the order of the bins. Those beyond the budget are not among them."""
        return tuple(f for files_of_bin in self.bins for f in files_of_bin)


def plan_compaction(
    snapshot_id: int,
    files: Iterable[FileBounds],
    tombstoned: Collection[str],
    spec_id: int,
    target_bytes: int,
    max_bytes: int | None = None,
) -> CompactionPlan:
    """Plan which data files of a snapshot to merge.

    Only files without rows to purge are merged. The purge rewrites files that might hold tombstoned rows or rows under native
    deletes; merging them first would write them twice. A merged file is at least twice as large as its largest input, so each row
    is compacted O(log n) times over the life of the table.

    Args:
        tombstoned: Batch ids with an active tombstone of the batch column.
        spec_id: Of the current partition spec. Files of other specs, and files whose partition has no text, are not merged.
        target_bytes: The target size of data files.
        max_bytes: Limit for the total size of the bins; None: no limit. Bins that save the most files per byte come first.
    """
    index = IdIndex(tombstoned)
    by_partition: dict[str, list[FileBounds]] = {}
    for f in files:
        if f.partition is not None and spec_of(f.partition) == str(spec_id):
            by_partition.setdefault(f.partition, []).append(f)
    bins = [
        files_of_bin
        for partition in sorted(by_partition)
        for run in _runs(by_partition[partition], index, target_bytes)
        for files_of_bin in _bins(run, target_bytes)
    ]
    taken, left = _within(bins, max_bytes)
    return CompactionPlan(snapshot_id, tuple(taken), left)


def _runs(files: Iterable[FileBounds], index: IdIndex, target_bytes: int) -> Iterator[list[FileBounds]]:
    """Runs of small files in batch order, with no other file between them. Files with unknown bounds come first."""
    run: list[FileBounds] = []
    for f in sorted(files, key=lambda f: (f.lower or "", f.upper or "", f.path)):
        if f.size < SMALL * target_bytes and not f.deletes and not index.might_hold(f):
            run.append(f)
        elif run:
            yield run
            run = []
    if run:
        yield run


def _bins(run: Sequence[FileBounds], target_bytes: int) -> Iterator[Bin]:
    start = 0
    while start < len(run):
        end, size = start, 0
        while end < len(run) and (end == start or size + run[end].size <= target_bytes):
            size += run[end].size
            end += 1
        yield from _worthwhile(run[start:end])
        start = end


def _worthwhile(files: Sequence[FileBounds]) -> Iterator[Bin]:
    """Split neighbours into bins in which no file is larger than all others together."""
    if len(files) < 2:
        return
    largest = max(range(len(files)), key=lambda n: files[n].size)
    if 2 * files[largest].size <= _size(files):
        yield tuple(files)
    else:
        yield from _worthwhile(files[:largest])
        yield from _worthwhile(files[largest + 1 :])


def _within(bins: Sequence[Bin], max_bytes: int | None) -> tuple[list[Bin], int]:
    if max_bytes is None:
        return list(bins), 0
    bytes_left, taken = max_bytes, set[int]()
    for n in sorted(range(len(bins)), key=lambda n: (-(len(bins[n]) - 1) / max(_size(bins[n]), 1), n)):
        if _size(bins[n]) <= bytes_left:
            taken.add(n)
            bytes_left -= _size(bins[n])
    return [files_of_bin for n, files_of_bin in enumerate(bins) if n in taken], len(bins) - len(taken)


def rounds(bins: Iterable[Bin]) -> list[list[Bin]]:
    """Divide the bins into groups with at most one bin per partition.

    A group can be written together without mixing the rows of two bins.
    """
    groups: list[list[Bin]] = []
    seen: dict[str | None, int] = {}
    for files_of_bin in bins:
        n = seen.get(files_of_bin[0].partition, 0)
        seen[files_of_bin[0].partition] = n + 1
        if n == len(groups):
            groups.append([])
        groups[n].append(files_of_bin)
    return groups


def steps(bins: Iterable[Bin], step_bytes: int) -> Iterator[list[Bin]]:
    """Divide the bins into groups of about `step_bytes`, with at least one bin each."""
    group: list[Bin] = []
    for files_of_bin in bins:
        if group and _size(files_of_bin) + sum(map(_size, group)) > step_bytes:
            yield group
            group = []
        group.append(files_of_bin)
    if group:
        yield group


def _size(files: Iterable[FileBounds]) -> int:
    return sum(f.size for f in files)
