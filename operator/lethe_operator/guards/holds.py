"""The holds of a Dataset: which are in force, which runs know them, and whether their filters fit the table. Pure.

A hold is in force when every run that may remove rows of the table knows it. A run keeps the holds that it was started with, so
the operator stops one that began without a hold. No text here contains a filter.
"""

import hashlib
from collections.abc import Iterable, Iterator
from datetime import datetime

from lethe.base.errors import Verdict
from lethe.contract.dataset import HoldSpec, active_holds
from lethe.contract.run import RunKind, RunSpec
from lethe.contract.status import HoldStatus

from lethe_operator.conditions import timestamp
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
    Engine,
    NoTable,
    Observation,
    TableView,
    Unavailable,
)


def holds_now(dataset: Dataset, now: datetime) -> tuple[HoldSpec, ...]:
    """The holds of spec.holds that have not ended."""
    return active_holds(dataset.spec.holds, now)


def next_end(dataset: Dataset, now: datetime) -> datetime | None:
    """When the next hold ends by itself; None: none does."""
    return min((h.until for h in holds_now(dataset, now) if h.until is not None), default=None)


def digest(holds: Iterable[HoldSpec]) -> str:
    """Differs for holds that cover other rows; "": there are none. Their ends do not matter."""
    facts = sorted((h.name, h.filter) for h in holds)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12] if facts else ""


def invalid_hold(dataset: Dataset, table: TableView | NoTable | Unavailable) -> Verdict | None:
    """Why no row of the table may be removed: a filter is not a condition on its columns. None: all filters are."""
    if not isinstance(table, TableView) or table.invalid_hold is None:
        return None
    return Verdict(Reason.INVALID_HOLD, f"Dataset {dataset.meta.name}: {table.invalid_hold}")


def knows(run: RunSpec | None, holds: Iterable[HoldSpec]) -> bool:
    """Whether a run was started with all these holds."""
    known = {(h.name, h.filter) for h in run.holds} if run is not None else set()
    return all((h.name, h.filter) in known for h in holds)


def unaware(world: Observation, holds: tuple[HoldSpec, ...]) -> Iterator[Attempt]:
    """The active attempts of runs that may remove rows and were started without one of the holds."""
    for run in world.runs:
        if holds and _may_remove(run.kind, run.intent) and not knows(run.intent, holds):
            yield from (a for a in run.attempts if a.state is AttemptState.ACTIVE)


def to_stop(world: Observation, holds: tuple[HoldSpec, ...]) -> tuple[str, ...]:
    """The Jobs of these attempts. The committer removes no rows, and a run without a document may know the holds."""
    documents = {r.run_id: r.intent for r in world.runs}
    return tuple(
        a.job
        for a in unaware(world, holds)
        if not a.deleting and a.engine is not Engine.COMMITTER and documents[a.run_id] is not None
    )


def _may_remove(kind: RunKind, run: RunSpec | None) -> bool:
    """Whether a run may remove rows from data files. One whose document is unknown may."""
    if run is None:
        return kind in (RunKind.VACUUM, RunKind.RESTATEMENT)
    if run.restatement is not None:
        return not run.restatement.dry_run and any(r.searches for r in run.restatement.requests)
    return kind is RunKind.VACUUM and run.vacuum is not None and not run.vacuum.plan_only


def holds_status(
    dataset: Dataset, world: Observation, invalid: Verdict | None, now: datetime
) -> tuple[HoldStatus, ...]:
    """`status.holds`.

    Args:
        invalid: As `invalid_hold` says.
    """
    return tuple(_status(hold, world, invalid, now) for hold in dataset.spec.holds)


def _status(hold: HoldSpec, world: Observation, invalid: Verdict | None, now: datetime) -> HoldStatus:
    shown = HoldStatus(name=hold.name, active=True, until=hold.until)
    if hold.until is not None and not hold.is_active(now):
        text = f"It ended at {timestamp(hold.until)}. Remove it from spec.holds."
        return shown.model_copy(update={"active": False, "message": text})
    if attempts := tuple(unaware(world, (hold,))):
        text = (
            f"The run {attempts[0].job} began before the hold and may still remove rows. The operator is stopping it."
        )
        return shown.model_copy(update={"active": False, "message": text})
    if isinstance(world.table, Unavailable):
        text = "The table cannot be read now. No run that removes rows starts without the hold."
        return shown.model_copy(update={"message": text})
    return shown.model_copy(update={"message": invalid.message}) if invalid is not None else shown
