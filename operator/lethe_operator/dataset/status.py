"""The status of a Dataset, with what it says about its source. Pure.

The inlet writes `status.source`; the operator leaves it as it is, and makes the condition SourceRead of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.base.errors import Verdict
from lethe.buffer.digest import BufferDigest
from lethe.contract.kubernetes import ACCEPT_HEAD
from lethe.contract.result import LISTED_AT_MOST
from lethe.contract.status import (
    BatchCounts,
    BufferStatus,
    Condition,
    ConditionStatus,
    ConsolidationStatus,
    DatasetStatus,
    ErasureCounts,
    InvalidFolder,
    RefusedBatch,
    RunEntry,
    RunUsage,
    SourceStatus,
    TableStatus,
    TombstoneCounts,
)
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger

from lethe_operator import conditions
from lethe_operator.dataset.consolidation import ConsolidationDecision
from lethe_operator.erasure import decide as erasure_decide
from lethe_operator.guards import preconditions
from lethe_operator.guards.holds import holds_status
from lethe_operator.guards.preconditions import accepts_other_table, another_table
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import EventsView, NoTable, Observation, ObservedRun, TableView, Unavailable
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt, RetryState, Running, Succeeded, ended
from lethe_operator.vacuum.decide import VacuumChoice

# The inlet reports at least every minute.
SILENT_AFTER: Final = timedelta(minutes=3)
_WAITING: Final = frozenset({Reason.SOURCE_STARTING, Reason.TABLE_NOT_READY})


def kept(dataset: Dataset) -> SourceStatus | None:
    """The part of the status that the inlet writes."""
    return dataset.status.source if dataset.spec.source.kafka is not None else None


def condition(dataset: Dataset, now: datetime) -> tuple[Condition, ...]:
    """The condition SourceRead; none: the Dataset has no source. Batches of the buffer are promoted whatever its value."""
    if dataset.spec.source.kafka is None:
        return ()
    source = dataset.status.source or SourceStatus()
    seen = source.observed_time
    if seen is None or now - seen > SILENT_AFTER:
        text = "The inlet has not reported for some minutes." if seen else "The inlet has never reported."
        return (Condition.of(conditions.SOURCE_READ, conditions.UNKNOWN, Reason.INLET_SILENT, text),)
    reason, message = source.reason or "", source.message or ""
    if reason == Reason.SOURCE_READ:
        return (Condition.of(conditions.SOURCE_READ, conditions.TRUE, reason, message),)
    state: ConditionStatus = conditions.UNKNOWN if reason in _WAITING else conditions.FALSE
    return (Condition.of(conditions.SOURCE_READ, state, reason or Reason.SOURCE_FAILED, message),)


def look_again(dataset: Dataset, now: datetime) -> datetime | None:
    """When the condition changes unless the inlet reports; None: it does not change by itself."""
    source = kept(dataset)
    if source is None or source.observed_time is None:
        return None
    at = source.observed_time + SILENT_AFTER + timedelta(seconds=1)
    return at if at > now else None


# A single killed pod is normal. From this number of consecutive failures on, the Dataset is not ready.
FAILURES_UNTIL_NOT_READY: Final = 3


@dataclass(frozen=True)
class DatasetDecisions:
    """What was decided about a Dataset."""

    blocker: Verdict | None
    """Why no run starts; None: runs may start."""
    latest: Sequence[RetryState | None]
    """The state of the newest run of each kind, in order of importance; None: there is no such run."""
    consolidation: ConsolidationDecision | None
    """None: nothing to show."""
    vacuum: VacuumChoice
    runs: tuple[RunEntry, ...]
    """`status.runs`."""
    invalid_hold: Verdict | None = None
    """Why no run may remove rows; None: runs may."""


def status(dataset: Dataset, world: Observation, decided: DatasetDecisions, now: datetime) -> DatasetStatus:
    """The whole status. Fields that cannot be observed now keep their last values."""
    blocker, generation, old = decided.blocker, dataset.meta.generation, dataset.status
    table, tombstones, erasures, buffer, batches = old.table, None, None, None, None
    # The status of the Dataset that has claimed the table shows it. This one keeps its earlier table.
    if blocker is None or blocker.reason != Reason.TABLE_CLAIMED:
        table = _table(dataset, world)
        tombstones, erasures = _of_ledger(old, world.table, now)
        buffer, batches = _of_buffer(old, world)
    return DatasetStatus(
        observed_generation=generation,
        conditions=conditions.written(old.conditions, _conditions(dataset, world, decided, now), generation, now),
        table=table,
        buffer=buffer,
        source=kept(dataset),
        consolidation=_consolidation(decided.consolidation),
        vacuum=decided.vacuum.status,
        batches=batches,
        tombstones=tombstones,
        erasures=erasures,
        holds=holds_status(dataset, world, decided.invalid_hold, now) or None,
        runs=decided.runs,
        usage=_usage(old, decided.runs, world.runs, now),
    )


def _usage(
    old: DatasetStatus, shown: Sequence[RunEntry], runs: Sequence[ObservedRun], now: datetime
) -> RunUsage | None:
    """What runs have used: what the old status says, and those that this one shows as ended for the first time."""
    names = {entry.name for entry in ended(old.runs or (), shown)}
    if not names:
        return old.usage
    before = old.usage or RunUsage(since=now)
    results = [a.result for r in runs for a in r.attempts if a.job in names and a.result is not None]
    return RunUsage(
        since=before.since,
        runs=(before.runs or 0) + len(names),
        # Rounded up, so that many short runs are not free.
        cpu_seconds=(before.cpu_seconds or 0) + math.ceil(sum(r.cpu_seconds for r in results)),
        executor_cpu_seconds=(before.executor_cpu_seconds or 0)
        + math.ceil(sum(r.executor_cpu_seconds for r in results)),
        files_read=(before.files_read or 0) + sum(r.files_used[0] for r in results),
        files=(before.files or 0) + sum(r.files_used[1] for r in results),
        bytes=(before.bytes or 0) + sum(r.bytes_written for r in results),
    )


def _consolidation(decision: ConsolidationDecision | None) -> ConsolidationStatus | None:
    if decision is None:
        return None
    return ConsolidationStatus(
        decision=decision.decision,
        reason=decision.verdict.reason,
        message=decision.verdict.message,
        next_time=decision.next_time,
    )


def _table(dataset: Dataset, world: Observation) -> TableStatus | None:
    view, old = world.table, dataset.status.table
    if isinstance(view, Unavailable):
        return old
    another = another_table(dataset, view, world.restatements)
    if isinstance(view, TableView):
        return preconditions.table_status(dataset, view, _seen(view), another)
    if another is None and accepts_other_table(dataset, view):
        return TableStatus(accepted_head=dataset.meta.annotations[ACCEPT_HEAD])
    return old  # a table that comes back is compared with it


def _of_ledger(
    old: DatasetStatus, table: TableView | NoTable | Unavailable, now: datetime
) -> tuple[TombstoneCounts | None, ErasureCounts | None]:
    match table:
        case TableView():
            return _tombstones(table), erasure_decide.of_dataset(table.ledger, now)
        case Unavailable():
            return old.tombstones, old.erasures
        case NoTable():
            return None, None
        case _:
            assert_never(table)


def _of_buffer(old: DatasetStatus, world: Observation) -> tuple[BufferStatus | None, BatchCounts | None]:
    view, buffer = world.table, world.buffer
    if isinstance(buffer, BufferDigest) and not isinstance(view, Unavailable):
        return _buffer(buffer), _batches(view.ledger if isinstance(view, TableView) else Ledger(), buffer)
    if not isinstance(view, TableView):
        return old.buffer, old.batches
    # The fields that depend on the buffer are as seen before, while it cannot be listed.
    before = old.batches or BatchCounts()
    return old.buffer, _counts(view.ledger, before.withheld or 0, before.refused_batches, before.held_batches)


def _conditions(dataset: Dataset, world: Observation, decided: DatasetDecisions, now: datetime) -> list[Condition]:
    written_conditions = list(_main(dataset, world, decided))
    if dataset.paused:
        text = "The annotation lethe.dev/paused is set: no run starts; active runs continue."
        written_conditions.append(Condition.of(conditions.PAUSED, conditions.TRUE, Reason.PAUSED, text))
    else:
        written_conditions.append(Condition.of(conditions.PAUSED, conditions.FALSE, Reason.NOT_PAUSED))
    return [
        *written_conditions,
        *_events(world.events),
        *_eviction(dataset, world, decided.vacuum),
        *_publishing(world.publishing),
        *condition(dataset, now),
    ]


def _eviction(dataset: Dataset, world: Observation, vacuum: VacuumChoice) -> tuple[Condition, ...]:
    """The condition EvictionOnTime; while the ledger cannot be read, its last value."""
    if vacuum.on_time is not None:
        return (vacuum.on_time,)
    before = dataset.status.condition(conditions.EVICTION_ON_TIME)
    return (before,) if before is not None and isinstance(world.table, Unavailable) else ()


def _events(events: EventsView | None) -> tuple[Condition, ...]:
    """The condition EventsReady. Batches are promoted whatever its value, because the buffer is also listed."""
    if events is None:
        return ()
    if events.trouble is not None:
        return (Condition.of(conditions.EVENTS_READY, conditions.FALSE, events.trouble.reason, events.trouble.message),)
    if not events.is_read:
        return (Condition.of(conditions.EVENTS_READY, conditions.UNKNOWN, Reason.QUEUE_NOT_ASKED),)
    return (Condition.of(conditions.EVENTS_READY, conditions.TRUE, Reason.QUEUE_READ),)


def _publishing(view: Verdict | None) -> tuple[Condition, ...]:
    """The condition EventsPublished. Nothing else depends on it: a sink that is away holds up no run."""
    if view is None:
        return ()
    if view.reason:
        return (Condition.of(conditions.EVENTS_PUBLISHED, conditions.FALSE, view.reason, view.message),)
    return (Condition.of(conditions.EVENTS_PUBLISHED, conditions.TRUE, Reason.EVENTS_DELIVERED),)


def _main(dataset: Dataset, world: Observation, decided: DatasetDecisions) -> tuple[Condition, ...]:
    """Ready, Reconciling and Stalled."""
    blocker, vacuum = decided.blocker, decided.vacuum
    if blocker is not None:
        return conditions.not_ready(blocker)
    if decided.invalid_hold is not None:
        return conditions.stalled(decided.invalid_hold)
    if isinstance(world.buffer, Unavailable):
        return conditions.not_ready(world.buffer)
    for state in decided.latest:
        match state:
            case Exhausted(_, failure):
                return conditions.stalled(failure)
            case RetryAt(at, number, failure, failures):
                return _retrying(failure.adding(f"Attempt {number} follows at {at:%H:%M:%SZ}."), failures.total)
            case Running(attempt, failures, Verdict() as failure) if failures.total:
                return _retrying(failure.adding(f"Attempt {attempt.number} is running."), failures.total)
            case NotStarted() | Running() | Succeeded() | None:
                pass
            case _:
                assert_never(state)
    if vacuum.on_time is not None and vacuum.on_time.reason == Reason.NO_VACUUM_POLICY:
        return conditions.stalled(vacuum.on_time.verdict)
    if isinstance(world.table, NoTable):
        name = dataset.spec.table.name
        return conditions.healthy(
            Verdict(
                Reason.WAITING_FOR_FIRST_BATCH,
                f"The table {name} does not exist yet. The first consolidation creates it.",
            )
        )
    return conditions.healthy(Verdict(Reason.AVAILABLE, _available(world)))


def _retrying(failure: Verdict, failures: int) -> tuple[Condition, ...]:
    if failures >= FAILURES_UNTIL_NOT_READY or failure.reason == Reason.OOM_KILLED:
        return conditions.waiting(failure)
    _, *others = conditions.waiting(failure)
    return (Condition.of(conditions.READY, conditions.TRUE, Reason.RUN_RETRYING, failure.message), *others)


def _available(world: Observation) -> str:
    text = "The operator can read the table and the buffer. Runs start when they are due."
    states = world.table.ledger.states if isinstance(world.table, TableView) else {}
    if held := states.get(BatchState.HELD, 0):
        text += f" {held} batches are held by checks and wait for a person: see status.batches.heldBatches."
    if refused := states.get(BatchState.REFUSED, 0):
        text += f" {refused} batches were refused: see status.batches.refusedBatches."
    return text


def _seen(view: TableView) -> TableStatus:
    has_head = view.head_id is not None
    return TableStatus(
        uuid=view.uuid,
        location=view.location,
        format_version=view.format_version,
        snapshot_id=view.head_id,
        sequence_number=view.head_sequence_number if has_head else None,
        snapshot_time=view.head_time,
        rows=view.total_records,
        ledger=view.ledger_uri,
    )


def _tombstones(table: TableView) -> TombstoneCounts:
    statistics = table.ledger.statistics
    return TombstoneCounts(
        active=len(table.ledger.tombstones),
        native_deletes="Complete" if table.is_masked else "Incomplete",
        rows=statistics.tombstoned_rows,
        oldest_time=statistics.oldest_added_on,
        next_evict_by_time=statistics.next_evict_by,
    )


def _buffer(buffer: BufferDigest) -> BufferStatus:
    added = "was added to a batch that is already promoted. Lethe neither promotes nor deletes it."
    invalid = [InvalidFolder(folder=f, message=m) for f, m in buffer.invalid_folders[:LISTED_AT_MOST]]
    invalid += [InvalidFolder(folder=key, message=f"{key} {added}") for key in buffer.unexpected_keys]
    return BufferStatus(
        batches=buffer.batches,
        bytes=buffer.bytes,
        oldest_batch_time=buffer.oldest[0].oldest_time if buffer.oldest else None,
        waiting=buffer.incomplete,
        invalid=buffer.invalid + buffer.unexpected,
        invalid_folders=tuple(invalid[:LISTED_AT_MOST]) or None,
    )


def _batches(ledger: Ledger, buffer: BufferDigest) -> BatchCounts:
    """The batches of the status.

    Refused batches are listed until the ledger says otherwise, the latest first: those in the buffer, of a known run,
    or in the status already. Only these were looked up in the ledger.
    """
    return _counts(ledger, buffer.withheld, _latest(ledger, BatchState.REFUSED), _latest(ledger, BatchState.HELD))


def _latest(ledger: Ledger, state: BatchState) -> tuple[RefusedBatch, ...] | None:
    found = sorted((e for e in ledger.batches.values() if e.state is state and not e.is_approved), key=lambda e: e.id)
    found.sort(key=lambda e: e.time, reverse=True)
    return tuple(map(_refusal, found[:LISTED_AT_MOST])) or None


def _counts(
    ledger: Ledger,
    withheld: int,
    refused: tuple[RefusedBatch, ...] | None,
    held: tuple[RefusedBatch, ...] | None,
) -> BatchCounts:
    states = ledger.states
    gone = (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED)
    return BatchCounts(
        promoted=states.get(BatchState.PROMOTED, 0),
        reverted=sum(states.get(s, 0) for s in gone),
        withheld=withheld,
        refused=states.get(BatchState.REFUSED, 0),
        refused_batches=refused,
        held=states.get(BatchState.HELD, 0),
        held_batches=held,
    )


def _refusal(batch: BatchEntry) -> RefusedBatch:
    refusal = batch.refusal or Verdict("", "")
    return RefusedBatch(batch_id=batch.id, reason=refusal.reason or None, message=refusal.message)
