"""Decides which idle warm driver ends because no node has room for a run's pod, and until when it stays away. Pure.

A warm driver is idle if its mailbox is empty: a run has an entry there until its result is delivered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.actions import earliest
from lethe_operator.resources.observed import UnplacedPod, WorkerView

STAYS_AWAY: Final = timedelta(minutes=5)
"""A warm driver that has made way may start again when no pod has waited for room for this long."""
NEXT_AFTER: Final = timedelta(minutes=1)
"""If a pod still waits after this time, another warm driver makes way. The first one needs up to half of it to end."""
HELPED_WITHIN: Final = timedelta(minutes=10)
"""A pod that has waited for longer needs more room than warm drivers have."""
LOOK_AGAIN: Final = timedelta(seconds=30)
"""The time to the next decision while a pod waits."""


@dataclass(frozen=True)
class MakingWay:
    """What to do about the pods of a namespace that wait for room."""

    pod: UnplacedPod | None = None
    """The one that has waited longest; None: none has waited for long enough."""
    ends: str | None = None
    """Namespace of the warm driver that ends; None: none does."""
    stay_away: tuple[str, ...] = ()
    """Namespaces whose warm driver stays away, until `until`."""
    until: datetime | None = None
    look_again: datetime | None = None
    """When to decide again; None: when something changes."""


def make_way(
    pods: Iterable[UnplacedPod], drivers: Sequence[tuple[str, WorkerView]], after: timedelta, now: datetime
) -> MakingWay:
    """Decide which idle warm driver ends: that of the namespace of the pod, otherwise one of another namespace.

    Args:
        pods: Those of one namespace.
        drivers: The warm drivers of the installation, by namespace.
        after: How long a pod waits before a warm driver makes way for it.
    """
    helped = [p for p in pods if now < p.since + HELPED_WITHIN]
    waits = [p for p in helped if p.since + after <= now]
    if not waits:
        return MakingWay(look_again=earliest(*(p.since + after for p in helped)))
    pod = min(waits, key=lambda p: (p.since, p.name))
    away = {namespace for namespace, view in drivers if view.away_until is not None}
    # One that stays away may have received a run before it could end.
    idle = sorted(
        (namespace not in away, namespace != pod.namespace, namespace)
        for namespace, view in drivers
        if view.starting and not view.mailbox
    )
    ends = idle[0][-1] if idle else None
    if ends is not None and ends not in away and len(away) > (now - pod.since - after) // NEXT_AFTER:
        ends = None
    until = now + STAYS_AWAY
    expire = (namespace for namespace, view in drivers if view.away_until and view.away_until < until - LOOK_AGAIN / 2)
    stay_away = (*expire, *(() if ends is None or ends in away else (ends,)))
    return MakingWay(pod, ends, stay_away, until, now + LOOK_AGAIN)
