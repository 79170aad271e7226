"""A Restatement that is not wanted any more: cancelled by its user, or not committed by its deadline. Pure.

Whether it was committed all the same is for the ledger to tell, which is asked before any of this. So nothing is said for good as
long as a run of it is under way, or has been and the table cannot be read.
"""

from dataclasses import dataclass
from datetime import datetime

from lethe_operator.decide.conditions import FALSE, UNKNOWN, timestamp
from lethe_operator.decide.restatement.assessment import Assessment
from lethe_operator.decide.restatement.run_outcomes import Trial
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Unavailable, World
from lethe_operator.resources.restatement import Restatement


@dataclass(frozen=True)
class _Why:
    """`under_way`: the reason until it has ended; `said`: the beginning of each message; `stalled`: somebody wanted it done."""

    under_way: str
    ended: str
    phase: str
    said: str
    stalled: bool


def withdrawn(restatement: Restatement, world: World, trial: Trial, now: datetime) -> Assessment | None:
    """How it stands; None while it is wanted."""
    why = _why(restatement, now)
    if why is None:
        return None
    going = trial.going
    if going is not None and going.by_committer:
        what = f"The committer is at it ({going.job}); when it has ended it is known whether this came too late."
        return Assessment("Running", UNKNOWN, why.under_way, f"{why.said} {what}")
    if going is not None:
        what = f"The run {going.job} is being stopped."
        if trial.members > 1:
            what = (
                f"The run {going.job} goes on if others of its group are still wanted; when it has ended it is known whether "
                "this came too late."
            )
        return Assessment("Running", UNKNOWN, why.under_way, f"{why.said} {what}", cancel_job=going.job)
    view = world.table
    # What keeps the table from being read may keep the runs from being known, too.
    if isinstance(view, Unavailable) and (view.transient or trial.run is not None):
        text = f"{why.said} Whether it was committed is known once the table can be read: {view.message}"
        return Assessment("Pending", UNKNOWN, why.under_way, text)
    last = trial.run.last if trial.run is not None else None
    text = f"{why.said} It was not committed; nothing was changed."
    return _end(why, text + (f" Its last run was {last.job}." if last is not None else ""))


def without_dataset(restatement: Restatement, dataset: str, now: datetime) -> Assessment | None:
    """The same of one whose Dataset is not there, so that no table can be asked."""
    why = _why(restatement, now)
    return None if why is None else _end(why, f"{why.said} There is no Dataset {dataset} that could carry it out.")


def _why(restatement: Restatement, now: datetime) -> _Why | None:
    name, deadline = restatement.meta.name, restatement.deadline
    if restatement.spec.cancel:
        said = f"Restatement {name} was cancelled."
        return _Why(Reason.CANCELLING, Reason.CANCELLED, "Cancelled", said, stalled=False)
    if deadline is None or deadline > now:
        return None
    said = f"The time of Restatement {name} was over at {timestamp(deadline)} (spec.deadlineSeconds)."
    return _Why(Reason.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED, "Failed", said, stalled=True)


def _end(why: _Why, message: str) -> Assessment:
    return Assessment(why.phase, FALSE, why.ended, message, stalled=why.stalled)
