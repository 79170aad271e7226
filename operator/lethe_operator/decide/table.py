"""One mind per table: asks the modules beside it and settles conflicts between their answers. Pure.

Committing runs of one Dataset never overlap, and between two of them other writers of the table get a turn; Restatements go
before consolidation; a vacuum may run beside either.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.plan.digest import BufferDigest
from lethe.plan.retention import Sweep, plan_sweep
from lethe.run import RunKind

from lethe_operator.decide import conditions, dataset_status, restatement_status, run_history
from lethe_operator.decide.actions import Actions, Event, Launch, earliest
from lethe_operator.decide.consolidation import ConsolidationVerdict, Outcome, decide_consolidation
from lethe_operator.decide.reanchor import decide_reanchor
from lethe_operator.decide.restatement import Standing, finished_before, stand
from lethe_operator.decide.restatement_order import depends_on, in_order
from lethe_operator.decide.retry import Again, Fresh, GivenUp, Verdict
from lethe_operator.decide.run_specs import restatement_run_id
from lethe_operator.decide.run_specs import vacuum as vacuum_run
from lethe_operator.decide.vacuum import VacuumVerdict, decide_vacuum
from lethe_operator.decide.validation import Blocker, blocker
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import VACUUM_NOW
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Run, TableView, Unavailable, World
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import Settings

COMMITTING: Final = frozenset({RunKind.CONSOLIDATION, RunKind.RESTATEMENT})
# Every commit of ours makes another writer's attempt fail that has begun before it, and such a writer tries a few times only.
# Between two runs it shall have the table for itself for longer than an append takes, however fast runs start.
PAUSE_BETWEEN_COMMITS: Final = timedelta(seconds=5)
Standings = Sequence[tuple[Restatement, Standing]]


@dataclass(frozen=True)
class _Turns:
    """Which runs start now. `paused_until`: what would commit waits so long, since another run has just ended."""

    launches: tuple[Launch, ...]
    look_again: datetime | None
    paused_until: datetime | None = None


def decide(dataset: Dataset, world: World, now: datetime, settings: Settings) -> Actions:
    """Say everything that is to be done for one Dataset now. Same arguments, same answer."""
    stops = blocker(dataset, world, settings)
    paused = (
        Blocker(Reason.PAUSED, "The annotation lethe.dev/paused is set.", transient=True) if dataset.paused else None
    )
    held = stops or paused
    standings = _standings(dataset, world, held, now, settings)
    consolidation = decide_consolidation(dataset, world, held, now, settings)
    reanchor = decide_reanchor(dataset, world, now, settings)
    vacuum = decide_vacuum(dataset, world, held, now, settings)
    may_start = held is None and not dataset.meta.deleting
    turns = _turns(world, standings, consolidation, vacuum, reanchor, may_start, now)
    sweep = _sweep(dataset, world, now) if may_start else Sweep()

    view = world.table if isinstance(world.table, TableView) else None
    old_runs = dataset.status.get("runs") or ()
    runs = run_history.entries(world.runs, view, old_runs, now)
    latest = (consolidation.latest, vacuum.latest, reanchor.latest)
    told = _told(consolidation, turns, may_start)
    status = dataset_status.status(dataset, world, stops, latest, told, runs, now)
    statuses = {r.meta.name: restatement_status.status(r, s, now) for r, s in standings}

    orphaned = _orphaned(dataset, world, standings)
    abandoned = frozenset({*consolidation.abandoned, *reanchor.abandoned, *vacuum.abandoned, *orphaned})
    if isinstance(world.table, Unavailable):  # then nobody can say what is done with
        abandoned = frozenset()
    prunable = run_history.prunable(
        world.runs, old_runs, _needed(dataset, world, standings, (consolidation, reanchor), vacuum.latest)
    )
    expiries = {r.meta.name: restatement_status.expires(r, s, now) for r, s in standings}
    expired = tuple(name for name, at in expiries.items() if at is not None and at <= now)
    return Actions(
        dataset_status=status,
        restatement_statuses=statuses,
        policy_entries=vacuum.entries,
        launches=turns.launches,
        sweep=sweep.delete,
        delete_jobs=(*prunable.jobs, *(s.cancel_job for _, s in standings if s.cancel_job)),
        drop_keys=(*prunable.keys, *(k for r in world.runs if r.run_id in abandoned and not r.active for k in r.keys)),
        delete_restatements=expired,
        events=(
            *_dataset_events(dataset, status),
            *_accepted(dataset, status),
            *run_history.events(dataset.meta.name, old_runs, runs),
            *(e for r, _ in standings for e in restatement_status.events(r.meta.name, r.status, statuses[r.meta.name])),
        ),
        look_again=earliest(turns.look_again, *(at for at in expiries.values() if at is not None and at > now)),
    )


def without_dataset(name: str, restatements: Sequence[Restatement], now: datetime) -> Actions:
    """What Restatements of a Dataset that is not there are told. They wait for it."""
    text = f"There is no Dataset {name} in this namespace. It is waited for; correct spec.datasetRef.name otherwise."
    statuses: dict[str, Any] = {}
    events: list[Event] = []
    for r in restatements:
        if r.spec.cancel:
            early = "It was cancelled before it was started."
            standing = Standing("Cancelled", conditions.FALSE, Reason.CANCELLED, early)
        else:
            standing = Standing("Pending", conditions.UNKNOWN, Reason.DATASET_NOT_FOUND, text)
        final = finished_before(r)
        if final is None:
            statuses[r.meta.name] = restatement_status.status(r, standing, now)
            events += restatement_status.events(r.meta.name, r.status, statuses[r.meta.name])
    expired = tuple(
        r.meta.name
        for r in restatements
        if (final := finished_before(r)) and (at := restatement_status.expires(r, final, now)) and at <= now
    )
    return Actions(restatement_statuses=statuses, delete_restatements=expired, events=tuple(events))


def _standings(
    dataset: Dataset, world: World, held: Blocker | None, now: datetime, settings: Settings
) -> list[tuple[Restatement, Standing]]:
    by_id = {r.run_id: r for r in world.runs if r.kind is RunKind.RESTATEMENT}
    standings: list[tuple[Restatement, Standing]] = []
    for r in in_order(r for r in world.restatements if not r.meta.deleting):
        run = by_id.get(restatement_run_id(dataset, r))
        standing = stand(r, dataset, world, held, run, now, settings)
        first = depends_on(r, standings) if standing.launch else None
        if first is not None:
            text = f"It restates the replacement of Restatement {first.meta.name}, which goes first."
            standing = Standing("Queued", conditions.UNKNOWN, Reason.WAITING_FOR_RESTATEMENT, text)
        standings.append((r, standing))
    return standings


def _turns(
    world: World,
    standings: Standings,
    consolidation: ConsolidationVerdict,
    vacuum: VacuumVerdict,
    reanchor: ConsolidationVerdict,
    may_start: bool,
    now: datetime,
) -> _Turns:
    if not may_start:
        return _Turns((), None)
    launches: list[Launch] = []
    first = next((s.launch for _, s in standings if s.launch), None)
    committing = first or consolidation.launch
    pause = _pause_after(world, now) if committing or reanchor.launch else None
    if committing is not None and pause is None and not any(r.active for r in world.runs if r.kind in COMMITTING):
        launches.append(committing)
    if vacuum.launch is not None:
        launches.append(vacuum.launch)
    if reanchor.launch is not None and pause is None and not launches and not any(r.active for r in world.runs):
        launches.append(reanchor.launch)
    verdicts = (consolidation, vacuum, reanchor)
    times = (pause, *(v.look_again for v in verdicts), *(s.look_again for _, s in standings))
    return _Turns(tuple(_seeing(world, x) for x in launches), earliest(*times), pause)


def _pause_after(world: World, now: datetime) -> datetime | None:
    """Until when nothing of ours commits, since a run that does has just ended; None: it may."""
    ended = [a.finished for r in world.runs if r.kind in COMMITTING for a in r.attempts if a.finished is not None]
    until = max(ended) + PAUSE_BETWEEN_COMMITS if ended else now
    return until if until > now else None


def _told(consolidation: ConsolidationVerdict, turns: _Turns, may_start: bool) -> Outcome | None:
    """The decision about consolidation in words; one that would start also says when others go first."""
    outcome, launch = consolidation.outcome, consolidation.launch
    if (
        outcome is None
        or launch is None
        or not may_start
        or launch.run.run_id in {x.run.run_id for x in turns.launches}
    ):
        return outcome
    if turns.paused_until is not None:
        text = f"{outcome.message} Other writers get a turn before the next run."
        return replace(outcome, reason=Reason.PAUSE_BETWEEN_COMMITS, message=text, next_time=turns.paused_until)
    return replace(outcome, reason=Reason.QUEUED, message=f"{outcome.message} It waits for the run of a Restatement.")


def _seeing(world: World, launch: Launch) -> Launch:
    """With the head that this decision rests on: the run looks whether the table was rolled back meanwhile."""
    view = world.table
    if not isinstance(view, TableView):
        return launch
    seen = {"seen_snapshot_id": view.head_id, "seen_sequence_number": view.head_sequence_number}
    return replace(launch, run=launch.run.model_copy(update=seen))


def _sweep(dataset: Dataset, world: World, now: datetime) -> Sweep:
    if not isinstance(world.table, TableView) or not isinstance(world.buffer, BufferDigest):
        return Sweep()
    return plan_sweep(world.buffer.expired, world.table.ledger, dataset.spec.buffer.retention_seconds, now)


def _orphaned(dataset: Dataset, world: World, standings: Standings) -> frozenset[str]:
    """Stored intents of Restatements that are gone or finished, for which no Job is there."""
    wanted = {restatement_run_id(dataset, r) for r, s in standings if not s.finished}
    return frozenset(
        r.run_id for r in world.runs if r.kind is RunKind.RESTATEMENT and not r.attempts and r.run_id not in wanted
    )


def _needed(
    dataset: Dataset,
    world: World,
    standings: Standings,
    consolidations: Sequence[ConsolidationVerdict],
    vacuum: Verdict | None,
) -> frozenset[str]:
    """Runs whose Jobs must stay: to be tried again, in the way of a new try, or not reported yet."""
    unsettled = Again | GivenUp | Fresh
    needed = {restatement_run_id(dataset, r) for r, _ in standings if finished_before(r) is None}
    needed |= {v.latest_run.run_id for v in consolidations if v.latest_run and isinstance(v.latest, unsettled)}
    vacuums = [r for r in world.runs if r.kind is RunKind.VACUUM]
    if vacuums and isinstance(vacuum, unsettled):
        needed.add(max(vacuums, key=_started).run_id)
    asked = dataset.meta.annotations.get(VACUUM_NOW)
    if asked:  # as long as the annotation stands, its run says that it was heard
        needed.add(vacuum_run(dataset, "", True, f"{VACUUM_NOW}\n{asked}").run_id)
    return frozenset(needed)


def _started(run: Run) -> float:
    return run.last.created.timestamp() if run.last else float("inf")


def _dataset_events(dataset: Dataset, status: dict[str, Any]) -> tuple[Event, ...]:
    was = conditions.find(dataset.status, conditions.READY)
    now = conditions.find(status, conditions.READY)
    if (was.get("status"), was.get("reason")) == (now["status"], now["reason"]):
        return ()
    if now["reason"] == Reason.RUN_RETRYING:
        return ()
    warning = now["status"] != conditions.TRUE
    return (Event("Dataset", dataset.meta.name, now["reason"], now["message"], warning),)


def _accepted(dataset: Dataset, status: dict[str, Any]) -> tuple[Event, ...]:
    before, after = dataset.status.get("table") or {}, status.get("table") or {}
    head = after.get("acceptedHead")
    if head is None or head == before.get("acceptedHead"):
        return ()
    text = f"Work goes on from snapshot {head}; before, snapshot {before.get('snapshotId')} had been seen."
    return (Event("Dataset", dataset.meta.name, Reason.HEAD_ACCEPTED, text),)
