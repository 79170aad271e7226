"""The run contract: the progress and the result of a run, and what its log and its trace say about it. Pure.

The input of a run is in `lethe.contract.run`. The warm driver writes a line to its log at the beginning of each run. It carries
out one run at a time, so the lines up to the next beginning are of this run.
"""

import json
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from enum import Enum, StrEnum
from typing import ClassVar, Final, TypeAlias, assert_never

from pydantic import Field

from lethe.base.errors import Verdict
from lethe.contract.run import CONTRACT_VERSION, Provenance, Recorded, RunSpec
from lethe.contract.settings import RecordedOperation, RunFamily, RunKind

TERMINATION_MESSAGE_BYTES = 4096  # Kubernetes truncates longer messages
LISTED_AT_MOST = 20  # entries of a list that may be long; its full length is in another field


class Phase(StrEnum):
    """Phases of a run, as `status.runs[].phase` shows them. Each kind of run has some of them."""

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


class ExecutorState(Recorded):
    """The executors of a run, as its driver sees them."""

    planned: int  # the run has at most this number at the same time
    running: int
    lost: int = 0  # ended although the driver had not released them
    message: str = ""  # why executors are missing or were lost; "": there is nothing to report
    alone: bool = False  # none started in time, so the driver carries out the run without executors


class Progress(Recorded):
    """`progress.json`. The driver updates it at most every 5 seconds, and at each change of phase."""

    run_id: str
    attempt: int = 1
    phase: Phase
    message: str = ""
    tasks_done: int = 0
    tasks_total: int = 0
    rows: int = 0
    bytes: int = 0
    begun: int = 0  # how often the committer has started this attempt: again if its process ended; 0: a driver
    executors: ExecutorState | None = None  # None: the run has none
    updated_time: datetime


class RefusedBatch(Recorded):
    """A batch that a run did not add to the table, with the reason for its producer."""

    batch_id: str
    reason: str
    message: str

    @classmethod
    def of(cls, batch_id: str, verdict: Verdict) -> "RefusedBatch":
        """Name the batch of a refusal, for the result of a run."""
        return cls(batch_id=batch_id, reason=verdict.reason, message=verdict.message)

    @property
    def verdict(self) -> Verdict:
        """The reason and the message without the batch id, as the ledger stores them."""
        return Verdict(self.reason, self.message)


class AffectedFiles(Recorded):
    """The data files of the head that a request affects, by their bounds."""

    files: int  # may contain rows of its batches
    bytes: int  # of these files
    whole_files: int  # of these files, those that contain no other rows


class ErasureOutcome(Recorded):
    """The progress of the erasure of one Restatement."""

    # Key of the request.
    restatement: str
    # The snapshot that removed the last of its rows from the data files; None: some still contain rows.
    vacuum_snapshot_id: int | None = None
    # When a check found none of these files in the storage; None: not yet, see `blocked_by`.
    verified_time: datetime | None = None
    # URI of the erasure record; "": not verified yet.
    record: str = ""
    # Of the content of the record.
    record_sha256: str = ""
    # The first blockers, as texts for users, such as a tag or an object lock with its end.
    blocked_by: tuple[str, ...] = ()
    # The number of all blockers.
    blocked_by_count: int = 0


class RedactedColumn(Recorded):
    """A column that a Redact has redacted."""

    column: str
    """Its name at that time."""
    method: str
    """`RedactionMethod`, also of a newer version."""


class RecordedRedaction(Recorded):
    """What a Redact did, without values and keys."""

    columns: tuple[RedactedColumn, ...] = ()
    hash_key: str = ""
    """`<Secret>/<key>`: the name of the key of the hashes; "": there are none."""
    batch_ids: tuple[str, ...] = ()
    """The batches whose rows it redacted; empty: it named records. Only in the ledger."""


class RequestOutcome(Enum):
    """The outcome of a request in a run."""

    SUCCEEDED = "carried out, or in a dry run: would be carried out"
    POSTPONED = "not carried out in this run; may succeed later without a change"
    REFUSED = "refused; never tried again"


class RequestResult(Recorded):
    """The result of one request.

    The ledger stores it with all `batch_ids`, because an Undo names only the request. The result of a run does not contain them.
    """

    key: str
    name: str
    succeeded: bool
    again: bool = False  # False and not `succeeded`: refused; True: postponed, and may succeed unchanged
    reason: str = ""  # "": it succeeded
    message: str = ""
    snapshot_id: int | None = None
    committed_time: datetime | None = None
    tombstones_added: int = 0
    rows_deleted: int = 0
    rows_added: int = 0
    rows_erased: int = 0  # found in data files by values or keys, including rows that tombstones hide
    rows_redacted: int = 0  # by a Redact, including rows that tombstones hide
    redaction: RecordedRedaction | None = None  # of a Redact
    requested_time: datetime | None = None  # of an Erase by records: the creation of its Restatement
    values_digest: str | None = None  # of its values (`lethe.restatement.plan`); None: unknown
    group_size: int = 1  # requests that the commit carried out, including this one; 0: this one was not committed
    unknown_batch_ids_count: int = 0
    unknown_batch_ids: tuple[
        str, ...
    ] = ()  # the first of them; empty for a list by reference, whose lines are not shown
    batch_ids_count: int | None = None  # of a list by reference, or of a selector; None: there is none
    batch_ids_sha256: str | None = None  # of a list by reference; None: there is none
    already_deleted_batch_ids_count: int = 0  # batches that earlier requests had deleted
    replacement_withheld: bool | None = None  # True: its rows are not added; an earlier request deleted its batch id
    replacement_uri: str | None = (
        None  # of the folder whose rows it added; None: it added none, or an older version did
    )
    replacement_batch_id: str | None = None  # of these rows
    operation: RecordedOperation = None
    batch_ids: tuple[str, ...] = ()  # all that it names; of a Redact none, because its batches stay
    ledger_version: int | None = None  # of its commit; it orders requests; None: committed by an older version of Lethe
    undoes: str = ""  # key of the request that this Undo took back; "": it is not an Undo
    undone_by: str = ""  # key of the Undo that took this one back; "": none did
    tombstones_removed: int = 0  # by an Undo
    rows_restored: int = 0  # by an Undo
    plan: AffectedFiles | None = None  # of a dry run
    erasure: ErasureOutcome | None = None  # None: not verified yet, or there is none
    provenance: Provenance | None = None  # who asked for it and why; None: an earlier version carried it out

    @property
    def named_batch_ids(self) -> tuple[str, ...]:
        """The batches that the request names, whether their rows are deleted or redacted."""
        return self.redaction.batch_ids if self.redaction is not None else self.batch_ids

    @property
    def outcome(self) -> RequestOutcome:
        """Combines `succeeded` and `again`: without success, `again` decides between postponed and refused."""
        if self.succeeded:
            return RequestOutcome.SUCCEEDED
        return RequestOutcome.POSTPONED if self.again else RequestOutcome.REFUSED

    @property
    def verdict(self) -> Verdict:
        """Why it did not succeed."""
        return Verdict(self.reason, self.message, transient=self.again)


class VacuumPlanned(Recorded):
    """The plan of a vacuum for one snapshot, from metadata only."""

    # Identifies the plan: the same files and tombstones have the same digest.
    digest: str
    snapshot_id: int
    # Data files to rewrite. The run may rewrite fewer, because it leaves out files in which it finds no tombstoned rows.
    files: int = 0
    # Of these files.
    bytes: int = 0
    # Expected bytes of these files in row groups that are copied as they are, and in row groups and files that are encoded again.
    # The rest of `bytes` is probably in files without tombstoned rows, which stay. None: the plan is of an older version.
    bytes_to_copy: int | None = None
    bytes_to_encode: int | None = None
    # Data files in which all rows are tombstoned; they are deleted without being read.
    whole_files: int = 0
    # Active tombstones to apply.
    tombstones: int = 0
    # Rows of their batches, as far as the ledger knows.
    rows: int = 0
    # Of `files` and `whole_files`, those that may stay because holds cover rows of them. Only the run itself looks into files.
    files_held: int = 0
    # Left to the next vacuum, because of the limit on bytes.
    files_left: int = 0
    bytes_left: int = 0
    # Expected share of `bytes` in files without tombstoned rows, because bounds are imprecise; None: there are no files.
    in_vain_percent: float | None = None
    # How many data files of a partition overlap, on average; 1.0: perfectly sorted; None: not measured.
    sort_drift: float | None = None
    # The earliest deadline of the rows to purge; None: there is none.
    next_evict_by: datetime | None = None
    # Rows with an earlier time than this UTC day are too old, and the plan removes some; None: it removes no row for its age.
    retention_cutoff: date | None = None
    # Of `whole_files`, those in which all rows are too old; their bytes and their rows.
    retention_whole_files: int = 0
    retention_bytes: int = 0
    retention_rows: int = 0
    # Of `files`, those that may also have rows that are too old; those of `files_left` that may.
    retention_files: int = 0
    retention_files_left: int = 0


class RetentionOutcome(Recorded):
    """What a vacuum found about rows that are too old."""

    rule: str
    """The rule that it followed, as `RetentionSpec.rule` writes it."""
    cutoff: date
    """Rows with an earlier time than this UTC day are too old."""
    next_cutoff: date | None = None
    """The first such day at which other rows of the table will be too old; None: unknown, or there are none."""
    snapshot_id: int | None = None
    """The snapshot that was examined."""
    left: bool = False
    """Whether the table still has rows that are too old and that no hold keeps, as far as is known."""
    files_held: int = 0
    """Files that keep rows that are too old, because holds cover some of these rows."""
    problem: str = ""
    """Why no row could be removed for its age; "": nothing prevents it."""


WARM_DRIVER_AWAY: Final = "WarmDriverAway"
"""The reason of a failed attempt that did not report its end. Another process wrote the result, and the attempt may still write
files: on a node that is cut off.
"""

WARM_DRIVER_LIMIT: Final = "WarmDriverLimitExceeded"
"""The reason of an attempt that the warm driver stopped because it needed more time, memory or disk than one run may use."""

LEGAL_HOLD: Final = "LegalHold"
"""The reason of a request that waits because holds cover rows that it would remove. It changes nothing to try it again
under the same holds.
"""


class RunOutcome(StrEnum):
    """How a run ended."""

    COMMITTED = "Committed"
    NOTHING_TO_DO = "NothingToDo"
    ALREADY_COMMITTED = "AlreadyCommitted"
    """By an earlier attempt or another run."""
    PLANNED = "Planned"
    """A dry run, or a vacuum that needs an approval."""
    FAILED = "Failed"


class RunResult(Recorded):
    """The fields that the results of all kinds have. Each kind has its own model; the result of a failed run needs only these.

    A run writes its result into the ConfigMap, beside the progress, and in compact form into the termination message. Earlier
    versions wrote the fields of all kinds.
    """

    LISTS: ClassVar[tuple[str, ...]] = ()  # names of the fields with lists that may be long

    api_version: str = CONTRACT_VERSION
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int = 1
    outcome: RunOutcome
    reason: str = ""  # of a failure; "": it did not fail
    permanent: bool = False  # the run failed, and another attempt would fail in the same way
    message: str = ""
    snapshot_id: int | None = None  # of the last commit; None: nothing was committed
    finished_time: datetime
    snapshots_expired: int = 0
    ledger_files_removed: int = 0
    version: str = ""  # of the process that reports it (`lethe.version`); "": a version that does not report it
    cpu_seconds: float = 0.0  # what its process and those it started used since their last result, or their start
    executor_cpu_seconds: float = 0.0  # how long its executors were there, for each of their cores
    not_tracked: str = ""  # why the table of batches does not contain this run; "": it does, or there is no such table

    @property
    def verdict(self) -> Verdict:
        """Why the run failed; without a reason: it did not."""
        return Verdict(self.reason, self.message)

    @property
    def files_used(self) -> tuple[int, int]:
        """Files that it read to write others, of the buffer or of the table, and data files that it added."""
        return 0, 0

    @property
    def bytes_written(self) -> int:
        """Bytes that it added to the table, or rewrote."""
        return 0

    def compact(self) -> str:
        """JSON of at most 4096 bytes for the termination message.

        If the result is larger, it has no lists, and then a shorter message; all counts remain.
        """
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
    """The result of a run that promotes batches. Rows, files and bytes are those that the run added to the table."""

    LISTS: ClassVar[tuple[str, ...]] = ("refused",)

    batches_promoted: int = 0
    batches_withheld: int = 0
    """Not promoted, because a Restatement had deleted them."""
    refused_count: int = 0
    refused: tuple[RefusedBatch, ...] = ()
    """The first 20."""
    held_count: int = 0
    """They fail a check, and wait for a person."""
    files_read: int = 0
    """Files of the buffer, also of batches that are refused or held; 0: an older version wrote the result."""
    rows_added: int = 0
    files_added: int = 0
    bytes_added: int = 0

    @property
    def files_used(self) -> tuple[int, int]:
        """Files of the buffer that it read, and files that it added to the table."""
        return self.files_read, self.files_added

    @property
    def bytes_written(self) -> int:
        """Bytes that it added to the table."""
        return self.bytes_added


class ReanchoringResult(RunResult):
    """The result of a run that only gives the head a ledger and expires snapshots: it adds no data."""


class RestatementGroupResult(RunResult):
    """The result of a run that carries out or plans Restatements, with an entry for each of its requests."""

    LISTS: ClassVar[tuple[str, ...]] = ("requests",)

    rows_added: int = 0
    requests: tuple[RequestResult, ...] = ()
    files_without_deletes: int = 0
    """Data files that were too many to search in this commit: their native deletes follow."""


class ErasureCheckResult(RunResult):
    """The result of a run that only checks the open erasures. It may expire snapshots, but rewrites no data files."""

    LISTS: ClassVar[tuple[str, ...]] = ("erasures",)

    expiry_seconds: float = 0.0
    erasures: tuple[ErasureOutcome, ...] = ()
    erasures_open: int = 0


class VacuumResult(RunResult):
    """The result of a vacuum, also of one that only plans. Counts of rewritten data are sums over its steps."""

    LISTS: ClassVar[tuple[str, ...]] = ("erasures", "orphan_files")

    files_rewritten: int = 0
    files_deleted: int = 0
    files_added: int = 0
    tombstones_purged: int = 0
    rows_purged: int = 0
    bytes_rewritten: int = 0
    """Of the files that were rewritten."""
    bytes_copied: int = 0
    """Of row groups in these files, which were copied as they are."""
    files_left: int = 0
    """For the next vacuum."""
    bytes_left: int = 0
    """Of these files."""
    files_held: int = 0
    """Files with rows to purge that stay, because holds cover some of these rows."""
    holds: tuple[str, ...] = ()
    """The names of these holds."""
    plan: VacuumPlanned | None = None
    steps: int = 0
    """Commits."""

    @property
    def files_used(self) -> tuple[int, int]:
        """Files that it rewrote, and files that it added."""
        return self.files_rewritten, self.files_added

    @property
    def bytes_written(self) -> int:
        """Bytes of the files that it rewrote."""
        return self.bytes_rewritten

    files_in_vain: int = 0
    """Rewritten, although they contained no tombstoned rows."""
    purge_seconds: float = 0.0
    """Time to rewrite `bytes_rewritten`."""
    expiry_seconds: float = 0.0
    stopped: str = ""
    """Why it stopped before its limit of bytes: WindowClosed or MaxRunSeconds; "": it did not."""
    manifests_rewritten: int = 0
    orphan_files_removed: int = 0
    orphan_files_found: int = 0
    """Including files that the run only planned to remove or had no time to remove."""
    orphan_bytes_found: int = 0
    orphan_files: tuple[str, ...] = ()
    """The first 20, as paths below the table."""
    small_files_compacted: int = 0
    retention: RetentionOutcome | None = None
    """None: the run was not asked to remove rows for their age."""
    erasures: tuple[ErasureOutcome, ...] = ()
    erasures_open: int = 0


AnyRunResult: TypeAlias = (
    ConsolidationResult | ReanchoringResult | RestatementGroupResult | VacuumResult | ErasureCheckResult
)


def result_model(kind: RunKind) -> type[AnyRunResult]:
    """The model for the results of this kind of run."""
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
    """Parse the `result.json` or the termination message of a run.

    Raises:
        pydantic.ValidationError: The document is not valid.
    """
    return result_model(kind).model_validate_json(text)


# At most this many names of Restatements are in a line: a run may carry out thousands.
NAMES_AT_MOST: Final = 20


def log_fields(spec: RunSpec) -> dict[str, object]:
    """The fields for `lethe.logs`: of several Restatements, their names divided by commas, and their number."""
    names = [r.name.rpartition("/")[2] for r in spec.restatement.requests] if spec.restatement is not None else []
    return {
        "namespace": spec.dataset.namespace,
        "dataset": spec.dataset.name,
        "run": spec.run_id,
        "attempt": spec.attempt,
        "kind": spec.family.value,
        "restatement": ",".join(names[:NAMES_AT_MOST]),
        "restatements": len(names),
        "trace": _trace_id(spec.traceparent),
    }


def span_attributes(spec: RunSpec) -> dict[str, str | int]:
    """The attributes of spans of a run."""
    return {
        "k8s.namespace.name": spec.dataset.namespace,
        "lethe.dataset": spec.dataset.name,
        "lethe.table": spec.table.name,
        "lethe.run.id": spec.run_id,
        "lethe.run.kind": spec.family.value,
        "lethe.run.attempt": spec.attempt,
        "lethe.restatements": len(spec.restatement.requests) if spec.restatement is not None else 0,
    }


def _trace_id(traceparent: str) -> str:
    """The second of its four fields."""
    fields = traceparent.split("-")
    return fields[1] if len(fields) == 4 else ""


# Before the name of the attempt, at the end of the line.
BEGINNING: Final = "The run begins: "


def lines_of_run(lines: Iterable[str], attempt_name: str) -> Iterator[str]:
    """The lines of a run, by the name of its attempt."""
    is_of_run = False
    for line in lines:
        _, beginning, name = _message(line).rpartition(BEGINNING)
        if beginning:
            is_of_run = name.strip() == attempt_name
        if is_of_run:
            yield line


def _message(line: str) -> str:
    """The message of a line in JSON, or the line."""
    if not line.startswith("{") or BEGINNING not in line:
        return line
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError, TypeError):
        return line
