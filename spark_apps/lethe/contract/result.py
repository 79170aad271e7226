"""The other half of the run contract: what the operator hears of a run while it runs, and at its end.

Pure values, as those of `lethe.contract.run`.
"""

from datetime import datetime
from enum import Enum, StrEnum
from typing import ClassVar, TypeAlias, assert_never

from pydantic import ConfigDict, Field

from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.operation import RecordedOperation
from lethe.contract.refusal import Refusal
from lethe.contract.run import CONTRACT_VERSION, Document, Provenance

TERMINATION_MESSAGE_BYTES = 4096  # Kubernetes cuts there
LISTED_AT_MOST = 20  # of a list that may be long; its count is told beside it


class Phase(StrEnum):
    """Phases of a run, in the words of its kind; shown in `status.runs[].phase`."""

    PENDING = "Pending"
    STARTING = "Starting"
    PLANNING = "Planning"
    READING = "Reading"
    WRITING = "Writing"
    STAGING = "Staging"
    SCAN = "Scan"
    PURGE_DATA = "PurgeData"
    COMMITTING = "Committing"
    EXPIRING = "Expiring"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Progress(Document):
    """`progress.json`: patched by the driver at most every 5 seconds, and at each change of phase. `begun`: how often the
    committer has begun this attempt, should its process have ended in the middle; 0 of a driver."""

    run_id: str
    attempt: int = 1
    phase: Phase
    message: str = ""
    tasks_done: int = 0
    tasks_total: int = 0
    rows: int = 0
    bytes: int = 0
    begun: int = 0
    updated_time: datetime


class RefusedBatch(Document):
    batch_id: str
    reason: str
    message: str

    @classmethod
    def of(cls, batch_id: str, refusal: Refusal) -> "RefusedBatch":
        return cls(batch_id=batch_id, reason=refusal.reason, message=refusal.message)

    @property
    def refusal(self) -> Refusal:
        return Refusal(self.reason, self.message)


class RestatementPlan(Document):
    """What a request touches, by the bounds of the head's data files: those that can hold a row of its batches, and of these
    the ones that hold nothing else."""

    files: int
    bytes: int
    whole_files: int


class ErasureOutcome(Document):
    """How far the erasure of one Restatement has come.

    Args:
        restatement: Its key.
        vacuum_snapshot_id: The commit with which the last of its rows left the table's data files; None: some are there.
        verified_time: When it was seen that the storage has none of those files any more; None: not yet, see `blocked_by`.
        record: URI of the erasure record, "" before it is verified; `record_sha256`: of its content.
        blocked_by: What holds its rows still, each for people: a tag, a branch, a snapshot, an object lock and until when.
    """

    restatement: str
    vacuum_snapshot_id: int | None = None
    verified_time: datetime | None = None
    record: str = ""
    record_sha256: str = ""
    blocked_by: tuple[str, ...] = ()
    blocked_by_count: int = 0


class RequestOutcome(Enum):
    """What became of a request in a run."""

    SUCCEEDED = "carried out, or it would be"
    POSTPONED = "kept out for now; it may succeed as it is"
    REFUSED = "refused for good"


class RequestResult(Document):
    """What became of one Restatement; `reason` is empty on success. The ledger keeps it with all `batch_ids`, since an
    Undo names only the request; a run's result leaves them out."""

    key: str
    name: str
    succeeded: bool
    again: bool = (
        False  # of one that did not succeed: it was kept out for now and may succeed as it is; else refused for good
    )
    reason: str = ""
    message: str = ""
    snapshot_id: int | None = None
    committed_time: datetime | None = None
    tombstones_added: int = 0
    rows_deleted: int = 0
    rows_added: int = 0
    rows_erased: int = 0  # by values or by keys: rows found in data files, those of batches taken back included
    requested_time: datetime | None = None  # of an Erase by records: when its Restatement was created
    values_digest: str | None = None  # of its values (`lethe.restatement.values_digest`); None: unknown
    group_size: int = 1  # how many requests that commit carried out, this one included; 0 of one that did not succeed
    unknown_batch_ids_count: int = 0
    unknown_batch_ids: tuple[str, ...] = ()  # the first of them; none of a list by reference, whose lines are not shown
    batch_ids_count: int | None = None  # of a list by reference: how many it named, and the SHA-256 of it
    batch_ids_sha256: str | None = None
    already_deleted_batch_ids_count: int = 0  # batches that were taken back before, for which nothing was left to do
    replacement_withheld: bool | None = None  # true of a Replay by an id that was taken back before: its rows stay out
    operation: RecordedOperation = None
    batch_ids: tuple[str, ...] = ()
    ledger_version: int | None = (
        None  # that its commit made, by which requests are ordered; None: of before this was kept
    )
    undoes: str = ""  # of an Undo: the key of the request that it took back
    undone_by: str = ""  # the key of the Undo that took this one back
    tombstones_removed: int = 0  # of an Undo, as is rows_restored
    rows_restored: int = 0
    plan: RestatementPlan | None = None  # of a dry run
    erasure: ErasureOutcome | None = None  # once it was verified that its rows are gone
    provenance: Provenance | None = None  # who asked for it and why, for the record of its erasure

    @property
    def outcome(self) -> RequestOutcome:
        if self.succeeded:
            return RequestOutcome.SUCCEEDED
        return RequestOutcome.POSTPONED if self.again else RequestOutcome.REFUSED

    @property
    def refusal(self) -> Refusal:
        """Why it did not succeed."""
        return Refusal(self.reason, self.message)


class VacuumPlanned(Document):
    """What a vacuum would do to the head that it looked at, by metadata alone.

    Args:
        digest: Names this plan: the same files and tombstones have the same.
        files, bytes: Data files that would be rewritten, at most: those that turn out to hold none of the rows are left alone;
            `whole_files`: that would leave by metadata alone.
        tombstones: Active ones that it would apply; `rows`: that these batches have, as far as the ledger knows.
        files_left, bytes_left: That the budget leaves to the next vacuum.
        in_vain_percent: Of `bytes`, how much lies in files that by what is known of the batches' sizes hold none of their rows:
            bounds are wide where files overlap. None: there are no files.
        sort_drift: How many of a partition's data files overlap where one would do: 1.0 is perfectly sorted.
        next_evict_by: The earliest deadline of what it would purge.
    """

    digest: str
    snapshot_id: int
    files: int = 0
    bytes: int = 0
    whole_files: int = 0
    tombstones: int = 0
    rows: int = 0
    files_left: int = 0
    bytes_left: int = 0
    in_vain_percent: float | None = None
    sort_drift: float | None = None
    next_evict_by: datetime | None = None


class RunOutcome(StrEnum):
    """How a run ended."""

    COMMITTED = "Committed"
    NOTHING_TO_DO = "NothingToDo"
    ALREADY_COMMITTED = "AlreadyCommitted"  # by an earlier attempt, or by another run
    PLANNED = "Planned"  # a dry run, or a vacuum that waits for an approval
    FAILED = "Failed"


class RunResult(Document):
    """The end of a run, as far as it is the same for all kinds: in the ConfigMap beside the progress, and in the termination
    message (compact). Each kind has a model of its own; a run that failed needs no more than this.

    Fields that a model does not have are ignored: earlier versions wrote the fields of all kinds.
    """

    model_config = ConfigDict(extra="ignore")
    LISTS: ClassVar[tuple[str, ...]] = ()  # fields that may be long

    api_version: str = CONTRACT_VERSION
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int = 1
    outcome: RunOutcome
    reason: str = ""  # of a failure
    permanent: bool = False  # of a failure: another attempt would fail the same way
    message: str = ""
    snapshot_id: int | None = None  # of the last commit; None: nothing was committed
    finished_time: datetime
    snapshots_expired: int = 0
    ledger_files_removed: int = 0
    not_tracked: str = ""  # why the table of batches does not show this run; "": it does, or none is kept

    def compact(self) -> str:
        """JSON of at most 4096 bytes for the termination message: lists go first, then the end of the message; counts
        stay."""
        whole = self.to_json()
        if len(whole.encode()) <= TERMINATION_MESSAGE_BYTES:
            return whole
        small = self.model_copy(update=dict.fromkeys(self.LISTS, ()))
        length = min(len(self.message), TERMINATION_MESSAGE_BYTES)
        while len(small.to_json().encode()) > TERMINATION_MESSAGE_BYTES and length:
            length = length * 3 // 4
            small = small.model_copy(update={"message": self.message[:length]})
        return small.to_json()


class ConsolidationResult(RunResult):
    LISTS: ClassVar[tuple[str, ...]] = ("refused",)

    batches_promoted: int = 0
    batches_withheld: int = 0  # reverted or replaced before they came
    refused_count: int = 0
    refused: tuple[RefusedBatch, ...] = ()  # the first 20
    rows_added: int = 0
    files_added: int = 0
    bytes_added: int = 0


class ReanchoringResult(RunResult):
    pass


class RestatementGroupResult(RunResult):
    LISTS: ClassVar[tuple[str, ...]] = ("requests",)

    rows_added: int = 0
    requests: tuple[RequestResult, ...] = ()


class ErasureCheckResult(RunResult):
    LISTS: ClassVar[tuple[str, ...]] = ("erasures",)

    expiry_seconds: float = 0.0
    erasures: tuple[ErasureOutcome, ...] = ()
    erasures_open: int = 0


class VacuumResult(RunResult):
    LISTS: ClassVar[tuple[str, ...]] = ("erasures", "orphan_files")

    files_rewritten: int = 0
    files_deleted: int = 0
    files_added: int = 0
    tombstones_purged: int = 0
    rows_purged: int = 0
    bytes_rewritten: int = 0
    files_left: int = 0  # that a partial vacuum left for the next one
    bytes_left: int = 0
    plan: VacuumPlanned | None = None
    steps: int = 0  # commits
    files_in_vain: int = 0  # rewritten, although none of their rows went
    purge_seconds: float = 0.0  # for `bytes_rewritten`
    expiry_seconds: float = 0.0
    stopped: str = ""  # why it left something although the budget would have allowed it: WindowClosed | MaxRunSeconds
    manifests_rewritten: int = 0
    orphan_files_removed: int = 0
    orphan_files_found: int = 0  # also by a run that only plans, and those that time was too short for
    orphan_bytes_found: int = 0
    orphan_files: tuple[str, ...] = ()  # the first 20, as paths below the table
    small_files_compacted: int = 0
    erasures: tuple[ErasureOutcome, ...] = ()
    erasures_open: int = 0


AnyRunResult: TypeAlias = (
    ConsolidationResult | ReanchoringResult | RestatementGroupResult | VacuumResult | ErasureCheckResult
)


def result_model(kind: RunKind) -> type[AnyRunResult]:
    """The model of the results of a kind of runs."""
    match kind:
        case RunKind.CONSOLIDATION:
            return ConsolidationResult
        case RunKind.REANCHORING:
            return ReanchoringResult
        case RunKind.RESTATEMENT:
            return RestatementGroupResult
        case RunKind.VACUUM:
            return VacuumResult
        case RunKind.ERASURE_CHECK:
            return ErasureCheckResult
        case _:
            assert_never(kind)


def parse_result(text: str, kind: RunKind) -> AnyRunResult:
    """Parse a `result.json` or a termination message of a run of this kind. Raises: pydantic.ValidationError."""
    return result_model(kind).model_validate_json(text)
