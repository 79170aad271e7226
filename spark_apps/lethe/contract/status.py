"""The statuses of Lethe's resources. Pure.

The operator writes them; of a Dataset, the inlet writes `source`. A field that is None is left out when a status is written.
`parse_status` reads a status that another version, or a person, may have written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, ConfigDict, ValidationError

from lethe.base.errors import Verdict
from lethe.contract.schema import ApiModel, Int32, Required, between, items, keyed_by, length

ConditionStatus = Literal["True", "False", "Unknown"]


def _to_the_second(time: datetime) -> datetime:
    offset = time.utcoffset()
    if offset is None:
        raise ValueError("the time has no time zone")
    if not offset and not time.microsecond:
        return time  # nearly all: a status has dozens, and the rest costs more than to parse them
    try:
        return time.astimezone(UTC).replace(microsecond=0)
    except OverflowError:
        raise ValueError("the time is not one of UTC") from None


# As Kubernetes writes it: RFC 3339 in UTC, to the second, such as 2026-01-02T03:04:05Z.
Time = Annotated[datetime, AfterValidator(_to_the_second)]


class Condition(ApiModel):
    """One aspect of the state."""

    type: Annotated[str, length(maximum=316)]
    """Which aspect."""
    status: ConditionStatus
    """Whether it holds."""
    observed_generation: Annotated[int | None, between(0)] = None
    """The generation of the spec that the condition is about."""
    last_transition_time: Annotated[Time | None, Required()] = None
    """When status last changed."""
    reason: Annotated[str, length(maximum=1024), Required()] = ""
    """The reason, as one CamelCase word from the list of reasons."""
    message: Annotated[str, length(maximum=32_768), Required()] = ""
    """The reason, as text."""

    @classmethod
    def of(cls, type: str, status: ConditionStatus, reason: str, message: str = "") -> Self:
        """A condition that is not in a status yet, so it has no time of its transition."""
        return cls(type=type, status=status, reason=reason, message=message)

    @property
    def verdict(self) -> Verdict:
        """Its reason and its message, for an event or another condition."""
        return Verdict(self.reason, self.message)


Conditions = Annotated[tuple[Condition, ...] | None, keyed_by("type")]


class Status(ApiModel):
    """What the statuses of all resources have."""

    observed_generation: int | None = None
    """The generation of the spec that this status is about."""
    conditions: Conditions = None
    """Ready, Reconciling and Stalled as kstatus understands them."""

    def condition(self, type: str) -> Condition | None:
        """A condition by its type; None: it is not set."""
        return next((c for c in self.conditions or () if c.type == type), None)

    def is_true(self, type: str) -> bool:
        """Whether a condition is True."""
        return self.value_of(type) == "True"

    def value_of(self, type: str) -> ConditionStatus | None:
        """The status of a condition; None: it is not set."""
        condition = self.condition(type)
        return condition.status if condition is not None else None


class TableStatus(ApiModel):
    """The table when the operator last read it."""

    uuid: str | None = None
    """Its Iceberg UUID. While the condition Ready has the reason TableReplaced: the UUID of the previous table."""
    location: str | None = None
    """Its location, a URI."""
    format_version: Int32 | None = None
    """Version of the Iceberg table format."""
    snapshot_id: int | None = None
    """The last head that the operator saw. While the condition Ready has the reason TableRolledBack: the head before the
    rollback.
    """
    sequence_number: int | None = None
    """The sequence number of that snapshot. It distinguishes a rollback from an expiry of snapshots."""
    snapshot_time: Time | None = None
    """When that snapshot was committed."""
    rows: int | None = None
    """Rows of its data files, including those that deletes hide; absent if its summary does not say."""
    ledger: str | None = None
    """The URI of its ledger. If a later head leads to no ledger and is accepted, it continues with this one."""
    accepted_head: str | None = None
    """The last value of the annotation lethe.dev/accept-head that the operator accepted. It does not cover another rollback to
    the same snapshot; the message then asks for another value. Without uuid, the loss of a table was accepted.
    """


class InvalidFolder(ApiModel):
    """One folder or object."""

    folder: str
    """Its name."""
    message: str | None = None
    """What is wrong with it."""


class BufferStatus(ApiModel):
    """The buffer when it was last listed, without promoted batches. Large buffers are listed less often."""

    batches: int | None = None
    """Complete batches that wait for promotion."""
    bytes: int | None = None
    """Bytes of these batches."""
    oldest_batch_time: Time | None = None
    """When the oldest of these batches was written."""
    waiting: int | None = None
    """Folders that contain no _SUCCESS yet, or no data file."""
    invalid: int | None = None
    """Folders and objects that are not batches."""
    invalid_folders: Annotated[tuple[InvalidFolder, ...] | None, items(maximum=20)] = None
    """The first 20 of them."""


class SourceStatus(ApiModel):
    """What the inlet has read, if spec.source is set. The inlet writes it."""

    model_config = ConfigDict(extra="allow")  # the operator keeps what an inlet of a newer version has written

    observed_time: Time | None = None
    """When the inlet has reported this, at least every minute."""
    reason: str | None = None
    """Why nothing is read, or SourceRead. The condition SourceRead repeats it."""
    message: str | None = None
    """The same for people."""
    epoch: int | None = None
    """Number of the last complete epoch. Its batches are in the buffer."""
    epoch_time: Time | None = None
    """When it was completed."""
    partitions: Int32 | None = None
    """Number of partitions that are read."""
    lag: int | None = None
    """Offsets that the brokers have and that are in no complete epoch."""
    rows: int | None = None
    """Rows that were written into the buffer, since the first epoch."""
    refused_messages: int | None = None
    """Messages that are not rows of the table, since the first epoch. They are in `_refused/` of the buffer."""
    lost_offsets: int | None = None
    """Offsets that expired in Kafka before they were read, since the first epoch."""


class ConsolidationStatus(ApiModel):
    """Whether batches of the buffer are moved into the table now, and why or why not."""

    decision: str | None = None
    """Due, Later or Running."""
    reason: str | None = None
    """The reason, as one CamelCase word from the list of reasons."""
    message: str | None = None
    """The reason, as text, such as: 37 of 100 batches, 12Mi of 128Mi; due by age at 2026-03-01T12:00:00Z."""
    next_time: Time | None = None
    """When the decision is expected to change without another event. More batches or bytes may change it earlier."""


class EvictBy(ApiModel):
    """The first evictBy; absent if there is none."""

    time: Time | None = None
    """The time by which the bytes must be gone."""
    starts_by_time: Time | None = None
    """When a vacuum starts because of it."""
    possible_until_time: Time | None = None
    """A vacuum that starts later is expected to finish too late, based on earlier vacuums."""


class VacuumPlan(ApiModel):
    """What a vacuum that waits for approval would do."""

    digest: str | None = None
    """Names the plan; the value of the annotation lethe.dev/approve that starts it."""
    snapshot_id: int | None = None
    """The snapshot that it was made for."""
    planned_time: Time | None = None
    """When it was made."""
    files: int | None = None
    """Data files that would be rewritten."""
    bytes: int | None = None
    """Their size."""
    bytes_to_copy: int | None = None
    """Expected bytes of these files in row groups without deleted rows, which are copied as they are. An estimate from metadata;
    absent if unknown.
    """
    bytes_to_encode: int | None = None
    """Expected bytes of these files in other row groups, and in files that Spark rewrites: they are encoded again. An estimate
    from metadata, rather too high; absent if unknown.
    """
    whole_files: int | None = None
    """Data files that would be dropped without being read."""
    tombstones: int | None = None
    """Tombstones that would be applied."""
    rows: int | None = None
    """Rows of their batches, as far as the ledger knows."""
    files_held: int | None = None
    """Of files and wholeFiles, those that may stay because holds cover rows of them."""
    files_left: int | None = None
    """Data files that limits.maxBytesPerRun leaves to the next vacuum."""
    bytes_left: int | None = None
    """Their size."""
    in_vain_percent: Int32 | None = None
    """The share of bytes in files that probably contain none of the rows; absent if unknown."""
    sort_drift: str | None = None
    """How many data files overlap where one would do, as a decimal number; 1.00 is perfectly sorted."""
    next_evict_by_time: Time | None = None
    """The first evictBy of the rows that would be purged."""
    retention_cutoff: str | None = None
    """The UTC day, as 2026-01-31, before which rows are too old; absent if the plan removes no row for its age."""
    retention_whole_files: int | None = None
    """Of wholeFiles, those in which all rows are too old."""
    retention_bytes: int | None = None
    """Their size."""
    retention_rows: int | None = None
    """Their rows."""
    retention_files: int | None = None
    """Of files, those that may have rows that are too old."""
    retention_files_left: int | None = None
    """Of filesLeft, those that may have rows that are too old."""
    run: str | None = None
    """The Job that made the plan."""
    state: str | None = None
    """A digest of the tombstones that the plan was made for. If they change, a new plan is made."""


class LastVacuum(ApiModel):
    """The last vacuum that succeeded."""

    name: str | None = None
    """Its Job."""
    run_id: str | None = None
    """Its run id, as snapshots name it."""
    finish_time: Time | None = None
    """When it ended."""
    message: str | None = None
    """What it did."""
    stopped: str | None = None
    """Why it left work: WindowClosed or MaxRunSeconds."""
    left: bool | None = None
    """Whether another vacuum follows although the table has not changed."""
    idle_runs: Int32 | None = None
    """How many consecutive vacuums found nothing to purge. The pause before the next one grows with each."""
    state: str | None = None
    """A digest of the tombstones that were left."""


class RequestedVacuum(ApiModel):
    """The vacuum that the annotation lethe.dev/vacuum-now requested."""

    value: str | None = None
    """The value of the annotation, up to 200 characters."""
    name: str | None = None
    """The Job."""
    run_id: str | None = None
    """The run id."""
    outcome: str | None = None
    """Running, Succeeded or Failed."""
    message: str | None = None
    """What it did, or why it failed."""


class VacuumSpeed(ApiModel):
    """The speed of vacuums of this table. Older ones count less."""

    bytes: int | None = None
    """Bytes that were rewritten."""
    seconds: int | None = None
    """How long that took."""
    expiry_seconds: int | None = None
    """How long the expiry of snapshots took after a vacuum."""
    run: str | None = None
    """The last Job that was measured."""


class RetentionStatus(ApiModel):
    """What the last vacuum found about rows that are too old."""

    rule: str | None = None
    """The rule that it followed."""
    cutoff: str | None = None
    """Rows with a time before this UTC day were too old."""
    next_time: Time | None = None
    """When other rows of the table will be too old; absent if unknown."""
    snapshot_id: int | None = None
    """The snapshot that it examined."""
    left: bool | None = None
    """Whether it left rows that are too old to the next vacuum."""
    files_held: int | None = None
    """Data files that keep rows that are too old, because holds cover some of these rows; absent: there are none."""
    holds: str | None = None
    """A digest of the holds that the vacuum knew. If they change while files are held, another vacuum is due."""
    problem: str | None = None
    """Why it removed no row for its age, and what to do."""


class VacuumStatus(ApiModel):
    """Whether rows that tombstones hide are purged now, and why or why not; and the history of vacuums."""

    policy: str | None = None
    """The VacuumPolicy that applies."""
    decision: str | None = None
    """Due, Later, Running or NeedsApproval."""
    reason: str | None = None
    """The reason, as one CamelCase word from the list of reasons."""
    message: str | None = None
    """The reason, as text. With NeedsApproval, it contains the command that approves."""
    due_reason: str | None = None
    """The trigger of a vacuum that is due and waits."""
    next_time: Time | None = None
    """When the decision is expected to change without another event."""
    waiting_since: Time | None = None
    """Since when it waits for vacuums of other Datasets."""
    evict_by: EvictBy | None = None
    plan: VacuumPlan | None = None
    last_run: LastVacuum | None = None
    requested: RequestedVacuum | None = None
    retention: RetentionStatus | None = None
    measured: VacuumSpeed | None = None


class RefusedBatch(ApiModel):
    """A batch that was set aside or held."""

    batch_id: str
    """The id of the batch."""
    reason: str | None = None
    """The reason, as one CamelCase word."""
    message: str | None = None
    """Which file or check, what was expected and found."""


class BatchCounts(ApiModel):
    """The batches in the table's ledger, counted by state."""

    promoted: int | None = None
    """Batches that are part of the table."""
    reverted: int | None = None
    """Batches that were reverted, replaced or erased."""
    withheld: int | None = None
    """Batches in the buffer that are not promoted, because they were reverted, replaced or erased before they arrived."""
    refused: int | None = None
    """Batches that were set aside because they cannot be read or do not fit the table."""
    refused_batches: Annotated[tuple[RefusedBatch, ...] | None, items(maximum=20)] = None
    """The latest 20 refused batches."""
    held: int | None = None
    """Batches that fail a check of spec.checks, and wait in the buffer until a person approves or reverts them."""
    held_batches: Annotated[tuple[RefusedBatch, ...] | None, items(maximum=20)] = None
    """The latest 20 held batches."""


class TombstoneCounts(ApiModel):
    """The active tombstones."""

    active: int | None = None
    """How many there are."""
    native_deletes: Literal["Complete", "Incomplete"] | None = None
    """Complete: native deletes hide all their rows, so that every engine sees the same. Incomplete: other engines may see rows,
    because spec.deletes is Ledger, or because native deletes follow.
    """
    rows: int | None = None
    """Rows of their batches; absent until a run has counted them."""
    oldest_time: Time | None = None
    """When the oldest was added."""
    next_evict_by_time: Time | None = None
    """The earliest time by which bytes must be gone."""


class ErasureCounts(ApiModel):
    """Restatements whose bytes must be gone, and for which this is not verified yet."""

    open: int | None = None
    """How many there are."""
    blocked: int | None = None
    """Of these, erasures that a tag, branch, snapshot, object lock or hold blocks."""
    overdue: int | None = None
    """Of these, erasures whose deadline has passed."""
    next_due_time: Time | None = None
    """The earliest time by which bytes must be gone."""


class HoldStatus(ApiModel):
    """One hold of spec.holds."""

    name: str
    """Its name."""
    active: bool | None = None
    """Whether it is in force: no run that began without it may remove rows any more."""
    until: Time | None = None
    """When it ends by itself; unset: when it is removed."""
    message: str | None = None
    """Why it is not in force."""


ENDED_RUNS_OF_A_KIND: Final = 3
"""The runs of a kind that have ended and that the status of a Dataset remembers."""


class RunEntry(ApiModel):
    """One run."""

    name: str
    """Name of its Job or SparkApplication."""
    kind: str
    """Consolidation, Restatement or Vacuum."""
    phase: str | None = None
    """The current phase, or Succeeded or Failed."""
    progress: str | None = None
    """Progress of the phase, such as 12/40 tasks."""
    executors: str | None = None
    """Executors that run, of those planned, such as 2/4. Not set if the run has none."""
    message: str | None = None
    """What the run does or did, as text."""
    reason: str | None = None
    """Why it failed, as one CamelCase word."""
    batches: int | None = None
    """Batches that it added to the table."""
    rows: int | None = None
    """Rows that it added to the table."""
    attempt: Int32 | None = None
    """The number of the attempt, from 1."""
    start_time: Time | None = None
    """When it started."""
    finish_time: Time | None = None
    """When it ended."""


class RunUsage(ApiModel):
    """What runs have used, added up as they end."""

    since: Time | None = None
    """When the first of them ended."""
    runs: int | None = None
    """Attempts that ended, also failed ones."""
    cpu_seconds: int | None = None
    """Processor time, without executors."""
    executor_cpu_seconds: int | None = None
    """How long executors were there, for each core."""
    files_read: int | None = None
    """Files of the buffer that they read, and data files that they rewrote."""
    files: int | None = None
    """Data files that they wrote."""
    bytes: int | None = None
    """Bytes that consolidations added and vacuums rewrote."""


class DatasetStatus(Status):
    """The state of the table, the buffer and the runs. Written by the operator only."""

    conditions: Conditions = None
    """Ready, Reconciling and Stalled as kstatus defines them; Paused: whether the annotation lethe.dev/paused is set;
    EventsReady, if spec.buffer.events is set: whether the operator reads the queue; EvictionOnTime, if anything has an
    evictBy: whether the bytes are expected to be gone by then; EventsPublished, if the operator publishes status events:
    whether they are delivered; SourceRead, if spec.source is set: whether the inlet reads it.
    """
    table: TableStatus | None = None
    buffer: BufferStatus | None = None
    source: SourceStatus | None = None
    consolidation: ConsolidationStatus | None = None
    vacuum: VacuumStatus | None = None
    batches: BatchCounts | None = None
    tombstones: TombstoneCounts | None = None
    erasures: ErasureCounts | None = None
    holds: Annotated[tuple[HoldStatus, ...] | None, keyed_by("name", maximum=32)] = None
    """The holds of spec.holds."""
    runs: Annotated[tuple[RunEntry, ...] | None, items(maximum=30)] = None
    """The active runs and the last few of each kind, the newest first."""
    usage: RunUsage | None = None
    """What all runs of this Dataset have used."""


class BatchIdList(ApiModel):
    """The list that batchIdsFrom names, when the operator first read it."""

    count: int | None = None
    """How many batch ids it names, each counted once."""
    sha256: str | None = None
    """SHA-256 of its bytes."""


class RestatementPlan(ApiModel):
    """What the Restatement changes, or what a dry run would change. Only dry runs count files."""

    batches: int | None = None
    """Batches that are replaced, reverted or erased."""
    batch_ids: BatchIdList | None = None
    values_digest: str | None = None
    """Keyed digest of the values of rows when a run first read them, if one of their lists is at a URI and the run could not
    carry the Restatement out. Without the key, which a Secret of the cluster has, nothing can be learned from it. Absent if the
    run had no key.
    """
    files: int | None = None
    """Data files that may contain rows of these batches."""
    bytes: int | None = None
    """Bytes of these files."""
    whole_files: int | None = None
    """How many of these files contain no other rows."""
    unknown_batch_ids_count: int | None = None
    """How many of the batch ids the table did not know."""
    unknown_batch_ids: Annotated[tuple[str, ...] | None, items(maximum=20)] = None
    """The first 20 of them."""


class FailedAttempts(ApiModel):
    """How many attempts of its runs failed since its Dataset was last edited.

    Set when the Restatement has ended or needs action; absent if none failed.
    """

    run: int | None = None
    """Attempts that failed by themselves: a crash, an unknown error, or a timeout."""
    infrastructure: int | None = None
    """Attempts that failed for an external reason: a lost node, a pod that did not start, an unavailable catalog or store, too
    little memory, or conflicts with other writers.
    """


class RestatementResult(ApiModel):
    """What the commit did."""

    snapshot_id: int | None = None
    """The Iceberg snapshot with the change."""
    committed_time: Time | None = None
    """When it was committed."""
    tombstones_added: int | None = None
    """Tombstones that this request added to the ledger."""
    rows_deleted: int | None = None
    """Rows that readers no longer see."""
    rows_added: int | None = None
    """Rows of the replacement."""
    already_deleted_batch_ids_count: int | None = None
    """How many of its batches were already deleted, so that no rows of them were left to hide."""
    rows_erased: int | None = None
    """Of an Erase by records, or by the keys of a replacement: rows that were removed from data files, including rows of deleted
    batches.
    """
    rows_redacted: int | None = None
    """Of a Redact: rows whose values were replaced, including rows of deleted batches."""
    tombstones_removed: int | None = None
    """Of an Undo: tombstones that it removed from the ledger."""
    rows_restored: int | None = None
    """Of an Undo: rows that readers see again."""
    group_size: int | None = None
    """How many Restatements shared the commit."""


class ErasureStatus(ApiModel):
    """The state of the erasure, for an Erase or a Redact, or if evictBySeconds is set. The condition Erased summarizes it."""

    due_time: Time | None = None
    """When the bytes must be gone."""
    vacuum_snapshot_id: int | None = None
    """The snapshot that removed the last of the rows from the table's data files."""
    blocked_by: Annotated[tuple[str, ...] | None, items(maximum=20)] = None
    """The first 20 tags, branches, snapshots, object locks, objects and holds that keep the bytes, and until when."""
    blocked_by_count: int | None = None
    """How many there are."""
    verified_time: Time | None = None
    """When the check of the storage found none of the files."""
    record: str | None = None
    """URI of the erasure record, beside the table."""
    record_sha256: str | None = None
    """SHA-256 of the record, in hex."""
    signature: str | None = None
    """The id of the operator's key, a colon, and its ed25519 signature of the record in base64; the same is in a file beside the
    record. Absent where records are not signed.
    """


SUBJECT_DATASETS_AT_MOST: Final = 50


class SubjectDataset(ApiModel):
    """One Dataset of a subject's erasure."""

    name: str
    """Name of the Dataset."""
    restatement: str | None = None
    """Name of its Restatement; unset until the operator has created it."""
    state: str | None = None
    """Waiting, Running, Planned, Hidden, Purged, Verified or Blocked."""
    reason: str | None = None
    """Why it is in this state, as one CamelCase word."""
    message: str | None = None
    """The reason, as text."""
    rows_erased: int | None = None
    """Rows that were removed."""
    rows_redacted: int | None = None
    """Rows in which values were replaced."""


class SubjectProgress(ApiModel):
    """The erasure of a subject, counted in Datasets."""

    selected: int | None = None
    """Datasets that are part of the request."""
    hidden: int | None = None
    """Of these, where readers no longer see the rows."""
    purged: int | None = None
    """Of these, where no data file of the table has the rows."""
    verified: int | None = None
    """Of these, where a run has verified that no file in the storage has them."""
    blocked: int | None = None
    """Of these, where something must be changed, or keeps the bytes."""
    without_identity: int | None = None
    """Datasets that the selector selects, and that declare none of the subject's identities. They are not searched."""
    datasets: Annotated[tuple[SubjectDataset, ...] | None, items(maximum=SUBJECT_DATASETS_AT_MOST)] = None
    """The first 50 of the Datasets: blocked ones first, then those that are furthest from the end, then by name."""


NOT_CARRIED_OUT: Final = frozenset({"Failed", "Cancelled", "RolledBack"})
"""The phases in which a Restatement has no effect on the table, and gets none by itself."""


class RestatementStatus(Status):
    """The state of the Restatement. Written by the operator only."""

    phase: str | None = None
    """One of Pending, Queued, Running, Succeeded, Failed, Suspended, Cancelled and RolledBack. For reading; scripts should wait
    for the condition Succeeded.
    """
    progress: str | None = None
    """Progress of the active run, as text."""
    queue_position: int | None = None
    """The position among the waiting Restatements of the Dataset, from 1. It is updated when it has halved, so the actual
    position may be lower.
    """
    conditions: Conditions = None
    """Ready, Reconciling and Stalled as kstatus understands them; Succeeded once the request is part of the table's history, and
    False again, with the reason RolledBack, if the table is rolled back to an earlier snapshot; Erased once its bytes are
    verified to be gone; VisibleToAllEngines, if the Dataset writes native deletes: whether engines without Lethe see the result.
    """
    undoes_key: str | None = None
    """Of an Undo: the key of the request that it undoes, in the table's ledger."""
    plan: RestatementPlan | None = None
    attempts: FailedAttempts | None = None
    result: RestatementResult | None = None
    erasure: ErasureStatus | None = None
    subject: SubjectProgress | None = None


class PolicyDataset(ApiModel):
    """One Dataset."""

    name: str
    """Name of the Dataset."""
    decision: str | None = None
    """Due, Later, Running or NeedsApproval."""
    reason: str | None = None
    """The reason, as one CamelCase word."""
    message: str | None = None
    """The reason, as text."""
    active_tombstones: int | None = None
    """Active tombstones of the table."""
    planned_bytes: int | None = None
    """Bytes of data files that a vacuum would rewrite, by the last plan."""
    planned_files: int | None = None
    """How many data files it would rewrite or drop."""
    plan_digest: str | None = None
    """Names that plan, to approve it."""
    next_time: Time | None = None
    """When the decision is expected to change without another event."""
    last_run_time: Time | None = None
    """When a vacuum of this Dataset ended last."""


class VacuumPolicyStatus(Status):
    """What the policy decided. Written by the operator only."""

    datasets_count: int | None = None
    """To how many Datasets the policy applies."""
    datasets: Annotated[tuple[PolicyDataset, ...] | None, items(maximum=20)] = None
    """The first 20 of them with the last decision: those that wait for an approval first, then those that are due, then by name.
    """
    last_run_time: Time | None = None
    """When a vacuum under this policy ended last."""
    next_window_time: Time | None = None
    """When the window opens next; unset without a window."""


M = TypeVar("M", bound=ApiModel)
S = TypeVar("S", bound=Status)

# Resources with an active run are looked at every few seconds. Each of these takes up to 40 KiB.
PARSED_AT_MOST: Final = 500


@dataclass(frozen=True)
class StoredStatus(Generic[S]):
    """A status as the API server has it, which is parsed at its first use.

    Parsed statuses take three times the memory. Thousands of resources are therefore kept unparsed: a reconcile parses the
    `recent` one of the resource that it is about, and `parts` of others.
    """

    model: type[S]
    document: Mapping[str, Any] = field(default_factory=dict)

    __hash__ = object.__hash__

    @property
    def parsed(self) -> S:
        """The status without the values that do not fit."""
        return self._read[0]

    @property
    def fits(self) -> bool:
        """Whether all values fit, apart from fields that this version does not know."""
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[S, bool]:
        try:
            return self.model.model_validate(self.document, by_name=False), True
        except ValidationError:
            return parse_status(self.model, self.document), False

    def recent(self) -> "StoredStatus[S]":
        """The same, which is kept with its parsed status while it is one of the last `PARSED_AT_MOST` that were asked for."""
        return _recent(self)

    def parts(self, *names: str) -> S:
        """The status with these fields only, by their names in the API. They are parsed at each call."""
        return parse_status(self.model, {name: self.document.get(name) for name in names})


@lru_cache(maxsize=PARSED_AT_MOST)
def _recent(stored: StoredStatus[S]) -> StoredStatus[S]:
    return StoredStatus(stored.model, stored.document)


def stored_status(model: type[S], body: Mapping[str, Any]) -> StoredStatus[S]:
    """The status of a resource."""
    document = body.get("status")
    return StoredStatus(model, document if isinstance(document, Mapping) else {})


def parse_status(model: type[M], document: object) -> M:
    """Parse a status, a part of one, or what an answer shows of it.

    A status that another version or a person wrote stops nothing: a value that does not fit the model is left out, and with it
    the entry of a list that needs it.
    """
    while True:
        try:
            return model.model_validate(document, by_name=False)
        except ValidationError as e:
            document = _without(document, e) if isinstance(document, Mapping) else {}


def _without(document: Any, error: ValidationError) -> Any:
    """A copy of the document without the first value that the error names."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    path = first["loc"]
    return _cut(document, path[:-1] if first["type"] == "missing" else path)


def _cut(value: Any, path: Sequence[int | str]) -> Any:
    """A copy without the value at the end of a path."""
    inner = _cut(value[path[0]], path[1:]) if len(path) > 1 else None
    changed = dict(value) if isinstance(value, Mapping) else dict(enumerate(value))
    changed[path[0]] = inner
    kept = {k: v for k, v in changed.items() if v is not None}
    return kept if isinstance(value, Mapping) else list(kept.values())
