"""The status of a Dataset from what was observed. Pure."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from lethe.ledger.ledger import BatchEntry, BatchState, Ledger
from lethe.plan.batches import BufferedBatch
from lethe.run import LISTED_AT_MOST

from lethe_operator.decide import conditions
from lethe_operator.decide.conditions import Condition, timestamp
from lethe_operator.decide.consolidation import ConsolidationVerdict, promotable
from lethe_operator.decide.retry import Again, GivenUp, Going, Verdict
from lethe_operator.decide.validation import Blocker
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import BufferView, NoTable, TableView, Unavailable, World

# One killed pod is everyday life; from the third failure in a row on, the Dataset is no longer called ready.
FAILURES_UNTIL_NOT_READY: Final = 3
_REASON: Final = re.compile(r"^([A-Z][A-Za-z]+): ")


def status(
    dataset: Dataset,
    world: World,
    blocker: Blocker | None,
    consolidation: ConsolidationVerdict,
    vacuum: Verdict | None,
    runs: Sequence[Any],
    unexpected: Sequence[str],
    now: datetime,
) -> dict[str, Any]:
    """The whole status. What cannot be observed now is shown as it was seen last.

    Args:
        runs: `status.runs`, made already.
        unexpected: Keys of objects that were added to a promoted batch's folder.
    """
    old = dict(dataset.status)
    document: dict[str, Any] = {
        "observedGeneration": dataset.meta.generation,
        "conditions": conditions.as_status(
            old.get("conditions") or (),
            _conditions(dataset, world, blocker, consolidation, vacuum),
            dataset.meta.generation,
            now,
        ),
        "runs": list(runs),
    }
    if blocker is not None and blocker.reason == Reason.TABLE_CLAIMED:
        return document  # what the table holds is another Dataset's to tell
    view = world.table
    ledger = Ledger()
    if isinstance(view, TableView):
        ledger = view.ledger
        document["table"] = _table(view)
        document["tombstones"] = _tombstones(view)
    elif isinstance(view, Unavailable):
        document.update({k: old[k] for k in ("table", "tombstones") if k in old})
    if isinstance(view, Unavailable) or not isinstance(world.buffer, BufferView):
        document.update({k: old[k] for k in ("buffer", "batches") if k in old})
        if isinstance(view, TableView):
            document["batches"] = _batches(ledger, ())
    else:
        document["buffer"] = _buffer(world.buffer, ledger, unexpected)
        document["batches"] = _batches(ledger, world.buffer.batches)
    return document


def _conditions(
    dataset: Dataset,
    world: World,
    blocker: Blocker | None,
    consolidation: ConsolidationVerdict,
    vacuum: Verdict | None,
) -> list[Condition]:
    found = list(_main(dataset, world, blocker, (consolidation.latest, vacuum)))
    if dataset.paused:
        text = "The annotation lethe.dev/paused is set: nothing is started, what runs goes on."
        found.append(Condition(conditions.PAUSED, conditions.TRUE, Reason.PAUSED, text))
    else:
        found.append(Condition(conditions.PAUSED, conditions.FALSE, Reason.NOT_PAUSED))
    return found


def _main(
    dataset: Dataset, world: World, blocker: Blocker | None, runs: Sequence[Verdict | None]
) -> tuple[Condition, ...]:
    if blocker is not None:
        kind = conditions.waiting if blocker.transient else conditions.stalled
        return kind(blocker.reason, blocker.message)
    if isinstance(world.buffer, Unavailable):
        kind = conditions.waiting if world.buffer.transient else conditions.stalled
        return kind(world.buffer.reason, world.buffer.message)
    for verdict in runs:
        match verdict:
            case GivenUp(_, reason, message):
                return conditions.stalled(reason, message)
            case Again(at, number, reason, message, failures):
                return _retrying(reason, f"{message} Attempt {number} follows at {at:%H:%M:%SZ}.", failures)
            case Going(attempt, failures, reason, message) if failures:
                return _retrying(reason, f"{message} Attempt {attempt.number} is under way.", failures)
            case _:
                pass
    if isinstance(world.table, NoTable):
        name = dataset.spec.table.name
        return conditions.healthy(
            Reason.WAITING_FOR_FIRST_BATCH, f"The table {name} is not there yet; the first consolidation creates it."
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


def _available(world: World) -> str:
    text = "The table and the buffer can be read; runs start when they are due."
    refused = world.table.ledger.batches.values() if isinstance(world.table, TableView) else ()
    count = sum(b.state is BatchState.REFUSED for b in refused)
    return f"{text} {count} batches are refused: see status.batches.refusedBatches." if count else text


def _table(view: TableView) -> dict[str, Any]:
    document: dict[str, Any] = {"uuid": view.uuid, "location": view.location, "formatVersion": view.format_version}
    if view.head_id is not None:
        document["snapshotId"] = view.head_id
    if view.head_time is not None:
        document["snapshotTime"] = timestamp(view.head_time)
    return document


def _tombstones(view: TableView) -> dict[str, Any]:
    tombstones = view.ledger.tombstones.values()
    document: dict[str, Any] = {"active": len(tombstones)}
    deadlines = [t.evict_by for t in tombstones if t.evict_by is not None]
    if tombstones:
        document["oldestTime"] = timestamp(min(t.added_on for t in tombstones))
    if deadlines:
        document["nextEvictByTime"] = timestamp(min(deadlines))
    return document


def _buffer(buffer: BufferView, ledger: Ledger, unexpected: Sequence[str]) -> dict[str, Any]:
    waiting = promotable(buffer.batches, ledger)
    added = "was added to a batch that is promoted already: it is neither promoted nor deleted."
    invalid = [{"folder": f, "message": m} for f, m in buffer.invalid]
    invalid += [{"folder": key, "message": f"{key} {added}"} for key in unexpected]
    document: dict[str, Any] = {
        "batches": len(waiting),
        "bytes": sum(b.bytes for b in waiting),
        "waiting": sum(not b.complete for b in buffer.batches),
        "invalid": len(invalid),
    }
    if waiting:
        document["oldestBatchTime"] = timestamp(waiting[0].oldest_time)
    if invalid:
        document["invalidFolders"] = invalid[:LISTED_AT_MOST]
    return document


def _batches(ledger: Ledger, buffered: Sequence[BufferedBatch]) -> dict[str, Any]:
    states = Counter(b.state for b in ledger.batches.values())
    refused = sorted((b for b in ledger.batches.values() if b.state is BatchState.REFUSED), key=lambda b: b.id)
    document: dict[str, Any] = {
        "promoted": states[BatchState.PROMOTED],
        "reverted": states[BatchState.REVERTED] + states[BatchState.REPLACED] + states[BatchState.ERASED],
        "withheld": sum(b.complete and _withheld(ledger.batches.get(b.id)) for b in buffered),
        "refused": len(refused),
    }
    if refused:
        document["refusedBatches"] = [_refusal(b) for b in refused[:LISTED_AT_MOST]]
    return document


def _withheld(entry: BatchEntry | None) -> bool:
    """Taken back before it came: it was never promoted, so nothing recorded its objects."""
    return (
        entry is not None
        and entry.blocks_promotion
        and entry.state is not BatchState.PROMOTED
        and not entry.objects
        and entry.rows is None
    )


def _refusal(batch: BatchEntry) -> dict[str, str]:
    text = batch.refusal or ""
    reason = _REASON.match(text)
    document = {"batchId": batch.id, "message": text[reason.end() :] if reason else text}
    if reason:
        document["reason"] = reason[1]
    return document
