"""What was appended and what was deleted between two snapshots: which files are read, and which rows of them. Pure.

Invariant: the rows at the later snapshot are those at the earlier one, plus the appended, minus the deleted, as
multisets. A row that came and went in between is in both, or in neither; so is one that nobody could ever see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lethe import names
from lethe.errors import InputError
from lethe.ledger.lineage import ERASED, Snapshot


class Files(StrEnum):
    """Which files of a snapshot: all that are part of it, those it added, those it removed (as they were before)."""

    LIVE = "live"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True)
class Rows:
    """Rows of some files of one snapshot. `ids` are batch ids; `of_ids` says whether the rows of these batches are meant,
    or all the others, rows without a batch among them."""

    files: Files
    snapshot_id: int
    ids: frozenset[str]
    of_ids: bool


@dataclass(frozen=True)
class Range:
    """What happened after `since`, up to and with `until`; `appends` and `vacuums` are snapshot ids, oldest first."""

    since: int
    until: int
    appends: tuple[int, ...] = ()
    vacuums: tuple[int, ...] = ()
    order: Mapping[int, int] = field(default_factory=dict)  # snapshot id -> its place in the range
    undoes: bool = True  # False: nothing that was hidden at `since` was seen again


@dataclass(frozen=True)
class Tombstoned:
    """Batch ids: tombstoned at either end, and those that each vacuum of the range applied to a file it removed."""

    since: frozenset[str]
    until: frozenset[str]
    vacuumed: Mapping[int, frozenset[str]] = field(default_factory=dict)

    def hidden(self, after: int | None, order: Mapping[int, int]) -> frozenset[str]:
        """Ids of rows that are out of sight at the end, though they were in a file of the snapshot `after`, or at the
        beginning when it is None: tombstoned still, or purged by a later vacuum."""
        later = [ids for v, ids in self.vacuumed.items() if after is None or order[v] > order[after]]
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
        tuple(i for i, kind in kinds.items() if kind == "append"),
        tuple(i for i, kind in kinds.items() if kind == "vacuum"),
        {s.id: n for n, s in enumerate(walked)},
        any(kinds[s.id] != "vacuum" and s.summary.get(names.TOMBSTONE_DELETED, "0") != "0" for s in walked),
    )


def _kind(snapshot: Snapshot, table: str) -> str:
    """`append`, `vacuum` or `nothing`. Raises: InputError (ForeignChange, ErasedBetween)."""
    operation = snapshot.summary.get("operation", "")
    if snapshot.ledger is not None and names.TOMBSTONE_VACUUM_FILE in snapshot.summary:
        return "vacuum"
    if operation == "append":
        return "append"
    if operation == "replace":
        return "nothing"  # a compaction: the same rows in other files
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
    """Rows that came: in files that the range added, and in old files whose batches were seen again (an undo)."""
    came = tuple(Rows(Files.ADDED, a, ids.since & ids.hidden(a, within.order), of_ids=False) for a in within.appends)
    seen_again = ids.since - ids.hidden(None, within.order) if within.undoes else frozenset()
    return (*came, Rows(Files.LIVE, within.since, seen_again, of_ids=True)) if seen_again else came


def deleted(within: Range, ids: Tombstoned) -> tuple[Rows, ...]:
    """Rows that went: still in the files but tombstoned in the range, or tombstoned in it and purged by its vacuums."""
    found = [Rows(Files.LIVE, within.until, ids.until - ids.since, of_ids=True)]
    found += [Rows(Files.REMOVED, v, ids.vacuumed.get(v, frozenset()) - ids.since, of_ids=True) for v in within.vacuums]
    return tuple(r for r in found if r.ids)
