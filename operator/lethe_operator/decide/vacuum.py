"""Whether a vacuum of a Dataset's table is due, under which VacuumPolicy, and why not. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lethe.run import RunKind

from lethe_operator.decide import run_specs
from lethe_operator.decide.actions import Launch
from lethe_operator.decide.conditions import timestamp
from lethe_operator.decide.policy_match import Match, match
from lethe_operator.decide.retry import Again, Fresh, GivenUp, Going, Verdict, judge
from lethe_operator.decide.validation import Blocker
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import VACUUM_NOW
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, Run, TableView, World
from lethe_operator.resources.vacuum_policy import DEFAULT_EVICT_BY_LEAD_SECONDS, VacuumPolicy
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class Due:
    reason: str
    message: str
    key: str  # names the cause, for the run id


@dataclass(frozen=True)
class Later:
    reason: str
    message: str


@dataclass(frozen=True)
class VacuumVerdict:
    """`entries`: what the status of each selecting policy says of this Dataset, by the policy's name."""

    entries: Mapping[str, Mapping[str, Any]]
    launch: Launch | None = None
    latest: Verdict | None = None
    look_again: datetime | None = None
    abandoned: tuple[str, ...] = ()


def unsupported_fields(policy: VacuumPolicy) -> tuple[str, ...]:
    """Fields that would hold a vacuum back or cut it short. Ignoring one would purge what nobody may purge now, so the
    policy does not act at all."""
    spec = policy.spec
    asked = [
        ("spec.window", bool(spec.window)),
        ("spec.limits", bool(spec.limits)),
        ("spec.approval", spec.approval != "Automatic"),
    ]
    return tuple(field for field, is_set in asked if is_set)


def unsupported_triggers(policy: VacuumPolicy) -> tuple[str, ...]:
    """Triggers that never fire in this version. The CRD's default of evictByLeadSeconds is nobody's wish."""
    triggers = policy.spec.triggers
    asked = [
        ("spec.triggers.tombstonedRowsPercent", triggers.tombstoned_rows_percent is not None),
        ("spec.triggers.oldestTombstoneAgeSeconds", triggers.oldest_tombstone_age_seconds is not None),
        (
            "spec.triggers.evictByLeadSeconds",
            triggers.evict_by_lead_seconds != DEFAULT_EVICT_BY_LEAD_SECONDS,
        ),
    ]
    return tuple(field for field, is_set in asked if is_set)


def acts(policy: VacuumPolicy) -> bool:
    return not unsupported_fields(policy) and policy.spec.triggers.active_tombstones is not None


def question(dataset: Dataset, policy: VacuumPolicy | None, view: TableView, run_ids: frozenset[str]) -> Due | Later:
    """The policy's questions in order. `run_ids`: vacuums that exist already, whatever became of them."""
    active = len(view.ledger.tombstones)
    asked = dataset.meta.annotations.get(VACUUM_NOW)
    if asked and active:
        key = f"{VACUUM_NOW}\n{asked}"
        if run_specs.vacuum(dataset, "", True, key).run_id not in run_ids:
            return Due(Reason.VACUUM_NOW, f"the annotation {VACUUM_NOW} asks for it", key)
    if policy is None:
        return Later(Reason.BELOW_TRIGGERS, "No VacuumPolicy selects this Dataset.")
    limit = policy.spec.triggers.active_tombstones
    if not acts(policy) or limit is None:
        reason = Reason.NOT_SUPPORTED if unsupported_fields(policy) else Reason.TRIGGER_NOT_SUPPORTED
        return Later(reason, "The policy does not act; its condition Ready says why.")
    if active < limit:
        return Later(Reason.BELOW_TRIGGERS, f"{active} active tombstones, the limit is {limit}.")
    key = str(view.head_id)
    if run_specs.vacuum(dataset, "", True, key).run_id in run_ids:
        return Later(Reason.NOTHING_LEFT, f"A vacuum of snapshot {view.head_id} has ended already.")
    return Due(Reason.TOO_MANY_TOMBSTONES, f"{active} active tombstones, the limit is {limit}", key)


def decide_vacuum(
    dataset: Dataset, world: World, blocker: Blocker | None, now: datetime, settings: Settings
) -> VacuumVerdict:
    """Say whether a vacuum is to start. It may run beside runs that commit, but never beside another vacuum."""
    found = match(world.policies, dataset.meta.labels)
    runs = sorted((r for r in world.runs if r.kind is RunKind.VACUUM), key=_age)
    latest = runs[-1] if runs else None
    verdict = judge(latest, dataset.meta.generation, settings) if latest else None
    view = world.table if isinstance(world.table, TableView) else None
    launch: Launch | None = None
    again: datetime | None = None
    abandoned: tuple[str, ...] = ()
    if isinstance(verdict, Going):
        outcome: tuple[str, str, str] = ("Running", Reason.RUNNING, f"{verdict.attempt.job} is under way.")
    elif blocker is not None or view is None:
        outcome = ("Later", Reason.DATASET_NOT_READY, blocker.message if blocker else "The table is not there yet.")
    elif latest is not None and isinstance(verdict, Fresh | Again) and latest.intent is not None:
        outcome, launch, again = _retry(latest, verdict, view, dataset, now)
        if outcome[0] == "Abandoned":
            abandoned = (latest.run_id,)
            outcome, launch, verdict = _new(dataset, found, view, runs, None)
    elif isinstance(verdict, GivenUp) and (pause := _pause(verdict, settings)) > now:
        outcome, again = ("Later", verdict.reason, verdict.message), pause
    else:
        outcome, launch, verdict = _new(dataset, found, view, runs, verdict)
    return VacuumVerdict(_entries(dataset, found, view, runs, outcome), launch, verdict, again, abandoned)


def _pause(given_up: GivenUp, settings: Settings) -> datetime:
    ended = given_up.attempt.finished or given_up.attempt.created
    return ended + timedelta(seconds=settings.retry.max_seconds)


def _new(
    dataset: Dataset, found: Match, view: TableView, runs: list[Run], verdict: Verdict | None
) -> tuple[tuple[str, str, str], Launch | None, Verdict | None]:
    answer = question(dataset, found.decides, view, frozenset(r.run_id for r in runs) | view.run_ids)
    if isinstance(answer, Later):
        return ("Later", answer.reason, answer.message), None, verdict
    policy = found.decides
    name = policy.meta.full_name if policy else dataset.meta.full_name
    run = run_specs.vacuum(dataset, name, policy.spec.expire_snapshots if policy else True, answer.key)
    launch = Launch(run, view.total_bytes, dataset.meta.generation, answer.message)
    return ("Due", answer.reason, f"{answer.message[:1].upper()}{answer.message[1:]}."), launch, verdict


def _retry(
    run: Run, verdict: Fresh | Again, view: TableView, dataset: Dataset, now: datetime
) -> tuple[tuple[str, str, str], Launch | None, datetime | None]:
    if view.has_committed(run) or not view.ledger.tombstones:
        return ("Abandoned", "", ""), None, None
    assert run.intent is not None
    if isinstance(verdict, Again) and verdict.at > now:
        text = f"{verdict.message} Attempt {verdict.number} follows at {verdict.at:%H:%M:%SZ}."
        return ("Due", verdict.reason, text), None, verdict.at
    launch = Launch(
        run.intent.model_copy(update={"attempt": verdict.number}),
        view.total_bytes,
        dataset.meta.generation,
        f"attempt {verdict.number}",
    )
    reason = verdict.reason if isinstance(verdict, Again) else Reason.QUEUED
    return ("Due", reason, f"Attempt {verdict.number} is being started."), launch, None


def _entries(
    dataset: Dataset, found: Match, view: TableView | None, runs: list[Run], outcome: tuple[str, str, str]
) -> dict[str, dict[str, Any]]:
    def entry(decision: str, reason: str, message: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": dataset.meta.name,
            "decision": decision,
            "reason": str(reason),
            "message": message,
        }
        if view is not None:
            document["activeTombstones"] = len(view.ledger.tombstones)
        return document

    if found.decides is None:
        return {}
    entries: dict[str, dict[str, Any]] = {}
    decision, reason, message = outcome
    winner = found.decides.meta.name
    if found.tied:
        others = ", ".join(p.meta.name for p in found.tied)
        message = f"{message} Equally specific and younger, so not heard: {others}."
        reason = Reason.TIE_WON if decision == "Later" and reason == Reason.BELOW_TRIGGERS else reason
    entries[winner] = entry(decision, reason, message)
    ended = [a.finished for r in runs for a in r.attempts if a.state is AttemptState.SUCCEEDED and a.finished]
    if ended:
        entries[winner]["lastRunTime"] = timestamp(max(ended))
    for policy in found.tied:
        text = f"VacuumPolicy {winner} is equally specific and older; it decides for this Dataset."
        entries[policy.meta.name] = entry("Later", Reason.TIE_LOST, text)
    for policy in found.outranked:
        text = f"VacuumPolicy {winner} is more specific; it decides for this Dataset."
        entries[policy.meta.name] = entry("Later", Reason.LESS_SPECIFIC, text)
    return entries


def _age(run: Run) -> tuple[bool, float]:
    return (run.last is None, run.last.created.timestamp() if run.last else 0.0)
