"""What the ledger knows of rows whose bytes must go: the obligations, what holds their files still, and which files those are.
Pure. No value that named a row is ever in it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class Holder(StrEnum):
    """What may hold files of an erasure, in the words of whoever can let go of them."""

    TAG = "Tag"
    BRANCH = "Branch"
    SNAPSHOT = "Snapshot"
    STAGED_SNAPSHOT = "StagedSnapshot"
    OBJECT_LOCK = "ObjectLock"
    LEGAL_HOLD = "LegalHold"
    OBJECT_VERSION = "ObjectVersion"
    OBJECT = "Object"
    RUN = "Run"


@dataclass(frozen=True)
class Blocker:
    """One thing that holds rows: `name` of the tag or branch, id of the snapshot, URI of the object; `until` when it lets go by
    itself, None: nobody knows; `why`: more for people, "" for nothing."""

    kind: Holder
    name: str
    until: datetime | None = None
    why: str = ""

    def __str__(self) -> str:
        called = {
            Holder.TAG: "tag",
            Holder.BRANCH: "branch",
            Holder.SNAPSHOT: "snapshot",
            Holder.STAGED_SNAPSHOT: "staged snapshot",
            Holder.OBJECT_LOCK: "object lock on",
            Holder.LEGAL_HOLD: "legal hold on",
            Holder.OBJECT_VERSION: "an older version of",
            Holder.OBJECT: "object",
            Holder.RUN: "run",
        }[self.kind]
        until = f" until {self.until:%Y-%m-%dT%H:%M:%SZ}" if self.until is not None else ""
        return f"{called} {self.name}{until}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Erasure:
    """An obligation: physical rows must go, by `evict_by` if there is one.

    Args:
        restatement: The key of the request that left it.
        field_id: Of the column by which the rows were named: the batch column, or of records any other.
        purged_by: The snapshot with which the last of the rows left the table's data files, `purged_at` the sequence number of
            the one at which that was seen, `purged_time` when. None: data files of the head hold some still.
        blockers: The first of what held the files when that was looked at last, `blockers_count` of them in all.
        look_again: When it is worth another look, should none of the blockers go before.
        verified: The storage was seen to have none of the files any more. Nothing is owed then; the newest of those by records
            stays, to tell when records were erased last.
    """

    restatement: str
    field_id: int
    evict_by: datetime | None
    purged_by: int | None = None
    purged_at: int | None = None
    purged_time: datetime | None = None
    blockers: tuple[Blocker, ...] = ()
    blockers_count: int = 0
    look_again: datetime | None = None
    verified: bool = False

    @property
    def is_open(self) -> bool:
        return not self.verified

    @property
    def is_purged(self) -> bool:
        return self.purged_at is not None

    def is_due(self, by: datetime) -> bool:
        """Whether its bytes must be gone by then."""
        return self.evict_by is not None and self.evict_by <= by

    def reopened(self) -> "Erasure":
        """With rows in the table's data files again."""
        return replace(
            self, purged_by=None, purged_at=None, purged_time=None, blockers=(), blockers_count=0, look_again=None
        )


@dataclass(frozen=True)
class PurgedFile:
    """A file that may hold rows of open erasures and has left the head: it must leave the storage, too.

    Args:
        bytes: Its size, 0 if nobody says.
        content: `data` or `deletes`.
        restatements: The keys of those erasures.
    """

    path: str
    bytes: int
    content: str
    restatements: tuple[str, ...]


def purged_after(
    before: Mapping[str, PurgedFile], changed: Iterable[PurgedFile], forgotten: Iterable[str]
) -> dict[str, PurgedFile]:
    """The purged files after a change; one that is forgotten and set is set."""
    gone = frozenset(forgotten)
    return {p: f for p, f in before.items() if p not in gone} | {f.path: f for f in changed}
