"""Decides from metadata whether a data file cannot hold tombstoned rows, might hold some, or holds only such rows. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


class Bounded(Protocol):
    """Anything with bounds of the batch column. None: unknown, so open."""

    @property
    def lower(self) -> str | None: ...

    @property
    def upper(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class FileBounds:
    """A data file of one snapshot."""

    path: str
    records: int
    size: int  # bytes
    lower: str | None  # bound of the batch column; None: unknown
    upper: str | None  # bound of the batch column; None: unknown
    null_count: int | None  # of the batch column; None: unknown
    deletes: frozenset[str] = frozenset()  # the names of native deletes that may apply to it
    partition: str | None = None  # as text (`lethe.files.partitions`); None: it has none
    added_by: int | None = None  # id of the snapshot that added it; None: unknown


def outdated(planned: Iterable[FileBounds], files_now: Iterable[FileBounds]) -> str:
    """Why files written to replace these files must not be committed; empty: they may.

    New tombstones are no reason: they hide the rows of their batches in any file.

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
    """All files, divided by what their bounds prove; each part in the given order."""

    cannot: tuple[FileBounds, ...]  # hold no row of the ids
    might: tuple[FileBounds, ...]  # might hold some
    must: tuple[FileBounds, ...]  # hold no other rows


class IdIndex:
    """Sorted ids, searched in O(log n)."""

    def __init__(self, ids: Collection[str]) -> None:
        self._ids = sorted(ids)
        self._set = frozenset(ids)

    def __len__(self) -> int:
        return len(self._ids)

    def might_hold(self, file: Bounded) -> bool:
        """Whether one of the ids is within the bounds. An unknown bound is open."""
        if not self._ids:
            return False
        at = 0 if file.lower is None else bisect_left(self._ids, file.lower)
        return at < len(self._ids) and (file.upper is None or self._ids[at] <= file.upper)

    def must_hold(self, file: FileBounds) -> bool:
        """Whether all rows have one of the ids: the bounds are equal and one of the ids, and the null count is 0."""
        return file.lower is not None and file.lower == file.upper and file.lower in self._set and file.null_count == 0

    def within(self, file: Bounded) -> list[str]:
        """The ids that the file might hold."""
        start, end = self.span(file)
        return self._ids[start:end]

    def span(self, file: Bounded) -> tuple[int, int]:
        """The range of the ids that the file might hold: start and end in the sorted ids."""
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
    """Divide data files by what their bounds prove about the ids. O(files x log ids); reads nothing."""
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
