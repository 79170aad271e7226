"""Plans a read: which data files to read unfiltered, which to filter, and which to skip. Pure.

Invariant: a file is read unfiltered only if its metadata proves that it holds no tombstoned row, by the bounds of the batch
column or by its partition.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Suspects
from lethe.ledger.parts import Interval, Ranges
from lethe.ledger.tombstone import Tombstone


@dataclass(frozen=True)
class ReadPlan:
    """How to read all files; each part in the given order."""

    plain: tuple[FileBounds, ...]  # read all rows
    filtered: tuple[FileBounds, ...]  # leave out the rows of `ids`
    skipped: tuple[FileBounds, ...]  # all rows are tombstoned
    ids: frozenset[str]  # the tombstoned batches within the bounds of `filtered`

    @property
    def hidden_ids(self) -> frozenset[str]:
        """The ids to leave out of a read that opens all of the files."""
        return self.ids | {f.lower for f in self.skipped if f.lower is not None}


@dataclass(frozen=True)
class SkippedRange:
    """A range of batch ids that no file to read may hold visible rows of."""

    lower: str  # inclusive
    upper: str  # inclusive
    size: int  # bytes of the skipped files in the range


def skipped_ranges(plan: ReadPlan, at_most: int) -> tuple[SkippedRange, ...]:
    """The largest ranges of skipped files, for readers that skip files by conditions on the batch column."""
    others = covered_by((*plan.plain, *plan.filtered))
    lowers = [lo or "" for lo, _ in others]

    def between(a: str, b: str) -> bool:
        """Whether another file might hold an id from `a` to `b`."""
        at = bisect_right(lowers, b) - 1
        return at >= 0 and ((upper := others[at][1]) is None or upper >= a)

    ranges: list[SkippedRange] = []
    for f in sorted(plan.skipped, key=lambda f: f.lower or ""):
        assert f.lower is not None
        last = ranges[-1] if ranges else None
        if last is not None and (last.upper == f.lower or not between(last.upper, f.lower)):
            ranges[-1] = SkippedRange(last.lower, f.lower, last.size + f.size)
        else:
            ranges.append(SkippedRange(f.lower, f.lower, f.size))
    return tuple(sorted(ranges, key=lambda r: -r.size)[:at_most])


def covered_by(files: Iterable[FileBounds]) -> tuple[Interval, ...]:
    """The disjoint, ordered intervals of the batch column that the files cover. Ends are inclusive; None is open."""
    return Ranges((f.lower, f.upper) for f in files).intervals


def unsure_of(files: Iterable[FileBounds], foreign: Collection[str] | None) -> tuple[FileBounds, ...]:
    """The same files; those whose path is in `foreign` (None: all) without their partition, so that it proves nothing.

    Another writer may add rows of an old batch to a partition that its tombstone does not list.
    """
    return tuple(replace(f, partition=None) if foreign is None or f.path in foreign else f for f in files)


def plan_read(files: Sequence[FileBounds], tombstones: Iterable[Tombstone]) -> ReadPlan:
    """Decide how to read each file.

    Args:
        files: Of one snapshot. `partition` is None where it proves nothing.
        tombstones: Of the batch column: at least all within the bounds of the files.
    """
    index = Suspects(tombstones)
    plain: list[FileBounds] = []
    filtered: list[FileBounds] = []
    skipped: list[FileBounds] = []
    for f in files:
        if index.must_hold(f):
            skipped.append(f)
        elif index.might_hold(f):
            filtered.append(f)
        else:
            plain.append(f)
    return ReadPlan(tuple(plain), tuple(filtered), tuple(skipped), frozenset(index.ids.covered(filtered)))
