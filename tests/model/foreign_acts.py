"""The acts of other writers, which do not know ledgers. Pure."""

from dataclasses import dataclass
from typing import Literal, TypeAlias


@dataclass(frozen=True)
class ForeignAppend:
    """Append one row for each id, in one partition."""

    ids: tuple[str | None, ...]  # None: a row without a batch
    day: int = 1  # the partition
    branch: str = ""  # "": main; a branch that does not exist is created at the head


@dataclass(frozen=True)
class ForeignDelete:
    """Delete the rows with a value of the key `v`."""

    v: int
    # Spark's DELETE, or an equality delete as a streaming writer commits it (format version 2 only).
    how: Literal["copy-on-write", "merge-on-read", "equality"] = "copy-on-write"


@dataclass(frozen=True)
class ForeignCompaction:
    """Spark's `rewrite_data_files` of all files."""


@dataclass(frozen=True)
class ForeignRepartition:
    """Change the partition spec for new files. Existing files stay unchanged."""

    by: str | None  # the partition column, `extra` among them; None: unpartitioned


@dataclass(frozen=True)
class ForeignColumn:
    """Add the column `extra`, which only this writer fills, or drop it with its partition field."""

    change: Literal["add", "drop"]


@dataclass(frozen=True)
class ForeignTag:
    """Tag the head. An expiry keeps a tagged snapshot."""


@dataclass(frozen=True)
class DropRefs:
    """Drop all tags, and all branches except main."""


@dataclass(frozen=True)
class FastForward:
    """Set main to the head of a branch, if main is an ancestor of it."""

    branch: str


@dataclass(frozen=True)
class Rollback:
    """Set the head to an ancestor."""

    back: int  # the number of snapshots to go back, limited to the oldest retained one


@dataclass(frozen=True)
class CherryPick:
    """Cherry-pick one of the retained appends that are not ancestors of the head."""

    nth: int  # which of them, modulo their number


@dataclass(frozen=True)
class Expire:
    """Expire snapshots, as far as the rules of the format allow it to other writers."""

    keep: int  # the number of snapshots to keep
    by: Literal["Spark", "PyIceberg"] = "Spark"  # PyIceberg does not delete files


@dataclass(frozen=True)
class RemoveOrphans:
    """Spark's `remove_orphan_files`."""


@dataclass(frozen=True)
class ReplaceTable:
    """Spark's createOrReplace with a few rows. Reads and runs must fail, until the head is set back."""


@dataclass(frozen=True)
class Rename:
    """Rename the table, read it, and rename it back."""


@dataclass(frozen=True)
class DropAndCreate:
    """Drop the table with its files, and create it again with a run."""


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
