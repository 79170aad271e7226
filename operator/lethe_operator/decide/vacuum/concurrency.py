"""Which Datasets of a VacuumPolicy with `limits.concurrentRuns` may start a vacuum. Pure.

Datasets with an evictBy that is due go first, then those that have waited longest. A Dataset learns from the statuses of the
others that they wait.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide.conditions import parsed_time
from lethe_operator.decide.policy_match import match
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import VacuumLimit, World
from lethe_operator.resources.vacuum_policy import VacuumPolicy

# A Dataset that could start and does not do so within this time no longer holds up the others.
PASSED_OVER_AFTER: Final = timedelta(minutes=5)
NAMED_AT_MOST: Final = 3


@dataclass(frozen=True)
class WaitingVacuum:
    """A vacuum that is due and waits only for a place."""

    dataset: str  # its name
    since: datetime
    urgent: bool  # an evictBy is due

    @property
    def rank(self) -> tuple[bool, datetime, str]:
        return not self.urgent, self.since, self.dataset


def place_of(dataset: Dataset, policy: VacuumPolicy | None, world: World) -> VacuumLimit | None:
    """The places of the policy; None: it does not limit the number of vacuums."""
    if policy is None or policy.spec.limits.concurrent_runs is None:
        return None
    others = [d for d in _others(dataset, world) if _decides(policy, d, world)]
    return VacuumLimit(
        policy.meta.name, policy.spec.limits.concurrent_runs, frozenset(d.meta.uid for d in (dataset, *others))
    )


def waiting_reason(place: VacuumLimit, own: WaitingVacuum, dataset: Dataset, world: World, now: datetime) -> str:
    """Why the vacuum waits, as a sentence; "": it may start."""
    running = place.taken(world.vacuums, dataset.meta.uid)
    free = place.at_most - len(running)
    if free <= 0:
        limit = f"VacuumPolicy {place.policy} allows {place.at_most} at a time (spec.limits.concurrentRuns)"
        return f"Waiting for the running vacuum of {_named(running)}: {limit}."
    freed = max((j.finished for j in world.vacuums if j.finished is not None and j.uid in place.uids), default=None)
    first = [
        c
        for c in _candidates(place, dataset, world)
        if c.rank < own.rank and now - max(c.since, freed or c.since) <= PASSED_OVER_AFTER
    ]
    if len(first) < free:
        return ""
    names = [c.dataset for c in sorted(first, key=lambda c: c.rank)]
    return f"Waiting because {_named(names)} may start first under VacuumPolicy {place.policy}."


def _others(dataset: Dataset, world: World) -> Iterable[Dataset]:
    return (d for d in world.rivals if d.meta.name != dataset.meta.name and not d.meta.deleting)


def _candidates(place: VacuumLimit, dataset: Dataset, world: World) -> list[WaitingVacuum]:
    found = []
    for other in _others(dataset, world):
        shown = other.status.get("vacuum") or {}
        since = parsed_time(shown.get("waitingSince"))
        if since is not None and other.meta.uid in place.uids and not other.paused:
            found.append(WaitingVacuum(other.meta.name, since, shown.get("dueReason") == Reason.EVICT_BY_NEAR))
    return found


def _decides(policy: VacuumPolicy, dataset: Dataset, world: World) -> bool:
    return match(world.policies, dataset.meta.labels).decides == policy


def _named(names: Collection[str]) -> str:
    """`Dataset a`, or `Datasets a, b, c and 4 more`."""
    listed = list(names)
    more = f" and {len(listed) - NAMED_AT_MOST} more" if len(listed) > NAMED_AT_MOST else ""
    return f"Dataset{'s' if len(listed) > 1 else ''} {', '.join(listed[:NAMED_AT_MOST])}{more}"
