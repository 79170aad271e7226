"""What a data file's metadata proves about tombstoned rows: that it cannot, might, or can only hold them. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


class Bounded(Protocol):
    """Anything with bounds of the batch column; None is unknown, hence open."""

    @property
    def lower(self) -> str | None: ...

    @property
    def upper(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class FileBounds:
    """A data file of one snapshot. Bounds are of the batch column, None when unknown; `null_count` None when unknown;
    `size` in bytes; `deletes`: the names of native deletes that may apply to it; `partition` its
    text (`lethe.files.partitions`), None when it has none; `added_by` the snapshot that added it."""

    path: str
    records: int
    size: int
    lower: str | None
    upper: str | None
    null_count: int | None
    deletes: frozenset[str] = frozenset()
    partition: str | None = None
    added_by: int | None = None


def outdated(planned: Iterable[FileBounds], files_now: Iterable[FileBounds]) -> str:
    """Why what was written for these files must not take their place any more, "" when it may.

    Tombstones that came since are no reason: they hide the rows of their batches wherever these lie.

    Args:
        files_now: The data files of the head to commit on.
    """
    by_path = {f.path: f for f in files_now}
    for f in planned:
        now = by_path.get(f.path)
        if now is None:
            return f"{f.path} is no longer part of the table"
        if not now.deletes <= f.deletes:
            return f"rows of {f.path} were deleted since the plan"
    return ""


@dataclass(frozen=True)
class BoundsSplit:
    """`cannot`, `might`, `must`: together all files, each in the order given."""

    cannot: tuple[FileBounds, ...]
    might: tuple[FileBounds, ...]
    must: tuple[FileBounds, ...]


class IdIndex:
    """Tombstoned ids in sorted order, asked in O(log n)."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = sorted(ids)
        self._set = frozenset(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def might_hold(self, file: Bounded) -> bool:
        """Whether some id lies within the bounds; an unknown bound is open."""
        if not self._ids:
            return False
        at = 0 if file.lower is None else bisect_left(self._ids, file.lower)
        return at < len(self._ids) and (file.upper is None or self._ids[at] <= file.upper)

    def must_hold(self, file: FileBounds) -> bool:
        """Whether every row's id is in the set: equal bounds in it and a null count that is present and 0."""
        return file.lower is not None and file.lower == file.upper and file.lower in self._set and file.null_count == 0

    def within(self, file: Bounded) -> list[str]:
        """The ids that the file might hold."""
        start, end = self.span(file)
        return self._ids[start:end]

    def span(self, file: Bounded) -> tuple[int, int]:
        """The positions, among the sorted ids, of those that the file might hold: from the first up to the second."""
        start = 0 if file.lower is None else bisect_left(self._ids, file.lower)
        end = len(self._ids) if file.upper is None else bisect_right(self._ids, file.upper)
        return start, max(start, end)

    def covered(self, files: Iterable[Bounded]) -> set[str]:
        """The ids that one of the files might hold. O(files x log ids + ids), however wide their bounds are."""
        edges = [0] * (len(self._ids) + 1)
        for f in files:
            start, end = self.span(f)
            edges[start] += 1
            edges[end] -= 1
        return {i for i, depth in zip(self._ids, accumulate(edges), strict=False) if depth > 0}


def split_by_bounds(files: Iterable[FileBounds], ids: Collection[str]) -> BoundsSplit:
    """Sort data files by what their bounds prove about the ids. O(files x log ids), reads nothing."""
    index = IdIndex(ids)
    cannot: list[FileBounds] = []
    might: list[FileBounds] = []
    must: list[FileBounds] = []
    for f in files:
        if not index.might_hold(f):
            cannot.append(f)
        elif index.must_hold(f):
            must.append(f)
        else:
            might.append(f)
    return BoundsSplit(tuple(cannot), tuple(might), tuple(must))
