"""What other writers, which know nothing of ledgers, may do to a table. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class ForeignAppend:
    """One row of each id, in one partition; None is a row without a batch. `branch`: to there instead of main; a branch that is
    not there begins at the head."""

    ids: tuple[str | None, ...]
    day: int = 1
    branch: str = ""


@dataclass(frozen=True)
class ForeignDelete:
    """Spark's DELETE of the rows with this key `v`, copy-on-write or merge-on-read, or a writer's equality delete by the column
    `v` (format version 2 only)."""

    v: int
    how: Literal["copy-on-write", "merge-on-read", "equality"] = "copy-on-write"


@dataclass(frozen=True)
class ForeignCompaction:
    """Spark's `rewrite_data_files`, all files."""


@dataclass(frozen=True)
class ForeignRepartition:
    """From now on files are partitioned by this column, None: by none. Existing files stay as they are."""

    by: str | None


@dataclass(frozen=True)
class ForeignColumn:
    """Add a column that nobody fills, or drop it."""

    change: Literal["add", "drop"]


@dataclass(frozen=True)
class ForeignTag:
    """Tag the head: its snapshot stays readable, whatever expires around it."""


@dataclass(frozen=True)
class DropRefs:
    """Drop all tags and branches but main."""


@dataclass(frozen=True)
class FastForward:
    """Set main to the head of the branch, if main is an ancestor of it."""

    branch: str


@dataclass(frozen=True)
class Rollback:
    """Set the head to its ancestor so many snapshots back, or to the oldest one retained."""

    back: int


@dataclass(frozen=True)
class CherryPick:
    """Cherry-pick one of the retained appends that are not ancestors of the head: the n-th, in turn."""

    nth: int


@dataclass(frozen=True)
class Expire:
    """Expire snapshots down to `keep`, or as many as the format's rules leave another writer: by Spark's `expire_snapshots`, or
    by PyIceberg, which leaves the files."""

    keep: int
    by: Literal["Spark", "PyIceberg"] = "Spark"


@dataclass(frozen=True)
class RemoveOrphans:
    """Spark's `remove_orphan_files`."""


@dataclass(frozen=True)
class ReplaceTable:
    """Spark's createOrReplace with a few rows: every read and run has to stop, until somebody sets the head back."""


@dataclass(frozen=True)
class Rename:
    """Rename the table, read it, and rename it back."""


@dataclass(frozen=True)
class DropAndCreate:
    """Drop the table with its files; the next run creates it again."""


Foreign: TypeAlias = (
    ForeignAppend
    | ForeignDelete
    | ForeignCompaction
    | ForeignRepartition
    | ForeignColumn
    | ForeignTag
    | DropRefs
    | FastForward
    | Rollback
    | CherryPick
    | Expire
    | RemoveOrphans
    | ReplaceTable
    | Rename
    | DropAndCreate
)
