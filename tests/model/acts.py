"""The acts of all walks: what can happen to a table. Pure.

The repr of an act is Python code, so a failing sequence can be pasted into a test. A `Job` is a run of Lethe; the acts of other
writers are in `tests.model.foreign_acts`. Repeating an act repeats the same run, or the same request.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tests.model.foreign_acts import Foreign
from tests.model.rows import Rows, changed_rows, rows_of

Deletes: TypeAlias = Literal["Ledger", "Auto"]
Care: TypeAlias = Literal["compact", "manifests", "orphans"]


@dataclass(frozen=True)
class Setup:
    """The properties of the table, and the size of its batches."""

    format_version: int = 2
    deletes: Deletes = "Ledger"  # spec.deletes of all Restatements
    rows: int = 2  # of a batch; a replacement has one more

    @property
    def native(self) -> bool:
        return self.deletes != "Ledger"

    def rows_of(self, batch_id: str) -> Rows:
        return rows_of(batch_id, self.rows)

    def replacement_of(self, batch_id: str) -> Rows:
        """The rows of a batch that replaces others."""
        return rows_of(batch_id, self.rows + 1)

    def added_by(self, request: "Request") -> Rows:
        """The rows that a request adds, if its batch was not used before."""
        match request:
            case Replay(_, by):
                return self.replacement_of(by)
            case Change(changes, by):
                return changed_rows(by, (v for op, v in changes if op == "U"))
            case _:
                return Rows()


@dataclass(frozen=True)
class Append:
    """Producers write these batches to the buffer, and one consolidation promotes them. Without batches, the run only gives
    the head a ledger, if another writer committed it."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Register:
    """Like Append, in the mode Register: the files of the batches become data files of the table."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class Revert:
    ids: tuple[str, ...]
    nth: int = 0  # distinguishes requests for the same batches


@dataclass(frozen=True)
class Erase:
    """Erase batches."""

    ids: tuple[str, ...]


@dataclass(frozen=True)
class EraseRows:
    """Erase records: the rows with these marks."""

    marks: tuple[str, ...]


@dataclass(frozen=True)
class Redact:
    """Redact records: the rows with these marks lose them."""

    marks: tuple[str, ...]


@dataclass(frozen=True)
class Replay:
    ids: tuple[str, ...]
    by: str


@dataclass(frozen=True)
class Change:
    """A Replay with key columns."""

    # The operation and the value of the key `v`. U replaces the rows of the key by a row of the batch `by`; D deletes them.
    changes: tuple[tuple[Literal["U", "D"], int], ...]
    by: str


@dataclass(frozen=True)
class Undo:
    """Undo an earlier request."""

    of: "Request"


@dataclass(frozen=True)
class Group:
    """Requests that one run carries out together."""

    requests: "tuple[Request, ...]"


@dataclass(frozen=True)
class Vacuum:
    max_bytes: int | None = None  # None: no limit
    keep: int | None = None  # the number of snapshots that the expiry keeps; None: no expiry
    care: tuple[Care, ...] = ()  # maintenance


Request: TypeAlias = Revert | Erase | EraseRows | Redact | Replay | Change | Undo
Job: TypeAlias = Append | Register | Request | Group | Vacuum


@dataclass(frozen=True)
class Crash:
    """The run crashes directly after a step, if it reaches the step."""

    job: Job
    at: str


@dataclass(frozen=True)
class During:
    """Another act happens completely, directly after a step of a run."""

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
    """The steps that a run may reach, in their order. A crash or another act may happen after each."""
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
        case Redact():
            return ("after-search", "after-redact", "after-erase", "before-commit", "after-commit")
        case Revert() | Erase() | Undo():
            return ("before-commit", "after-commit")
        case Vacuum(_, keep, care):
            cleaning = _OF_EXPIRY if keep is not None else ()
            return (*_OF_A_VACUUM, *cleaning, *(step for c in care for step in _OF_CARE[c]), *_OF_ERASURES)


# A run that reaches one of these has committed everything. This does not hold for a vacuum.
STEPS_AFTER_THE_COMMIT = ("after-commit",)


def request_name(request: Request) -> str:
    """The name of the Restatement for a request."""
    match request:
        case Revert(ids, nth):
            return "-".join(["revert", *ids, *([str(nth)] if nth else [])])
        case Erase(ids):
            return "-".join(["erase", *ids])
        case EraseRows(marks) | Redact(marks):
            # A mark is a value, and a name must not contain a value literally.
            what = "redact" if isinstance(request, Redact) else "erase-rows"
            return "-".join([what, *(m.replace("~", ".") for m in marks)])
        case Replay(ids, by):
            return "-".join(["replay", *ids, "by", by])
        case Change(changes, by):
            return "-".join(["change", *(f"{op}{v}" for op, v in changes), "by", by])
        case Undo(of):
            return f"undo-{request_name(of)}"


def job_of(act: Act) -> Job | None:
    """The run of an act, including a run that crashes or is interrupted; None: the act is of another writer."""
    job = act.job if isinstance(act, Crash | During) else act
    return job if isinstance(job, Job) else None
