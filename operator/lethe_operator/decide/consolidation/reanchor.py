"""When a bare head is given a ledger of its own, so that no expiry by others can lose the one it rests on. Pure."""

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
from lethe_operator.resources.observed import LostLedger, Run, TableView, World
from lethe_operator.settings import Settings

# Whoever just committed may do so again at once, and one commit of ours serves for all of theirs…
QUIET_FOR: Final = timedelta(seconds=30)
# …but somebody who never stops must not keep it away for ever.
BARE_AT_MOST: Final = timedelta(minutes=5)


def decide_reanchor(dataset: Dataset, world: World, now: datetime, settings: Settings) -> ConsolidationVerdict:
    """Say whether a run that re-anchors the head is to start once nothing else is to be done, or when to look again.

    Any other commit of ours does the same, so this one has time. A head that is not bare any more settles the matter, however
    the last run ended.
    """
    runs = sorted((r for r in world.runs if r.kind is RunKind.REANCHORING), key=age)
    latest = runs[-1] if runs else None
    stands = judge(latest, dataset.meta.generation, settings, FOR_HEAD) if latest else None
    if isinstance(stands, Going):
        return ConsolidationVerdict(None, stands, latest)
    view = world.table
    if isinstance(view, LostLedger):
        return _of_lost(dataset, view, runs, stands, now, settings)
    unfinished = (latest.run_id,) if latest is not None and isinstance(stands, Fresh | Again) else ()
    if not isinstance(view, TableView) or view.head_id is None or view.head_time is None or view.bare_since is None:
        return ConsolidationVerdict(abandoned=unfinished)
    run = run_specs.reanchoring(dataset, view.head_id)
    same = next((r for r in runs if r.run_id == run.run_id), None)
    abandoned = unfinished if latest is not same else ()
    if dataset.spec.consolidation.suspend:
        return ConsolidationVerdict(None, stands, latest, None, abandoned)
    not_before = stands.at if isinstance(stands, Again) else pause(runs, run.run_id, stands, settings)
    ripe = min(view.head_time + QUIET_FOR, view.bare_since + BARE_AT_MOST)
    if not_before is None or max(not_before, ripe) > now:
        return ConsolidationVerdict(None, stands, latest, earliest(*_future(now, not_before, ripe)), abandoned)
    launch = Launch(
        run.model_copy(update={"attempt": max((a.number for a in same.attempts), default=0) + 1 if same else 1}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the head {view.head_id} is another writer's commit and gets a ledger of its own",
        for_uid=FOR_HEAD,
        by_committer=may_ask(dataset, world) and not committer_failed(same),
    )
    return ConsolidationVerdict(launch, stands, latest, None, abandoned)


def _of_lost(
    dataset: Dataset,
    lost: LostLedger,
    runs: Sequence[Run],
    stands: Verdict | None,
    now: datetime,
    settings: Settings,
) -> ConsolidationVerdict:
    """A head that has lost its ledger gets the last one once it is accepted."""
    latest = runs[-1] if runs else None
    if lost.last_ledger is None or not lost_ledger.is_accepted(dataset, lost):
        return ConsolidationVerdict(None, stands, latest)
    run = run_specs.accepting(dataset, AcceptedHead(head_id=lost.head_id, ledger=lost.last_ledger))
    same = next((r for r in runs if r.run_id == run.run_id), None)
    not_before = stands.at if isinstance(stands, Again) and same else pause(runs, run.run_id, stands, settings)
    if not_before is None or not_before > now:
        return ConsolidationVerdict(None, stands, latest, not_before)
    number = max((a.number for a in same.attempts), default=0) + 1 if same else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"the head {lost.head_id}, which has lost its ledger, was accepted and gets the last one",
        for_uid=FOR_HEAD,
    )
    return ConsolidationVerdict(launch, stands, latest)


def _future(now: datetime, *times: datetime | None) -> tuple[datetime, ...]:
    return tuple(t for t in times if t is not None and t > now)
