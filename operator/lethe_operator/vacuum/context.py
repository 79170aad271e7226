"""What the decision about one Dataset's vacuum depends on: the policy, the annotation, earlier runs. Pure."""

from dataclasses import dataclass, replace
from datetime import date, datetime
from functools import cached_property
from typing import Final

from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.contract.result import RunOutcome
from lethe.contract.run import Maintenance, RetentionSpec, VacuumSpec
from lethe.contract.status import VacuumPlan
from lethe.contract.vacuum_policy import VacuumPolicySpec
from lethe.files.bounds import rule_at

from lethe_operator.guards.holds import digest, holds_now
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import AttemptState, ObservedRun, TableView
from lethe_operator.resources.vacuum_policy import InvalidVacuumNow, VacuumNow, VacuumPolicy, parse_vacuum_now
from lethe_operator.runs import spec as run_specs
from lethe_operator.vacuum.history import VacuumHistory, rests_until, state_of
from lethe_operator.vacuum.triggers import Deadline, Fired, Hours, Later, aged, deadline, fired, first_evict_by, hours

# A vacuum that an annotation requests, of a Dataset without a policy, follows the defaults.
DEFAULT_RULES: Final = VacuumPolicySpec()
WINDOW_CLOSED: Final = "WindowClosed"  # in a run's result: why it stopped
ENDED: Final = (AttemptState.SUCCEEDED.value, AttemptState.FAILED.value)


@dataclass(frozen=True)
class Due(Fired):
    """A vacuum is wanted."""

    key: str
    """Names the cause; the run id follows from it."""
    batch_ids: tuple[str, ...] = ()
    """The vacuum is limited to these batches; empty: all."""
    requested: bool = False
    """By the annotation lethe.dev/vacuum-now."""

    @property
    def overrides_window(self) -> bool:
        """Whether the vacuum starts outside the window, because of an evictBy or of the annotation."""
        return self.urgent or self.requested


@dataclass(frozen=True)
class VacuumContext:
    """What the decision about a vacuum depends on."""

    dataset: Dataset
    # The one that applies to the Dataset; None: none selects it.
    policy: VacuumPolicy | None
    view: TableView
    # Known vacuums of the table, oldest first.
    runs: tuple[ObservedRun, ...]
    history: VacuumHistory
    now: datetime
    resumable: frozenset[str] = frozenset()
    """Ids of runs that failed for a temporary reason and have committed nothing. Their next attempt may start."""

    @property
    def rules(self) -> VacuumPolicySpec:
        """The spec of the policy; the default rules if no policy selects the Dataset."""
        return self.policy.spec if self.policy is not None else DEFAULT_RULES

    @property
    def author(self) -> str:
        """`<namespace>/<name>` of the policy, or of the Dataset if it has none."""
        return (self.policy.meta if self.policy is not None else self.dataset.meta).full_name

    @property
    def is_manual(self) -> bool:
        """Whether each vacuum needs an approved plan."""
        return self.rules.is_manual

    @property
    def approved(self) -> str:
        """The digest of the approved plan; "": none is approved."""
        return self.dataset.meta.annotations.get(APPROVE, "").strip()

    @cached_property
    def holds(self) -> str:
        """The digest of the active holds. When it changes, another vacuum may purge more."""
        return digest(holds_now(self.dataset, self.now))

    @property
    def has_work(self) -> bool:
        """Whether there is anything to purge."""
        ledger = self.view.ledger
        return bool(len(ledger.tombstones) or ledger.unpurged_erasures) or isinstance(self.aged, Fired)

    @cached_property
    def retention(self) -> RetentionSpec | None:
        """Which rows are too old today; None: no row is."""
        return None if self.rules.retention is None else rule_at(self.rules.retention, self.now)

    @cached_property
    def aged(self) -> Fired | Later | None:
        """Whether a vacuum is due because rows are too old; None: the policy has no retention."""
        if self.retention is None:
            return None
        return aged(self.retention, self.history.retention, self.view, self.now, self.holds)

    @cached_property
    def deadline(self) -> Deadline | None:
        """When a vacuum must start for the first evictBy of the table; None: nothing has an evictBy."""
        due = first_evict_by(self.view.ledger)
        return None if due is None else deadline(due, self._bytes, self.history.measured, self.rules)

    @cached_property
    def clocks_differ(self) -> bool:
        """Whether the last run did nothing because the window was closed by its own clock.

        By the clock of Kubernetes it was open. The next run then gets a duration instead of a point in time.
        """
        last, window = self.history.last, self.rules.window
        if (
            last is None
            or window is None
            or last.stopped != WINDOW_CLOSED
            or not last.idle_runs
            or last.finish_time is None
        ):
            return False
        then = hours(window, last.finish_time)
        return isinstance(then, Hours) and then.closes is not None

    @property
    def plan_is_current(self) -> bool:
        """Whether the shown plan covers exactly the current tombstones."""
        return self.history.plan is not None and self.history.plan.state == self.state(())

    @property
    def _bytes(self) -> int:
        """Bytes to rewrite: as planned, if the plan is current; else all bytes of the table."""
        plan = self.history.plan
        if plan is not None and self.plan_is_current:
            return (plan.bytes or 0) + (plan.bytes_left or 0)
        return self.view.total_bytes

    def bytes_to_read(self, spec: VacuumSpec) -> int:
        """How much a run reads at most. By its plan, the run finds out how much it reads, before it starts executors."""
        if spec.plan_only:
            return 0  # a plan follows from metadata
        most = self.view.total_bytes
        return most if spec.max_bytes is None else min(most, spec.max_bytes)

    def state(self, batch_ids: tuple[str, ...]) -> str:
        """A digest of what a vacuum would work on; empty batch ids: on all tombstones."""
        most = self.rules.limits.max_bytes_per_run
        return state_of(self.view.ledger, batch_ids, most, self.retention, self.holds)

    # --- run ids -----------------------------------------------------------------------------------------------------

    def next_key(self, base: str) -> str:
        """The key of the next vacuum of a cause.

        A run that was killed after a partial commit, or whose plan needed another approval, is followed by a run with another
        key.
        """
        key = base
        while (run_id := self._run_id(key)) in self._cut_short:
            key = f"{key}\nafter {run_id}"
        return key

    def plan_key(self, state: str) -> str:
        """The key of a run that makes a plan to approve.

        A hold that was set and has ended leaves the same head and state as before it. So a run that replaces an outdated plan, or
        follows a run that found no work under other holds, has another key than the run that made the first plan.

        Args:
            state: See `history.state_of`.
        """
        key, plan, last = f"plan\n{self.view.head_id}\n{state}", self.history.plan, self.history.last
        if plan is not None:
            return f"{key}\nafter {plan.run}"
        if last is not None and last.state != state_of(self.view.ledger, holds=self.holds):
            return f"{key}\nafter {last.run_id}"
        return key

    def chain(self, base: str) -> frozenset[str]:
        """The ids of all runs of a cause."""
        key, ids = base, [self._run_id(base)]
        while ids[-1] in self._cut_short:
            key = f"{key}\nafter {ids[-1]}"
            ids.append(self._run_id(key))
        return frozenset(ids)

    def run_of(self, key: str) -> ObservedRun | None:
        """The run of this key; None: it has no Job any more, or never had one."""
        return next((r for r in self.runs if r.run_id == self._run_id(key)), None)

    def is_known(self, key: str) -> bool:
        """Whether a run of this key was started, whatever its outcome."""
        return self._run_id(key) in self._known

    def has_ended(self, key: str) -> bool:
        """Whether a run of this key was started, and no further attempt of it may start."""
        return self.is_known(key) and self._run_id(key) not in self.resumable

    def is_spent(self, plan: VacuumPlan, key: str) -> bool:
        """Whether the plan is approved, and the run of this key has committed under the approval, whatever became of its Jobs.

        Another approval of the same plan would lead to the same run, and the files are not those of the plan any more.
        """
        return plan.digest == self.approved and self._run_id(key) in self.view.run_ids

    def _run_id(self, key: str) -> str:
        return run_specs.vacuum_run_id(self.dataset, key)

    @cached_property
    def _known(self) -> frozenset[str]:
        vacuum, last = self.dataset.status.vacuum, self.history.last
        requested = vacuum.requested if vacuum is not None else None
        shown = {requested.run_id} if requested is not None and requested.outcome in ENDED else set()
        run_ids = shown | ({last.run_id} if last is not None else set())
        return frozenset(r.run_id for r in self.runs) | self.view.run_ids | {run_id for run_id in run_ids if run_id}

    @cached_property
    def _cut_short(self) -> frozenset[str]:
        return frozenset(r.run_id for r in self.runs if r.attempts and is_cut_short(r, self.view))

    # --- what is wanted ----------------------------------------------------------------------------------------------

    def wanted(self) -> Due | Later:
        """Whether the annotation or the policy wants a vacuum."""
        requested = self._requested()
        if isinstance(requested, Due):
            return requested
        triggered = self._triggered()
        if requested is not None and isinstance(triggered, Later):
            return replace(requested, look_again=triggered.look_again)
        return triggered

    def _triggered(self) -> Due | Later:
        """Whether the policy wants a vacuum."""
        if self.policy is None:
            return Later(Reason.BELOW_TRIGGERS, "No VacuumPolicy selects this Dataset.")
        answer = fired(self.rules.triggers, self.view, self.deadline, self.now, self.aged)
        if isinstance(answer, Later):
            return answer
        last, of_retention = self.history.last, answer.reason == Reason.ROWS_TOO_OLD
        rest = rests_until(last, state_of(self.view.ledger, holds=self.holds)) if last is not None else None
        if of_retention and not (self.history.retention is not None and self.history.retention.left):
            rest = None  # the last vacuum has not looked at what is due now
        if rest is not None and rest > self.now and not self.clocks_differ:
            text = f"The last vacuum found nothing to purge; the next one starts at {rest:%Y-%m-%d %H:%MZ}."
            return Later(Reason.NOTHING_LEFT, f"{sentence(answer.message)} {text}", rest)
        key = f"{self.view.head_id}\nholds {self.holds}" if self.holds else str(self.view.head_id)
        if of_retention and self.retention is not None:
            key = f"{key}\n{self.retention.rule} {self.retention.cutoff}"
        # The same head, day and holds may have had a vacuum before the holds that kept files were set.
        was_held = of_retention and self.history.retention is not None and bool(self.history.retention.files_held)
        if last is not None and (last.left or was_held):
            key = f"{key}\nafter {last.run_id}"
        key = self.next_key(key)
        if self._ran_under_other_holds(key):
            assert last is not None
            key = self.next_key(f"{key}\nafter {last.run_id}")
        if not self.is_manual and self.has_ended(key):
            return Later(Reason.NOTHING_LEFT, f"A vacuum of snapshot {self.view.head_id} has already ended.")
        return Due(answer.reason, answer.message, key, urgent=answer.urgent)

    def _ran_under_other_holds(self, key: str) -> bool:
        """Whether the run of this key has ended, and the last one had other holds than the active ones: more may be purged now.

        An attempt gets the holds of its time. So the run of a head may have ended under holds that were set after its first one.
        """
        last = self.history.last
        if last is None or not self.has_ended(key):
            return False
        return last.state != state_of(self.view.ledger, holds=self.holds)

    def _requested(self) -> Due | Later | None:
        """Whether the annotation requests a vacuum; None: it is not set, or the vacuum was started."""
        value = self.dataset.meta.annotations.get(VACUUM_NOW, "")
        if not value.strip() or self.view.head_id is None:
            return None
        key = self.next_key(request_key(value))
        if self.has_ended(key):
            return None
        try:
            wanted: VacuumNow = parse_vacuum_now(value)
        except InvalidVacuumNow as e:
            return Later(Reason.INVALID_VACUUM_NOW, f"The operator ignores the annotation {VACUUM_NOW}: {e}.")
        of = f" of {len(wanted.batch_ids)} batches" if wanted.batch_ids else ""
        text = f"the annotation {VACUUM_NOW} requests a vacuum{of}"
        return Due(Reason.VACUUM_NOW, text, key, wanted.batch_ids, requested=True)

    # --- the run -----------------------------------------------------------------------------------------------------

    def spec(self, due: Due, plan_only: bool = False, approved_plan: str = "") -> VacuumSpec:
        """The run's document, without its time limit."""
        rules = self.rules
        lead = rules.triggers.evict_by_lead_seconds
        if self.deadline is not None and due.urgent:  # the deadline may need an earlier start than the policy's lead
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
            retention=self._retention(due, approved_plan),
            plan_only=plan_only,
            approved_plan=approved_plan,
            max_bytes=rules.limits.max_bytes_per_run,
            evict_by_lead_seconds=lead,
            maintenance=maintenance,
        )

    def _retention(self, due: Due, approved_plan: str) -> RetentionSpec | None:
        """Which rows are too old for a run: by the day of the approved plan, if there is one, otherwise by today."""
        plan = self.history.plan
        if self.retention is None or due.batch_ids:
            return None
        if not approved_plan or plan is None or plan.digest != approved_plan or plan.retention_cutoff is None:
            return self.retention
        return self.retention.model_copy(update={"cutoff": date.fromisoformat(plan.retention_cutoff)})


def request_key(value: str) -> str:
    """The key of the vacuum that a value of the annotation lethe.dev/vacuum-now requests."""
    return f"{VACUUM_NOW}\n{value}"


def is_cut_short(run: ObservedRun, view: TableView) -> bool:
    """Whether a run ended incomplete and is not retried: it had committed a part, or its plan differed from the approved one."""
    last = run.attempts[-1]
    if last.state is AttemptState.SUCCEEDED:
        return last.result is not None and last.result.outcome is RunOutcome.PLANNED
    return last.state is AttemptState.FAILED and run.run_id in view.run_ids


def sentence(text: str) -> str:
    """The text with a capital letter and a period."""
    return f"{text[:1].upper()}{text[1:]}."
