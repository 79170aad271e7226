"""What may happen to a table, as values whose text is Python: a failing sequence can be pasted into a test.

Pure. `Append`, `Revert`, `Replay`, `Undo`, `Group` and `Vacuum` are runs of ours; the `Foreign…` acts and `Expire` are those of
writers that know nothing of ledgers. The same act done twice is the same run, or the same request, done again.
"""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Append:
    """Producers put these batches into the buffer, and one consolidation is told to promote them. Of no batch: the run
    only gives a head of another writer's a ledger."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Revert:
    """`nth` tells two requests for the same batches apart."""

    ids: tuple[str, ...]
    nth: int = 0


@dataclass(frozen=True)
class Replay:
    ids: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Undo:
    """Take an earlier request back."""

    of: "Request"


@dataclass(frozen=True)
class Group:
    """Requests that one run is told to carry out together."""

    requests: "tuple[Request, ...]"


@dataclass(frozen=True)
class Vacuum:
    """`max_bytes` None: all of it. `keep`: how many snapshots stay, None: no expiry."""

    max_bytes: int | None = None
    keep: int | None = None


@dataclass(frozen=True)
class ForeignAppend:
    """One row of each id, by PyIceberg, in one partition; None is a row without a batch."""

    ids: tuple[str | None, ...]
    day: int = 1


@dataclass(frozen=True)
class ForeignCompaction:
    """Spark's `rewrite_data_files`, all files."""


@dataclass(frozen=True)
class ForeignRepartition:
    """From now on files are partitioned by this column, None: by none. Those that are there stay as they are."""

    by: str | None


@dataclass(frozen=True)
class ForeignTag:
    """Tag the head: its snapshot stays readable, whatever expires around it."""


@dataclass(frozen=True)
class Expire:
    """Spark's `expire_snapshots` down to `keep`, or as many as the format's rules leave a stranger."""

    keep: int


Request: TypeAlias = Revert | Replay | Undo
Job: TypeAlias = Append | Revert | Replay | Undo | Group | Vacuum
Foreign: TypeAlias = ForeignAppend | ForeignCompaction | ForeignRepartition | ForeignTag | Expire


@dataclass(frozen=True)
class Crash:
    """The run dies right after a step, if it gets there."""

    job: Job
    at: str


@dataclass(frozen=True)
class During:
    """Right after a step of a run, something else happens from start to end."""

    job: Job
    at: str
    other: Job | ForeignAppend | ForeignCompaction | ForeignRepartition | ForeignTag


Act: TypeAlias = Job | Foreign | Crash | During


def steps_of(job: Job) -> tuple[str, ...]:
    """The points that a run may pass, in their order: to die there, or to let something happen."""
    match job:
        case Append():
            return ("after-list", "after-write", "after-stage", "before-commit", "after-commit")
        case Replay() | Group():  # a group without a replacement does not pass the first two
            return ("after-list", "after-write", "before-commit", "after-commit")
        case Revert() | Undo():
            return ("before-commit", "after-commit")
        case Vacuum(_, keep):
            cleaning = ("before-cleanup", "between-cleanups") if keep is not None else ()
            return ("after-write", "before-commit", "after-commit", *cleaning)


# Whoever gets there has committed what there was to commit.
STEPS_AFTER_THE_COMMIT = ("after-commit", "before-cleanup", "between-cleanups")


def request_name(request: Request) -> str:
    """The name of the Restatement that says the same."""
    match request:
        case Revert(ids, nth):
            return "-".join(["revert", *ids, *([str(nth)] if nth else [])])
        case Replay(ids, by):
            return "-".join(["replay", *ids, "by", by])
        case Undo(of):
            return f"undo-{request_name(of)}"
