"""When buffered batches are moved into the table, and which ones; and when a run re-anchors a bare head. Pure.

Re-anchoring makes sure that the expiry of older snapshots by other writers cannot lose the ledger.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base.errors import Verdict
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.contract.dataset import ConsolidationSettings
from lethe.contract.kubernetes import written
from lethe.contract.result import ConsolidationResult
from lethe.contract.run import AcceptedHead, RunKind, RunSpec
from lethe.contract.settings import ConsolidationMode
from lethe.ledger.ledger import EMPTY, Ledger

from lethe_operator.actions import Decision, Launch, earliest
from lethe_operator.conditions import timestamp
from lethe_operator.guards import preconditions
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import FOR_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Engine,
    LostLedger,
    NoTable,
    NotListed,
    Observation,
    ObservedRun,
    TableView,
    Unavailable,
)
from lethe_operator.restatement.assess import waits_for_batches
from lethe_operator.runs import spec as run_specs
from lethe_operator.runs.retry import (
    Exhausted,
    NotStarted,
    RetryAt,
    RetryState,
    Running,
    Succeeded,
    back_off_seconds,
    retry_state,
)
from lethe_operator.runs.spec import committer_failed, may_ask, may_register
from lethe_operator.settings import Settings

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
# After a run, the next one waits for the listing that its end has caused. Otherwise it would take only the batches that were
# known before, often a few, and a run of a few costs almost as much as one of thousands. It waits for as long as the last run
# took, within these limits.
LISTED_WITHIN: Final = timedelta(seconds=10)
LISTED_WITHIN_AT_MOST: Final = timedelta(minutes=1)
CHEAP_OBJECTS: Final = 10_000
"""A buffer of at most this many objects is listed with ten requests."""
OBJECTS_PER_BATCH_TAKEN: Final = 20
"""The listing of a larger buffer is worth its cost after a run that took a batch for every so many objects in it."""


@dataclass(frozen=True)
class ConsolidationDecision:
    """The decision with its reason, for `status.consolidation`. It must not change while nothing else changes."""

    decision: Decision
    verdict: Verdict
    next_time: datetime | None = None
    """When the decision changes by itself; None: unknown."""


@dataclass(frozen=True)
class ConsolidationChoice:
    """What the decision about consolidation says of runs: which one starts, and what became of the newest one."""

    launch: Launch | None = None
    """Starts when no other run commits; None: no run is due."""
    latest: RetryState | None = None
    """The state of the newest run, for the Dataset's conditions; None: there is no run, or it is abandoned."""
    latest_run: ObservedRun | None = None
    """The newest run; None: there is none, or it is abandoned."""
    look_again: datetime | None = None
    """None: no time at which the decision changes by itself."""
    abandoned: tuple[str, ...] = ()
    """Ids of runs that are not continued."""
    decision: ConsolidationDecision | None = None
    """None: of a re-anchoring run, which the status does not show."""
    hides_rows: bool = False
    """The run writes native deletes that other engines need."""


def ledger_of(world: Observation) -> Ledger:
    """The ledger of the observed table; the empty one if there is no table or it cannot be read."""
    return world.table.ledger if isinstance(world.table, TableView) else EMPTY


def triggered(buffer: BufferDigest, spec: ConsolidationSettings, now: datetime) -> ConsolidationDecision:
    """Whether a run is due, by number, bytes or age of the waiting batches."""
    count, size = buffer.batches, buffer.bytes
    if not count:
        return ConsolidationDecision(Decision.LATER, Verdict(Reason.NOTHING_WAITS, "No batch waits."))
    if not buffer.oldest:
        return ConsolidationDecision(
            Decision.LATER,
            Verdict(Reason.BUFFER_BEING_LISTED, f"{count} batches wait. The next listing finds the oldest of them."),
        )
    since = buffer.oldest[0].oldest_time
    ripe = since + timedelta(seconds=spec.max_age_seconds)
    if count >= spec.min_batches:
        return ConsolidationDecision(
            Decision.DUE, Verdict(Reason.ENOUGH_BATCHES, f"{count} batches wait, minBatches is {spec.min_batches}.")
        )
    if size >= spec.min_bytes:
        text = f"{written(size)} wait, minBytes is {written(spec.min_bytes)}."
        return ConsolidationDecision(Decision.DUE, Verdict(Reason.ENOUGH_BYTES, text))
    if ripe <= now:
        text = f"The oldest batch has waited since {timestamp(since)}, maxAgeSeconds is {spec.max_age_seconds}."
        return ConsolidationDecision(Decision.DUE, Verdict(Reason.OLD_ENOUGH, text))
    text = f"{count} of {spec.min_batches} batches, {written(size)} of {written(spec.min_bytes)}; due by age at "
    return ConsolidationDecision(Decision.LATER, Verdict(Reason.BELOW_TRIGGERS, f"{text}{timestamp(ripe)}."), ripe)


def chosen(oldest: Sequence[WaitingBatch], spec: ConsolidationSettings) -> tuple[WaitingBatch, ...]:
    """The oldest batches within the limits of one run, and at least one."""
    taken: list[WaitingBatch] = []
    size = 0
    for batch in oldest[: spec.max_batches_per_run]:
        if taken and size + batch.bytes > spec.max_bytes_per_run:
            break
        taken.append(batch)
        size += batch.bytes
    return tuple(taken)


def decide_consolidation(
    dataset: Dataset, world: Observation, held: Verdict | None, now: datetime, settings: Settings
) -> ConsolidationChoice:
    """Decide which consolidation starts, or when to look again.

    A stored intent goes before a new one: its run id identifies what its last attempt staged or committed.

    Args:
        held: What keeps every run from starting; the choice then only shows it. None: nothing.
    """
    choice = _choice(dataset, world, now, settings)
    if held is None or isinstance(choice.latest, Running):
        return choice
    text = "No run starts: see the conditions Ready and Paused."
    return replace(choice, decision=ConsolidationDecision(Decision.LATER, Verdict(Reason.DATASET_NOT_READY, text)))


def _choice(dataset: Dataset, world: Observation, now: datetime, settings: Settings) -> ConsolidationChoice:
    generation = dataset.meta.generation
    spec = dataset.spec.consolidation
    runs = sorted((r for r in world.runs if r.kind is RunKind.CONSOLIDATION), key=age)
    latest = runs[-1] if runs else None
    latest_state = retry_state(latest, generation, settings) if latest else None
    if isinstance(latest_state, Running):
        attempt = latest_state.attempt
        decision = (
            ConsolidationDecision(
                Decision.DUE, Verdict(Reason.RUN_SUSPENDED, f"Run {attempt.job} has not started. {attempt.suspended}")
            )
            if attempt.suspended
            else ConsolidationDecision(Decision.RUNNING, Verdict(Reason.RUNNING, f"Run {attempt.job} is active."))
        )
        return ConsolidationChoice(None, latest_state, latest, decision=decision)
    if not isinstance(world.buffer, BufferDigest):
        return ConsolidationChoice(None, latest_state, latest, decision=_unlisted(world.buffer))
    if latest is not None and isinstance(latest_state, NotStarted | RetryAt):
        unfinished = _unfinished(dataset, world, world.buffer, latest, latest_state, now)
        if unfinished is not None:
            return unfinished
        abandoned: tuple[str, ...] = (latest.run_id,)
        latest, latest_state = None, None
    else:
        abandoned = ()
    decision = triggered(world.buffer, spec, now)
    if decision.decision is not Decision.DUE and waits_for_batches(world):
        text = "A Restatement that finds rows by their values waits for batches that arrived before it."
        decision = ConsolidationDecision(Decision.DUE, Verdict(Reason.WAITS_FOR_BATCHES, text))
    if decision.decision is not Decision.DUE and _must_create_table(dataset, world):
        text = "The source waits for the table, which does not exist yet."
        decision = ConsolidationDecision(Decision.DUE, Verdict(Reason.CREATES_TABLE, text))
    if spec.suspend:
        decision = _suspended(decision.verdict.message)
    if decision.decision is not Decision.DUE:
        return ConsolidationChoice(None, latest_state, latest, decision.next_time, abandoned, decision)
    batches = chosen(world.buffer.oldest, spec)
    run = run_specs.consolidation(dataset, batches, world.events.writes if world.events else None)
    not_before = pause(runs, run.run_id, latest_state, settings)
    if not_before is None or not_before > now:
        decision = _paused(latest_state, not_before)
        return ConsolidationChoice(None, latest_state, latest, not_before, abandoned, decision)
    listed_by = _listed_by(world, batches, latest_state, spec)
    if listed_by is not None and listed_by > now:
        text = f"{len(batches)} batches wait. The listing after the last run may find more."
        decision = ConsolidationDecision(Decision.LATER, Verdict(Reason.BUFFER_BEING_LISTED, text), listed_by)
        return ConsolidationChoice(None, latest_state, latest, listed_by, abandoned, decision)
    earlier = next((r for r in runs if r.run_id == run.run_id), None)
    number = max((a.number for a in earlier.attempts), default=0) + 1 if earlier else 1
    run = run.model_copy(update={"attempt": number})
    launch = Launch(
        run,
        bytes=_read_bytes(run, sum(b.bytes for b in batches)),
        generation=generation,
        why=f"{len(batches)} batches. {decision.verdict.message.removesuffix('.')}",
        engine=_engine(dataset, world, run, now),
    )
    return ConsolidationChoice(launch, latest_state, latest, None, abandoned, decision)


def _listed_by(
    world: Observation, batches: Sequence[WaitingBatch], latest_state: RetryState | None, spec: ConsolidationSettings
) -> datetime | None:
    """Until when a run for these batches waits for the listing that is under way; None: it waits for none.

    It waits only if it would take few batches, compared with the last one. The result of that run says how many it took: its
    intent is deleted once the status shows its end, while its results stay.
    """
    if not world.is_listed_now or not isinstance(latest_state, Succeeded):
        return None
    attempt, buffer = latest_state.attempt, world.buffer
    if not isinstance(attempt.result, ConsolidationResult) or not isinstance(buffer, BufferDigest):
        return None
    taken = min(attempt.result.batches_promoted, spec.max_batches_per_run)
    if not are_few(len(batches), taken, buffer.objects):
        return None
    finished = attempt.finished or attempt.created
    return finished + min(max(finished - attempt.created, LISTED_WITHIN), LISTED_WITHIN_AT_MOST)


def are_few(left: int, taken: int, objects: int) -> bool:
    """Whether so few batches are known after a run that a listing should come before the next one.

    Args:
        left: The batches that wait, as far as is known.
        taken: Those that the run took.
        objects: In the buffer, which is what a listing costs.
    """
    is_worth_it = objects <= CHEAP_OBJECTS or taken * OBJECTS_PER_BATCH_TAKEN >= objects
    return 2 * left < taken and is_worth_it


def _must_create_table(dataset: Dataset, world: Observation) -> bool:
    """Whether a run without batches is to create the table: the inlet reads messages as rows of it."""
    spec = dataset.spec
    return isinstance(world.table, NoTable) and spec.source.kafka is not None and spec.table.create is not None


def _unlisted(buffer: NotListed | Unavailable) -> ConsolidationDecision:
    if isinstance(buffer, Unavailable):
        return ConsolidationDecision(
            Decision.LATER, Verdict(buffer.reason, "The buffer cannot be listed: see the condition Ready.")
        )
    return ConsolidationDecision(
        Decision.LATER, Verdict(Reason.BUFFER_BEING_LISTED, "Waiting for the first listing of the buffer to finish.")
    )


def _suspended(message: str) -> ConsolidationDecision:
    return ConsolidationDecision(
        Decision.LATER, Verdict(Reason.SUSPENDED, f"spec.consolidation.suspend is true. {message}")
    )


def _paused(latest_state: RetryState | None, not_before: datetime | None) -> ConsolidationDecision:
    if not isinstance(latest_state, Exhausted):
        text = "The last run ended without promoting or refusing these batches. They are retried after a pause."
        return ConsolidationDecision(Decision.LATER, Verdict(Reason.PAUSE_AFTER_RUN, text), not_before)
    if not_before is None:
        text = "The run for these batches failed permanently. It is retried when the Dataset or its batches change."
    else:
        text = "The last run failed permanently. A run for other batches starts after a pause."
    return ConsolidationDecision(Decision.LATER, Verdict(latest_state.failure.reason, text), not_before)


def _unfinished(
    dataset: Dataset,
    world: Observation,
    buffer: BufferDigest,
    run: ObservedRun,
    latest_state: NotStarted | RetryAt,
    now: datetime,
) -> ConsolidationChoice | None:
    """Continue the run of the stored intent; None: all its batches are settled."""
    intent = run.intent
    if intent is None or intent.consolidation is None:
        return None
    ledger = ledger_of(world)
    left = {i for i in intent.consolidation.batch_ids if not _settled(ledger, i, run.run_id)}
    if not left:
        return None
    why, at = Verdict(Reason.QUEUED, ""), now
    if isinstance(latest_state, RetryAt):
        why, at = latest_state.failure, latest_state.at
    if dataset.spec.consolidation.suspend:
        decision = _suspended(f"A run for {len(left)} batches has not ended.")
        return ConsolidationChoice(None, latest_state, run, at if at > now else None, decision=decision)
    if at > now:
        why = why.adding(f"Attempt {latest_state.number} follows at {timestamp(at)}.")
        decision = ConsolidationDecision(Decision.DUE, why, at)
        return ConsolidationChoice(None, latest_state, run, at, decision=decision)
    intent = run_specs.again(dataset, intent, latest_state.number)
    launch = Launch(
        intent,
        bytes=_read_bytes(intent, _bytes_of(left, buffer)),
        generation=dataset.meta.generation,
        why=f"attempt {latest_state.number} for {len(left)} batches",
        engine=_engine(dataset, world, intent, now),
    )
    decision = ConsolidationDecision(
        Decision.DUE, Verdict(why.reason, f"Attempt {latest_state.number} for {len(left)} batches starts.")
    )
    return ConsolidationChoice(launch, latest_state, run, decision=decision)


def _engine(dataset: Dataset, world: Observation, run: RunSpec, now: datetime) -> Engine:
    return Engine.COMMITTER if may_register(dataset, world, run, now) else Engine.JOB


def _bytes_of(batch_ids: Collection[str], buffer: BufferDigest) -> int:
    """The bytes of these batches. Those that are not among the oldest count with the average of all waiting batches."""
    known = {b.id: b.bytes for b in buffer.oldest}
    average = buffer.bytes // buffer.batches if buffer.batches else 0
    return sum(known.get(i, average) for i in batch_ids)


def _read_bytes(run: RunSpec, waiting: int) -> int:
    """How much a run for `waiting` bytes reads, for its size. It does not read files that it registers."""
    registers = run.consolidation is not None and run.consolidation.mode is ConsolidationMode.REGISTER
    return 0 if registers else waiting


def _settled(ledger: Ledger, batch_id: str, run_id: str) -> bool:
    known = ledger.batches.get(batch_id)
    return known is not None and (known.blocks_promotion or known.run == run_id)


def pause(
    runs: Sequence[ObservedRun], run_id: str, latest_state: RetryState | None, settings: Settings
) -> datetime | None:
    """When a new intent may start: at once, unless a run of it failed permanently or ended without settling its batches.

    Returns:
        None, if it may not start before something changes.
    """
    same = next((r for r in runs if r.run_id == run_id), None)
    if isinstance(latest_state, Exhausted):
        if latest_state.attempt.run_id == run_id:
            return None
        return (latest_state.attempt.finished or latest_state.attempt.created) + timedelta(
            seconds=settings.retry.max_seconds
        )
    if same is not None and isinstance(latest_state, Succeeded) and latest_state.attempt.run_id == run_id:
        ended = latest_state.attempt.finished or latest_state.attempt.created
        return ended + timedelta(seconds=back_off_seconds(latest_state.attempt.number, settings.retry))
    return _BEGINNING


def age(run: ObservedRun) -> tuple[bool, datetime]:
    """The sort key of runs: the time of the last attempt. An intent without attempts is the newest."""
    return (run.last is None, run.last.created if run.last else _BEGINNING)


# Another writer may commit several times in a row, and one commit of ours serves for all of them, so wait until the head is
# this old,
QUIET_FOR: Final = timedelta(seconds=30)
# but not longer than this, because a writer may never stop.
BARE_AT_MOST: Final = timedelta(minutes=5)
# The same, if the other writer may have added rows of batches that were taken back: other engines see them until the run.
VISIBLE_FOR: Final = timedelta(seconds=2)
VISIBLE_AT_MOST: Final = timedelta(seconds=20)


def decide_reanchor(dataset: Dataset, world: Observation, now: datetime, settings: Settings) -> ConsolidationChoice:
    """Decide whether a run for the head starts when there is no other work, or when to look again.

    It gives a ledger to a head without one, and native deletes to tombstones that have none yet. Any other commit of Lethe also
    re-anchors the head, so this run has the lowest priority. Once the head needs neither, the run is not needed, whatever its
    outcome.
    """
    runs = sorted((r for r in world.runs if r.kind is RunKind.REANCHORING), key=age)
    latest = runs[-1] if runs else None
    state = retry_state(latest, dataset.meta.generation, settings, FOR_HEAD) if latest else None
    if isinstance(state, Running):
        return ConsolidationChoice(None, state, latest)
    view = world.table
    if isinstance(view, LostLedger):
        return _of_lost(dataset, view, runs, state, now, settings)
    unfinished = (latest.run_id,) if latest is not None and isinstance(state, NotStarted | RetryAt) else ()
    if not isinstance(view, TableView) or view.head_id is None or view.head_time is None:
        return ConsolidationChoice(abandoned=unfinished)
    lacks_deletes = not view.is_masked and run_specs.writes_deletes(dataset, view, settings)
    if view.bare_since is None and not lacks_deletes:
        return ConsolidationChoice(abandoned=unfinished)
    run = run_specs.reanchoring(dataset, view.head_id)
    same = next((r for r in runs if r.run_id == run.run_id), None)
    if view.bare_since is None and same is not None and isinstance(state, Succeeded) and same is latest:
        return ConsolidationChoice(None, state, latest)  # it could not hide more
    abandoned = unfinished if latest is not same else ()
    if dataset.spec.consolidation.suspend:
        return ConsolidationChoice(None, state, latest, None, abandoned)
    not_before = state.at if isinstance(state, RetryAt) else pause(runs, run.run_id, state, settings)
    quiet, at_most = (VISIBLE_FOR, VISIBLE_AT_MOST) if lacks_deletes else (QUIET_FOR, BARE_AT_MOST)
    ripe = min(view.head_time + quiet, view.bare_since + at_most) if view.bare_since is not None else view.head_time
    if not_before is None or max(not_before, ripe) > now:
        return ConsolidationChoice(None, state, latest, earliest(*_future(now, not_before, ripe)), abandoned)
    launch = Launch(
        run.model_copy(update={"attempt": max((a.number for a in same.attempts), default=0) + 1 if same else 1}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the head {view.head_id} is another writer's commit without a ledger"
        if view.bare_since is not None
        else f"tombstones of the head {view.head_id} have no native deletes yet",
        for_uid=FOR_HEAD,
        engine=Engine.COMMITTER if may_ask(dataset, world) and not committer_failed(same) else Engine.JOB,
    )
    return ConsolidationChoice(launch, state, latest, None, abandoned, hides_rows=lacks_deletes)


def _of_lost(
    dataset: Dataset,
    lost: LostLedger,
    runs: Sequence[ObservedRun],
    state: RetryState | None,
    now: datetime,
    settings: Settings,
) -> ConsolidationChoice:
    """Attach the last ledger to a head that has lost it, once the user accepts that head."""
    latest = runs[-1] if runs else None
    if lost.last_ledger is None or not preconditions.accepts_lost_ledger(dataset, lost):
        return ConsolidationChoice(None, state, latest)
    run = run_specs.accepting(dataset, AcceptedHead(head_id=lost.head_id, ledger=lost.last_ledger))
    same = next((r for r in runs if r.run_id == run.run_id), None)
    not_before = state.at if isinstance(state, RetryAt) and same else pause(runs, run.run_id, state, settings)
    if not_before is None or not_before > now:
        return ConsolidationChoice(None, state, latest, not_before)
    number = max((a.number for a in same.attempts), default=0) + 1 if same else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the user accepted the head {lost.head_id}, which has no ledger; the run attaches the last ledger to it",
        for_uid=FOR_HEAD,
    )
    return ConsolidationChoice(launch, state, latest)


def _future(now: datetime, *times: datetime | None) -> tuple[datetime, ...]:
    return tuple(t for t in times if t is not None and t > now)
