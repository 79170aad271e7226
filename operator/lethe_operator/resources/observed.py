"""What is observed of the world at one moment, as frozen values: the second argument of every decision. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, assert_never

from lethe.buffer.digest import EMPTY_BUFFER, BufferDigest
from lethe.buffer.notifications import Written
from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.result import AnyRunResult, Progress
from lethe.contract.run import RestatementRequest, RunSpec
from lethe.ledger.erasure import Erasure
from lethe.ledger.ledger import EMPTY, Ledger
from lethe.ledger.lineage import Snapshot

from lethe_operator.resources.common import FOR_ERASURES, FOR_HEAD, Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy


@dataclass(frozen=True)
class Unavailable:
    """Something could not be observed. `transient` says whether waiting can help; else the user has to act."""

    reason: str
    message: str
    transient: bool = True


@dataclass(frozen=True)
class LostLedger(Unavailable):
    """A table whose head leads to no ledger although the table had one."""

    uuid: str = ""
    head_id: int = 0
    # URI of the ledger to continue with; None: unknown.
    last_ledger: str | None = None


@dataclass(frozen=True)
class Invalid:
    """A resource whose spec cannot be read; `message` names the field."""

    kind: str
    meta: Meta
    status: Mapping[str, Any]
    message: str


@dataclass(frozen=True)
class NoTable:
    """The catalog answered: the table is not there. `warehouse` is where the catalog would put it, "" when unknown."""

    warehouse: str = ""


@dataclass(frozen=True)
class TableView:
    """The table at one moment.

    `head_sequence_number` is 0 in format version 1; `bare_since`: since when the head has no ledger of its own, None while it
    has, or while the table has none at all; `ancestry`: the head and its retained ancestors, with the summaries of Undos alone;
    `claim`: `<namespace>/<name>` of the Dataset that owns it, None when nobody does; `ledger`: of its batches and requests
    only those that a decision may ask for, with the statistics of all; `run_ids`: runs whose last commit is among the retained
    snapshots; `total_bytes` and `total_records`: of the live data files of the head, hidden rows included, None when its
    writer did not say how many; `holds_batches`: it is the table of another one's batches; `refs`: its tags and branches;
    `snapshot_ids`: of all retained snapshots, staged ones and those of branches included.
    """

    uuid: str
    location: str
    format_version: int
    head_id: int | None
    head_time: datetime | None
    claim: str | None
    batch_field_id: int | None
    prepared: bool
    head_sequence_number: int = 0
    bare_since: datetime | None = None
    ancestry: Mapping[int, Snapshot] = field(default_factory=dict)
    ledger: Ledger = EMPTY
    run_ids: frozenset[str] = frozenset()
    total_bytes: int = 0
    total_records: int | None = None
    holds_batches: bool = False
    refs: Mapping[str, int] = field(default_factory=dict)
    snapshot_ids: frozenset[int] = frozenset()
    # Table properties by which its writers put files in folders outside of `location`, and the URIs of those.
    write_paths: Mapping[str, str] = field(default_factory=dict)
    # URI of the ledger's root; None: the empty ledger.
    ledger_uri: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """URIs of folders outside of `location` that its writers use."""
        return tuple(self.write_paths.values())

    def has_committed(self, run: "ObservedRun") -> bool:
        """Whether a commit of this run is in the table's history, as far as snapshots, or what it was to do, still tell. Of a
        vacuum, which may commit in several steps, its last one."""
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

    store: str  # endpoint of its S3 server, "" for the default one
    warehouse: str  # URI of the folder of its tables; "": only its service knows
    is_local: bool = False  # whether it is on one machine, with its files


@dataclass(frozen=True)
class NotListed:
    """The buffer is being listed, for the first time since the operator started or the Dataset came."""


@dataclass(frozen=True)
class EventsView:
    """How the notifications of a Dataset's buffer are read. `is_read`: the queue answers; `trouble`: why it is not read, None
    before it was asked; `in_flight`: messages that wait for a commit, the oldest of them sent at `oldest_time`; `writes`: what
    they tell, the latest write of each data file by batch and key."""

    is_read: bool = False
    trouble: Unavailable | None = None
    in_flight: int = 0
    oldest_time: datetime | None = None
    writes: Mapping[str, Mapping[str, Written]] = field(default_factory=dict)


class AttemptState(StrEnum):
    ACTIVE = "Active"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True)
class CommitterView:
    """The committer of the namespace. `alive`: its Lease is being renewed; `mailbox`: the keys of what it was asked for and has
    not taken out yet."""

    alive: bool
    mailbox: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Failures:
    """How many attempts failed by themselves, and how many for what lies outside of them."""

    run: int = 0
    infrastructure: int = 0

    def __add__(self, other: "Failures") -> "Failures":
        return Failures(self.run + other.run, self.infrastructure + other.infrastructure)

    @property
    def total(self) -> int:
        return self.run + self.infrastructure


NO_FAILURES: Final = Failures()


def kind_of(family: RunFamily, for_uid: str) -> RunKind:
    """The kind of an attempt, by the labels and annotations of its Job or by its dispatch document.

    Args:
        for_uid: What the attempt serves.
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
    """One Job, or this Dataset's part of one, or what the committer was asked for, for which `job` is only a name.

    `generation` is the Dataset's when it was launched, `for_uid` the UID of the Restatement it serves, FOR_HEAD if it serves the
    head, "" otherwise; `exit_code` and `oom` are the driver container's, None and False when its pod is gone; `waiting` says why
    the pod does not run yet; `datasets`: how many share the Job; `failures_before`: of earlier attempts of its run, as it was
    launched.

    Of a shared Job `state`, `finished` and `exit_code` tell of this Dataset's part alone: it has ended with its result."""

    job: str
    run_id: str
    kind: RunKind
    number: int
    state: AttemptState
    created: datetime
    finished: datetime | None = None
    generation: int = 0
    for_uid: str = ""
    exit_code: int | None = None
    oom: bool = False
    job_reason: str = ""
    job_message: str = ""
    waiting: str = ""
    deleting: bool = False
    datasets: int = 1
    by_committer: bool = False
    failures_before: Failures = NO_FAILURES
    progress: Progress | None = None
    result: AnyRunResult | None = None

    @property
    def shared(self) -> bool:
        return self.datasets > 1

    @property
    def reached(self) -> bool:
        """Whether the driver has begun with it, as far as is known: in a shared Job it may have to wait for its turn."""
        return not self.shared or self.progress is not None or self.result is not None


@dataclass(frozen=True)
class ObservedRun:
    """One intent with its attempts, oldest first. `intent` is None when its document is gone or could not be read;
    `keys`: what the Dataset's ConfigMap holds of it."""

    run_id: str
    kind: RunKind
    intent: RunSpec | None
    attempts: tuple[Attempt, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def last(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def requests(self) -> tuple[RestatementRequest, ...]:
        """Whose group it carries out, as far as its document is known."""
        return self.intent.restatement.requests if self.intent is not None and self.intent.restatement else ()

    @property
    def is_dry(self) -> bool:
        """Whether it is a dry run, which commits nothing, as far as its document is known."""
        return self.intent is not None and self.intent.restatement is not None and self.intent.restatement.dry_run

    @property
    def active(self) -> bool:
        return any(a.state is AttemptState.ACTIVE for a in self.attempts)


@dataclass(frozen=True)
class VacuumJob:
    """A Job that vacuums a table of the namespace, whichever Dataset's (`dataset`, with this UID) it is."""

    dataset: str
    uid: str
    active: bool
    finished: datetime | None = None


@dataclass(frozen=True)
class VacuumLimit:
    """One of `at_most` places among the vacuums of the Datasets with these UIDs."""

    policy: str
    at_most: int
    uids: frozenset[str]

    def taken(self, jobs: Iterable[VacuumJob], but: str) -> list[str]:
        """The Datasets that have one, without the one with the UID `but`."""
        return sorted(j.dataset for j in jobs if j.active and j.uid in self.uids and j.uid != but)


@dataclass(frozen=True)
class World:
    """Everything a decision about one Dataset looks at, besides the Dataset and the clock. Jobs are observed before the
    table, so that the outcome of a Job that is seen finished is in the ledger that is seen."""

    restatements: tuple[Restatement, ...] = ()  # those that something may be left to do or to say of
    policies: tuple[VacuumPolicy, ...] = ()
    runs: tuple[ObservedRun, ...] = ()
    table: TableView | NoTable | Unavailable = NoTable()
    buffer: BufferDigest | NotListed | Unavailable = EMPTY_BUFFER  # as of the table's ledger
    neighbours: tuple[Dataset, ...] = ()  # the other Datasets of the namespace
    events: EventsView | None = None  # None: the Dataset asks for none
    committer: CommitterView | None = None  # None: there is none, or nothing to ask it for
    next_expiry: datetime | None = None  # when the time to live of a Restatement is over that is not among these
    elsewhere: tuple[Dataset, ...] = ()  # the Datasets of the other watched namespaces
    catalogs: Mapping[str, CatalogPlace] = field(default_factory=dict)  # of the operator, by their names
    vacuums: tuple[VacuumJob, ...] = ()  # of all Datasets, if a VacuumPolicy says how many there may be at once

    @cached_property
    def open_erasures(self) -> Mapping[str, Erasure]:
        """By the keys of the Restatements that left them."""
        return {e.restatement: e for e in self.table.ledger.open_erasures} if isinstance(self.table, TableView) else {}

    @cached_property
    def restatements_by_name(self) -> Mapping[str, Restatement]:
        return {r.meta.name: r for r in self.restatements}
