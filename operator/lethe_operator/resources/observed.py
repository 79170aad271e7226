"""What the operator observes of the cluster and a table at one moment, as frozen values: the input of every decision. Pure.

An attempt by the committer or the warm driver has no Job. A record in the Dataset's ConfigMap holds what the labels and
annotations of a Job would say.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal, assert_never

from lethe.base.errors import Verdict
from lethe.buffer.digest import EMPTY_BUFFER, BufferDigest
from lethe.buffer.notifications import Written
from lethe.contract.kubernetes import MIB
from lethe.contract.result import WARM_DRIVER_AWAY, AnyRunResult, Progress
from lethe.contract.run import RestatementRequest, RunSpec
from lethe.contract.schema import ApiModel
from lethe.contract.settings import Launcher, RunFamily, RunKind
from lethe.contract.status import StoredStatus
from lethe.ledger.ledger import EMPTY, Ledger
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import Erasure
from pydantic import Field, model_validator

from lethe_operator.resources.common import ANNOTATION_DATASET, FOR_ERASURES, FOR_HEAD, LABEL_DATASET_UID, Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.restatement import Restatement, SecretFile
from lethe_operator.resources.vacuum_policy import VacuumPolicy

# What the scheduler says of a node without room. Other obstacles, such as taints, stay when another pod ends.
_LACKS_ROOM: Final = ("Insufficient ", "Too many pods")


@dataclass(frozen=True)
class UnplacedPod:
    """A pod of a run for which no node has room."""

    namespace: str
    name: str
    dataset: str
    """Name of the Dataset of its run."""
    dataset_uid: str
    since: datetime
    message: str
    """Of the scheduler."""


def unplaced_pod(pod: Mapping[str, Any]) -> UnplacedPod | None:
    """The pod, if it is of a run and the scheduler finds no room for it; None: it does, or something else is missing."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    annotations = metadata.get("annotations") or {}
    # A warm driver with values is for runs of several Datasets. Annotations name the one that it was started for.
    uid = (metadata.get("labels") or {}).get(LABEL_DATASET_UID) or annotations.get(LABEL_DATASET_UID)
    if not uid or status.get("phase") != "Pending" or "deletionTimestamp" in metadata:
        return None
    for condition in status.get("conditions") or ():
        if (condition.get("type"), condition.get("status")) != ("PodScheduled", "False"):
            continue
        message, since = str(condition.get("message") or ""), condition.get("lastTransitionTime")
        if condition.get("reason") != "Unschedulable" or not since or not any(t in message for t in _LACKS_ROOM):
            continue
        return UnplacedPod(
            namespace=metadata["namespace"],
            name=metadata["name"],
            dataset=annotations.get(ANNOTATION_DATASET, ""),
            dataset_uid=uid,
            since=datetime.fromisoformat(str(since).replace("Z", "+00:00")),
            message=message,
        )
    return None


class ContentMode(StrEnum):
    """Where a message has the attributes of its event."""

    BINARY = "Binary"
    """In headers; the body is the content."""
    STRUCTURED = "Structured"
    """In the body, with the content."""


class StartedFrom(StrEnum):
    """Where the publishing of a table starts."""

    BEGINNING = "Beginning"
    """The whole history that the table has retained follows."""
    HEAD = "Head"
    """Only what is committed from now on follows."""


class HttpSinkSettings(ApiModel):
    """A receiver of status events by HTTP."""

    url: str = Field(pattern=r"^https?://[^/\s]+")
    mode: ContentMode = ContentMode.BINARY
    timeout_seconds: float = Field(default=10, gt=0)
    """Until the receiver answers a request."""


class KafkaSinkSettings(ApiModel):
    """A topic for status events."""

    bootstrap_servers: str = Field(min_length=1)
    """Host:port, comma-separated."""
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    mode: ContentMode = ContentMode.BINARY
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    timeout_seconds: float = Field(default=30, gt=0)
    """Until all brokers have acknowledged some messages."""


class OpenLineageSettings(HttpSinkSettings):
    """A receiver of OpenLineage's RunEvents by HTTP, such as Marquez."""

    namespace: str = Field(default="lethe", min_length=1)  # of the jobs


class EventsSettings(ApiModel):
    """The publisher of status events."""

    enabled: bool = False
    http: HttpSinkSettings | None = None
    kafka: KafkaSinkSettings | None = None
    open_lineage: OpenLineageSettings | None = None
    """Besides a sink of status events, or alone."""
    start: StartedFrom = StartedFrom.HEAD
    """Where the history of tables begins that existed before events were enabled. Other tables begin at their beginning."""
    source_prefix: str = Field(default="", pattern=r"^[^\s]*$")
    """Put before the path of the Dataset in `source`, such as the URL of the cluster."""
    max_event_bytes: int = Field(default=64 * 1024, ge=16 * 1024, le=16 * MIB)
    """Bytes. The content of an event is at most this large. 64 KiB is what every intermediary of CloudEvents must forward."""
    workers: int = Field(default=2, ge=1, le=16)
    """Threads that publish, each one table at a time."""
    # Seconds. Pauses after a failure: the first one, and the longest.
    retry_base_seconds: float = Field(default=1, gt=0)
    retry_max_seconds: float = Field(default=60, gt=0)

    @model_validator(mode="after")
    def _one_sink(self) -> "EventsSettings":
        if self.http is not None and self.kafka is not None:
            raise ValueError("set either http or kafka")
        if self.enabled and not (self.http or self.kafka or self.open_lineage):
            raise ValueError("set either http or kafka, or openLineage")
        return self


NO_TROUBLE: Final = Verdict("", "")
"""Every event is delivered."""


class Engine(StrEnum):
    """What carries out an attempt of a run. The notes about attempts contain these names, so they must not change."""

    JOB = "Job"
    """A pod of its own, or one that several Datasets share."""
    COMMITTER = "Committer"
    """The namespace's process for runs that write no data files."""
    WARM_DRIVER = "WarmDriver"
    """The namespace's driver that stays up between small runs."""
    VALUES_DRIVER = "ValuesDriver"
    """The warm driver for runs that need the values of Erases and Redacts: its pod has their Secrets."""


WarmEngine = Literal[Engine.WARM_DRIVER, Engine.VALUES_DRIVER]


class Dispatch(ApiModel):
    """The record of an attempt that a process of the namespace got instead of a Job of its own."""

    name: str
    """The name that a Job of this attempt would have."""
    run_id: str
    family: RunFamily = Field(alias="kind")
    attempt: int
    generation: int
    """The Dataset's when the operator wrote the record."""
    for_uid: str = ""
    """As in the annotation ANNOTATION_FOR_UID of a Job."""
    created_time: datetime
    engine: Engine
    """Which process."""
    secrets: tuple[SecretFile, ...] = ()
    """That the run needs."""


@dataclass(frozen=True)
class Unavailable(Verdict):
    """Something could not be observed."""

    transient: bool = field(default=True, kw_only=True)


@dataclass(frozen=True)
class LostLedger(Unavailable):
    """The table had a ledger, and its current head does not lead to one."""

    uuid: str = ""
    head_id: int = 0
    last_ledger: str | None = None
    """URI of the ledger to continue with; None: unknown."""


@dataclass(frozen=True)
class Invalid:
    """A resource with an invalid spec."""

    kind: str
    meta: Meta
    stored: StoredStatus[Any]
    """The status."""
    message: str
    """Names the field."""


@dataclass(frozen=True)
class NoTable:
    """The catalog answered that the table does not exist."""

    warehouse: str = ""
    """URI where the catalog would create the table; "": unknown."""


@dataclass(frozen=True)
class TableView:
    """The table at one moment."""

    uuid: str
    location: str
    format_version: int
    # None: the table has no snapshot.
    head_id: int | None
    head_time: datetime | None
    claim: str | None
    """`<namespace>/<name>` of the Dataset that owns the table; None: no Dataset."""
    batch_field_id: int | None
    """Iceberg field id of the batch column; None: the table has no such column."""
    prepared: bool
    """The table has the sort order and the metrics mode that Lethe needs."""
    head_sequence_number: int = 0
    """0: the table has no snapshot, or format version 1."""
    is_masked: bool = True
    """Native deletes hide the rows of every active tombstone, as far as the head's ledger says. False: some have none yet, or the
    head has no ledger of its own.
    """
    bare_since: datetime | None = None
    """Since when the head has no ledger of its own; None: it has one, or the table never had one."""
    ancestry: Mapping[int, Snapshot] = field(default_factory=dict)
    """The head and its retained ancestors. Only Undos have their summaries."""
    ledger: Ledger = EMPTY
    """Contains only the batches and requests that a decision may look up, and the statistics of all."""
    run_ids: frozenset[str] = frozenset()
    """Ids of the runs whose last commit is among the head and its retained ancestors."""
    total_bytes: int = 0
    """Size of the head's data files, including hidden rows; 0: unknown, or there are none."""
    total_records: int | None = None
    """Rows of the head's data files, including hidden rows; None: unknown."""
    holds_batches: bool = False
    """This is a table of batches, which Lethe writes for another table."""
    refs: Mapping[str, int] = field(default_factory=dict)
    """Snapshot ids by the names of tags and branches."""
    snapshot_ids: frozenset[int] = frozenset()
    """All retained snapshots, including staged snapshots and those of branches."""
    write_paths: Mapping[str, str] = field(default_factory=dict)
    """Folders of data or metadata files that table properties set: URI by property."""
    keeps_files: bool = False
    """Its properties forbid to expire snapshots and to delete files (`gc.enabled`)."""
    ledger_uri: str | None = None
    """URI of the ledger's root; None: the empty ledger."""
    invalid_hold: str | None = None
    """Why a filter of spec.holds of the Dataset does not fit its columns; None: all fit."""
    unsafe: str | None = None
    """Why no run may open it: the message about a property that names a class or a host; None: there is no such property."""

    @property
    def places(self) -> tuple[str, ...]:
        """URIs of the folders in `write_paths`."""
        return tuple(self.write_paths.values())

    def has_committed(self, run: "ObservedRun") -> bool:
        """Whether a commit of this run is in the table's history, as far as the retained snapshots and the ledger show.

        For a run that commits in several steps, such as a vacuum: its last commit.
        """
        if run.run_id in self.run_ids:
            return True
        if run.kind.commits_in_steps:
            return False
        if run.run_id == self.ledger.pending_run:
            return True
        if run.intent is None:
            return False
        batches = run.intent.consolidation.batch_ids if run.intent.consolidation else ()
        known = (*map(self.ledger.batches.get, batches), *(self.ledger.requests.get(r.key) for r in run.requests))
        return any(entry is not None and entry.run == run.run_id for entry in known)


@dataclass(frozen=True)
class CatalogPlace:
    """Where a catalog keeps its tables."""

    store: str
    """Endpoint of its S3 server; "": the default one."""
    warehouse: str
    """URI of the folder of its tables; "": only the catalog's service knows it."""
    is_local: bool = False
    """The catalog and its files are on one machine."""


@dataclass(frozen=True)
class NotListed:
    """The first listing of the buffer, since the operator started or the Dataset was created, has not finished."""


@dataclass(frozen=True)
class EventsView:
    """The state of the queue of notifications of a Dataset's buffer."""

    is_read: bool = False
    """The queue answers."""
    trouble: Unavailable | None = None
    """Why the queue is not read; None: no error, or it was not read yet."""
    in_flight: int = 0
    """Messages that wait for a commit."""
    oldest_time: datetime | None = None
    """When the oldest of them was sent; None: there are none."""
    writes: Mapping[str, Mapping[str, Written]] = field(default_factory=dict)
    """The latest write of each data file that the messages report, by batch id and key."""


class AttemptState(StrEnum):
    """The state of an attempt, as far as the operator has observed it."""

    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class WorkerView:
    """A process of the namespace that takes runs from a mailbox: the committer, or the warm driver."""

    alive: bool
    """It renews its Lease."""
    mailbox: frozenset[str] = frozenset()
    """Keys of the runs that it received and has not finished."""
    cancelled: frozenset[str] = frozenset()
    """Keys of these runs that it is to stop."""
    starting: bool = False
    """Its Job exists and has not ended; only for the warm driver."""
    away_until: datetime | None = None
    """It made way for a pod of a run, and takes no runs until then; None: it takes runs."""


@dataclass(frozen=True)
class Failures:
    """Numbers of failed attempts, by cause (`lethe_operator.runs.retry.Cause`)."""

    run: int = 0
    """Cause RUN."""
    infrastructure: int = 0
    """Cause INFRASTRUCTURE."""

    def __add__(self, other: "Failures") -> "Failures":
        return Failures(self.run + other.run, self.infrastructure + other.infrastructure)

    @property
    def total(self) -> int:
        """The number of failed attempts, whatever the cause."""
        return self.run + self.infrastructure


NO_FAILURES: Final = Failures()


def kind_of(family: RunFamily, for_uid: str) -> RunKind:
    """The kind of an attempt, from the labels and annotations of its Job or from its dispatch document.

    Args:
        for_uid: The value of ANNOTATION_FOR_UID.
    """
    match family:
        case RunFamily.CONSOLIDATION:
            return RunKind.REANCHORING if for_uid == FOR_HEAD else RunKind.CONSOLIDATION
        case RunFamily.RESTATEMENT:
            return RunKind.RESTATEMENT
        case RunFamily.VACUUM:
            return RunKind.ERASURE_CHECK if for_uid == FOR_ERASURES else RunKind.VACUUM
        case _:
            assert_never(family)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run: a Job, this Dataset's part of a shared Job, or a run that a process of the namespace received.

    For a shared Job, `state`, `finished` and `exit_code` describe this Dataset's part only. The part ends with its result.
    """

    # Name of the Job. If `engine` is not JOB, there is no Job of this name.
    job: str
    run_id: str
    kind: RunKind
    # From 1.
    number: int
    state: AttemptState
    created: datetime
    # When it last became able to start a pod; None: at its creation.
    started: datetime | None = None
    finished: datetime | None = None
    generation: int = 0
    """The Dataset's at launch."""
    for_uid: str = ""
    """UID of the Restatement that the run serves, FOR_HEAD or FOR_ERASURES; "": none, or several Restatements."""
    exit_code: int | None = None
    """Of the driver container; None: it has not ended, or its pod is gone."""
    oom: bool = False
    """The driver container was killed for its memory; False also if its pod is gone."""
    # Reason and message of the Job's condition Complete or Failed; "": it has none.
    job_reason: str = ""
    job_message: str = ""
    launcher: Launcher = Launcher.JOB
    """The kind of the object that launched it."""
    suspended: str = ""
    """Why the object may not start a pod now, such as a quota of Kueue; "": it may. Such an attempt is active and waits."""
    waiting: str = ""
    """Why the driver's pod does not run yet; "": it runs or has run, or the attempt is suspended."""
    # Why pods of executors do not run yet; "": none waits.
    executors_waiting: str = ""
    deleting: bool = False
    engine: Engine = Engine.JOB
    secrets: tuple[SecretFile, ...] = ()
    """That the run needs. Known only of an attempt that a process of the namespace received."""
    failures_before: Failures = NO_FAILURES
    """Of earlier attempts of the run, counted at launch."""
    progress: Progress | None = None
    """None: the driver has reported nothing yet."""
    result: AnyRunResult | None = None
    """None: there is none, or none of this attempt."""


@dataclass(frozen=True)
class ObservedRun:
    """A run with its attempts."""

    run_id: str
    kind: RunKind
    intent: RunSpec | None
    """None: its document was deleted or cannot be read."""
    attempts: tuple[Attempt, ...] = ()
    """Oldest first."""
    keys: tuple[str, ...] = ()
    """Its keys in the Dataset's ConfigMap."""

    @property
    def last(self) -> Attempt | None:
        """The newest attempt; None: no attempt is known."""
        return self.attempts[-1] if self.attempts else None

    @property
    def ended_attempts(self) -> tuple[int, ...]:
        """The numbers of the attempts that certainly write nothing any more.

        The kubelet has reported the end of the container, or the attempt itself its result. A failed Job proves
        nothing, nor does a warm driver that did not report a result: its node may be cut off, and the pod still run.
        """
        before = self.intent.ended_attempts if self.intent is not None else ()
        reported = (a for a in self.attempts if a.exit_code is not None or a.result is not None)
        ended = (a.number for a in reported if a.result is None or a.result.reason != WARM_DRIVER_AWAY)
        return tuple(sorted({*before, *ended}))

    @property
    def requests(self) -> tuple[RestatementRequest, ...]:
        """The requests of its group; empty if it is not a run of Restatements or its document is unknown."""
        return self.intent.restatement.requests if self.intent is not None and self.intent.restatement else ()

    @property
    def is_dry(self) -> bool:
        """Whether it is known to be a dry run, which commits nothing."""
        return self.intent is not None and self.intent.restatement is not None and self.intent.restatement.dry_run

    @property
    def active(self) -> bool:
        """Whether at least one attempt is active, also if a newer one has ended."""
        return any(a.state is AttemptState.ACTIVE for a in self.attempts)


@dataclass(frozen=True)
class VacuumJob:
    """A Job that vacuums a table of the namespace."""

    dataset: str
    """Name."""
    uid: str
    """Of the Dataset."""
    active: bool
    finished: datetime | None = None


@dataclass(frozen=True)
class VacuumLimit:
    """The limit of a VacuumPolicy on the number of active vacuums."""

    policy: str
    at_most: int
    uids: frozenset[str]
    """Of the Datasets that count."""

    def taken(self, jobs: Iterable[VacuumJob], but: str) -> list[str]:
        """Names of the Datasets with an active vacuum, except for the Dataset with the UID `but`."""
        return sorted(j.dataset for j in jobs if j.active and j.uid in self.uids and j.uid != but)


@dataclass(frozen=True)
class LookupView:
    """A Dataset in whose table Restatements of other Datasets look up values, as its own last reconcile has seen it."""

    dataset: Dataset
    table: TableView | NoTable | Unavailable = NoTable()
    buffer: BufferDigest | NotListed | Unavailable = field(default_factory=NotListed)
    """Consistent with the table's ledger. NotListed: no reconcile of this generation of the Dataset has listed it yet."""


@dataclass(frozen=True)
class Observation:
    """Everything that a decision about one Dataset depends on, except for the Dataset and the clock.

    The operator observes the Jobs before the table. So if a Job is seen finished, the ledger that is seen has its commit.
    """

    # The Dataset's Restatements that may need an action or a new status. Most finished ones are left out.
    restatements: tuple[Restatement, ...] = ()
    policies: tuple[VacuumPolicy, ...] = ()
    runs: tuple[ObservedRun, ...] = ()
    table: TableView | NoTable | Unavailable = NoTable()
    buffer: BufferDigest | NotListed | Unavailable = EMPTY_BUFFER
    """Consistent with the table's ledger."""
    is_listed_now: bool = False
    """A listing that may find more batches is under way, or about to begin."""
    overlapping_datasets: tuple[Dataset, ...] = ()
    """The other Datasets of the namespace whose buffer, table or queue this Dataset or its Restatements may use too."""
    events: EventsView | None = None
    """None: the Dataset has no queue."""
    committer: WorkerView | None = None
    """None: the committer is not enabled."""
    warm_driver: WorkerView | None = None
    """None: warm drivers are not enabled."""
    values_driver: WorkerView | None = None
    """The warm driver for runs with values; None: warm drivers are not enabled."""
    next_expiry: datetime | None = None
    """When the ttlSecondsAfterFinished of the next Restatement that is not in `restatements` passes; None: of none."""
    other_namespaces: tuple[Dataset, ...] = ()
    """Such Datasets of the other watched namespaces."""
    catalogs: Mapping[str, CatalogPlace] = field(default_factory=dict)
    """The operator's catalogs, by name."""
    vacuums: tuple[VacuumJob, ...] = ()
    """Of all Datasets of the namespace, if the Dataset's VacuumPolicy has limits.concurrentRuns; otherwise empty."""
    peers_in_namespace: tuple[Dataset, ...] = ()
    """All Datasets of the namespace, in the same case; otherwise empty."""
    lookups: Mapping[str, LookupView] = field(default_factory=dict)
    """The Datasets in whose tables its Restatements look up values, by name; without those that do not exist."""
    looked_up_by: tuple[Restatement, ...] = ()
    """The unfinished Restatements of other Datasets that look up values in this one's table."""
    publishing: Verdict | None = None
    """Why status events are not delivered; without a reason: they are. None: they are not enabled."""

    @cached_property
    def open_erasures(self) -> Mapping[str, Erasure]:
        """The open erasures, by the keys of their Restatements."""
        return {e.restatement: e for e in self.table.ledger.open_erasures} if isinstance(self.table, TableView) else {}

    @cached_property
    def restatements_by_name(self) -> Mapping[str, Restatement]:
        """The observed Restatements, most finished ones left out, by name."""
        return {r.meta.name: r for r in self.restatements}
