"""What was appended and what was deleted between two snapshots: which files are read, and which rows of them. Pure.

Invariant: the rows at the later snapshot are those at the earlier one, plus the appended, minus the deleted, as
multisets. A row that came and went in between is in both, or in neither; so is one that nobody could ever see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum, auto

from lethe.base import names
from lethe.base.errors import InputError
from lethe.files.native_deletes import DELETION_VECTORS
from lethe.ledger.lineage import ERASED, Snapshot, shows_again


class SnapshotFiles(StrEnum):
    """Which files of a snapshot: all that are part of it, those it added, those it removed (as they were before)."""

    LIVE = "live"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True)
class Rows:
    """Rows of some files of one snapshot. `ids` are batch ids; `of_ids` says whether the rows of these batches are meant,
    or all the others, rows without a batch among them."""

    files: SnapshotFiles
    snapshot_id: int
    ids: frozenset[str]
    of_ids: bool


@dataclass(frozen=True)
class Range:
    """What happened after `since`, up to and with `until`; all but the ends are snapshot ids, oldest first.

    Args:
        masks: Those that set or lifted deletion vectors for tombstones, each with its parent.
        rewrites: Those by which another writer put rows into other files.
        order: The place of each snapshot in the range.
        undoes: False: nothing that was hidden at `since` was seen again.
    """

    since: int
    until: int
    appends: tuple[int, ...] = ()
    vacuums: tuple[int, ...] = ()
    vector_changes: Mapping[int, int] = field(default_factory=dict)
    order: Mapping[int, int] = field(default_factory=dict)
    undoes: bool = True
    rewrites: tuple[int, ...] = ()


@dataclass(frozen=True)
class Tombstoned:
    """Batch ids.

    Args:
        since, until: Tombstoned at either end.
        vacuumed: Of each vacuum of the range, those that it applied to a file it removed.
        masked, lifted: Of each snapshot with new deletion vectors, those whose rows it hid by them, or dropped, and those whose
            rows it showed again.
        masked_since: Those of `since` whose rows deletion vectors hid then.
        rewritten: Of each rewrite by another writer, those of which equality deletes of Lethe's hid rows. It has left these rows
            out, and kept the others.
    """

    since: frozenset[str]
    until: frozenset[str]
    vacuumed: Mapping[int, frozenset[str]] = field(default_factory=dict)
    masked: Mapping[int, frozenset[str]] = field(default_factory=dict)
    lifted: Mapping[int, frozenset[str]] = field(default_factory=dict)
    masked_since: frozenset[str] = frozenset()
    rewritten: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def hidden(self, after: int | None, order: Mapping[int, int]) -> frozenset[str]:
        """Ids of rows that are out of sight at the end, though they were in a file of the snapshot `after`, or at the
        beginning when it is None: tombstoned still, or purged by a later vacuum, or masked later and not shown again."""

        def counts(snapshot_id: int) -> bool:
            return after is None or order[snapshot_id] > order[after]

        later = [ids for v, ids in self.vacuumed.items() if counts(v)]
        for m, ids in self.masked.items():
            if counts(m):
                later.append(ids.difference(*(up for u, up in self.lifted.items() if order[u] > order[m])))
        return self.until.union(*later)


def plan_range(snapshots: Mapping[int, Snapshot], since: int, until: int, table: str = "table") -> Range:
    """Walk from `until` back to `since` and say what each snapshot on the way counts as.

    Raises: InputError: NotAnAncestor; SnapshotNotFound, if a snapshot in between has expired; ForeignChange, for a
        change of rows that somebody else made and that no ledger tells of; ErasedBetween, for an Erase by records
            and for a replacement of records by their keys.
    """
    walked: list[Snapshot] = []
    current: int | None = until
    while current != since:
        if current is None:
            raise InputError(
                "NotAnAncestor",
                f"{table}: snapshot {since} is no ancestor of snapshot {until}. It may come later, or lie on another branch, "
                "or the table was rolled back behind it.",
            )
        snapshot = snapshots.get(current)
        if snapshot is None:
            which = "a snapshot" if current == ERASED else f"snapshot {current}"
            raise InputError(
                "SnapshotNotFound",
                f"{table}: {which} between {since} and {until} has expired, and with it what it changed. "
                "Read from a later snapshot on.",
            )
        walked.append(snapshot)
        current = snapshot.parent_id
    walked.reverse()
    kinds = {s.id: _kind(s, table) for s in walked}
    return Range(
        since,
        until,
        tuple(i for i, kind in kinds.items() if kind & _Kind.APPEND),
        tuple(i for i, kind in kinds.items() if kind & _Kind.VACUUM),
        {s.id: s.parent_id for s in walked if kinds[s.id] & _Kind.MASK and s.parent_id is not None},
        {s.id: n for n, s in enumerate(walked)},
        any(map(shows_again, walked)),
        tuple(i for i, kind in kinds.items() if kind & _Kind.REWRITE),
    )


class _Kind(IntFlag):
    """What a snapshot counts as."""

    NOTHING = 0
    APPEND = auto()
    VACUUM = auto()
    MASK = auto()
    REWRITE = auto()


def _kind(snapshot: Snapshot, table: str) -> _Kind:
    """Raises: InputError (ForeignChange, ErasedBetween)."""
    operation = snapshot.summary.get("operation", "")
    if snapshot.ledger is not None and names.DELETES in snapshot.summary:
        # A restatement: it may have brought replacements, and it may have dropped whole files.
        if snapshot.summary[names.DELETES] == DELETION_VECTORS:
            return _Kind.APPEND | _Kind.MASK
        return _Kind.APPEND | (_Kind.VACUUM if names.TOMBSTONE_VACUUM_FILE in snapshot.summary else _Kind.NOTHING)
    if snapshot.ledger is not None and names.TOMBSTONE_VACUUM_FILE in snapshot.summary:
        return _Kind.VACUUM
    if operation == "append":
        return _Kind.APPEND
    if operation == "replace":
        # The same rows in other files, except those that native deletes hid.
        return _Kind.REWRITE if snapshot.ledger is None else _Kind.NOTHING
    if snapshot.ledger is not None:
        raise InputError(
            "ErasedBetween",
            f"{table}: snapshot {snapshot.id} erased records, or replaced them by their keys, and what they were is "
            "kept nowhere: what was appended and deleted cannot be told across it. Read up to the snapshot before it "
            f"({snapshot.parent_id}), and from it on.",
        )
    raise InputError(
        "ForeignChange",
        f"{table}: snapshot {snapshot.id} is another writer's {operation or 'change of an unknown kind'}, which removes rows "
        "without a tombstone. What was appended and deleted cannot be told across it. Read up to the snapshot before it "
        f"({snapshot.parent_id}), and from it on.",
    )


def appended(within: Range, ids: Tombstoned) -> tuple[Rows, ...]:
    """Rows that came: in files that the range added, and in old files whose batches were seen again (an undo).

    What deletion vectors hid at the beginning can only be read where they were lifted first, together with the rows of these
    batches that came before that. Batches that were seen at the beginning count each time that vectors hid them and each time
    that they were lifted.
    """
    seen_again = _seen_again(within, ids)
    first = _lifted_first(within, ids, seen_again & ids.masked_since)
    came = []
    for a in within.appends:
        read_later = frozenset(i for i, u in first.items() if within.order[a] <= within.order[u])
        came.append(Rows(SnapshotFiles.ADDED, a, ids.since & ids.hidden(a, within.order) | read_later, of_ids=False))
    lifted = [
        Rows(SnapshotFiles.LIVE, u, frozenset(i for i in up if first.get(i) == u) | up - ids.since, of_ids=True)
        for u, up in ids.lifted.items()
    ]
    again = Rows(SnapshotFiles.LIVE, within.since, seen_again.difference(first), of_ids=True)
    return (*came, *(r for r in (*lifted, again, *_rewritten(SnapshotFiles.ADDED, within, ids)) if r.ids))


def _seen_again(within: Range, ids: Tombstoned) -> frozenset[str]:
    return ids.since - ids.hidden(None, within.order) if within.undoes else frozenset()


def _rewritten(files: SnapshotFiles, within: Range, ids: Tombstoned) -> list[Rows]:
    """The rows of batches under equality deletes, in the files that a rewrite removed, or added. They count as deleted in the
    former and as appended in the latter: those that it left out are then deleted, the others are in both."""
    uncounted = ids.since - _seen_again(within, ids)
    return [Rows(files, r, ids.rewritten.get(r, frozenset()) - uncounted, of_ids=True) for r in within.rewrites]


def _lifted_first(within: Range, ids: Tombstoned, wanted: frozenset[str]) -> dict[str, int]:
    """Of batches, the first snapshot of the range that lifted their deletion vectors."""
    found: dict[str, int] = {}
    for u in sorted(ids.lifted, key=within.order.__getitem__):
        for i in wanted & ids.lifted[u]:
            found.setdefault(i, u)
    return found


def deleted(within: Range, ids: Tombstoned) -> tuple[Rows, ...]:
    """Rows that went: still in the files but tombstoned in the range, or tombstoned in it and purged by its vacuums, or hidden
    by its deletion vectors, or left out by a rewrite."""
    found = [Rows(SnapshotFiles.LIVE, within.until, ids.until - ids.since, of_ids=True)]
    found += [
        Rows(SnapshotFiles.REMOVED, v, ids.vacuumed.get(v, frozenset()) - ids.since, of_ids=True)
        for v in within.vacuums
    ]
    found += [
        Rows(SnapshotFiles.LIVE, before, ids.masked.get(m, frozenset()) - ids.since, True)
        for m, before in within.vector_changes.items()
    ]
    found += _rewritten(SnapshotFiles.REMOVED, within, ids)
    return tuple(r for r in found if r.ids)
