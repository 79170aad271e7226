"""What an index says of batches, restatements and erasures, and its schema: one SQLite file for each table. Pure.

A ledger keeps the last state of a batch, the Restatement that set it, and its tombstone. Times of commits and of vacuums come
from the snapshots that the table retains. Of what has expired, the time is unknown, and absent.

Times in an index are microseconds since 1970, in UTC. The indexes `by_…` contain everything that a page is chosen by, so the
worst filter costs one walk through one of them, not through the batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, assert_never

from lethe.buffer.batch_rows import BUFFERED, BatchRow
from lethe.contract.result import RequestResult
from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import ErasureStatus
from lethe.ledger.ledger import BatchState
from lethe.ledger.tombstone import Erasure
from lethe.restatement.plan import name_of
from pydantic import BaseModel, ConfigDict, Field

from lethe_gateway.freshness import SnapshotIdText
from lethe_gateway.problems import Kind, Problem

VERSION: Final = 4  # of this schema; an index of another version is built again


class IndexedState(StrEnum):
    """The state of a batch, in the order of its numbers in an index."""

    PROMOTED = BatchState.PROMOTED.value
    REVERTED = BatchState.REVERTED.value
    REPLACED = BatchState.REPLACED.value
    ERASED = BatchState.ERASED.value
    REFUSED = BatchState.REFUSED.value
    HELD = BatchState.HELD.value
    BUFFERED = BUFFERED


# The states of batches, by their number in the index.
STATES: Final = tuple(s.value for s in IndexedState)

TABLES: Final = """
CREATE TABLE batches (
  id TEXT PRIMARY KEY, state INTEGER NOT NULL, time INTEGER NOT NULL, rows INTEGER, bytes INTEGER, objects INTEGER,
  snapshot INTEGER, run TEXT, restatement TEXT, replaced_by TEXT, refusal_reason TEXT, refusal_message TEXT,
  evict_by INTEGER, reference TEXT, file INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE files (number INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE);
CREATE TABLE chunks (
  part TEXT NOT NULL, position INTEGER NOT NULL, file TEXT NOT NULL, PRIMARY KEY (part, position)
) WITHOUT ROWID;
CREATE TABLE requests (key TEXT PRIMARY KEY, verified INTEGER NOT NULL, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE tombstones (id TEXT PRIMARY KEY, added INTEGER NOT NULL, evict_by INTEGER, partly INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE erasures (key TEXT PRIMARY KEY, document TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE snapshots (id INTEGER PRIMARY KEY, time INTEGER NOT NULL);
CREATE TABLE vacuums (snapshot INTEGER PRIMARY KEY);
CREATE TABLE purges (id TEXT NOT NULL, snapshot INTEGER NOT NULL, PRIMARY KEY (id, snapshot)) WITHOUT ROWID;
CREATE TABLE state (one INTEGER PRIMARY KEY CHECK (one = 1), document TEXT NOT NULL);
"""
# Created after the first rows, which is faster.
INDEXES: Final = """
CREATE INDEX by_id ON batches (id, time, state);
CREATE INDEX by_time ON batches (time, id, state);
CREATE INDEX by_state ON batches (state, time, id);
CREATE INDEX by_restatement ON batches (restatement, time, id, state) WHERE restatement IS NOT NULL;
CREATE INDEX by_file ON batches (file);
CREATE INDEX verified ON requests (key) WHERE verified = 1;
CREATE INDEX purges_by_snapshot ON purges (snapshot);
"""


@dataclass(frozen=True)
class TableTarget:
    """Which table to open, and whose it must be."""

    catalog: str
    name: str
    """`namespace.table`."""
    claim: str
    """`<kubernetes namespace>/<Dataset>`: the value of the table property lethe.dataset."""
    batch_column: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.name}"


def target_of(dataset: Mapping[str, Any]) -> TableTarget:
    """Which table a Dataset names, as a value.

    Raises:
        Problem: `no-table`, for a spec that names no table.
    """
    metadata, spec = dataset["metadata"], dataset.get("spec") or {}
    table = spec.get("table") or {}
    if not all(isinstance(table.get(k), str) for k in ("catalog", "name")):
        raise Problem(Kind.NO_TABLE, "spec.table of the Dataset names no table. Correct the Dataset.")
    claim = f"{metadata.get('namespace', '')}/{metadata['name']}"
    return TableTarget(table["catalog"], table["name"], claim, str(spec.get("batchColumn") or "batch_id"))


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def micros(time: datetime) -> int:
    """Microseconds since 1970 in UTC, as indexes and cursors keep times."""
    return (time - _EPOCH) // _MICROSECOND


def time_of(value: int) -> datetime:
    """The time in UTC that is so many microseconds after the beginning of 1970."""
    return _EPOCH + value * _MICROSECOND


class IndexState(BaseModel):
    """What an index shows."""

    model_config = ConfigDict(frozen=True)

    table_uuid: str
    batch_field_id: int | None
    """The id of the batch column; None: the table has none."""
    tracking_snapshot: int | None
    """Of the table of batches; None: it is empty."""
    ledger_version: int
    """That the table of batches shows."""
    shown_ledger: str
    """The root of the ledger that the table of batches shows."""
    ledger: str
    """The root of the head's ledger; "": the empty ledger."""
    head_ledger_version: int
    location: str
    """Of the table."""
    metadata_location: str
    """Of the table: another one may have fewer snapshots."""
    listed_time: datetime | None
    """Of the buffer; None: it was not listed."""
    data_files: int | None = None
    """Of the table's head; None: unknown."""
    data_bytes: int | None = None
    """The size of these files; None: unknown."""


@dataclass(frozen=True)
class BatchPosition:
    """The place of a batch in the order of pages: newest first."""

    time: int
    """Of its state, in microseconds."""
    id: str


@dataclass(frozen=True)
class BatchQuery:
    """Which batches to show."""

    states: tuple[str, ...] = ()
    """Empty: all."""
    since: datetime | None = None
    """Reached their state at this time or later; None: any."""
    until: datetime | None = None
    """Reached their state before this time; None: any."""
    id_prefix: str = ""
    """Empty: any."""
    restatement: str = ""
    """Namespace/name of the Restatement that set the state; "": any."""
    after: BatchPosition | None = None
    """Begin after this batch; None: with the newest."""


@dataclass(frozen=True)
class TombstoneFacts:
    """The active tombstone of a batch."""

    added: datetime
    evict_by: datetime | None
    """When its bytes must be gone; None: no deadline."""
    partly: bool
    """A vacuum has removed some of its rows."""


@dataclass(frozen=True)
class PurgeFacts:
    """The vacuum that removed the rows of a batch."""

    snapshot_id: int
    time: datetime


@dataclass(frozen=True)
class KnownErasure:
    """An erasure of the ledger."""

    key: str
    """Of its request."""
    result: RequestResult | None
    """None: a later version of Lethe wrote it."""
    pending: Erasure | None
    """None: it is verified."""


@dataclass(frozen=True)
class BatchFacts:
    """Everything that is known of one batch."""

    row: BatchRow
    promoted_time: datetime | None
    """When its snapshot was committed; None: unknown, because that snapshot has expired."""
    tombstone: TombstoneFacts | None
    """None: it has none."""
    purge: PurgeFacts | None
    """None: no retained vacuum removed its rows."""
    request: RequestResult | None
    """Of the Restatement that set its state; None: none did."""
    erasure: Erasure | None
    """Open, of that Restatement; None: there is none."""
    shows_head: bool = True
    """False: the state of the batch and the tombstone are of different ledgers."""


class BatchRestatement(ApiModel):
    """The Restatement that set the state of a batch."""

    namespace: str
    """The Kubernetes namespace."""
    name: str
    """The name of the Restatement. The resource may have been deleted."""
    operation: str | None = None
    """Replay, Revert, Erase, Undo or Approve."""
    reason: str | None = None
    """Why it was requested."""
    ticket: str | None = None
    """Where it was requested."""
    requested_by: str | None = None
    """Who requested it: the annotation lethe.dev/requested-by, else the program that created the Restatement."""


class PurgeState(StrEnum):
    """How far the rows of a batch have left the data files of the table."""

    NONE = "None"
    """Nothing is to be purged."""
    PENDING = "Pending"
    """Its rows are hidden, and still in data files."""
    PARTLY = "Partly"
    """A vacuum has removed some of them."""
    DONE = "Done"
    """No data file of the head has one of its rows."""
    UNKNOWN = "Unknown"
    """The table of batches does not show the ledger of the head."""


class Purge(SnapshotIdText):
    """Whether the rows of the batch have left the data files of the table."""

    state: PurgeState
    """None, Pending, Partly, Done or Unknown."""
    evict_by_time: datetime | None = None
    """When its bytes must be gone."""
    time: datetime | None = None
    """When the vacuum was committed that purged it. Absent if that snapshot has expired."""
    snapshot_id: int | None = None
    """The snapshot of that vacuum."""


class ErasureStage(StrEnum):
    """How far an erasure is: from rows in the table, to a storage in which none of its files is left."""

    ROWS_IN_TABLE = "RowsInTable"
    """Data files of the head contain rows of it."""
    BLOCKED = "Blocked"
    """Something keeps files with rows of it."""
    NOT_VERIFIED = "NotVerified"
    """It is purged; the storage has not been checked."""
    VERIFIED = "Verified"
    """A check found none of the files in the storage."""


class BatchErasure(ApiModel):
    """Whether the bytes are gone from the storage, of a batch with a deadline."""

    state: ErasureStage
    """RowsInTable, Blocked, NotVerified or Verified."""
    due_time: Annotated[datetime | None, SameAs(ErasureStatus)] = None
    blocked_by: Annotated[list[str], SameAs(ErasureStatus)] = Field(default_factory=list)
    blocked_by_count: Annotated[int, SameAs(ErasureStatus)] = 0
    verified_time: Annotated[datetime | None, SameAs(ErasureStatus)] = None
    record: Annotated[str | None, SameAs(ErasureStatus)] = None
    record_sha256: Annotated[str | None, SameAs(ErasureStatus)] = None


class BatchEventType(StrEnum):
    """What can happen to a batch, from its arrival in the buffer to the verification that its bytes are gone."""

    BUFFERED = "Buffered"
    REFUSED = "Refused"
    HELD = "Held"
    APPROVED = "Approved"
    PROMOTED = "Promoted"
    REVERTED = "Reverted"
    REPLACED = "Replaced"
    ERASED = "Erased"
    PURGED = "Purged"
    ERASURE_VERIFIED = "ErasureVerified"


class BatchEvent(SnapshotIdText):
    """One thing that happened to a batch."""

    type: BatchEventType
    """What happened."""
    time: datetime | None = None
    """When. Absent if the snapshot with the time has expired."""
    snapshot_id: int | None = None
    """The commit."""
    run_id: str | None = None
    """The run."""
    restatement: BatchRestatement | None = None
    """The Restatement that asked for it."""
    replaced_by: str | None = None
    """The batch that replaced it."""
    reason: str | None = None
    """Why it was refused or held, as one CamelCase word."""
    message: str | None = None
    """The same in words."""


def restatement_ref(facts: BatchFacts) -> BatchRestatement | None:
    """None: no Restatement set the state of the batch."""
    key = facts.row.restatement
    if key is None:
        return None
    namespace, _, name = name_of(key).partition("/")
    request = facts.request
    provenance = request.provenance if request is not None else None
    return BatchRestatement(
        namespace=namespace,
        name=name,
        operation=request.operation if request is not None else None,
        reason=provenance.reason or None if provenance is not None else None,
        ticket=provenance.ticket or None if provenance is not None else None,
        requested_by=provenance.requested_by or None if provenance is not None else None,
    )


def purge_of(facts: BatchFacts) -> Purge:
    """How far the batch is purged. `Unknown`, if an Undo or a rollback may have brought its rows back."""
    row, tombstone = facts.row, facts.tombstone
    if tombstone is not None:
        state = PurgeState.PARTLY if tombstone.partly else PurgeState.PENDING
        return Purge(state=state, evict_by_time=tombstone.evict_by or row.evict_by)
    if not _is_taken_back(row) or row.rows is None:
        return Purge(state=PurgeState.NONE, evict_by_time=row.evict_by)
    if not facts.shows_head:  # an Undo or a rollback may have brought the rows back
        return Purge(state=PurgeState.UNKNOWN, evict_by_time=row.evict_by)
    by = facts.purge
    return Purge(
        state=PurgeState.DONE,
        evict_by_time=row.evict_by,
        time=by.time if by is not None else None,
        snapshot_id=by.snapshot_id if by is not None else None,
    )


def erasure_of(facts: BatchFacts) -> BatchErasure | None:
    """None: no Restatement asked for the erasure of its bytes."""
    pending, request = facts.erasure, facts.request
    if pending is not None:
        return BatchErasure(
            state=open_state(pending),
            due_time=pending.evict_by,
            blocked_by=[str(b) for b in pending.blockers],
            blocked_by_count=pending.blockers_count,
        )
    outcome = request.erasure if request is not None else None
    if outcome is None or outcome.verified_time is None:
        return None
    return BatchErasure(
        state=ErasureStage.VERIFIED,
        due_time=facts.row.evict_by,
        verified_time=outcome.verified_time,
        record=outcome.record or None,
        record_sha256=outcome.record_sha256 or None,
    )


def open_state(pending: Erasure) -> ErasureStage:
    """The state of an erasure that is not verified. Before its purge, only a hold makes it `Blocked`."""
    if pending.is_held:
        return ErasureStage.BLOCKED
    if not pending.is_purged:
        return ErasureStage.ROWS_IN_TABLE
    return ErasureStage.BLOCKED if pending.blockers_count else ErasureStage.NOT_VERIFIED


def history_of(facts: BatchFacts) -> list[BatchEvent]:
    """What happened to a batch, the oldest first."""
    row, by = facts.row, restatement_ref(facts)
    if row.state == BUFFERED:
        return [BatchEvent(type=BatchEventType.BUFFERED, time=row.state_time)]
    events: list[BatchEvent] = []
    match BatchState(row.state):
        case BatchState.REFUSED | BatchState.HELD as state:
            approved = state is BatchState.HELD and by is not None  # which set the time and the run
            events.append(
                BatchEvent(
                    type=BatchEventType(state.value.capitalize()),
                    time=None if approved else row.state_time,
                    run_id=None if approved else row.run_id,
                    reason=row.refusal_reason,
                    message=row.refusal_message,
                )
            )
            if approved:
                events.append(
                    BatchEvent(type=BatchEventType.APPROVED, time=row.state_time, run_id=row.run_id, restatement=by)
                )
        case BatchState.PROMOTED:
            time = facts.promoted_time or row.state_time
            events.append(
                BatchEvent(
                    type=BatchEventType.PROMOTED,
                    time=time,
                    snapshot_id=row.snapshot_id,
                    run_id=row.run_id,
                    restatement=by,
                )
            )
        case BatchState.REVERTED | BatchState.REPLACED | BatchState.ERASED as state:
            if row.rows is not None:  # otherwise it was taken back before it could be promoted
                events.append(
                    BatchEvent(type=BatchEventType.PROMOTED, time=facts.promoted_time, snapshot_id=row.snapshot_id)
                )
            events.append(
                BatchEvent(
                    type=BatchEventType(state.value.capitalize()),
                    time=row.state_time,
                    snapshot_id=_snapshot_of_request(facts),
                    run_id=row.run_id,
                    restatement=by,
                    replaced_by=row.replaced_by,
                )
            )
            events += _after_taken_back(facts)
        case _ as never:
            assert_never(never)
    return events


def _after_taken_back(facts: BatchFacts) -> list[BatchEvent]:
    events: list[BatchEvent] = []
    purge, erasure = purge_of(facts), erasure_of(facts)
    if purge.state is PurgeState.DONE:
        events.append(BatchEvent(type=BatchEventType.PURGED, time=purge.time, snapshot_id=purge.snapshot_id))
    if erasure is not None and erasure.state is ErasureStage.VERIFIED:
        events.append(BatchEvent(type=BatchEventType.ERASURE_VERIFIED, time=erasure.verified_time))
    return events


def _snapshot_of_request(facts: BatchFacts) -> int | None:
    if facts.request is not None:
        return facts.request.snapshot_id
    return facts.row.snapshot_id if facts.row.rows is None else None


def _is_taken_back(row: BatchRow) -> bool:
    return row.state in (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED)
