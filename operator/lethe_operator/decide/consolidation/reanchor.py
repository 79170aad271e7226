"""When a run re-anchors a bare head, so that the expiry of older snapshots by other writers cannot lose its ledger. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from lethe.contract.run import AcceptedHead, RunKind

from lethe_operator.decide.actions import Launch, earliest
from lethe_operator.decide.consolidation.trigger import ConsolidationVerdict, age, pause
from lethe_operator.decide.guards import lost_ledger
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.runs.committer import committer_failed, may_ask
from lethe_operator.decide.runs.retry import Again, Fresh, Going, Verdict, judge
from lethe_operator.resources.common import FOR_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import LostLedger, ObservedRun, TableView, World
from lethe_operator.settings import Settings

# Another writer may commit several times in a row, and one commit of ours serves for all of them, so wait until the head is
# this old,
QUIET_FOR: Final = timedelta(seconds=30)
# but not longer than this, because a writer may never stop.
BARE_AT_MOST: Final = timedelta(minutes=5)


def decide_reanchor(dataset: Dataset, world: World, now: datetime, settings: Settings) -> ConsolidationVerdict:
    """Decide whether a run that re-anchors the head starts when there is no other work, or when to look again.

    Any other commit of Lethe also re-anchors the head, so this run has the lowest priority. Once the head is no longer bare, the
    run is not needed, whatever its outcome.
    """
    runs = sorted((r for r in world.runs if r.kind is RunKind.REANCHORING), key=age)
    latest = runs[-1] if runs else None
    verdict = judge(latest, dataset.meta.generation, settings, FOR_HEAD) if latest else None
    if isinstance(verdict, Going):
        return ConsolidationVerdict(None, verdict, latest)
    view = world.table
    if isinstance(view, LostLedger):
        return _of_lost(dataset, view, runs, verdict, now, settings)
    unfinished = (latest.run_id,) if latest is not None and isinstance(verdict, Fresh | Again) else ()
    if not isinstance(view, TableView) or view.head_id is None or view.head_time is None or view.bare_since is None:
        return ConsolidationVerdict(abandoned=unfinished)
    run = run_specs.reanchoring(dataset, view.head_id)
    same = next((r for r in runs if r.run_id == run.run_id), None)
    abandoned = unfinished if latest is not same else ()
    if dataset.spec.consolidation.suspend:
        return ConsolidationVerdict(None, verdict, latest, None, abandoned)
    not_before = verdict.at if isinstance(verdict, Again) else pause(runs, run.run_id, verdict, settings)
    ripe = min(view.head_time + QUIET_FOR, view.bare_since + BARE_AT_MOST)
    if not_before is None or max(not_before, ripe) > now:
        return ConsolidationVerdict(None, verdict, latest, earliest(*_future(now, not_before, ripe)), abandoned)
    launch = Launch(
        run.model_copy(update={"attempt": max((a.number for a in same.attempts), default=0) + 1 if same else 1}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the head {view.head_id} is another writer's commit without a ledger",
        for_uid=FOR_HEAD,
        engine=Engine.COMMITTER if may_ask(dataset, world) and not committer_failed(same) else Engine.JOB,
    )
    return ConsolidationVerdict(launch, verdict, latest, None, abandoned)


def _of_lost(
    dataset: Dataset,
    lost: LostLedger,
    runs: Sequence[ObservedRun],
    verdict: Verdict | None,
    now: datetime,
    settings: Settings,
) -> ConsolidationVerdict:
    """Attach the last ledger to a head that has lost it, once the user accepts that head."""
    latest = runs[-1] if runs else None
    if lost.last_ledger is None or not lost_ledger.is_accepted(dataset, lost):
        return ConsolidationVerdict(None, verdict, latest)
    run = run_specs.accepting(dataset, AcceptedHead(head_id=lost.head_id, ledger=lost.last_ledger))
    same = next((r for r in runs if r.run_id == run.run_id), None)
    not_before = verdict.at if isinstance(verdict, Again) and same else pause(runs, run.run_id, verdict, settings)
    if not_before is None or not_before > now:
        return ConsolidationVerdict(None, verdict, latest, not_before)
    number = max((a.number for a in same.attempts), default=0) + 1 if same else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the user accepted the head {lost.head_id}, which has no ledger; the run attaches the last ledger to it",
        for_uid=FOR_HEAD,
    )
    return ConsolidationVerdict(launch, verdict, latest)


def _future(now: datetime, *times: datetime | None) -> tuple[datetime, ...]:
    return tuple(t for t in times if t is not None and t > now)
