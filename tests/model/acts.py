"""What may happen to a table, as values whose text is Python: a failing sequence can be pasted into a test.

Pure. Runs of Lethe are `Job`s; the acts of other writers are in `tests.model.foreign_acts`. The same act done twice is the same
run, or the same request, done again.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.model.foreign_acts import Foreign

Deletes: TypeAlias = Literal["Ledger", "DeletionVectors", "EqualityDeletes"]
Care: TypeAlias = Literal["compact", "manifests", "orphans"]


@dataclass(frozen=True)
class Setup:
    """What a table is like. `deletes`: as `spec.deletes` of all its restatements."""

    format_version: int = 2
    deletes: Deletes = "Ledger"

    @property
    def native(self) -> bool:
        return self.deletes != "Ledger"


@dataclass(frozen=True)
class Append:
    """Producers put these batches into the buffer, and one consolidation promotes them. Without batches, the run only gives
    a head of another writer a ledger."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Register:
    """The same, in mode Register: the files of the batches become data files of the table."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Revert:
    """`nth` makes different requests of the same batches."""

    ids: tuple[str, ...]
    nth: int = 0


@dataclass(frozen=True)
class Erase:
    """By batches."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class EraseRows:
    """By records: the rows with these marks."""

    marks: tuple[str, ...]


@dataclass(frozen=True)
class Replay:
    ids: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Change:
    """A keyed Replay. Each change is (operation, value of the key `v`): U puts a row of the batch `by` in place of older rows of
    the key, D only removes these."""

    changes: tuple[tuple[Literal["U", "D"], int], ...]
    by: str


@dataclass(frozen=True)
class Undo:
    """Take an earlier request back."""

    of: "Request"


@dataclass(frozen=True)
class Group:
    """Requests that one run carries out together."""

    requests: "tuple[Request, ...]"


@dataclass(frozen=True)
class Vacuum:
    """`max_bytes` None: no limit. `keep`: how many snapshots the expiry keeps, None: no expiry. `care`: maintenance."""

    max_bytes: int | None = None
    keep: int | None = None
    care: tuple[Care, ...] = ()


Request: TypeAlias = Revert | Erase | EraseRows | Replay | Change | Undo
Job: TypeAlias = Append | Register | Request | Group | Vacuum


@dataclass(frozen=True)
class Crash:
    """The run dies right after a step, if it reaches the step."""

    job: Job
    at: str


@dataclass(frozen=True)
class During:
    """Right after a step of a run, something else happens from start to end."""

    job: Job
    at: str
    other: Job | Foreign


Act: TypeAlias = Job | Foreign | Crash | During

_OF_A_VACUUM = ("after-write", "before-commit", "after-commit", "before-commit-2", "after-commit-2")
_OF_EXPIRY = ("before-cleanup", "between-cleanups")
_OF_CARE: dict[Care, tuple[str, ...]] = {
    "compact": ("after-compact",),
    "manifests": (),
    "orphans": ("after-listing", "before-orphans", "between-orphans"),
}
_OF_ERASURES = (
    "after-purged-noted",
    "after-storage-asked",
    "before-erasure-expiry",
    "after-erasure-expiry",
    "after-record",
)


def steps_of(job: Job) -> tuple[str, ...]:
    """The points that a run may pass, in their order: to die there, or to let something happen."""
    match job:
        case Append():
            return ("after-list", "after-write", "after-stage", "before-commit", "after-commit")
        case Register():
            return ("after-list", "after-read", "before-commit", "after-commit")
        case Replay() | Group():  # a group without a replacement does not pass the first two
            return ("after-list", "after-write", "before-commit", "after-commit")
        case Change():
            return ("after-list", "after-write", "after-search", "after-erase", "before-commit", "after-commit")
        case EraseRows():
            return ("after-search", "after-erase", "before-commit", "after-commit")
        case Revert() | Erase() | Undo():
            return ("before-commit", "after-commit")
        case Vacuum(_, keep, care):
            cleaning = _OF_EXPIRY if keep is not None else ()
            return (*_OF_A_VACUUM, *cleaning, *(step for c in care for step in _OF_CARE[c]), *_OF_ERASURES)


# A run other than a vacuum that reaches one of these has committed what there was to commit.
STEPS_AFTER_THE_COMMIT = ("after-commit",)


def request_name(request: Request) -> str:
    """The name of the Restatement that says the same."""
    match request:
        case Revert(ids, nth):
            return "-".join(["revert", *ids, *([str(nth)] if nth else [])])
        case Erase(ids):
            return "-".join(["erase", *ids])
        case EraseRows(marks):
            return "-".join(["erase-rows", *(m.replace("~", ".") for m in marks)])  # a name is no place for a value
        case Replay(ids, by):
            return "-".join(["replay", *ids, "by", by])
        case Change(changes, by):
            return "-".join(["change", *(f"{op}{v}" for op, v in changes), "by", by])
        case Undo(of):
            return f"undo-{request_name(of)}"


def job_of(act: Act) -> Job | None:
    """The run that an act is, or that it kills or interrupts."""
    job = act.job if isinstance(act, Crash | During) else act
    return job if isinstance(job, Job) else None
