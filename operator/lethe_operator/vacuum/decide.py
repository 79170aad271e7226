"""Decides whether a vacuum of a Dataset's table starts, under which VacuumPolicy, and if not, why. Pure.

The checks in order: is a vacuum wanted (`vacuum.context`), is it approved, is the window open (`vacuum.triggers`), is a place
free.

- A vacuum that needs approval is planned by a run first; the user approves the digest of that plan.
- With `limits.concurrentRuns`, Datasets with an evictBy that is due go first, then those that have waited longest. A Dataset
  learns from the statuses of the others that they wait.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW, written
from lethe.contract.run import RunKind, RunSpec, VacuumSpec
from lethe.contract.status import Condition, PolicyDataset, VacuumPlan, VacuumStatus

from lethe_operator.actions import Decision, Launch, earliest
from lethe_operator.conditions import timestamp
from lethe_operator.guards import permissions
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, Observation, ObservedRun, TableView, VacuumLimit
from lethe_operator.resources.vacuum_policy import Match, VacuumPolicy, match
from lethe_operator.runs import spec as run_specs
from lethe_operator.runs.retry import Exhausted, NotStarted, RetryAt, RetryState, Running, retry_state
from lethe_operator.settings import Settings
from lethe_operator.vacuum import status as vacuum_status
from lethe_operator.vacuum.context import Due, VacuumContext, request_key, sentence
from lethe_operator.vacuum.history import VacuumHistory, history_of
from lethe_operator.vacuum.status import VacuumDecision
from lethe_operator.vacuum.triggers import Later, hours

# Tombstones may arrive continuously, people need time to read a plan, and each plan costs a Job.
PLANNED_AGAIN_AFTER: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class Approved:
    """A vacuum may carry out the plan with this digest."""

    digest: str


@dataclass(frozen=True)
class AwaitApproval:
    """A plan waits for its approval."""

    plan: VacuumPlan
    replan_time: datetime | None = None
    """When a new plan replaces this outdated one; None: it is current."""


@dataclass(frozen=True)
class PlanFirst:
    """There is no plan, or it is too old."""


def approval(
    dataset: Dataset, history: VacuumHistory, state: str, used: bool, now: datetime
) -> Approved | AwaitApproval | PlanFirst:
    """Whether a vacuum of this state of the ledger is approved.

    Args:
        state: See `history.state_of`.
        used: The current approval has already led to a vacuum.
    """
    plan = history.plan
    if plan is None or plan.digest is None:
        return PlanFirst()
    if not used and dataset.meta.annotations.get(APPROVE, "").strip() == plan.digest:
        return Approved(plan.digest)  # even of an outdated plan: the run checks that its own plan is the same
    if plan.state == state:
        return AwaitApproval(plan)
    replan_time = plan.planned_time + PLANNED_AGAIN_AFTER if plan.planned_time is not None else now
    return AwaitApproval(plan, replan_time) if replan_time > now else PlanFirst()


def request(dataset: Dataset, plan: VacuumPlan) -> str:
    """What the plan does, and how to approve it."""
    p, meta = plan, dataset.meta
    size, size_left = written(p.bytes or 0), written(p.bytes_left or 0)
    left = f", and leaves {p.files_left} files ({size_left}) for the next vacuum" if p.files_left else ""
    left += f". Holds may keep {p.files_held} of these files" if p.files_held else ""
    aged = ""
    if p.retention_cutoff is not None:
        dropped = f"{p.retention_whole_files or 0} whole files ({written(p.retention_bytes or 0)}, {p.retention_rows or 0} rows)"
        filtered = f" and filters {p.retention_files} files" if p.retention_files else ""
        aged = f"The plan removes rows with a time before {p.retention_cutoff}: it drops {dropped}{filtered}. "
    return (
        f"{aged}The plan applies {p.tombstones or 0} tombstones: it rewrites {p.files or 0} files ({size}) and deletes "
        f"{p.whole_files or 0} whole files{left}. To approve it: kubectl annotate datasets.lethe.dev {meta.name} "
        f"-n {meta.namespace} --overwrite {APPROVE}={p.digest}"
    )


# A Dataset that could start and does not do so within this time no longer holds up the others.
PASSED_OVER_AFTER: Final = timedelta(minutes=5)
# How often a waiting Dataset looks for a place: the first ones at the shorter interval, each further group that much later.
CHECK_INTERVAL, CHECK_INTERVAL_MAX = timedelta(seconds=15), timedelta(minutes=5)
GROUP: Final = 20
NAMED_AT_MOST: Final = 3


@dataclass(frozen=True)
class WaitingVacuum:
    """A vacuum that is due and waits only for a place."""

    dataset: str
    """Its name."""
    since: datetime
    urgent: bool
    """An evictBy is due."""

    @property
    def rank(self) -> tuple[bool, datetime, str]:
        """The sort key of those that wait: urgent ones first, then the longest waiting, then by name."""
        return not self.urgent, self.since, self.dataset


@dataclass(frozen=True)
class VacuumTurn:
    """Whether a vacuum may start now."""

    waiting: str
    """Why it waits, as a sentence; "": it may start."""
    before: int
    """Number of waiting vacuums that go first."""

    @property
    def look_again_in(self) -> timedelta:
        """When thousands wait, the last ones need not look as often as the first ones."""
        return min(CHECK_INTERVAL * (1 + self.before // GROUP), CHECK_INTERVAL_MAX)


def place_of(dataset: Dataset, policy: VacuumPolicy | None, world: Observation) -> VacuumLimit | None:
    """The places of the policy; None: it does not limit the number of vacuums."""
    if policy is None or policy.spec.limits.concurrent_runs is None:
        return None
    decides = _decides(policy, world)
    others = (d.meta.uid for d in _others(dataset, world) if decides(d))
    return VacuumLimit(policy.meta.name, policy.spec.limits.concurrent_runs, frozenset((dataset.meta.uid, *others)))


def turn_of(place: VacuumLimit, own: WaitingVacuum, dataset: Dataset, world: Observation, now: datetime) -> VacuumTurn:
    """Whether the vacuum may start, or what it waits for."""
    running = place.taken(world.vacuums, dataset.meta.uid)
    free = place.at_most - len(running)
    before = [c for c in _candidates(place, dataset, world) if c.rank < own.rank]
    if free <= 0:
        limit = f"VacuumPolicy {place.policy} allows {place.at_most} at a time (spec.limits.concurrentRuns)"
        return VacuumTurn(f"Waiting for the running vacuum of {_named(running)}: {limit}.", len(before))
    freed = max((j.finished for j in world.vacuums if j.finished is not None and j.uid in place.uids), default=None)
    first = [c for c in before if now - max(c.since, freed or c.since) <= PASSED_OVER_AFTER]
    if len(first) < free:
        return VacuumTurn("", len(before))
    names = [c.dataset for c in sorted(first, key=lambda c: c.rank)]
    return VacuumTurn(
        f"Waiting because {_named(names)} may start first under VacuumPolicy {place.policy}.", len(before)
    )


def _others(dataset: Dataset, world: Observation) -> Iterable[Dataset]:
    return (d for d in world.peers_in_namespace if d.meta.name != dataset.meta.name and not d.meta.deleting)


def _candidates(place: VacuumLimit, dataset: Dataset, world: Observation) -> list[WaitingVacuum]:
    candidates = []
    for other in _others(dataset, world):
        shown = other.stored.parts("vacuum").vacuum if other.meta.uid in place.uids else None
        since = shown.waiting_since if shown is not None else None
        if shown is not None and since is not None and not other.paused:
            candidates.append(WaitingVacuum(other.meta.name, since, shown.due_reason == Reason.EVICT_BY_NEAR))
    return candidates


def _decides(policy: VacuumPolicy, world: Observation) -> Callable[[Dataset], bool]:
    """Whether the policy decides for a Dataset. Of thousands of Datasets many have the same labels."""
    known: dict[frozenset[tuple[str, str]], bool] = {}

    def decides(dataset: Dataset) -> bool:
        labels = frozenset(dataset.meta.labels.items())
        if labels not in known:
            known[labels] = match(world.policies, dataset.meta.labels).decides == policy
        return known[labels]

    return decides


def _named(names: Collection[str]) -> str:
    """`Dataset a`, or `Datasets a, b, c and 4 more`."""
    listed = list(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return f"Dataset{'s' if len(listed) > 1 else ''} {', '.join(listed[:NAMED_AT_MOST])}{more}"


# Kubernetes stops a Job after the maximum duration of a run. A vacuum begins no step after this share of it.
SHARE_OF_MAX_RUN: Final = 0.8


@dataclass(frozen=True)
class VacuumChoice:
    """The decision about a vacuum, and what statuses show of it."""

    entries: Mapping[str, PolicyDataset]
    """The Dataset's entry in the status of each VacuumPolicy that selects it, by the policy's name."""
    status: VacuumStatus
    """`status.vacuum` of the Dataset."""
    launch: Launch | None = None
    """None: no vacuum starts now."""
    latest: RetryState | None = None
    """The state of the newest run; None: there is no run, or the newest is abandoned."""
    look_again: datetime | None = None
    """None: no time at which the decision changes by itself."""
    abandoned: tuple[str, ...] = ()
    """Ids of runs that are not continued."""
    on_time: Condition | None = None
    """The condition EvictionOnTime; None: nothing has an evictBy."""
    needed: frozenset[str] = frozenset()
    """Ids of runs whose Jobs and documents must be kept."""


def decide_vacuum(
    dataset: Dataset, world: Observation, blocker: Verdict | None, now: datetime, settings: Settings
) -> VacuumChoice:
    """Decide whether a vacuum starts. It may run beside runs that commit, but never beside another vacuum of the same table."""
    matched = match(world.policies, dataset.meta.labels)
    runs = tuple(sorted((r for r in world.runs if r.kind is RunKind.VACUUM), key=_age))
    latest = runs[-1] if runs else None
    state = retry_state(latest, dataset.meta.generation, settings) if latest else None
    view = world.table if isinstance(world.table, TableView) else None
    history = history_of(dataset.status.vacuum, runs, view)
    context = None
    if view is not None:
        resumable = _resumable(runs, view, dataset.meta.generation, settings)
        context = VacuumContext(dataset, matched.decides, view, runs, history, now, resumable)
    decider = _Decider(context, world, settings) if context is not None else None
    retains = matched.decides is not None and matched.decides.spec.retention is not None
    if isinstance(state, Running):
        decision = _going(state.attempt)
    elif blocker is not None or decider is None:
        text = blocker.message if blocker else "The table does not exist yet."
        decision = VacuumDecision(Decision.LATER, Verdict(Reason.DATASET_NOT_READY, text))
    elif outside := permissions.of_vacuum(dataset, settings.boundaries.of(dataset.meta.namespace), retains):
        decision = VacuumDecision(Decision.LATER, outside)
    elif latest is not None and latest.intent is not None and isinstance(state, NotStarted | RetryAt):
        retried = decider.retry(latest, latest.intent, state)
        decision = retried if retried is not None else replace(decider.new_run(), abandoned=(latest.run_id,))
        state = state if retried is not None else None
    elif isinstance(state, Exhausted) and (pause := _pause(state, settings)) > now:
        decision = VacuumDecision(Decision.LATER, state.failure, look_again=pause)
    else:
        decision = decider.new_run()
        if isinstance(state, Exhausted) and _is_known(decision):
            # Not that there is nothing left to purge.
            again = "Another vacuum starts after an edit of the Dataset, or when the table has changed."
            decision = replace(decision, verdict=state.failure.adding(again))
    return _choice(_Observed(dataset, matched, context, history, runs, now), decision, state)


def _resumable(runs: Iterable[ObservedRun], view: TableView, generation: int, settings: Settings) -> frozenset[str]:
    """As `VacuumContext.resumable`."""
    failed = (r for r in runs if isinstance(retry_state(r, generation, settings), RetryAt))
    return frozenset(r.run_id for r in failed if not view.has_committed(r))


def _is_known(decision: VacuumDecision) -> bool:
    """Whether no vacuum starts because one for the same cause has ended, and not because the next one is later."""
    return decision.verdict.reason == Reason.NOTHING_LEFT and decision.look_again is None


def _going(attempt: Attempt) -> VacuumDecision:
    if attempt.suspended:
        text = f"{attempt.launcher} {attempt.job} has not started. {attempt.suspended}"
        return VacuumDecision(Decision.DUE, Verdict(Reason.RUN_SUSPENDED, text))
    return VacuumDecision(Decision.RUNNING, Verdict(Reason.RUNNING, f"{attempt.launcher} {attempt.job} is running."))


@dataclass(frozen=True)
class _Observed:
    """What is known of a Dataset's vacuums."""

    dataset: Dataset
    matched: Match
    context: VacuumContext | None
    """None: the table cannot be read."""
    history: VacuumHistory
    runs: tuple[ObservedRun, ...]
    """Oldest first."""
    now: datetime


@dataclass(frozen=True)
class _Decider:
    context: VacuumContext
    world: Observation
    settings: Settings

    def new_run(self) -> VacuumDecision:
        """Decide whether a run with a new intent starts."""
        wanted = self.context.wanted()
        if isinstance(wanted, Later):
            return VacuumDecision(Decision.LATER, wanted, look_again=wanted.look_again)
        if self.context.is_manual:
            return self._with_approval(wanted)
        return self._start(wanted, self._run(wanted.key, self.context.spec(wanted)))

    def _run(self, key: str, spec: VacuumSpec) -> RunSpec:
        """The run of a key: its next attempt, if it failed and was not continued because it was no longer wanted."""
        run = run_specs.vacuum(self.context.dataset, key, spec)
        return run.model_copy(update={"attempt": self._next_attempt(key) or 1})

    def _with_approval(self, due: Due) -> VacuumDecision:
        context = self.context
        key = due.key if due.requested else context.next_key(f"{APPROVE}\n{context.approved}")
        state, attempt = context.state(due.batch_ids), self._next_attempt(key)
        used = context.is_known(key) and attempt is None
        answer = approval(context.dataset, context.history, state, used, context.now)
        if isinstance(answer, AwaitApproval) and context.is_spent(answer.plan, key):
            answer = PlanFirst()
        if isinstance(answer, Approved):
            run = run_specs.vacuum(context.dataset, key, context.spec(due, approved_plan=answer.digest))
            approved = replace(due, message=f"{due.message}, and the plan {answer.digest} is approved")
            return self._start(approved, run.model_copy(update={"attempt": attempt or 1}))
        if isinstance(answer, AwaitApproval):
            text = f"{sentence(due.message)} {request(context.dataset, answer.plan)}"
            at = answer.replan_time
            if at is not None:
                text = f"{text} Tombstones or holds have changed since; the operator makes a new plan at {at:%H:%MZ}."
            return VacuumDecision(
                Decision.NEEDS_APPROVAL, Verdict(Reason.NEEDS_APPROVAL, text), look_again=at, due_reason=str(due.reason)
            )
        plan_key = context.plan_key(state)
        if context.has_ended(plan_key):
            text = f"A vacuum of snapshot {context.view.head_id} was already planned."
            return VacuumDecision(Decision.LATER, Verdict(Reason.NOTHING_LEFT, text))
        planning = replace(due, message=f"{due.message}; this run only makes the plan to approve")
        return self._start(planning, self._run(plan_key, context.spec(due, plan_only=True)))

    def _next_attempt(self, key: str) -> int | None:
        """The number of the next attempt of a failed run that was not continued, because it was not wanted; None: no such run."""
        run = self.context.run_of(key)
        if run is None or run.run_id not in self.context.resumable:
            return None
        return max(a.number for a in run.attempts) + 1

    def retry(self, run: ObservedRun, intent: RunSpec, state: NotStarted | RetryAt) -> VacuumDecision | None:
        """Decide about a run that was started before, under the current policy.

        None: it is not continued, because it has committed something or is no longer wanted.
        """
        context, spec = self.context, intent.vacuum
        if spec is None or context.view.has_committed(run) or not self._is_wanted(run, spec):
            return None
        if isinstance(state, RetryAt) and state.at > context.now:
            why = state.failure.adding(f"Attempt {state.number} follows at {state.at:%H:%M:%SZ}.")
            return VacuumDecision(Decision.DUE, why, look_again=state.at)
        reason = state.failure.reason if isinstance(state, RetryAt) else Reason.QUEUED
        urgent = context.deadline is not None and context.deadline.starts_by <= context.now
        requested = self._was_requested(run)
        due = Due(reason, f"attempt {state.number}", "", spec.batch_ids, requested, urgent=urgent)
        renewed = run_specs.vacuum_of(context.dataset, context.spec(due, spec.plan_only, spec.approved_plan))
        again = run_specs.again(context.dataset, intent, state.number)
        return self._start(due, again.model_copy(update={"vacuum": renewed}))

    def _is_wanted(self, run: ObservedRun, spec: VacuumSpec) -> bool:
        """Whether the run would also start under the current policy and approval."""
        if spec.approved_plan and spec.approved_plan != self.context.approved:
            return False
        if self.context.is_manual != (spec.plan_only or bool(spec.approved_plan)):
            return False
        if self._was_requested(run):
            return True
        return self.context.policy is not None and self.context.has_work

    def _was_requested(self, run: ObservedRun) -> bool:
        value = self.context.dataset.meta.annotations.get(VACUUM_NOW, "")
        return bool(value.strip()) and run.run_id in self.context.chain(request_key(value))

    # --- window and place --------------------------------------------------------------------------------------------

    def _start(self, due: Due, run: RunSpec) -> VacuumDecision:
        """Start the run, unless the window is closed or other Datasets go first."""
        context, spec = self.context, run.vacuum
        assert spec is not None
        text, reason = sentence(due.message), str(due.reason)
        closes: datetime | None = None
        if context.rules.window is not None and not due.overrides_window and not spec.plan_only:
            window = hours(context.rules.window, context.now)
            if isinstance(window, Verdict):
                return VacuumDecision(
                    Decision.DUE, Verdict(window.reason, f"{text} {window.message}"), due_reason=reason
                )
            if window.closes is None:
                return VacuumDecision(
                    Decision.DUE,
                    Verdict(Reason.WINDOW_CLOSED, f"{text} The window opens at {timestamp(window.opens)}."),
                    look_again=window.opens,
                    next_time=window.opens,
                    due_reason=reason,
                )
            closes = window.closes
        place = place_of(context.dataset, context.policy, self.world)
        if place is not None:
            since = context.history.waiting_since or context.now
            own = WaitingVacuum(context.dataset.meta.name, since, due.urgent)
            turn = turn_of(place, own, context.dataset, self.world, context.now)
            if turn.waiting:
                return VacuumDecision(
                    Decision.DUE,
                    Verdict(Reason.WAITS_FOR_OTHER_VACUUMS, f"{text} {turn.waiting}"),
                    look_again=context.now + turn.look_again_in,
                    waiting_since=since,
                    due_reason=str(Reason.EVICT_BY_NEAR) if due.urgent else reason,
                )
        limited = run.model_copy(update={"vacuum": self._with_time_limit(spec, closes)})
        launch = Launch(limited, context.bytes_to_read(spec), context.dataset.meta.generation, due.message, place=place)
        return VacuumDecision(Decision.DUE, Verdict(due.reason, text), launch, due_reason=reason)

    def _with_time_limit(self, spec: VacuumSpec, closes: datetime | None) -> VacuumSpec:
        most = int(self.settings.max_run_seconds * SHARE_OF_MAX_RUN)
        seconds = min(self.context.rules.limits.max_run_seconds or most, most)
        if closes is not None and self.context.clocks_differ:
            seconds, closes = min(seconds, int((closes - self.context.now).total_seconds())), None
        return spec.model_copy(update={"max_seconds": seconds, "stop_by": closes})


def _choice(observed: _Observed, decision: VacuumDecision, latest: RetryState | None) -> VacuumChoice:
    dataset, policy, context = observed.dataset, observed.matched.decides, observed.context
    history, now = observed.history, observed.now
    if context is not None and decision.verdict.reason == Reason.BELOW_TRIGGERS and not context.plan_is_current:
        history = replace(history, plan=None)  # an outdated plan that no trigger asks for needs no approval
    look_again = decision.look_again
    if (
        context is not None and (due := context.deadline) is not None
    ):  # the condition EvictionOnTime changes at these times
        look_again = earliest(look_again, *(t for t in (due.starts_by, due.possible_until, due.evict_by) if t > now))
    return VacuumChoice(
        entries=vacuum_status.entries(dataset, observed.matched, context, history, decision),
        status=vacuum_status.status(dataset, policy, context, history, decision, observed.runs),
        launch=decision.launch,
        latest=latest,
        look_again=look_again,
        abandoned=decision.abandoned,
        on_time=vacuum_status.on_time(dataset, policy, context, decision) if context is not None else None,
        needed=_needed(dataset, context),
    )


def _needed(dataset: Dataset, context: VacuumContext | None) -> frozenset[str]:
    """The runs that an annotation led to, while it is set: they show that the annotation was acted on."""
    if context is None:
        return frozenset()
    requested, digest = (dataset.meta.annotations.get(a, "") for a in (VACUUM_NOW, APPROVE))
    keys = [request_key(requested)] if requested.strip() else []
    keys += [f"{APPROVE}\n{digest.strip()}"] if digest.strip() else []
    return frozenset(run_id for key in keys for run_id in context.chain(key))


def _pause(given_up: Exhausted, settings: Settings) -> datetime:
    ended = given_up.attempt.finished or given_up.attempt.created
    return ended + timedelta(seconds=settings.retry.max_seconds)


def _age(run: ObservedRun) -> tuple[bool, float]:
    return (run.last is None, run.last.created.timestamp() if run.last else 0.0)
