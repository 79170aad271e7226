"""One Dataset's vacuum as a case to decide: what is asked for by whom, and under which run id. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from lethe.contract.run import Maintenance, VacuumSpec

from lethe_operator.decide.runs import spec as run_specs
from lethe_operator.decide.vacuum.deadline import Deadline, deadline, first_evict_by
from lethe_operator.decide.vacuum.history import PLANNED, VacuumHistory, state_of
from lethe_operator.decide.vacuum.triggers import NotYet, fired
from lethe_operator.decide.vacuum.window import Hours, hours
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import APPROVE, VACUUM_NOW
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, Run, TableView
from lethe_operator.resources.vacuum_now import InvalidVacuumNow, VacuumNow, parse_vacuum_now
from lethe_operator.resources.vacuum_policy import VacuumPolicy, VacuumPolicySpec

# What is asked for without a policy is done as under one that says nothing.
UNRULED: Final = VacuumPolicySpec()
WINDOW_CLOSED: Final = "WindowClosed"  # as a run says why it stopped
ENDED: Final = (AttemptState.SUCCEEDED.value, AttemptState.FAILED.value)


@dataclass(frozen=True)
class Due:
    """A vacuum is wanted. `key` names the cause, for the run id; `urgent`: an evictBy is due; `asked`: by the annotation, so that
    the window does not count either."""

    reason: str
    message: str
    key: str
    batch_ids: tuple[str, ...] = ()
    urgent: bool = False
    asked: bool = False

    @property
    def overrides_window(self) -> bool:
        return self.urgent or self.asked


@dataclass(frozen=True)
class Later:
    reason: str
    message: str
    look_again: datetime | None = None


@dataclass(frozen=True)
class VacuumContext:
    """`runs`: all vacuums that are known, the oldest first."""

    dataset: Dataset
    policy: VacuumPolicy | None
    view: TableView
    runs: tuple[Run, ...]
    memory: VacuumHistory
    now: datetime

    @property
    def rules(self) -> VacuumPolicySpec:
        return self.policy.spec if self.policy is not None else UNRULED

    @property
    def author(self) -> str:
        """Under whose name it runs."""
        return (self.policy.meta if self.policy is not None else self.dataset.meta).full_name

    @property
    def is_manual(self) -> bool:
        return self.rules.is_manual

    @property
    def approved(self) -> str:
        """The digest of the plan that somebody has approved, "" for none."""
        return self.dataset.meta.annotations.get(APPROVE, "").strip()

    @property
    def has_work(self) -> bool:
        """Whether anything waits to be purged."""
        return bool(len(self.view.ledger.tombstones) or self.view.ledger.unpurged_erasures)

    @cached_property
    def deadline(self) -> Deadline | None:
        due = first_evict_by(self.view.ledger)
        return None if due is None else deadline(due, self._bytes, self.memory.measured, self.rules)

    @cached_property
    def clocks_differ(self) -> bool:
        """Whether the last run did nothing since by its clock the window was closed, while by that of Kubernetes it was open:
        then it is of no use to tell the next one a moment."""
        last, window = self.memory.last, self.rules.window
        if last is None or window is None or last.stopped != WINDOW_CLOSED or not last.idle:
            return False
        then = hours(window, last.finished)
        return isinstance(then, Hours) and then.closes is not None

    @property
    def plan_is_current(self) -> bool:
        """Whether the plan that is shown was made for all tombstones that there are now."""
        return self.memory.plan is not None and self.memory.plan.state == self.state(())

    @property
    def _bytes(self) -> int:
        """To be rewritten: as a plan of this very state says, else all there is."""
        plan = self.memory.plan
        if plan is not None and self.plan_is_current:
            return plan.planned.bytes + plan.planned.bytes_left
        return self.view.total_bytes

    def state(self, batch_ids: tuple[str, ...]) -> str:
        return state_of(self.view.ledger, batch_ids, self.rules.limits.max_bytes_per_run)

    # --- run ids -----------------------------------------------------------------------------------------------------

    def next_key(self, base: str) -> str:
        """The key of the vacuum of a cause. One that was killed after it had purged a part, or that had to be approved once more,
        is followed by another."""
        key = base
        while (run_id := self._run_id(key)) in self._cut_short:
            key = f"{key}\nafter {run_id}"
        return key

    def chain(self, base: str) -> frozenset[str]:
        """The run ids of all vacuums of a cause."""
        key, ids = base, [self._run_id(base)]
        while ids[-1] in self._cut_short:
            key = f"{key}\nafter {ids[-1]}"
            ids.append(self._run_id(key))
        return frozenset(ids)

    def run_of(self, key: str) -> Run | None:
        """The vacuum of this key, as far as Jobs tell of it."""
        return next((r for r in self.runs if r.run_id == self._run_id(key)), None)

    def is_known(self, key: str) -> bool:
        """Whether there was a vacuum of this key, whatever became of it."""
        return self._run_id(key) in self._known

    def _run_id(self, key: str) -> str:
        return run_specs.vacuum_run_id(self.dataset, key)

    @cached_property
    def _known(self) -> frozenset[str]:
        requested = self.dataset.status.get("vacuum", {}).get("requested") or {}
        told = {str(requested["runId"])} if requested.get("outcome") in ENDED else set()
        last = {self.memory.last.run_id} if self.memory.last is not None else set()
        return frozenset(r.run_id for r in self.runs) | self.view.run_ids | told | last

    @cached_property
    def _cut_short(self) -> frozenset[str]:
        return frozenset(r.run_id for r in self.runs if r.attempts and is_cut_short(r, self.view))

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def question(self) -> Due | Later:
        """Whether a vacuum is wanted, by whom, and why not."""
        asked = self._asked()
        if isinstance(asked, Due):
            return asked
        answer = self._triggered()
        if asked is not None and isinstance(answer, Later):
            return replace(asked, look_again=answer.look_again)
        return answer

    def _triggered(self) -> Due | Later:
        """What the policy says."""
        if self.policy is None:
            return Later(Reason.BELOW_TRIGGERS, "No VacuumPolicy selects this Dataset.")
        answer = fired(self.rules.triggers, self.view, self.deadline, self.now)
        if isinstance(answer, NotYet):
            return Later(Reason.BELOW_TRIGGERS, answer.message, answer.look_again)
        last = self.memory.last
        rest = last.rests_until(state_of(self.view.ledger)) if last is not None else None
        if rest is not None and rest > self.now and not self.clocks_differ:
            text = f"The last vacuum found nothing that it could purge; the next one follows at {rest:%Y-%m-%d %H:%MZ}."
            return Later(Reason.NOTHING_LEFT, f"{_sentence(answer.message)} {text}", rest)
        key = str(self.view.head_id)
        if last is not None and last.again:
            key = f"{key}\nafter {last.run_id}"
        key = self.next_key(key)
        if not self.is_manual and self.is_known(key):
            return Later(Reason.NOTHING_LEFT, f"A vacuum of snapshot {self.view.head_id} has ended already.")
        return Due(answer.reason, answer.message, key, urgent=answer.urgent)

    def _asked(self) -> Due | Later | None:
        """What the annotation asks for; None: nothing, or it was heard."""
        value = self.dataset.meta.annotations.get(VACUUM_NOW, "")
        if not value.strip() or self.view.head_id is None:
            return None
        key = self.next_key(asked_key(value))
        if self.is_known(key):
            return None
        try:
            wanted: VacuumNow = parse_vacuum_now(value)
        except InvalidVacuumNow as e:
            return Later(Reason.INVALID_VACUUM_NOW, f"The annotation {VACUUM_NOW} is not heard: {e}.")
        of = f", of {len(wanted.batch_ids)} batches" if wanted.batch_ids else ""
        text = f"the annotation {VACUUM_NOW} asks for it{of}"
        return Due(Reason.VACUUM_NOW, text, key, wanted.batch_ids, asked=True)

    # --- what a run is told ------------------------------------------------------------------------------------------

    def spec(self, due: Due, plan_only: bool = False, approved_plan: str = "") -> VacuumSpec:
        """All but when it has to end."""
        rules = self.rules
        lead = rules.triggers.evict_by_lead_seconds
        if self.deadline is not None and due.urgent:  # it may have to begin earlier than the policy thought
            lead = max(lead, int((self.deadline.evict_by - self.now).total_seconds()) + 1)
        orphans = rules.maintenance.remove_orphan_files
        maintenance = Maintenance(
            rewrite_manifests=rules.maintenance.rewrite_manifests,
            remove_orphan_files=orphans is not None,
            compact_small_files=rules.maintenance.compact_small_files,
            **({"orphan_files_older_than_seconds": orphans.older_than_seconds} if orphans is not None else {}),
        )
        return VacuumSpec(
            policy=self.author,
            expire_snapshots=rules.expire_snapshots,
            batch_ids=due.batch_ids,
            plan_only=plan_only,
            approved_plan=approved_plan,
            max_bytes=rules.limits.max_bytes_per_run,
            evict_by_lead_seconds=lead,
            maintenance=maintenance,
        )


def asked_key(value: str) -> str:
    return f"{VACUUM_NOW}\n{value}"


def is_cut_short(run: Run, view: TableView) -> bool:
    """Whether it ended before it had done all that it was asked for, although it is not tried again: it had committed a part, or
    found another plan than the one that was approved."""
    last = run.attempts[-1]
    if last.state is AttemptState.SUCCEEDED:
        return last.result is not None and last.result.outcome == PLANNED
    return last.state is AttemptState.FAILED and run.run_id in view.run_ids


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
