"""The status of a Dataset. Pure.

What a Dataset's status says about its source. Pure.

The inlet writes `status.source`; the operator leaves it as it is, and makes the condition SourceRead of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, assert_never

from lethe.buffer.digest import BufferDigest
from lethe.contract.kubernetes import ACCEPT_HEAD
from lethe.contract.result import LISTED_AT_MOST
from lethe.contract.settings import Refusal
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger

from lethe_operator import conditions
from lethe_operator.conditions import Condition, parsed_time, timestamp
from lethe_operator.dataset.consolidation import ConsolidationDecision
from lethe_operator.erasure import decide as erasure_status
from lethe_operator.guards import preconditions
from lethe_operator.guards.preconditions import RunBlocker, accepts_other_table, another_table
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import EventsView, NoTable, Observation, TableView, Unavailable
from lethe_operator.resources.publishing import PublishingView
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt, Running, Succeeded, Verdict
from lethe_operator.vacuum.decide import VacuumVerdict

# The inlet reports at least every minute.
SILENT_AFTER: Final = timedelta(minutes=3)
_WAITING: Final = frozenset({Reason.SOURCE_STARTING, Reason.TABLE_NOT_READY})


def kept(dataset: Dataset) -> dict[str, Any]:
    """The part of the status that the inlet writes."""
    source = dataset.status.get("source")
    return {"source": source} if source and dataset.spec.source.kafka is not None else {}


def condition(dataset: Dataset, now: datetime) -> tuple[Condition, ...]:
    """The condition SourceRead; none: the Dataset has no source. Batches of the buffer are promoted whatever its value."""
    if dataset.spec.source.kafka is None:
        return ()
    source: Mapping[str, Any] = dataset.status.get("source") or {}
    seen = parsed_time(source.get("observedTime"))
    if seen is None or now - seen > SILENT_AFTER:
        text = "The inlet has not reported for some minutes." if seen else "The inlet has never reported."
        return (Condition(conditions.SOURCE_READ, conditions.UNKNOWN, Reason.INLET_SILENT, text),)
    reason, message = str(source.get("reason") or ""), str(source.get("message") or "")
    if reason == Reason.SOURCE_READ:
        return (Condition(conditions.SOURCE_READ, conditions.TRUE, reason, message),)
    state = conditions.UNKNOWN if reason in _WAITING else conditions.FALSE
    return (Condition(conditions.SOURCE_READ, state, reason or Reason.SOURCE_FAILED, message),)


def look_again(dataset: Dataset, now: datetime) -> datetime | None:
    """When the condition changes unless the inlet reports; None: it does not change by itself."""
    if dataset.spec.source.kafka is None:
        return None
    seen = parsed_time((dataset.status.get("source") or {}).get("observedTime"))
    at = seen + SILENT_AFTER + timedelta(seconds=1) if seen is not None else None
    return at if at is not None and at > now else None


# A single killed pod is normal. From this number of consecutive failures on, the Dataset is not ready.
FAILURES_UNTIL_NOT_READY: Final = 3


@dataclass(frozen=True)
class DatasetVerdicts:
    """What was decided about a Dataset."""

    blocker: RunBlocker | None
    """Why no run starts; None: runs may start."""
    latest: Sequence[Verdict | None]
    """The verdict on the newest run of each kind, in order of importance; None: there is no such run."""
    # None: nothing to show.
    consolidation: ConsolidationDecision | None
    vacuum: VacuumVerdict
    runs: Sequence[Any]
    """`status.runs`."""


def status(dataset: Dataset, world: Observation, decided: DatasetVerdicts, now: datetime) -> dict[str, Any]:
    """The whole status. Fields that cannot be observed now keep their last values."""
    blocker, vacuum, consolidation = decided.blocker, decided.vacuum, decided.consolidation
    old = dict(dataset.status)
    document: dict[str, Any] = {
        "observedGeneration": dataset.meta.generation,
        "conditions": conditions.as_status(
            old.get("conditions") or (),
            _conditions(dataset, world, decided, now),
            dataset.meta.generation,
            now,
        ),
        "runs": list(decided.runs),
        "vacuum": dict(vacuum.status),
        **kept(dataset),
    }
    if consolidation is not None:
        document["consolidation"] = consolidation.as_status()
    if blocker is not None and blocker.reason == Reason.TABLE_CLAIMED:
        if "table" in old:
            document["table"] = old[
                "table"
            ]  # the Dataset's earlier table; the claimed table is in the other Dataset's status
        return document
    view = world.table
    another = another_table(dataset, view, world.restatements)
    ledger = Ledger()
    if isinstance(view, TableView):
        ledger = view.ledger
        document["table"] = preconditions.table_status(dataset, view, _table(view), another)
        document["tombstones"] = _tombstones(ledger)
        document["erasures"] = erasure_status.of_dataset(ledger, now)
    elif isinstance(view, Unavailable):
        document.update({k: old[k] for k in ("table", "tombstones", "erasures") if k in old})
    elif another is None and accepts_other_table(dataset, view):
        document["table"] = {"acceptedHead": dataset.meta.annotations[ACCEPT_HEAD]}
    elif "table" in old:
        document["table"] = old["table"]  # a table that comes back is compared with it
    if isinstance(view, Unavailable) or not isinstance(world.buffer, BufferDigest):
        document.update({k: old[k] for k in ("buffer", "batches") if k in old})
        if isinstance(view, TableView):
            document["batches"] = {**_as_seen_before(old.get("batches") or {}), **_counts(ledger)}
    else:
        document["buffer"] = _buffer(world.buffer)
        document["batches"] = _batches(ledger, world.buffer)
    return document


def _conditions(dataset: Dataset, world: Observation, decided: DatasetVerdicts, now: datetime) -> list[Condition]:
    written_conditions = list(_main(dataset, world, decided))
    if dataset.paused:
        text = "The annotation lethe.dev/paused is set: no run starts; active runs continue."
        written_conditions.append(Condition(conditions.PAUSED, conditions.TRUE, Reason.PAUSED, text))
    else:
        written_conditions.append(Condition(conditions.PAUSED, conditions.FALSE, Reason.NOT_PAUSED))
    return [
        *written_conditions,
        *_events(world.events),
        *_eviction(dataset, world, decided.vacuum),
        *_publishing(world.publishing),
        *condition(dataset, now),
    ]


def _eviction(dataset: Dataset, world: Observation, vacuum: VacuumVerdict) -> tuple[Condition, ...]:
    """The condition EvictionOnTime; while the ledger cannot be read, its last value."""
    if vacuum.on_time is not None:
        return (vacuum.on_time,)
    before = conditions.find(dataset.status, conditions.EVICTION_ON_TIME)
    if not before or not isinstance(world.table, Unavailable):
        return ()
    texts = (str(before.get(k, "")) for k in ("status", "reason", "message"))
    return (Condition(conditions.EVICTION_ON_TIME, *texts),)


def _events(events: EventsView | None) -> tuple[Condition, ...]:
    """The condition EventsReady. Batches are promoted whatever its value, because the buffer is also listed."""
    if events is None:
        return ()
    if events.trouble is not None:
        return (Condition(conditions.EVENTS_READY, conditions.FALSE, events.trouble.reason, events.trouble.message),)
    if not events.is_read:
        return (Condition(conditions.EVENTS_READY, conditions.UNKNOWN, Reason.QUEUE_NOT_ASKED),)
    return (Condition(conditions.EVENTS_READY, conditions.TRUE, Reason.QUEUE_READ),)


def _publishing(view: PublishingView | None) -> tuple[Condition, ...]:
    """The condition EventsPublished. Nothing else depends on it: a sink that is away holds up no run."""
    if view is None:
        return ()
    if view.reason:
        return (Condition(conditions.EVENTS_PUBLISHED, conditions.FALSE, view.reason, view.message),)
    return (Condition(conditions.EVENTS_PUBLISHED, conditions.TRUE, Reason.EVENTS_DELIVERED),)


def _main(dataset: Dataset, world: Observation, decided: DatasetVerdicts) -> tuple[Condition, ...]:
    """Ready, Reconciling and Stalled."""
    blocker, vacuum = decided.blocker, decided.vacuum
    if blocker is not None:
        kind = conditions.waiting if blocker.transient else conditions.stalled
        return kind(blocker.reason, blocker.message)
    if isinstance(world.buffer, Unavailable):
        kind = conditions.waiting if world.buffer.transient else conditions.stalled
        return kind(world.buffer.reason, world.buffer.message)
    for verdict in decided.latest:
        match verdict:
            case Exhausted(_, reason, message):
                return conditions.stalled(reason, message)
            case RetryAt(at, number, reason, message, failures):
                return _retrying(reason, f"{message} Attempt {number} follows at {at:%H:%M:%SZ}.", failures.total)
            case Running(attempt, failures, reason, message) if failures.total:
                return _retrying(reason, f"{message} Attempt {attempt.number} is running.", failures.total)
            case NotStarted() | Running() | Succeeded() | None:
                pass
            case _:
                assert_never(verdict)
    if vacuum.on_time is not None and vacuum.on_time.reason == Reason.NO_VACUUM_POLICY:
        return conditions.stalled(vacuum.on_time.reason, vacuum.on_time.message)
    if isinstance(world.table, NoTable):
        name = dataset.spec.table.name
        return conditions.healthy(
            Reason.WAITING_FOR_FIRST_BATCH, f"The table {name} does not exist yet. The first consolidation creates it."
        )
    return conditions.healthy(Reason.AVAILABLE, _available(world))


def _retrying(reason: str, text: str, failures: int) -> tuple[Condition, ...]:
    if failures >= FAILURES_UNTIL_NOT_READY or reason == Reason.OOM_KILLED:
        return conditions.waiting(reason, text)
    return (
        Condition(conditions.READY, conditions.TRUE, Reason.RUN_RETRYING, text),
        Condition(conditions.RECONCILING, conditions.TRUE, reason, text),
        Condition(conditions.STALLED, conditions.FALSE, reason),
    )


def _available(world: Observation) -> str:
    text = "The operator can read the table and the buffer. Runs start when they are due."
    count = world.table.ledger.states.get(BatchState.REFUSED, 0) if isinstance(world.table, TableView) else 0
    return f"{text} {count} batches were refused: see status.batches.refusedBatches." if count else text


def _table(view: TableView) -> dict[str, Any]:
    document: dict[str, Any] = {"uuid": view.uuid, "location": view.location, "formatVersion": view.format_version}
    if view.head_id is not None:
        document["snapshotId"] = view.head_id
        document["sequenceNumber"] = view.head_sequence_number
    if view.ledger_uri is not None:
        document["ledger"] = view.ledger_uri
    if view.head_time is not None:
        document["snapshotTime"] = timestamp(view.head_time)
    return document


def _tombstones(ledger: Ledger) -> dict[str, Any]:
    document: dict[str, Any] = {"active": len(ledger.tombstones)}
    statistics = ledger.statistics
    if statistics.tombstoned_rows is not None:
        document["rows"] = statistics.tombstoned_rows
    if statistics.oldest_added_on is not None:
        document["oldestTime"] = timestamp(statistics.oldest_added_on)
    if statistics.next_evict_by is not None:
        document["nextEvictByTime"] = timestamp(statistics.next_evict_by)
    return document


def _buffer(buffer: BufferDigest) -> dict[str, Any]:
    added = "was added to a batch that is already promoted. Lethe neither promotes nor deletes it."
    invalid = [{"folder": f, "message": m} for f, m in buffer.invalid_folders]
    invalid += [{"folder": key, "message": f"{key} {added}"} for key in buffer.unexpected_keys]
    document: dict[str, Any] = {
        "batches": buffer.batches,
        "bytes": buffer.bytes,
        "waiting": buffer.incomplete,
        "invalid": buffer.invalid + buffer.unexpected,
    }
    if buffer.oldest:
        document["oldestBatchTime"] = timestamp(buffer.oldest[0].oldest_time)
    if invalid:
        document["invalidFolders"] = invalid[:LISTED_AT_MOST]
    return document


def _batches(ledger: Ledger, buffer: BufferDigest) -> dict[str, Any]:
    """The batches of the status.

    Refused batches are listed until the ledger says otherwise, the latest first: those in the buffer, of a known run,
    or in the status already. Only these were looked up in the ledger.
    """
    refused = sorted((e for e in ledger.batches.values() if e.state is BatchState.REFUSED), key=lambda e: e.id)
    refused.sort(key=lambda e: e.time, reverse=True)
    document = _counts(ledger)
    document["withheld"] = buffer.withheld
    if refused:
        document["refusedBatches"] = [_refusal(b) for b in refused[:LISTED_AT_MOST]]
    return document


def _counts(ledger: Ledger) -> dict[str, Any]:
    states = ledger.states
    gone = (BatchState.REVERTED, BatchState.REPLACED, BatchState.ERASED)
    return {
        "promoted": states.get(BatchState.PROMOTED, 0),
        "reverted": sum(states.get(s, 0) for s in gone),
        "refused": states.get(BatchState.REFUSED, 0),
    }


def _as_seen_before(batches: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that depend on the buffer, while it cannot be listed."""
    return {"withheld": 0, **{k: batches[k] for k in ("withheld", "refusedBatches") if k in batches}}


def _refusal(batch: BatchEntry) -> dict[str, str]:
    refusal = batch.refusal or Refusal("", "")
    document = {"batchId": batch.id, "message": refusal.message}
    if refusal.reason:
        document["reason"] = refusal.reason
    return document
