"""Whether only a change, or a rare look, can find something to do for a Dataset, so that the time between its reconciles grows.
Pure."""

from collections.abc import Mapping
from typing import Any

from lethe_operator.decide import conditions
from lethe_operator.decide.actions import Decision
from lethe_operator.decide.restatement.assessment import RestatementPhase
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import Meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Unavailable, World
from lethe_operator.resources.restatement import Restatement


def is_idle(dataset: Dataset, world: World, status: Mapping[str, Any]) -> bool:
    """Whether nothing runs or is due, and nothing waits that only time reveals. A time at which a decision changes by itself
    (`Actions.look_again`) does not matter: the Dataset is reconciled then in any case.

    Args:
        status: Of the Dataset, as decided. It and the statuses of the Restatements are already shown.
    """
    if any(r.active for r in world.runs) or any(map(_waits, world.restatements)):
        return False
    decisions = {str((status.get(subject) or {}).get("decision", "")) for subject in ("consolidation", "vacuum")}
    if decisions & {Decision.DUE, Decision.RUNNING}:
        return False
    if world.events is not None and world.events.in_flight:
        return False
    if dataset.paused:
        return True
    if _is(status, conditions.READY) != conditions.TRUE or _is(status, conditions.EVICTION_ON_TIME) == conditions.FALSE:
        return False
    if isinstance(world.buffer, NotListed):
        return True  # the end of the first listing is reported
    if isinstance(world.buffer, Unavailable):
        return False
    # The time at which a batch below the triggers is old enough is known, and a listing shows the batches that come before.
    waits = world.buffer.batches > 0 and (status.get("consolidation") or {}).get("reason") != Reason.BELOW_TRIGGERS
    return not (waits and not dataset.spec.consolidation.suspend) and not world.buffer.more_expired


def is_unsettled(meta: Meta, status: Mapping[str, Any]) -> bool:
    """Whether a Dataset has an edit that its status does not show, or an active run: a new leader looks at it first.

    Args:
        status: Of the Dataset, as it is shown.
    """
    if meta.deleting or status.get("observedGeneration") != meta.generation:
        return True
    return any("finishTime" not in run for run in status.get("runs") or ())


def _waits(restatement: Restatement) -> bool:
    """Whether a Restatement continues without an action of a user."""
    status = restatement.status
    if status.get("phase") == RestatementPhase.SUSPENDED or _is(status, conditions.STALLED) == conditions.TRUE:
        return False
    return _is(status, conditions.SUCCEEDED) in (conditions.UNKNOWN, None)


def _is(status: Mapping[str, Any], condition: str) -> str | None:
    """The status of a condition; None: there is no such condition."""
    return conditions.find(status, condition).get("status")
