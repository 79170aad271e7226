"""One Dataset's vacuums from decision to decision: the clock goes on, runs end as a test says, the status is kept. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from lethe.contract.result import VacuumPlanned
from lethe.contract.run import RunSpec, VacuumSpec
from lethe.ledger.ledger import Ledger
from lethe_operator.actions import Event
from lethe_operator.guards.holds import holds_now
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, ObservedRun, TableView, VacuumJob
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.runs.spec import under_holds
from lethe_operator.vacuum.decide import VacuumChoice, decide_vacuum

from tests.support.builders import NOW, a_ledger, a_run_result
from tests.support.resources import SETTINGS, a_dataset, a_run, a_table, a_world, an_attempt
from tests.support.statuses import decide, vacuum_documents

GIB = 1024**3


def a_plan(digest: str = "d1", **changes: Any) -> VacuumPlanned:
    return VacuumPlanned(digest=digest, snapshot_id=1, **{"files": 2, "bytes": GIB, "tombstones": 4, **changes})


@dataclass
class VacuumStory:
    """`clock_off`: by how much the operator's clock is ahead of that of Kubernetes and of the runs."""

    policies: tuple[VacuumPolicy, ...] = ()
    ledger: Ledger = field(default_factory=lambda: a_ledger("A", "B", "C", "D"))
    view: dict[str, Any] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    peers_in_namespace: tuple[Dataset, ...] = ()
    vacuums: tuple[VacuumJob, ...] = ()
    now: datetime = NOW
    clock_off: timedelta = timedelta()
    name: str = "flights"
    head: int = 1
    status: dict[str, Any] = field(default_factory=dict)
    holds: list[dict[str, Any]] = field(default_factory=list)
    runs: list[ObservedRun] = field(default_factory=list)
    committed: set[str] = field(default_factory=set)
    launched: list[RunSpec] = field(default_factory=list)
    events: Callable[[], tuple[Event, ...]] = tuple  # of the last decision

    @property
    def dataset(self) -> Dataset:
        spec = {"holds": self.holds} if self.holds else {}
        return a_dataset(self.name, meta={"annotations": self.annotations}, status=self.status, **spec)

    @property
    def table(self) -> TableView:
        return a_table(
            self.ledger, head_id=self.head, run_ids=frozenset(self.committed), claim=f"ns/{self.name}", **self.view
        )

    def decide(self, **world: Any) -> VacuumChoice:
        """Decide and remember, as a reconcile does."""
        seen = a_world(
            table=self.table,
            policies=self.policies,
            runs=tuple(self.runs),
            peers_in_namespace=self.peers_in_namespace,
            vacuums=self.vacuums,
            **world,
        )
        now, dataset = self.now + self.clock_off, self.dataset
        verdict = vacuum_documents(decide_vacuum(dataset, seen, None, now, SETTINGS))
        self.events = lambda: decide(dataset, seen, now, SETTINGS).events
        conditions = [c for c in self.status.get("conditions", ()) if c["type"] != "EvictionOnTime"]
        if verdict.on_time is not None:
            told = verdict.on_time
            conditions.append(
                {"type": told.type, "status": told.status, "reason": told.reason, "message": told.message}
            )
        self.status = {"vacuum": dict(verdict.status), "conditions": conditions}
        if verdict.launch is not None:
            self._launched(under_holds(verdict.launch, holds_now(dataset, now)).run)
        return verdict

    def start(self) -> VacuumSpec:
        """What the run is told that starts now."""
        launch = self.decide().launch
        assert launch is not None, self.told
        assert launch.run.vacuum is not None
        return launch.run.vacuum

    @property
    def told(self) -> tuple[str, str]:
        return self.status["vacuum"]["decision"], self.status["vacuum"]["reason"]

    @property
    def message(self) -> str:
        return str(self.status["vacuum"]["message"])

    @property
    def on_time(self) -> tuple[str, str]:
        (found,) = [c for c in self.status["conditions"] if c["type"] == "EvictionOnTime"]
        return found["status"], found["reason"]

    def wait(self, **time: float) -> None:
        self.now += timedelta(**time)

    def commit(self, ledger: Ledger | None = None) -> None:
        """The head moves, by whoever it is."""
        self.head += 1
        self.ledger = ledger if ledger is not None else self.ledger

    def end(self, outcome: str = "Committed", ledger: Ledger | None = None, **result: Any) -> None:
        """The run ends well. One that commits leaves no tombstone, unless it says otherwise."""
        run, attempt = self._last()
        if outcome == "Committed":
            self.committed.add(run.run_id)
            self.commit(ledger if ledger is not None else a_ledger())
            result = {"tombstones_purged": 4, "files_rewritten": 1, **result}
        answer = a_run_result(run.kind, outcome, run_id=run.run_id, finished_time=self.now, **result)
        self._end(run, attempt, AttemptState.SUCCEEDED, result=answer)

    def end_silently(self) -> None:
        """It ends well, and what it has told is lost."""
        self._end(*self._last(), AttemptState.SUCCEEDED)

    def fail(self, **attempt: Any) -> None:
        self._end(*self._last(), AttemptState.FAILED, **{"exit_code": 20, **attempt})

    def forget_jobs(self) -> None:
        """Somebody deletes them all, and the operator starts anew."""
        self.runs = []

    def every(self, minutes: float, until: datetime) -> Iterator[None]:
        while self.now < until:
            yield
            self.wait(minutes=minutes)

    def _launched(self, run: RunSpec) -> None:
        self.launched.append(run)
        attempt = an_attempt(run, number=run.attempt, created=self.now)
        known = next((r for r in self.runs if r.run_id == run.run_id), None)
        if known is None:
            self.runs.append(a_run(run, attempt))
        else:
            at = self.runs.index(known)
            self.runs[at] = replace(known, intent=run, attempts=(*known.attempts, attempt))

    def _last(self) -> tuple[ObservedRun, Attempt]:
        run = next(r for r in self.runs if r.active)
        return run, run.attempts[-1]

    def _end(self, run: ObservedRun, attempt: Attempt, state: AttemptState, **changes: Any) -> None:
        ended = replace(attempt, state=state, finished=self.now, **changes)
        # What a run was told is dropped once its end is shown, but the decision comes first.
        self.runs[self.runs.index(run)] = replace(run, attempts=(*run.attempts[:-1], ended))
