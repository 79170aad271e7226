"""Which of the Datasets of a VacuumPolicy may vacuum, if `limits.concurrentRuns` says how many may at once. Pure.

Who has waited longest goes first, and before all of them whoever has an evictBy to keep. Each Dataset's own decision is shown
in its status, which is how the others know that it waits.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide.conditions import parsed_time
from lethe_operator.decide.policy_match import match
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Place, World
from lethe_operator.resources.vacuum_policy import VacuumPolicy

# Somebody whose turn it is and who does not take it for so long, whatever keeps it, keeps no other.
PASSED_OVER_AFTER: Final = timedelta(minutes=5)
NAMED_AT_MOST: Final = 3


@dataclass(frozen=True)
class WaitingVacuum:
    """A Dataset that only waits for a place; `urgent`: its evictBy is due."""

    dataset: str
    since: datetime
    urgent: bool

    @property
    def rank(self) -> tuple[bool, datetime, str]:
        return not self.urgent, self.since, self.dataset


def place_of(dataset: Dataset, policy: VacuumPolicy | None, world: World) -> Place | None:
    """None: there may be any number of vacuums."""
    if policy is None or policy.spec.limits.concurrent_runs is None:
        return None
    others = [d for d in world.neighbours if _decides(policy, d, world)]
    return Place(
        policy.meta.name, policy.spec.limits.concurrent_runs, frozenset(d.meta.uid for d in (dataset, *others))
    )


def waits_for(place: Place, me: WaitingVacuum, dataset: Dataset, world: World, now: datetime) -> str:
    """Whom it waits for, as a sentence; "": nobody."""
    running = place.taken(world.vacuums, dataset.meta.uid)
    free = place.at_most - len(running)
    if free <= 0:
        return f"It waits for {_named(running)}: {place.at_most} may run at once under VacuumPolicy {place.policy}."
    freed = max((j.finished for j in world.vacuums if j.finished is not None and j.uid in place.uids), default=None)
    first = [
        c
        for c in _candidates(place, world)
        if c.rank < me.rank and now - max(c.since, freed or c.since) <= PASSED_OVER_AFTER
    ]
    if len(first) < free:
        return ""
    names = [c.dataset for c in sorted(first, key=lambda c: c.rank)]
    return f"Under VacuumPolicy {place.policy} it is the turn of {_named(names)} first."


def _candidates(place: Place, world: World) -> list[WaitingVacuum]:
    found = []
    for other in world.neighbours:
        told = other.status.get("vacuum") or {}
        since = parsed_time(told.get("waitingSince"))
        if since is not None and other.meta.uid in place.uids and not other.paused:
            found.append(WaitingVacuum(other.meta.name, since, told.get("dueReason") == Reason.EVICT_BY_NEAR))
    return found


def _decides(policy: VacuumPolicy, dataset: Dataset, world: World) -> bool:
    return match(world.policies, dataset.meta.labels).decides == policy


def _named(names: Collection[str]) -> str:
    """`Dataset a`, or the first of several."""
    listed = list(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return f"Dataset{'s' if len(listed) > 1 else ''} {', '.join(listed[:NAMED_AT_MOST])}{more}"
