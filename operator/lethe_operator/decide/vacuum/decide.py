"""Whether a vacuum of a Dataset's table starts, under which VacuumPolicy, and why not. Pure.

What is asked in order: does anybody want one (`vacuum_case`), has it been approved (`vacuum_approval`), is the window open
(`vacuum_window`), is there a place for it (`vacuum_places`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from lethe.contract.run import RunKind, RunSpec, VacuumSpec

from lethe_operator.decide.actions import Launch, earliest
from lethe_operator.decide.conditions import Condition, timestamp
from lethe_operator.decide.guards import boundaries
from lethe_operator.decide.guards.preconditions import RunBlocker
from lethe_operator.decide.policy_match import Match, match
from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.runs.retry import Again, Fresh, GivenUp, Going, Verdict, judge
from lethe_operator.decide.vacuum import status as vacuum_status
from lethe_operator.decide.vacuum.approval import Approved, Ask, approval, request
from lethe_operator.decide.vacuum.concurrency import WaitingVacuum, place_of, waits_for
from lethe_operator.decide.vacuum.context import Due, Later, VacuumContext, asked_key
from lethe_operator.decide.vacuum.history import VacuumHistory, remembered
from lethe_operator.decide.vacuum.status import DUE, LATER, NEEDS_APPROVAL, RUNNING, VacuumDecision
from lethe_operator.decide.vacuum.window import Unusable, hours
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import APPROVE, VACUUM_NOW
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Run, TableView, World
from lethe_operator.settings import Settings

# A Job is stopped by Kubernetes after the longest time that a run may take; a vacuum begins no step that late.
SHARE_OF_A_RUN: Final = 0.8
LOOK_FOR_A_PLACE_AFTER: Final = timedelta(seconds=15)


@dataclass(frozen=True)
class VacuumVerdict:
    """`entries`: what the status of each selecting policy says of this Dataset, by the policy's name; `status`: what that of the
    Dataset says; `on_time`: its condition about evictBy, None when there is none; `needed`: runs that are not done with."""

    entries: Mapping[str, Mapping[str, Any]]
    status: Mapping[str, Any]
    launch: Launch | None = None
    latest: Verdict | None = None
    look_again: datetime | None = None
    abandoned: tuple[str, ...] = ()
    on_time: Condition | None = None
    needed: frozenset[str] = frozenset()


def decide_vacuum(
    dataset: Dataset, world: World, blocker: RunBlocker | None, now: datetime, settings: Settings
) -> VacuumVerdict:
    """Say whether a vacuum is to start. It may run beside runs that commit, but never beside another one of the same table."""
    found = match(world.policies, dataset.meta.labels)
    runs = tuple(sorted((r for r in world.runs if r.kind is RunKind.VACUUM), key=_age))
    latest = runs[-1] if runs else None
    verdict = judge(latest, dataset.meta.generation, settings) if latest else None
    view = world.table if isinstance(world.table, TableView) else None
    memory = remembered(dataset.status.get("vacuum") or {}, runs, view)
    case = VacuumContext(dataset, found.decides, view, runs, memory, now) if view is not None else None
    deciding = _Deciding(case, world, settings) if case is not None else None
    if isinstance(verdict, Going):
        answer = VacuumDecision(RUNNING, Reason.RUNNING, f"{verdict.attempt.job} is under way.")
    elif blocker is not None or deciding is None:
        answer = VacuumDecision(
            LATER, Reason.DATASET_NOT_READY, blocker.message if blocker else "The table is not there yet."
        )
    elif outside := boundaries.of_vacuum(dataset, settings.boundaries.of(dataset.meta.namespace)):
        answer = VacuumDecision(LATER, Reason.OUTSIDE_BOUNDARY, outside)
    elif latest is not None and latest.intent is not None and isinstance(verdict, Fresh | Again):
        tried = deciding.retry(latest, latest.intent, verdict)
        answer = tried if tried is not None else replace(deciding.new(), abandoned=(latest.run_id,))
        verdict = verdict if tried is not None else None
    elif isinstance(verdict, GivenUp) and (pause := _pause(verdict, settings)) > now:
        answer = VacuumDecision(LATER, verdict.reason, verdict.message, look_again=pause)
    else:
        answer = deciding.new()
    return _verdict(dataset, found, case, memory, answer, verdict, runs, now)


@dataclass(frozen=True)
class _Deciding:
    case: VacuumContext
    world: World
    settings: Settings

    def new(self) -> VacuumDecision:
        """Whether a run that was not thought of before starts."""
        wanted = self.case.question()
        if isinstance(wanted, Later):
            return VacuumDecision(LATER, wanted.reason, wanted.message, look_again=wanted.look_again)
        if self.case.is_manual:
            return self._with_approval(wanted)
        return self._start(wanted, run_specs.vacuum(self.case.dataset, wanted.key, self.case.spec(wanted)))

    def _with_approval(self, due: Due) -> VacuumDecision:
        case = self.case
        key = due.key if due.asked else case.next_key(f"{APPROVE}\n{case.approved}")
        state, again = case.state(due.batch_ids), self._again(key)
        used = case.is_known(key) and again is None
        stands = approval(case.dataset, case.memory, state, used, case.now)
        if isinstance(stands, Approved):
            run = run_specs.vacuum(case.dataset, key, case.spec(due, approved_plan=stands.digest))
            approved = replace(due, message=f"{due.message}, and the plan {stands.digest} is approved")
            return self._start(approved, run.model_copy(update={"attempt": again or 1}))
        if isinstance(stands, Ask):
            text = f"{_sentence(due.message)} {request(case.dataset, stands.plan)}"
            if stands.renewed is not None:
                text = f"{text} Tombstones have changed since; it is planned anew at {stands.renewed:%H:%MZ}."
            return VacuumDecision(
                NEEDS_APPROVAL, Reason.NEEDS_APPROVAL, text, look_again=stands.renewed, due_reason=str(due.reason)
            )
        plan_key = f"plan\n{case.view.head_id}\n{state}"
        if case.is_known(plan_key):
            return VacuumDecision(
                LATER, Reason.NOTHING_LEFT, f"A plan for snapshot {case.view.head_id} was made already."
            )
        planning = replace(due, message=f"{due.message}; it is planned for approval")
        return self._start(planning, run_specs.vacuum(case.dataset, plan_key, case.spec(due, plan_only=True)))

    def _again(self, key: str) -> int | None:
        """The number of the next attempt of a run that failed and whose approval was taken back meanwhile, and given again."""
        run = self.case.run_of(key)
        verdict = judge(run, self.case.dataset.meta.generation, self.settings) if run is not None else None
        committed = run is not None and self.case.view.has_committed(run)
        return verdict.number if isinstance(verdict, Again) and not committed else None

    def retry(self, run: Run, intent: RunSpec, verdict: Fresh | Again) -> VacuumDecision | None:
        """What becomes of a run that was started before, under what the policy says now; None: nothing, since it has done
        something, or is not wanted so any more."""
        case, spec = self.case, intent.vacuum
        if spec is None or case.view.has_committed(run) or not self._is_wanted(run, spec):
            return None
        if isinstance(verdict, Again) and verdict.at > case.now:
            text = f"{verdict.message} Attempt {verdict.number} follows at {verdict.at:%H:%M:%SZ}."
            return VacuumDecision(DUE, verdict.reason, text, look_again=verdict.at)
        reason = verdict.reason if isinstance(verdict, Again) else Reason.QUEUED
        urgent = case.deadline is not None and case.deadline.starts_by <= case.now
        asked = self._was_asked_for(run)
        due = Due(reason, f"attempt {verdict.number}", "", spec.batch_ids, urgent, asked)
        renewed = run_specs.vacuum_of(case.dataset, case.spec(due, spec.plan_only, spec.approved_plan))
        return self._start(due, intent.model_copy(update={"attempt": verdict.number, "vacuum": renewed}))

    def _is_wanted(self, run: Run, spec: VacuumSpec) -> bool:
        """Whether nobody has changed the policy meanwhile, or taken an approval back, so that it would not be started now."""
        if spec.approved_plan and spec.approved_plan != self.case.approved:
            return False
        if self.case.is_manual != (spec.plan_only or bool(spec.approved_plan)):
            return False
        if self._was_asked_for(run):
            return True
        return self.case.policy is not None and self.case.has_work

    def _was_asked_for(self, run: Run) -> bool:
        asked = self.case.dataset.meta.annotations.get(VACUUM_NOW, "")
        return bool(asked.strip()) and run.run_id in self.case.chain(asked_key(asked))

    # --- what may still keep it --------------------------------------------------------------------------------------

    def _start(self, due: Due, run: RunSpec) -> VacuumDecision:
        """The run, unless the window is closed or others go first."""
        case, spec = self.case, run.vacuum
        assert spec is not None
        said, reason = _sentence(due.message), str(due.reason)
        closes: datetime | None = None
        if case.rules.window is not None and not due.overrides_window and not spec.plan_only:
            window = hours(case.rules.window, case.now)
            if isinstance(window, Unusable):
                return VacuumDecision(DUE, window.reason, f"{said} {window.message}", due_reason=reason)
            if window.closes is None:
                text = f"{said} The window opens at {timestamp(window.opens)}."
                return VacuumDecision(
                    DUE, Reason.WINDOW_CLOSED, text, look_again=window.opens, next_time=window.opens, due_reason=reason
                )
            closes = window.closes
        place = place_of(case.dataset, case.policy, self.world)
        if place is not None:
            me = WaitingVacuum(case.dataset.meta.name, case.memory.waiting_since or case.now, due.urgent)
            if others := waits_for(place, me, case.dataset, self.world, case.now):
                return VacuumDecision(
                    DUE,
                    Reason.WAITS_FOR_OTHER_VACUUMS,
                    f"{said} {others}",
                    look_again=case.now + LOOK_FOR_A_PLACE_AFTER,
                    waiting_since=me.since,
                    due_reason=str(Reason.EVICT_BY_NEAR) if due.urgent else reason,
                )
        timed = run.model_copy(update={"vacuum": self._timed(spec, closes)})
        launch = Launch(timed, case.view.total_bytes, case.dataset.meta.generation, due.message, place=place)
        return VacuumDecision(DUE, due.reason, said, launch, due_reason=reason)

    def _timed(self, spec: VacuumSpec, closes: datetime | None) -> VacuumSpec:
        """With when it has to end."""
        most = int(self.settings.max_run_seconds * SHARE_OF_A_RUN)
        seconds = min(self.case.rules.limits.max_run_seconds or most, most)
        if closes is not None and self.case.clocks_differ:
            seconds, closes = min(seconds, int((closes - self.case.now).total_seconds())), None
        return spec.model_copy(update={"max_seconds": seconds, "stop_by": closes})


def _verdict(
    dataset: Dataset,
    found: Match,
    case: VacuumContext | None,
    memory: VacuumHistory,
    answer: VacuumDecision,
    verdict: Verdict | None,
    runs: tuple[Run, ...],
    now: datetime,
) -> VacuumVerdict:
    due = case.deadline if case is not None else None
    if case is not None and answer.reason == Reason.BELOW_TRIGGERS and not case.plan_is_current:
        memory = replace(memory, plan=None)  # nobody is to approve what is neither wanted nor so any more
    on_time = vacuum_status.on_time(dataset, found.decides, case, answer) if case is not None else None
    look_again = answer.look_again
    if due is not None:  # what is said of it changes then
        look_again = earliest(look_again, *(t for t in (due.starts_by, due.possible_until, due.evict_by) if t > now))
    return VacuumVerdict(
        entries=vacuum_status.entries(dataset, found, case, memory, answer),
        status=vacuum_status.status(dataset, found.decides, case, memory, answer, runs),
        launch=answer.launch,
        latest=verdict,
        look_again=look_again,
        abandoned=answer.abandoned,
        on_time=on_time,
        needed=_needed(dataset, case),
    )


def _needed(dataset: Dataset, case: VacuumContext | None) -> frozenset[str]:
    """As long as an annotation stands, the runs that it led to say that it was heard."""
    if case is None:
        return frozenset()
    asked, digest = (dataset.meta.annotations.get(a, "") for a in (VACUUM_NOW, APPROVE))
    keys = [asked_key(asked)] if asked.strip() else []
    keys += [f"{APPROVE}\n{digest.strip()}"] if digest.strip() else []
    return frozenset(run_id for key in keys for run_id in case.chain(key))


def _pause(given_up: GivenUp, settings: Settings) -> datetime:
    ended = given_up.attempt.finished or given_up.attempt.created
    return ended + timedelta(seconds=settings.retry.max_seconds)


def _age(run: Run) -> tuple[bool, float]:
    return (run.last is None, run.last.created.timestamp() if run.last else 0.0)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
