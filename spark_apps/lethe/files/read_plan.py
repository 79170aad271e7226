"""What a read does with each data file: takes it plain, filters it, or leaves it alone. Pure.

Invariant: a file is taken plain only if its metadata proves that no tombstoned row is in it, by the bounds of the batch
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
    """`plain`: read as they are; `filtered`: without the rows of `ids`; `skipped`: every row is tombstoned. Together all
    files, each in the order given. `ids` are the tombstoned ones within the bounds of `filtered`."""

    plain: tuple[FileBounds, ...]
    filtered: tuple[FileBounds, ...]
    skipped: tuple[FileBounds, ...]
    ids: frozenset[str]

    @property
    def hidden_ids(self) -> frozenset[str]:
        """The ids to leave out of a read that opens all of the files."""
        return self.ids | {f.lower for f in self.skipped if f.lower is not None}


@dataclass(frozen=True)
class SkippedRange:
    """Ids from `lower` to `upper`, both inclusive, of which no file that has to be read has any but deleted rows; `size`
    in bytes of the skipped files within."""

    lower: str
    upper: str
    size: int


def skipped_ranges(plan: ReadPlan, at_most: int) -> tuple[SkippedRange, ...]:
    """The largest runs of skipped files, for readers that are told what to leave out by conditions on the batch column."""
    others = covered_by((*plan.plain, *plan.filtered))
    lowers = [lo or "" for lo, _ in others]

    def between(a: str, b: str) -> bool:
        """Whether another file might hold an id from `a` to `b`."""
        at = bisect_right(lowers, b) - 1
        return at >= 0 and ((upper := others[at][1]) is None or upper >= a)

    runs: list[SkippedRange] = []
    for f in sorted(plan.skipped, key=lambda f: f.lower or ""):
        assert f.lower is not None
        last = runs[-1] if runs else None
        if last is not None and (last.upper == f.lower or not between(last.upper, f.lower)):
            runs[-1] = SkippedRange(last.lower, f.lower, last.size + f.size)
        else:
            runs.append(SkippedRange(f.lower, f.lower, f.size))
    return tuple(sorted(runs, key=lambda r: -r.size)[:at_most])


def covered_by(files: Iterable[FileBounds]) -> tuple[Interval, ...]:
    """The ground that files cover: intervals of the batch column, both ends inclusive, None open; in order, apart."""
    return Ranges((f.lower, f.upper) for f in files).intervals


def unsure_of(files: Iterable[FileBounds], foreign: Collection[str] | None) -> tuple[FileBounds, ...]:
    """The same files; those whose path is in `foreign` (None: all) without their partition, which then proves nothing.

    Another writer may add rows of an old batch to a partition in which nobody remembers it.
    """
    return tuple(replace(f, partition=None) if foreign is None or f.path in foreign else f for f in files)


def plan_read(files: Sequence[FileBounds], tombstones: Iterable[Tombstone]) -> ReadPlan:
    """Say what to do with each file.

    Args:
        files: Of one snapshot; `partition` None where it proves nothing.
        tombstones: Of the batch column: all that lie within the bounds of the files, or more.
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
