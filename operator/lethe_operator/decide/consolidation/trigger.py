"""When buffered batches are moved into the table, and which. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.contract.run import RunKind, RunSpec
from lethe.ledger.ledger import EMPTY, Ledger

from lethe_operator.decide.actions import Launch
from lethe_operator.decide.conditions import timestamp
from lethe_operator.decide.guards.preconditions import RunBlocker
from lethe_operator.decide.restatement.row_search_gate import waits_for_batches
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.runs.failures import back_off_seconds
from lethe_operator.decide.runs.retry import Again, Ended, Fresh, GivenUp, Going, Verdict, judge
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import ConsolidationSpec, Dataset
from lethe_operator.resources.observed import NotListed, Run, TableView, Unavailable, World
from lethe_operator.resources.quantity import written
from lethe_operator.settings import Settings

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
DUE: Final = "Due"
LATER: Final = "Later"
RUNNING: Final = "Running"


@dataclass(frozen=True)
class ConsolidationDecision:
    """The decision in words: Due, Later or Running. `next_time`: when that changes by itself, as far as is known. The same
    as long as nothing changes, since it is part of the status."""

    decision: str
    reason: str
    message: str
    next_time: datetime | None = None

    def as_status(self) -> dict[str, Any]:
        document = {"decision": self.decision, "reason": str(self.reason), "message": self.message}
        if self.next_time is not None:
            document["nextTime"] = timestamp(self.next_time)
        return document


@dataclass(frozen=True)
class ConsolidationVerdict:
    """`launch` may start when no other run commits; `latest` is how the newest run stands, for the Dataset's conditions;
    `abandoned`: run ids whose stored intent nobody needs any more; `outcome`: all that in words."""

    launch: Launch | None = None
    latest: Verdict | None = None
    latest_run: Run | None = None
    look_again: datetime | None = None
    abandoned: tuple[str, ...] = ()
    outcome: ConsolidationDecision | None = None


def ledger_of(world: World) -> Ledger:
    return world.table.ledger if isinstance(world.table, TableView) else EMPTY


def triggered(buffer: BufferDigest, spec: ConsolidationSpec, now: datetime) -> ConsolidationDecision:
    """Whether a run is due by what waits: batches, bytes or age."""
    count, size = buffer.batches, buffer.bytes
    if not count:
        return ConsolidationDecision(LATER, Reason.NOTHING_WAITS, "No batch waits.")
    if not buffer.oldest:
        return ConsolidationDecision(
            LATER, Reason.BUFFER_BEING_LISTED, f"{count} batches wait; the next listing tells which go first."
        )
    since = buffer.oldest[0].oldest_time
    ripe = since + timedelta(seconds=spec.max_age_seconds)
    if count >= spec.min_batches:
        return ConsolidationDecision(
            DUE, Reason.ENOUGH_BATCHES, f"{count} batches wait, minBatches is {spec.min_batches}."
        )
    if size >= spec.min_bytes:
        text = f"{written(size)} wait, minBytes is {written(spec.min_bytes)}."
        return ConsolidationDecision(DUE, Reason.ENOUGH_BYTES, text)
    if ripe <= now:
        text = f"The oldest batch waits since {timestamp(since)}, maxAgeSeconds is {spec.max_age_seconds}."
        return ConsolidationDecision(DUE, Reason.OLD_ENOUGH, text)
    text = f"{count} of {spec.min_batches} batches, {written(size)} of {written(spec.min_bytes)}; due by age at "
    return ConsolidationDecision(LATER, Reason.BELOW_TRIGGERS, f"{text}{timestamp(ripe)}.", ripe)


def chosen(oldest: Sequence[WaitingBatch], spec: ConsolidationSpec) -> tuple[WaitingBatch, ...]:
    """The oldest ones within the limits of one run; a single larger one is taken alone."""
    taken: list[WaitingBatch] = []
    size = 0
    for batch in oldest[: spec.max_batches_per_run]:
        if taken and size + batch.bytes > spec.max_bytes_per_run:
            break
        taken.append(batch)
        size += batch.bytes
    return tuple(taken)


def decide_consolidation(
    dataset: Dataset, world: World, held: RunBlocker | None, now: datetime, settings: Settings
) -> ConsolidationVerdict:
    """Say which consolidation is to start, or when to look again.

    A stored intent goes before a new one: whatever its last attempt staged or committed is found again by its run id.

    Args:
        held: What keeps any run from starting; then it is only said.
    """
    verdict = _verdict(dataset, world, now, settings)
    if held is None or isinstance(verdict.latest, Going):
        return verdict
    text = "Nothing is started; the conditions Ready and Paused say why."
    return replace(verdict, outcome=ConsolidationDecision(LATER, Reason.DATASET_NOT_READY, text))


def _verdict(dataset: Dataset, world: World, now: datetime, settings: Settings) -> ConsolidationVerdict:
    generation = dataset.meta.generation
    spec = dataset.spec.consolidation
    runs = sorted((r for r in world.runs if r.kind is RunKind.CONSOLIDATION), key=age)
    latest = runs[-1] if runs else None
    stands = judge(latest, generation, settings) if latest else None
    if isinstance(stands, Going):
        outcome = ConsolidationDecision(RUNNING, Reason.RUNNING, f"{stands.attempt.job} is under way.")
        return ConsolidationVerdict(None, stands, latest, outcome=outcome)
    if not isinstance(world.buffer, BufferDigest):
        return ConsolidationVerdict(None, stands, latest, outcome=_unlisted(world.buffer))
    if latest is not None and isinstance(stands, Fresh | Again):
        unfinished = _unfinished(dataset, world.buffer, latest, stands, ledger_of(world), now)
        if unfinished is not None:
            return unfinished
        abandoned: tuple[str, ...] = (latest.run_id,)
        latest, stands = None, None
    else:
        abandoned = ()
    outcome = triggered(world.buffer, spec, now)
    if outcome.decision != DUE and waits_for_batches(world):
        text = "A Restatement that finds rows by their values waits for batches that came before it."
        outcome = ConsolidationDecision(DUE, Reason.WAITS_FOR_BATCHES, text)
    if spec.suspend:
        outcome = _suspended(outcome.message)
    if outcome.decision != DUE:
        return ConsolidationVerdict(None, stands, latest, outcome.next_time, abandoned, outcome)
    batches = chosen(world.buffer.oldest, spec)
    run = run_specs.consolidation(dataset, batches, world.events.writes if world.events else None)
    not_before = pause(runs, run.run_id, stands, settings)
    if not_before is None or not_before > now:
        outcome = _paused(stands, not_before)
        return ConsolidationVerdict(None, stands, latest, not_before, abandoned, outcome)
    earlier = next((r for r in runs if r.run_id == run.run_id), None)
    number = max((a.number for a in earlier.attempts), default=0) + 1 if earlier else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=_read_bytes(run, sum(b.bytes for b in batches)),
        generation=generation,
        why=f"{len(batches)} batches. {outcome.message.removesuffix('.')}",
    )
    return ConsolidationVerdict(launch, stands, latest, None, abandoned, outcome)


def _unlisted(buffer: NotListed | Unavailable) -> ConsolidationDecision:
    if isinstance(buffer, Unavailable):
        return ConsolidationDecision(LATER, buffer.reason, "The buffer cannot be listed; the condition Ready says why.")
    return ConsolidationDecision(LATER, Reason.BUFFER_BEING_LISTED, "The buffer is being listed for the first time.")


def _suspended(message: str) -> ConsolidationDecision:
    return ConsolidationDecision(LATER, Reason.SUSPENDED, f"spec.consolidation.suspend is true. {message}")


def _paused(stands: Verdict | None, not_before: datetime | None) -> ConsolidationDecision:
    if not isinstance(stands, GivenUp):
        text = "The last run ended without settling these batches; they are tried again after a pause."
        return ConsolidationDecision(LATER, Reason.PAUSE_AFTER_RUN, text, not_before)
    if not_before is None:
        text = "The run over these batches failed for good; it is tried again when the Dataset or its batches change."
    else:
        text = "The last run failed for good; other batches are tried after a pause."
    return ConsolidationDecision(LATER, stands.reason, text, not_before)


def _unfinished(
    dataset: Dataset, buffer: BufferDigest, run: Run, stands: Fresh | Again, ledger: Ledger, now: datetime
) -> ConsolidationVerdict | None:
    """The stored intent goes on, or None when there is nothing left of it to do."""
    intent = run.intent
    if intent is None or intent.consolidation is None:
        return None
    left = {i for i in intent.consolidation.batch_ids if not _settled(ledger, i, run.run_id)}
    if not left:
        return None
    reason, text = (stands.reason, stands.message) if isinstance(stands, Again) else (Reason.QUEUED, "")
    at = stands.at if isinstance(stands, Again) else now
    if dataset.spec.consolidation.suspend:
        outcome = _suspended(f"A run over {len(left)} batches is not done yet.")
        return ConsolidationVerdict(None, stands, run, at if at > now else None, outcome=outcome)
    if at > now:
        outcome = ConsolidationDecision(DUE, reason, f"{text} Attempt {stands.number} follows at {timestamp(at)}.", at)
        return ConsolidationVerdict(None, stands, run, at, outcome=outcome)
    launch = Launch(
        intent.model_copy(update={"attempt": stands.number}),
        bytes=_read_bytes(intent, _bytes_of(left, buffer)),
        generation=dataset.meta.generation,
        why=f"attempt {stands.number} over {len(left)} batches",
    )
    outcome = ConsolidationDecision(DUE, reason, f"Attempt {stands.number} over {len(left)} batches is being started.")
    return ConsolidationVerdict(launch, stands, run, outcome=outcome)


def _bytes_of(batch_ids: Collection[str], buffer: BufferDigest) -> int:
    """For a run's size; those that are not among the oldest count as the average of what waits."""
    known = {b.id: b.bytes for b in buffer.oldest}
    average = buffer.bytes // buffer.batches if buffer.batches else 0
    return sum(known.get(i, average) for i in batch_ids)


def _read_bytes(run: RunSpec, waiting: int) -> int:
    """What a run reads of so many bytes, by which it is sized: of files that it registers, next to nothing."""
    registers = run.consolidation is not None and run.consolidation.mode == "Register"
    return 0 if registers else waiting


def _settled(ledger: Ledger, batch_id: str, run_id: str) -> bool:
    known = ledger.batches.get(batch_id)
    return known is not None and (known.blocks_promotion or known.run == run_id)


def pause(runs: Sequence[Run], run_id: str, stands: Verdict | None, settings: Settings) -> datetime | None:
    """From when on a new intent may start: at once, but for what failed for good or ended without settling its batches.
    None: not before something changes."""
    same = next((r for r in runs if r.run_id == run_id), None)
    if isinstance(stands, GivenUp):
        if stands.attempt.run_id == run_id:
            return None
        return (stands.attempt.finished or stands.attempt.created) + timedelta(seconds=settings.retry.max_seconds)
    if same is not None and isinstance(stands, Ended) and stands.attempt.run_id == run_id:
        ended = stands.attempt.finished or stands.attempt.created
        return ended + timedelta(seconds=back_off_seconds(stands.attempt.number, settings.retry))
    return _BEGINNING


def age(run: Run) -> tuple[bool, datetime]:
    """By the last attempt; an intent without one is the newest, since it is stored just before its Job."""
    return (run.last is None, run.last.created if run.last else _BEGINNING)
