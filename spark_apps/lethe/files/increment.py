"""Plans a read, and an increment: which files to read, and which of their rows. Pure.

Invariants: a file is read unfiltered only if its metadata proves that it holds no tombstoned row. The rows at the later snapshot
of an increment are those at the earlier one, plus the appended, minus the deleted, as multisets.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntFlag, StrEnum, auto
from typing import Final

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.ledger import Interval, Ranges
from lethe.ledger.lineage import ERASED, Snapshot, shows_again
from lethe.ledger.tombstone import Tombstone


@dataclass(frozen=True)
class ReadPlan:
    """How to read all files; each part in the given order."""

    plain: tuple[FileBounds, ...]
    """Read all rows."""
    filtered: tuple[FileBounds, ...]
    """Leave out the rows of `ids`."""
    skipped: tuple[FileBounds, ...]
    """All rows are tombstoned."""
    ids: frozenset[str]
    """The tombstoned batches within the bounds of `filtered`."""

    @property
    def hidden_ids(self) -> frozenset[str]:
        """The ids to leave out of a read that opens all of the files."""
        return self.ids | {f.lower for f in self.skipped if f.lower is not None}


@dataclass(frozen=True)
class SkippedRange:
    """A range of batch ids that no file to read may hold visible rows of."""

    lower: str
    """Inclusive."""
    upper: str
    """Inclusive."""
    size: int
    """Bytes of the skipped files in the range."""


def skipped_ranges(plan: ReadPlan, at_most: int) -> tuple[SkippedRange, ...]:
    """The largest ranges of skipped files, for readers that skip files by conditions on the batch column."""
    others = covered_by((*plan.plain, *plan.filtered))
    lowers = [lo or "" for lo, _ in others]

    def between(a: str, b: str) -> bool:
        """Whether another file might hold an id from `a` to `b`."""
        index = bisect_right(lowers, b) - 1
        return index >= 0 and ((upper := others[index][1]) is None or upper >= a)

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


class SnapshotFiles(StrEnum):
    """Which files of a snapshot."""

    LIVE = "live"
    """All files of the snapshot."""
    ADDED = "added"
    """The files that it added."""
    REMOVED = "removed"
    """The files that it removed, as they were before."""


@dataclass(frozen=True)
class Rows:
    """Rows of some files of one snapshot."""

    files: SnapshotFiles
    snapshot_id: int
    ids: frozenset[str]
    """The ids of batches."""
    of_ids: bool
    """True: the rows of these batches; False: all other rows, including rows without a batch."""


@dataclass(frozen=True)
class SnapshotRange:
    """The snapshots after `since` up to and including `until`, by id, oldest first."""

    since: int
    until: int
    appends: tuple[int, ...] = ()
    vacuums: tuple[int, ...] = ()
    position_changes: Mapping[int, int] = field(default_factory=dict)
    """The snapshots that set or removed native deletes by position, with their parents."""
    order: Mapping[int, int] = field(default_factory=dict)
    """Snapshot id -> its position in the range."""
    undoes: bool = True
    """False: no row that was hidden at `since` became visible again."""


@dataclass(frozen=True)
class Tombstoned:
    """The ids of tombstoned batches in a range. Mappings are by snapshot id."""

    since: frozenset[str]
    """Tombstoned at the start."""
    until: frozenset[str]
    """Tombstoned at the end."""
    vacuumed: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By snapshot, the batches whose tombstones a vacuum applied to a file that it removed."""
    masked: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By snapshot, the batches whose rows it hid by position, or dropped."""
    lifted: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By snapshot, the batches whose rows it no longer hides by position."""
    masked_since: frozenset[str] = frozenset()
    """The batches of `since` whose rows were hidden by position at the start."""

    def hidden(self, after: int | None, order: Mapping[int, int]) -> frozenset[str]:
        """The batches whose rows are hidden at the end but were in a file of the snapshot `after`.

        With None, of the start. They are tombstoned, or a later vacuum purged them, or later native deletes hide them
        by position.
        """

        def counts(snapshot_id: int) -> bool:
            return after is None or order[snapshot_id] > order[after]

        later = [ids for v, ids in self.vacuumed.items() if counts(v)]
        for m, ids in self.masked.items():
            if counts(m):
                later.append(ids.difference(*(shown for u, shown in self.lifted.items() if order[u] > order[m])))
        return self.until.union(*later)


def plan_range(snapshots: Mapping[int, Snapshot], since: int, until: int, table: str = "table") -> SnapshotRange:
    """Classify each snapshot from `until` back to `since`.

    A row that was added and deleted in between is in both or in neither. So is a row that was never visible.

    Raises:
        InputError: NotAnAncestor; SnapshotNotFound, if a snapshot in between has expired; ForeignChange, if another writer
            changed rows without a ledger; ErasedBetween, if records were erased, redacted, or replaced by their keys;
            RetentionBetween, if a vacuum removed rows because of their age.
    """
    walked: list[Snapshot] = []
    current: int | None = until
    while current != since:
        if current is None:
            raise InputError(
                "NotAnAncestor",
                f"{table}: snapshot {since} is not an ancestor of snapshot {until}. It may be newer or on another branch, or the "
                "table was rolled back to a snapshot before it.",
            )
        snapshot = snapshots.get(current)
        if snapshot is None:
            which = "a snapshot" if current == ERASED else f"snapshot {current}"
            raise InputError(
                "SnapshotNotFound",
                f"{table}: {which} between {since} and {until} has expired, so its changes are unknown. "
                "Start the read at a later snapshot.",
            )
        walked.append(snapshot)
        current = snapshot.parent_id
    walked.reverse()
    kinds = {s.id: _kind(s, table) for s in walked}
    return SnapshotRange(
        since,
        until,
        tuple(i for i, kind in kinds.items() if kind & _Kind.APPEND),
        tuple(i for i, kind in kinds.items() if kind & _Kind.VACUUM),
        {s.id: s.parent_id for s in walked if kinds[s.id] & _Kind.MASK and s.parent_id is not None},
        {s.id: n for n, s in enumerate(walked)},
        any(map(shows_again, walked)),
    )


class _Kind(IntFlag):
    """What a snapshot counts as."""

    NOTHING = 0
    APPEND = auto()
    VACUUM = auto()
    MASK = auto()


_COPY_KEEPS: Final = (
    "A copy that is made of increments still has the old rows: delete them there, or copy the whole table again."
)


def _kind(snapshot: Snapshot, table: str) -> _Kind:
    """What a snapshot changed, as far as an increment can tell.

    Raises:
        InputError: ForeignChange, ErasedBetween, RetentionBetween.
    """
    operation = snapshot.summary.get("operation", "")
    if snapshot.ledger is not None and names.RETENTION_CUTOFF in snapshot.summary:
        raise InputError(
            "RetentionBetween",
            f"{table}: snapshot {snapshot.id} removed rows because of their age, which a read of an increment does not report. "
            f"Read up to the snapshot before it ({snapshot.parent_id}), and then from this snapshot. {_COPY_KEEPS}",
        )
    if snapshot.ledger is not None and names.DELETES in snapshot.summary:
        # A restatement: it may have added replacements, and dropped whole files.
        return _Kind.APPEND | _Kind.MASK
    if snapshot.ledger is not None and names.TOMBSTONE_VACUUM_FILE in snapshot.summary:
        return _Kind.VACUUM
    if operation == "append":
        return _Kind.APPEND
    if operation == "replace":
        # The same rows in other files, except rows that native deletes hid, which count where they were hidden.
        return _Kind.NOTHING
    if snapshot.ledger is not None:
        raise InputError(
            "ErasedBetween",
            f"{table}: snapshot {snapshot.id} erased or redacted records, or replaced them by their keys. Lethe does not keep "
            "the old rows, so a read of an increment cannot cross this snapshot. Read up to the snapshot before it "
            f"({snapshot.parent_id}), and then from this snapshot. {_COPY_KEEPS}",
        )
    raise InputError(
        "ForeignChange",
        f"{table}: snapshot {snapshot.id} is another writer's {operation or 'change of an unknown kind'}, which removes rows "
        "without a tombstone, so a read of an increment cannot cross this snapshot. Read up to the snapshot before it "
        f"({snapshot.parent_id}), and then from this snapshot.",
    )


def appended(within: SnapshotRange, ids: Tombstoned) -> tuple[Rows, ...]:
    """The appended rows: in files that the range added, and in old files whose batches became visible again (an Undo).

    Rows that were hidden by position at the start are read at the snapshot that first removed these deletes, together with the
    rows of these batches that were added before it. Batches that were visible at the start count each time that they were hidden
    by position and each time that these deletes were removed.
    """
    visible_again = _visible_again(within, ids)
    first = _lifted_first(within, ids, visible_again & ids.masked_since)
    added = []
    for a in within.appends:
        read_later = frozenset(i for i, u in first.items() if within.order[a] <= within.order[u])
        added.append(Rows(SnapshotFiles.ADDED, a, ids.since & ids.hidden(a, within.order) | read_later, of_ids=False))
    lifted = [
        Rows(SnapshotFiles.LIVE, u, frozenset(i for i in shown if first.get(i) == u) | shown - ids.since, of_ids=True)
        for u, shown in ids.lifted.items()
    ]
    again = Rows(SnapshotFiles.LIVE, within.since, visible_again.difference(first), of_ids=True)
    return (*added, *(r for r in (*lifted, again) if r.ids))


def _visible_again(within: SnapshotRange, ids: Tombstoned) -> frozenset[str]:
    return ids.since - ids.hidden(None, within.order) if within.undoes else frozenset()


def _lifted_first(within: SnapshotRange, ids: Tombstoned, batch_ids: frozenset[str]) -> dict[str, int]:
    """By batch, the first snapshot of the range that removed its deletes by position."""
    lifted: dict[str, int] = {}
    for u in sorted(ids.lifted, key=within.order.__getitem__):
        for i in batch_ids & ids.lifted[u]:
            lifted.setdefault(i, u)
    return lifted


def deleted(within: SnapshotRange, ids: Tombstoned) -> tuple[Rows, ...]:
    """The deleted rows.

    They are tombstoned in the range and still in files, or purged by its vacuums, or hidden by its deletes by position.
    """
    rows = [Rows(SnapshotFiles.LIVE, within.until, ids.until - ids.since, of_ids=True)]
    rows += [
        Rows(SnapshotFiles.REMOVED, v, ids.vacuumed.get(v, frozenset()) - ids.since, of_ids=True)
        for v in within.vacuums
    ]
    rows += [
        Rows(SnapshotFiles.LIVE, before, ids.masked.get(m, frozenset()) - ids.since, True)
        for m, before in within.position_changes.items()
    ]
    return tuple(r for r in rows if r.ids)
