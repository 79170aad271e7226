"""Assesses Restatements that were cancelled or were not committed by their deadline. Pure.

The ledger says whether the Restatement was committed anyway, and the caller checks the ledger first. So the assessment is not
final while a run is active, or while the table cannot be read and there may have been a run.
"""

from dataclasses import dataclass
from datetime import datetime

from lethe_operator.decide.conditions import FALSE, UNKNOWN, timestamp
from lethe_operator.decide.restatement.assessment import Assessment, RestatementPhase
from lethe_operator.decide.restatement.run_outcomes import Trial
from lethe_operator.reasons import Reason
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import Unavailable, World
from lethe_operator.resources.restatement import Restatement


@dataclass(frozen=True)
class _Why:
    """Why a Restatement is not to be carried out any more."""

    under_way: str  # reason until it has ended
    ended: str  # reason once it has ended
    phase: RestatementPhase  # once it has ended
    cause: str  # the first sentence of each message
    stalled: bool  # False: the user asked for it, so no action is needed


def withdrawn(restatement: Restatement, world: World, trial: Trial, now: datetime) -> Assessment | None:
    """The assessment of a Restatement that was cancelled or is past its deadline; None: it is neither."""
    why = _why(restatement, now)
    if why is None:
        return None
    going = trial.going
    if going is not None and going.engine is Engine.COMMITTER:
        what = f"The committer is carrying it out ({going.job}). When that ends, the status shows whether it was committed."
        return Assessment(RestatementPhase.RUNNING, UNKNOWN, why.under_way, f"{why.cause} {what}")
    if going is not None:
        what = f"The operator is stopping the run {going.job}."
        if trial.members > 1:
            what = (
                f"The run {going.job} continues if other Restatements of its group still need it. When it ends, the status "
                "shows whether this one was committed."
            )
        return Assessment(RestatementPhase.RUNNING, UNKNOWN, why.under_way, f"{why.cause} {what}", cancel_job=going.job)
    view = world.table
    # If the table cannot be read for now, the runs may be unknown too.
    if isinstance(view, Unavailable) and (view.transient or trial.run is not None):
        text = f"{why.cause} The status shows whether it was committed once the operator can read the table: {view.message}"
        return Assessment(RestatementPhase.PENDING, UNKNOWN, why.under_way, text)
    last = trial.run.last if trial.run is not None else None
    text = f"{why.cause} It was not committed. Nothing was changed."
    return _end(why, text + (f" Its last run was {last.job}." if last is not None else ""))


def without_dataset(restatement: Restatement, dataset: str, now: datetime) -> Assessment | None:
    """The same for a Restatement whose Dataset does not exist, so that there is no table to read."""
    why = _why(restatement, now)
    return None if why is None else _end(why, f"{why.cause} Dataset {dataset} does not exist in this namespace.")


def _why(restatement: Restatement, now: datetime) -> _Why | None:
    name, deadline = restatement.meta.name, restatement.deadline
    if restatement.spec.cancel:
        cause = f"Restatement {name} was cancelled."
        return _Why(Reason.CANCELLING, Reason.CANCELLED, RestatementPhase.CANCELLED, cause, stalled=False)
    if deadline is None or deadline > now:
        return None
    cause = f"The deadline of Restatement {name} passed at {timestamp(deadline)} (spec.deadlineSeconds)."
    return _Why(Reason.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED, RestatementPhase.FAILED, cause, stalled=True)


def _end(why: _Why, message: str) -> Assessment:
    return Assessment(why.phase, FALSE, why.ended, message, stalled=why.stalled)
