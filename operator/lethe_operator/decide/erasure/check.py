"""Decides when a run checks the erasures of a table, from the ledger, the refs and the clock. Pure.

Each vacuum checks the erasures at its end. An extra run, which purges nothing, starts when an erasure is due, when its blockers
are gone, or when a vacuum failed before its check.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import assert_never

from lethe.contract.kind import RunFamily, RunKind
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker

from lethe_operator.decide.actions import Launch, earliest
from lethe_operator.decide.guards.preconditions import RunBlocker
from lethe_operator.decide.policy_match import match
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.runs.retry import Again, Ended, Fresh, GivenUp, Going, Verdict, judge
from lethe_operator.resources.common import FOR_ERASURES
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import ObservedRun, TableView, World
from lethe_operator.resources.vacuum_policy import VacuumPolicySpec
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class ErasuresVerdict:
    # None: no run starts now.
    launch: Launch | None = None
    # None: no time at which the decision changes by itself.
    look_again: datetime | None = None
    # The verdict on `latest_run`; None: there is no run, or it is not continued.
    latest: Verdict | None = None
    # The run for the current state of the erasures, or the newest run if no check is wanted or possible now; None: no run.
    latest_run: ObservedRun | None = None
    # Ids of runs that are not continued.
    abandoned: tuple[str, ...] = ()


def decide_erasures(
    dataset: Dataset, world: World, stops: RunBlocker | None, now: datetime, settings: Settings
) -> ErasuresVerdict:
    """Decide whether a run that checks the erasures starts now. It never runs at the same time as a vacuum of the table."""
    runs = [r for r in world.runs if r.kind is RunKind.ERASURE_CHECK]
    latest = max(runs, key=_age, default=None)
    verdict = judge(latest, dataset.meta.generation, settings, FOR_ERASURES) if latest is not None else None
    view = world.table
    unfinished = (latest.run_id,) if latest is not None and not isinstance(verdict, Going | Ended) else ()
    if not isinstance(view, TableView) or not view.ledger.open_erasures:
        return ErasuresVerdict(None, None, None if unfinished else verdict, latest, unfinished)
    policy = match(world.policies, dataset.meta.labels).decides
    rules = policy.spec if policy is not None else VacuumPolicySpec()
    lead = rules.triggers.evict_by_lead_seconds
    due_by = now + timedelta(seconds=lead)
    ripe = [e for e in view.ledger.open_erasures if may_come_further(e, view, now, due_by)]
    later = earliest(*_changes(view.ledger.open_erasures, now, lead))
    if stops is not None or not ripe or any(r.active for r in world.runs if r.kind.family is RunFamily.VACUUM):
        return ErasuresVerdict(None, later, verdict, latest)
    name = policy.meta.full_name if policy is not None else dataset.meta.full_name
    run = run_specs.erasures(dataset, name, rules.expire_snapshots, lead, _key(ripe, now, due_by))
    same = next((r for r in runs if r.run_id == run.run_id), None)
    abandoned = unfinished if latest is not same else ()
    stands = judge(same, dataset.meta.generation, settings, FOR_ERASURES) if same is not None else None
    match stands:
        case Ended():  # it has checked this state; another check would find the same
            return ErasuresVerdict(None, later, stands, same, abandoned)
        case Again(at) if at > now:
            return ErasuresVerdict(None, earliest(at, later), stands, same, abandoned)
        case GivenUp(attempt):
            pause = (attempt.finished or attempt.created) + timedelta(seconds=settings.retry.max_seconds)
            if pause > now:
                return ErasuresVerdict(None, earliest(pause, later), stands, same, abandoned)
        case Fresh() | Again() | Going() | None:
            pass
        case _:
            assert_never(stands)
    number = max((a.number for a in same.attempts), default=0) + 1 if same is not None else 1
    launch = Launch(
        run.model_copy(update={"attempt": number}),
        bytes=0,
        generation=dataset.meta.generation,
        why=f"{len(ripe)} erasures are ready to be checked",
        for_uid=FOR_ERASURES,
    )
    return ErasuresVerdict(launch, later, stands, same, abandoned)


def may_come_further(erasure: Erasure, view: TableView, now: datetime, due_by: datetime) -> bool:
    """Whether a check, which purges nothing, may find more progress than the last one."""
    due = erasure.is_due(due_by)
    if not erasure.is_purged:
        if erasure.field_id != view.batch_field_id:
            # In format version 2, an Erase of records rewrites the data files itself; in version 3, a vacuum must rewrite them.
            return due or (view.format_version < 3 and not view.ledger.tombstones)
        return not view.ledger.tombstones  # the rows are purged, but the vacuum failed before it recorded that
    if not erasure.blockers_count or (erasure.look_again is not None and erasure.look_again <= now):
        return True
    return all(_lets_go(b, view, now, due) for b in erasure.blockers)


def _lets_go(blocker: ErasureBlocker, view: TableView, now: datetime, due: bool) -> bool:
    if blocker.until is not None and blocker.until <= now:
        return True
    match blocker.kind:
        case BlockerKind.TAG | BlockerKind.BRANCH:
            return blocker.name not in view.refs
        case BlockerKind.SNAPSHOT:
            return due or int(blocker.name) not in view.snapshot_ids
        case BlockerKind.TABLE_PROPERTY:
            return not view.keeps_files
        case BlockerKind.STAGED_SNAPSHOT:
            return int(blocker.name) not in view.snapshot_ids
        case (
            BlockerKind.OBJECT_LOCK
            | BlockerKind.LEGAL_HOLD
            | BlockerKind.OBJECT_VERSION
            | BlockerKind.OBJECT
            | BlockerKind.RUN
        ):
            return False  # only the storage knows
        case _:
            assert_never(blocker.kind)


def is_overdue(erasure: Erasure, now: datetime) -> bool:
    return erasure.is_open and erasure.is_due(now)


def _key(ripe: Iterable[Erasure], now: datetime, due_by: datetime) -> str:
    """Identifies the state that a run checks: any change of it gives another key, and so another run."""
    lines = sorted(
        repr((e.restatement, e.purged_at, e.look_again, e.blockers, e.is_due(now), e.is_due(due_by))) for e in ripe
    )
    return f"erasures\n{sha256(chr(10).join(lines).encode()).hexdigest()}"


def _changes(erasures: Iterable[Erasure], now: datetime, lead_seconds: int) -> list[datetime]:
    """The times at which the decision or the status of an erasure changes by itself."""
    found: list[datetime] = []
    for e in erasures:
        times = [e.look_again, e.evict_by, *(b.until for b in e.blockers)]
        if e.evict_by is not None:
            times.append(e.evict_by - timedelta(seconds=lead_seconds))
        found += [t for t in times if t is not None and t > now]
    return found


def _age(run: ObservedRun) -> tuple[bool, float]:
    return (run.last is None, run.last.created.timestamp() if run.last else 0.0)
