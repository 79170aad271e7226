"""Orders the files of a vacuum, and divides them by a budget. Pure.

Files with a deadline come first, the earliest deadline before the others. Then come the files from which readers gain most:
those with the most expected deleted rows per byte to rewrite, because readers have to filter each row of a file that might hold
deleted rows. Files with a similar gain are ordered by partition and batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from math import frexp

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import NEVER, Suspects
from lethe.vacuum.estimate import Estimate

# Small files next to rewritten files are merged with them; at most this fraction of additional bytes.
MERGED_SHARE = 0.02
# A file is small if it is smaller than the target size divided by this.
SMALL_PART = 8
_TARGET = "write.target-file-size-bytes"
_TARGET_BYTES = 512 * 1024 * 1024  # Iceberg's default
_NOTHING = -10_000  # below the exponent of any number


def target_bytes(requested: int | None, properties: Mapping[str, str]) -> int:
    """The target size of data files: as requested, or else by the table's properties."""
    return requested or int(properties.get(_TARGET, _TARGET_BYTES))


def stays_large(file: FileBounds, rows: int, target: int) -> bool:
    """Whether a file is not small without some of its rows, so that nothing is gained by merging it with others.

    Args:
        rows: The number of rows that it loses.
        target: The target size of data files, in bytes.
    """
    left = file.size * (file.records - rows) // max(1, file.records)
    return left >= target // SMALL_PART


def apart(files: Iterable[FileBounds]) -> frozenset[str]:
    """The paths of the files whose range of batches overlaps with that of no other file of their partition: they need not be
    sorted together. Ranges may share a batch at their ends. Files with an unknown bound overlap."""
    by_partition: dict[str | None, list[tuple[str, str, str]]] = {}
    unknown: set[str | None] = set()
    for f in files:
        if f.lower is None or f.upper is None:
            unknown.add(f.partition)
        else:
            by_partition.setdefault(f.partition, []).append((f.lower, f.upper, f.path))
    found: set[str] = set()
    for partition, ranges in by_partition.items():
        if partition in unknown:
            continue
        ranges.sort()
        ends = list(accumulate((upper for _, upper, _ in ranges), max))
        for n, (lower, upper, path) in enumerate(ranges):
            before = n == 0 or ends[n - 1] <= lower
            after = n + 1 == len(ranges) or upper <= ranges[n + 1][0]
            if before and after:
                found.add(path)
    return frozenset(found)


@dataclass(frozen=True)
class PurgeDeadlines:
    """Which deadlines a vacuum considers."""

    due_by: datetime | None = None  # only deadlines up to this time; None: none
    erase_by: datetime | None = None  # the deadline of rows under native deletes; None: there is none


def by_priority(
    files: Iterable[FileBounds], suspects: Suspects, estimate: Estimate, deadlines: PurgeDeadlines
) -> list[FileBounds]:
    """Order the files that might hold tombstoned rows, or rows under native deletes."""
    due_by, erase_by = deadlines.due_by, deadlines.erase_by

    def rank(file: FileBounds) -> tuple[datetime, int, str, str, str]:
        due = NEVER
        if due_by is not None:
            due = min(suspects.earliest(file), erase_by if erase_by is not None and file.deletes else NEVER)
        rows = estimate.rows_in(file)
        gain = frexp(rows / max(file.size, 1))[1] if rows else _NOTHING  # the exponent of 2
        is_due = due_by is not None and due <= due_by
        return (due if is_due else NEVER, -gain, file.partition or "", file.lower or "", file.path)

    return sorted(files, key=rank)


def within_budget(
    files: Sequence[FileBounds], max_bytes: int | None, spent: int = 0
) -> tuple[tuple[FileBounds, ...], tuple[FileBounds, ...]]:
    """Split ordered files into those within the budget and those for the next vacuum. If nothing was spent before, the first file
    is always within the budget: otherwise a file larger than the budget would never be purged.

    Args:
        max_bytes: The budget of a run; None: no limit.
        spent: Bytes of the budget spent before.
    """
    if max_bytes is None:
        return tuple(files), ()
    taken: list[FileBounds] = []
    left: list[FileBounds] = []
    for f in files:
        if spent + f.size <= max_bytes or not (taken or spent):
            taken.append(f)
            spent += f.size
        else:
            left.append(f)
    return tuple(taken), tuple(left)


def first_step(files: Sequence[FileBounds], step_bytes: int) -> tuple[FileBounds, ...]:
    """The first files, of about `step_bytes` in total; at least one, if there is one."""
    found: list[FileBounds] = []
    size = 0
    for f in files:
        if found and size + f.size > step_bytes:
            break
        found.append(f)
        size += f.size
    return tuple(found)


def small_neighbours(
    rewritten: Sequence[FileBounds], small: Iterable[FileBounds], at_most: int | None = None
) -> tuple[FileBounds, ...]:
    """Choose small files without deleted rows to merge with the rewritten files: of the same partition, next to a
    rewritten file in batch order or within its range. The smallest first, up to `MERGED_SHARE`.

    Args:
        at_most: A further limit in bytes; None: no further limit.
    """
    left = int(sum(f.size for f in rewritten) * MERGED_SHARE)
    left = left if at_most is None else min(left, at_most)
    by_partition: dict[str, list[FileBounds]] = {}
    for f in rewritten:
        if f.partition is not None:
            by_partition.setdefault(f.partition, []).append(f)
    beside: list[FileBounds] = []
    small_of: dict[str, list[FileBounds]] = {}
    for f in small:
        if f.partition in by_partition:
            small_of.setdefault(f.partition or "", []).append(f)
    for partition, files in small_of.items():
        beside += _adjacent(by_partition[partition], files)
    found: list[FileBounds] = []
    for f in sorted(beside, key=lambda f: (f.size, f.path)):
        if f.size > left:
            break
        found.append(f)
        left -= f.size
    return tuple(found)


def _adjacent(rewritten: Sequence[FileBounds], small: Sequence[FileBounds]) -> list[FileBounds]:
    """The small files directly before or after a rewritten file, in the order of lower bounds."""
    ranked = sorted(
        [(f.lower or "", True, f) for f in rewritten] + [(f.lower or "", False, f) for f in small], key=_rank
    )
    found: list[FileBounds] = []
    for at, (_, is_rewritten, f) in enumerate(ranked):
        if is_rewritten:
            continue
        before = ranked[at - 1][1] if at else False
        after = ranked[at + 1][1] if at + 1 < len(ranked) else False
        if before or after:
            found.append(f)
    return found


def _rank(entry: tuple[str, bool, FileBounds]) -> tuple[str, bool, str]:
    lower, is_rewritten, file = entry
    return lower, is_rewritten, file.path
