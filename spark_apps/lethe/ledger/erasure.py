"""Erasures in the ledger: rows whose bytes must be deleted, what blocks that, and the files with such rows. Pure.

Contains no values of rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum


class BlockerKind(StrEnum):
    """What may keep files of an erasure."""

    TAG = "Tag"
    BRANCH = "Branch"
    SNAPSHOT = "Snapshot"
    STAGED_SNAPSHOT = "StagedSnapshot"
    OBJECT_LOCK = "ObjectLock"
    LEGAL_HOLD = "LegalHold"
    OBJECT_VERSION = "ObjectVersion"
    OBJECT = "Object"
    RUN = "Run"
    TABLE_PROPERTY = "TableProperty"


@dataclass(frozen=True)
class ErasureBlocker:
    """What keeps files of an erasure."""

    kind: BlockerKind
    name: str
    """Name of the tag, branch or property, id of the snapshot or run, URI of the object."""
    until: datetime | None = None
    """When it ends by itself; None: unknown."""
    why: str = ""
    """A reason for users; empty: none."""

    def __str__(self) -> str:
        called = {
            BlockerKind.TAG: "tag",
            BlockerKind.BRANCH: "branch",
            BlockerKind.SNAPSHOT: "snapshot",
            BlockerKind.STAGED_SNAPSHOT: "staged snapshot",
            BlockerKind.OBJECT_LOCK: "object lock on",
            BlockerKind.LEGAL_HOLD: "legal hold on",
            BlockerKind.OBJECT_VERSION: "an older version of",
            BlockerKind.OBJECT: "object",
            BlockerKind.RUN: "run",
            BlockerKind.TABLE_PROPERTY: "the table property",
        }[self.kind]
        until = f" until {self.until:%Y-%m-%dT%H:%M:%SZ}" if self.until is not None else ""
        return f"{called} {self.name}{until}{f' ({self.why})' if self.why else ''}"


@dataclass(frozen=True)
class Erasure:
    """Rows whose bytes must be deleted."""

    restatement: str
    """The key of the request."""
    field_id: int
    """Of the column that names the rows: the batch column, or for records any other."""
    evict_by: datetime | None
    """The deadline; None: there is none."""
    purged_by: int | None = None
    """The snapshot that removed the last rows from the data files; None: the head has rows."""
    purged_at: int | None = None
    """The sequence number of the snapshot at which that was found; None: the head has rows."""
    purged_time: datetime | None = None
    """When that was found; None: the head has rows."""
    blockers: tuple[ErasureBlocker, ...] = ()
    """The first blockers of the last check."""
    blockers_count: int = 0
    """All blockers of the last check."""
    look_again: datetime | None = None
    """The next check, if no blocker ends before; None: none is planned."""
    verified: bool = (
        False  # the storage has none of the files. The newest verified erasure by records stays in the ledger
    )

    @property
    def is_open(self) -> bool:
        return not self.verified

    @property
    def is_purged(self) -> bool:
        return self.purged_at is not None

    def is_due(self, by: datetime) -> bool:
        """Whether the bytes must be gone by this time."""
        return self.evict_by is not None and self.evict_by <= by

    def reopened(self) -> "Erasure":
        """The erasure with rows in the table's data files again."""
        return replace(
            self, purged_by=None, purged_at=None, purged_time=None, blockers=(), blockers_count=0, look_again=None
        )


@dataclass(frozen=True)
class PurgedFile:
    """A file that may hold rows of open erasures and is not in the head: it must be deleted from the storage."""

    path: str
    bytes: int
    """Its size; 0: unknown."""
    content: str
    """`data` or `deletes`."""
    restatements: tuple[str, ...]
    """The keys of these erasures."""


def purged_after(
    before: Mapping[str, PurgedFile], changed: Iterable[PurgedFile], forgotten: Iterable[str]
) -> dict[str, PurgedFile]:
    """The purged files after a change. A file in both `changed` and `forgotten` stays."""
    removed = frozenset(forgotten)
    return {p: f for p, f in before.items() if p not in removed} | {f.path: f for f in changed}
