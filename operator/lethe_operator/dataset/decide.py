"""Decides everything about one Dataset: combines the decisions of the subjects and resolves conflicts between them. Pure.

- Runs of one Dataset that write data and commit never overlap. After a commit, other writers of the table get time to commit.
- Restatements go before consolidation, but not twice before the same batches.
- A vacuum, and Reverts, Undos and Erases by the committer, which change only metadata, may run at the same time as either.

It also says whether only a change, or a rare look, can find something to do, so that the time between reconciles grows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from lethe.base.errors import Verdict
from lethe.buffer.digest import BufferDigest
from lethe.contract.kubernetes import ACCEPT_HEAD
from lethe.contract.result import RestatementGroupResult
from lethe.contract.run import RunKind
from lethe.contract.status import DatasetStatus, TableStatus

from lethe_operator import conditions
from lethe_operator.actions import Actions, Decision, Event, Launch, earliest
from lethe_operator.dataset import status as dataset_status
from lethe_operator.dataset.consolidation import (
    ConsolidationChoice,
    ConsolidationDecision,
    decide_consolidation,
    decide_reanchor,
)
from lethe_operator.erasure.decide import ErasuresChoice, decide_erasures
from lethe_operator.guards import holds, preconditions
from lethe_operator.guards.preconditions import blocker
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
    Engine,
    LostLedger,
    NotListed,
    Observation,
    ObservedRun,
    TableView,
    Unavailable,
)
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement import assess as restatement_assess
from lethe_operator.restatement import status as restatement_status
from lethe_operator.restatement.assess import RestatementContext, assess
from lethe_operator.restatement.outcome import Assessment, RestatementPhase, RunHistories, finished_before
from lethe_operator.restatement.queue import (
    PAUSE_BETWEEN_COMMITS,
    RestatementQueue,
    Standings,
    bytes_of,
    in_order,
    queue,
    restatements_launch,
    start,
)
from lethe_operator.restatement.status import expired
from lethe_operator.runs import retry, spec
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt
from lethe_operator.runs.spec import (
    after_failures,
    care_for_warm_driver,
    in_cluster,
    seeing,
    under_holds,
    with_engine,
    within_boundary,
)
from lethe_operator.settings import Settings
from lethe_operator.vacuum import status as vacuum_status
from lethe_operator.vacuum.decide import VacuumChoice, decide_vacuum


def is_idle(dataset: Dataset, world: Observation, status: DatasetStatus) -> bool:
    """Whether nothing runs or is due, and nothing waits that only time reveals.

    A time at which a decision changes by itself (`Actions.look_again`) does not matter: the Dataset is reconciled then in any
    case.

    Args:
        status: Of the Dataset, as decided. It and the statuses of the Restatements are already shown.
    """
    if any(r.active for r in world.runs) or any(map(_waits, (*world.restatements, *world.looked_up_by))):
        return False
    subjects = (s for s in (status.consolidation, status.vacuum) if s is not None)
    if any(s.decision in (Decision.DUE, Decision.RUNNING) for s in subjects):
        return False
    if world.events is not None and world.events.in_flight:
        return False
    if dataset.paused:
        return True
    if not status.is_true(conditions.READY) or status.value_of(conditions.EVICTION_ON_TIME) == conditions.FALSE:
        return False
    if isinstance(world.buffer, NotListed):
        return True  # the end of the first listing is reported
    if isinstance(world.buffer, Unavailable):
        return False
    # The time at which a batch below the triggers is old enough is known, and a listing shows the batches that come before.
    is_due_later = status.consolidation is not None and status.consolidation.reason == Reason.BELOW_TRIGGERS
    waits = world.buffer.batches > 0 and not is_due_later
    return not (waits and not dataset.spec.consolidation.suspend) and not world.buffer.expired


def is_unsettled(meta: Meta, status: DatasetStatus) -> bool:
    """Whether a Dataset has an edit that its status does not show, or an active run: a new leader looks at it first.

    Args:
        status: Of the Dataset, as it is shown.
    """
    if meta.deleting or status.observed_generation != meta.generation:
        return True
    return any(run.finish_time is None for run in status.runs or ())


def _waits(restatement: Restatement) -> bool:
    """Whether a Restatement continues without an action of a user, at a time that nothing tells."""
    status = restatement.status
    succeeded = status.condition(conditions.SUCCEEDED)
    if succeeded is not None and succeeded.reason == Reason.LEGAL_HOLD:
        return False  # until the holds are edited, or the next one ends
    if status.phase == RestatementPhase.SUSPENDED or status.is_true(conditions.STALLED):
        return False
    return status.value_of(conditions.SUCCEEDED) in (conditions.UNKNOWN, None)


def is_committing(run: ObservedRun) -> bool:
    """Whether runs of its kind change what readers of the table see, and so take turns."""
    match run.kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT:
            return True
        case RunKind.VACUUM | RunKind.ERASURE_CHECK:
            return False
        case _:
            assert_never(run.kind)


@dataclass(frozen=True)
class _RunsToStart:
    """Which runs start now."""

    launches: tuple[Launch, ...]
    look_again: datetime | None
    """When to decide again; None: when something changes."""
    paused_until: datetime | None = None
    """Until then no run that commits starts, because one has just ended; None: there is no pause."""


@dataclass(frozen=True)
class _Group:
    """A queue of Restatements."""

    queue: RestatementQueue
    launch: Launch | None
    """The run of its first group; None: none is ready."""


@dataclass(frozen=True)
class _Choices:
    """The decision of each subject, before conflicts are resolved."""

    consolidation: ConsolidationChoice
    reanchor: ConsolidationChoice
    vacuum: VacuumChoice
    erasures: ErasuresChoice
    by_job: _Group
    """Restatements that Jobs carry out."""
    by_committer: _Group
    """Restatements that the committer carries out."""


def decide(dataset: Dataset, world: Observation, now: datetime, settings: Settings) -> Actions:
    """Decide everything to do for one Dataset now. The result depends only on the arguments."""
    world = replace(world, runs=retry.with_known_ends(world.runs, now))
    blocked = blocker(dataset, world, settings)
    paused = (
        Verdict(Reason.PAUSED, "The annotation lethe.dev/paused is set.", transient=True) if dataset.paused else None
    )
    held = blocked or paused
    current, invalid = holds.holds_now(dataset, now), holds.invalid_hold(dataset, world.table)
    run_histories = RunHistories(dataset, world.runs, settings)
    standings = [
        (r, assess(RestatementContext(r, dataset, world, held, run_histories.of(r), now, settings)))
        for r in in_order(r for r in world.restatements if not r.meta.deleting)
    ]
    with_committer = spec.may_ask(dataset, world)
    queued = queue(dataset, standings, lambda r: bytes_of(r, world), False if with_committer else None)
    quick = queue(dataset, standings, lambda _: 0, True) if with_committer else RestatementQueue()
    standings = [(r, _in_queue(r, s, queued, quick)) for r, s in standings]
    consolidation = decide_consolidation(dataset, world, held, now, settings)
    reanchor = decide_reanchor(dataset, world, now, settings)
    vacuum = decide_vacuum(dataset, world, held or invalid, now, settings)
    erasures = decide_erasures(dataset, world, held or invalid, now, settings)
    may_start = held is None and not dataset.meta.deleting
    group = None if _committing(world) else restatements_launch(dataset, world, queued)
    asked = None if spec.is_asked(world) else restatements_launch(dataset, world, quick, Engine.COMMITTER)
    choices = _Choices(consolidation, reanchor, vacuum, erasures, _Group(queued, group), _Group(quick, asked))
    if may_start:
        turns = _runs_to_start(dataset, world, choices, now, settings.cluster)
    elif (
        _may_accept(dataset, world, blocked) and reanchor.launch is not None
    ):  # removes the reason that blocks other runs
        turns = _RunsToStart((in_cluster(seeing(world, reanchor.launch), settings.cluster),), reanchor.look_again)
    else:
        turns = _RunsToStart((), reanchor.look_again if isinstance(world.table, LostLedger) else None)

    view = world.table if isinstance(world.table, TableView) else None
    old_runs = dataset.status.runs or ()
    runs = retry.entries(world.runs, view, old_runs, now)
    latest = (consolidation.latest, vacuum.latest, erasures.latest, reanchor.latest)
    decided = dataset_status.DatasetDecisions(
        blocked, latest, _consolidation_decision(consolidation, turns, may_start), vacuum, runs, invalid
    )
    status = dataset_status.status(dataset, world, decided, now)
    changed = restatement_status.changes(standings, now, _visibility(dataset, world, settings))

    orphaned = _orphaned(world, standings, [g for g in (group, asked) if g is not None])
    abandoned = frozenset(
        {*consolidation.abandoned, *reanchor.abandoned, *vacuum.abandoned, *erasures.abandoned, *orphaned}
    )
    if isinstance(world.table, Unavailable):  # it is unknown which runs are still needed
        abandoned = frozenset()
    prunable = retry.prunable(
        world.runs,
        old_runs,
        _needed(world, run_histories, standings, (consolidation, erasures, reanchor), vacuum),
    )
    over = expired(standings, now)
    unwanted = tuple(dict.fromkeys((*_unwanted(world, standings), *holds.to_stop(world, current))))
    cared = care_for_warm_driver(world, unwanted, now)
    return Actions(
        dataset_status=status,
        restatement_statuses=changed.statuses,
        policy_entries=vacuum.entries,
        launches=tuple(
            under_holds(within_boundary(with_engine(x, dataset, world, settings), settings), current)
            for x in turns.launches
        ),
        remind=(*spec.forgotten(world), *cared.remind) if may_start else (),
        withdraw=(*spec.withdrawn(world), *cared.withdraw),
        cancel=cared.cancel,
        start_warm_drivers=cared.start if may_start else {},
        sweep=world.buffer.expired if may_start and isinstance(world.buffer, BufferDigest) else 0,
        owner=preconditions.owner(dataset, world, settings),
        delete_jobs=(*prunable.jobs, *unwanted),
        drop_keys=(*prunable.keys, *(k for r in world.runs if r.run_id in abandoned and not r.active for k in r.keys)),
        delete_restatements=over.names,
        events=_each_once(
            *_dataset_events(dataset, status),
            *_accepted(dataset, status),
            *vacuum_status.events(dataset, status),
            *retry.events(dataset.meta.name, old_runs, runs),
            *changed.events,
        ),
        look_again=earliest(
            turns.look_again,
            cared.look_again,
            world.next_expiry,
            dataset_status.look_again(dataset, now),
            holds.next_end(dataset, now),
            changed.look_again,
            over.look_again,
            *(s.look_again for _, s in standings),
        ),
    )


def _visibility(dataset: Dataset, world: Observation, settings: Settings) -> restatement_status.Visibility | None:
    """What other engines see. None: the table was not read, or the Dataset writes no native deletes."""
    view = world.table
    if not isinstance(view, TableView) or not spec.writes_deletes(dataset, view, settings):
        return None
    results = (r.last.result for r in world.runs if r.last is not None)
    left = max((r.files_without_deletes for r in results if isinstance(r, RestatementGroupResult)), default=0)
    return restatement_status.Visibility(view.is_masked, 0 if view.is_masked else left)


def without_dataset(name: str, restatements: Sequence[Restatement], now: datetime) -> Actions:
    """The statuses of Restatements whose Dataset does not exist. They wait for it."""
    text = f"Waiting for Dataset {name}, which does not exist in this namespace. Create it, or correct spec.datasetRef.name."
    waits = Assessment(RestatementPhase.PENDING, conditions.UNKNOWN, Verdict(Reason.DATASET_NOT_FOUND, text))
    standings = [
        (r, finished_before(r) or restatement_assess.without_dataset(r, name, now) or waits) for r in restatements
    ]
    changed = restatement_status.changes(standings, now)
    over = expired(standings, now)
    deadlines = (r.deadline for r, s in standings if not s.finished)
    return Actions(
        restatement_statuses=changed.statuses,
        delete_restatements=over.names,
        events=changed.events,
        look_again=earliest(changed.look_again, over.look_again, *deadlines),
    )


def _in_queue(restatement: Restatement, standing: Assessment, *queues: RestatementQueue) -> Assessment:
    """With its position in the queue, and the Restatement that it waits for."""
    name = restatement.meta.name
    for queued in queues:
        if first := queued.waits_for.get(name):
            text = f"Waiting for Restatement {first}, which creates a batch that this one restates, or restates the same batch."
            standing = replace(standing, verdict=Verdict(Reason.WAITING_FOR_RESTATEMENT, text))
        if name in queued.positions:
            standing = replace(standing, position=queued.positions[name])
    return standing


def _runs_to_start(
    dataset: Dataset, world: Observation, choices: _Choices, now: datetime, cluster: str
) -> _RunsToStart:
    launches: list[Launch] = []
    consolidation, reanchor = choices.consolidation, choices.reanchor
    vacuum, erasures = choices.vacuum, choices.erasures
    asked = choices.by_committer.launch
    passed_over = consolidation.launch is not None and _was_passed_over(world)
    committing = consolidation.launch if passed_over else choices.by_job.launch or consolidation.launch
    ended = _commit_ended(world)
    pause = _pause(ended, now) if committing or reanchor.launch else None
    # While Restatements are being collected, no consolidation starts before them: it may take long.
    collected = start(choices.by_job.queue, dataset, ended, now)
    collecting = collected if collected is not None and collected > now and not passed_over else None
    # The committer's one commit takes a moment. It may follow a run's commit at once, but not its own.
    answered = _commit_ended(world, by_committer=True)
    gathered = start(choices.by_committer.queue, dataset, answered, now)
    gathering = gathered if gathered is not None and gathered > now else None
    if asked is not None and gathering is None:
        launches.append(asked)
    if committing is not None and pause is None and collecting is None and not _committing(world):
        launches.append(committing)
    if vacuum.launch is not None:
        launches.append(vacuum.launch)
    elif erasures.launch is not None:  # a vacuum checks the erasures itself at its end
        launches.append(erasures.launch)
    # Other engines see rows that were taken back until it has written native deletes.
    quiet = (reanchor.hides_rows or (pause is None and collecting is None)) and not launches
    if reanchor.launch is not None and quiet and not any(r.active for r in world.runs):
        launches.append(reanchor.launch)
    times = (v.look_again for v in (consolidation, vacuum, erasures, reanchor))
    complete = tuple(in_cluster(after_failures(world, seeing(world, x)), cluster) for x in launches)
    return _RunsToStart(complete, earliest(collecting or pause, gathering, *times), pause)


def _may_accept(dataset: Dataset, world: Observation, blocked: Verdict | None) -> bool:
    """Whether a lost ledger is the only reason why no run starts."""
    lost = isinstance(world.table, LostLedger) and blocked is not None and blocked.reason == Reason.LEDGER_LOST
    return lost and not dataset.paused and not dataset.meta.deleting and not any(r.active for r in world.runs)


def _unwanted(world: Observation, standings: Standings) -> tuple[str, ...]:
    """Jobs all of whose Restatements were cancelled."""
    asked = Counter(s.cancel_job for _, s in standings if s.cancel_job is not None)
    members = {a.job: len(r.requests) for r in world.runs for a in r.attempts}
    return tuple(job for job, count in asked.items() if count >= members.get(job, 0))


def _committing(world: Observation) -> bool:
    """Whether a run that commits data is active."""
    return any(a.state is AttemptState.ACTIVE for r in world.runs if is_committing(r) for a in r.attempts if _adds(a))


def _adds(attempt: Attempt) -> bool:
    """Whether an attempt adds data files: by a Job, or by the committer, which registers files."""
    return attempt.engine is not Engine.COMMITTER or attempt.kind is RunKind.CONSOLIDATION


def _was_passed_over(world: Observation) -> bool:
    """Whether the oldest batch has already waited for one Job of Restatements.

    Without this check, consolidation would never start while Restatements keep coming.
    """
    jobs = [
        (a.created, r.kind is RunKind.RESTATEMENT)
        for r in world.runs
        if is_committing(r)
        for a in r.attempts
        if _adds(a)
    ]
    if not jobs or not isinstance(world.buffer, BufferDigest) or not world.buffer.oldest:
        return False
    created, restated = max(jobs)
    return restated and world.buffer.oldest[0].oldest_time < created


def _pause(ended: datetime | None, now: datetime) -> datetime | None:
    """The end of the pause after a commit; None: there is none now."""
    until = ended + PAUSE_BETWEEN_COMMITS if ended is not None else now
    return until if until > now else None


def _commit_ended(world: Observation, by_committer: bool = False) -> datetime | None:
    """When the last run that commits ended, whatever its outcome; None: none is known.

    Args:
        by_committer: Only those that the committer carried out.
    """
    attempts = (a for r in world.runs if is_committing(r) and not r.is_dry for a in r.attempts)
    ends = (a.finished for a in attempts if not by_committer or a.engine is Engine.COMMITTER)
    return max((at for at in ends if at is not None), default=None)


def _consolidation_decision(
    consolidation: ConsolidationChoice, turns: _RunsToStart, may_start: bool
) -> ConsolidationDecision | None:
    """The decision about consolidation; it also says why a due run does not start."""
    outcome, launch = consolidation.decision, consolidation.launch
    if (
        outcome is None
        or launch is None
        or not may_start
        or launch.run.run_id in {x.run.run_id for x in turns.launches}
    ):
        return outcome
    if turns.paused_until is not None:
        paused = outcome.verdict.adding("The run starts after a pause, in which other writers can commit.")
        verdict = replace(paused, reason=Reason.PAUSE_BETWEEN_COMMITS)
        return replace(outcome, verdict=verdict, next_time=turns.paused_until)
    queued = outcome.verdict.adding("The run waits for a run of Restatements.")
    return replace(outcome, verdict=replace(queued, reason=Reason.QUEUED))


def _orphaned(world: Observation, standings: Standings, groups: Sequence[Launch]) -> frozenset[str]:
    """Stored intents without a Job that will not start: another group replaces them, or all their Restatements have ended."""
    unfinished = {r.key for r, s in standings if not s.finished}
    stored = [r for r in world.runs if r.kind is RunKind.RESTATEMENT and not r.attempts]
    if not groups:
        return frozenset(r.run_id for r in stored if unfinished.isdisjoint(q.key for q in r.requests))
    return frozenset(r.run_id for r in stored if r.run_id not in {g.run.run_id for g in groups})


def _needed(
    world: Observation,
    run_histories: RunHistories,
    standings: Standings,
    consolidations: Sequence[ConsolidationChoice | ErasuresChoice],
    vacuum: VacuumChoice,
) -> frozenset[str]:
    """Runs whose Jobs must be kept: they are retried, delay a retry, or their outcome is not shown yet."""
    unsettled = RetryAt | Exhausted | NotStarted
    needed = {run.run_id for r, _ in standings if finished_before(r) is None for run in run_histories.runs_of(r)}
    needed |= {v.latest_run.run_id for v in consolidations if v.latest_run and isinstance(v.latest, unsettled)}
    vacuums = [r for r in world.runs if r.kind is RunKind.VACUUM]
    if vacuums and isinstance(vacuum.latest, unsettled):
        needed.add(max(vacuums, key=_started).run_id)
    if isinstance(world.table, Unavailable):  # status.vacuum takes over what they found when the table can be read
        needed |= {run.run_id for run in vacuums}
    return frozenset(needed | vacuum.needed)


def _started(run: ObservedRun) -> float:
    return run.last.created.timestamp() if run.last else float("inf")


def _each_once(*events: Event) -> tuple[Event, ...]:
    """Without duplicates: two conditions may change for the same reason."""
    return tuple(dict.fromkeys(events))


def _dataset_events(dataset: Dataset, status: DatasetStatus) -> tuple[Event, ...]:
    was, now = dataset.status.condition(conditions.READY), status.condition(conditions.READY)
    if now is None or now.reason == Reason.RUN_RETRYING:
        return ()
    if was is not None and (was.status, was.reason) == (now.status, now.reason):
        return ()
    return (Event("Dataset", dataset.meta.name, now.verdict, now.status != conditions.TRUE),)


def _accepted(dataset: Dataset, status: DatasetStatus) -> tuple[Event, ...]:
    before, after = dataset.status.table or TableStatus(), status.table or TableStatus()
    head = after.accepted_head
    if head is None or head == before.accepted_head:
        return ()
    seen = f"snapshot {before.snapshot_id} of table {before.uuid}"
    text = f"The annotation {ACCEPT_HEAD} accepted {head}. The last accepted state was {seen}."
    return (Event("Dataset", dataset.meta.name, Verdict(Reason.HEAD_ACCEPTED, text)),)
