"""Which Datasets of a VacuumPolicy with `limits.concurrentRuns` may start a vacuum. Pure.

Datasets with an evictBy that is due go first, then those that have waited longest. A Dataset learns from the statuses of the
others that they wait.
"""

from collections.abc import Callable, Collection, Iterable
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
# How often a waiting Dataset looks for a place: the first ones at the shorter interval, each further group that much later.
CHECK_INTERVAL, CHECK_INTERVAL_MAX = timedelta(seconds=15), timedelta(minutes=5)
GROUP: Final = 20
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


@dataclass(frozen=True)
class Turn:
    """Whether a vacuum may start now."""

    # Why it waits, as a sentence; "": it may start.
    waiting: str
    # Number of waiting vacuums that go first.
    before: int

    @property
    def look_again_in(self) -> timedelta:
        """When thousands wait, the last ones need not look as often as the first ones."""
        return min(CHECK_INTERVAL * (1 + self.before // GROUP), CHECK_INTERVAL_MAX)


def place_of(dataset: Dataset, policy: VacuumPolicy | None, world: World) -> VacuumLimit | None:
    """The places of the policy; None: it does not limit the number of vacuums."""
    if policy is None or policy.spec.limits.concurrent_runs is None:
        return None
    decides = _decides(policy, world)
    others = (d.meta.uid for d in _others(dataset, world) if decides(d))
    return VacuumLimit(policy.meta.name, policy.spec.limits.concurrent_runs, frozenset((dataset.meta.uid, *others)))


def turn_of(place: VacuumLimit, own: WaitingVacuum, dataset: Dataset, world: World, now: datetime) -> Turn:
    """Whether the vacuum may start, or what it waits for."""
    running = place.taken(world.vacuums, dataset.meta.uid)
    free = place.at_most - len(running)
    before = [c for c in _candidates(place, dataset, world) if c.rank < own.rank]
    if free <= 0:
        limit = f"VacuumPolicy {place.policy} allows {place.at_most} at a time (spec.limits.concurrentRuns)"
        return Turn(f"Waiting for the running vacuum of {_named(running)}: {limit}.", len(before))
    freed = max((j.finished for j in world.vacuums if j.finished is not None and j.uid in place.uids), default=None)
    first = [c for c in before if now - max(c.since, freed or c.since) <= PASSED_OVER_AFTER]
    if len(first) < free:
        return Turn("", len(before))
    names = [c.dataset for c in sorted(first, key=lambda c: c.rank)]
    return Turn(f"Waiting because {_named(names)} may start first under VacuumPolicy {place.policy}.", len(before))


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


def _decides(policy: VacuumPolicy, world: World) -> Callable[[Dataset], bool]:
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
