"""Decides when finished Restatements are deleted, by ttlSecondsAfterFinished. Pure. The ledger keeps their results."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide import conditions
from lethe_operator.decide.actions import earliest
from lethe_operator.decide.erasure.status import is_awaited
from lethe_operator.decide.restatement.assessment import Assessment
from lethe_operator.resources.restatement import Restatement

# Thousands of Restatements may expire together. Each deletion takes some milliseconds and delays the Dataset's reconcile.
DELETED_AT_ONCE: Final = 100
DELETED_AGAIN_AFTER: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class Expired:
    """Which Restatements to delete now."""

    names: tuple[str, ...] = ()
    look_again: datetime | None = None  # when the next ones expire; None: no other one does


def expired(standings: Iterable[tuple[Restatement, Assessment]], now: datetime) -> Expired:
    """The expired Restatements, at most DELETED_AT_ONCE, those that expired first."""
    times = [(at, r.meta.name) for r, s in standings if (at := expires(r, s, now)) is not None]
    over = sorted((at, name) for at, name in times if at <= now)
    later = now + DELETED_AGAIN_AFTER if len(over) >= DELETED_AT_ONCE else None
    next_one = earliest(later, *(at for at, _ in times if at > now))
    return Expired(tuple(name for _, name in over[:DELETED_AT_ONCE]), next_one)


def expires(restatement: Restatement, standing: Assessment, now: datetime) -> datetime | None:
    """When a Restatement expires; None: never, or it has not finished, or its erasure is not verified yet."""
    ttl = restatement.spec.ttl_seconds_after_finished
    if ttl is None or not standing.finished or is_awaited(restatement.status):
        return None
    finished = conditions.find(restatement.status, conditions.SUCCEEDED)
    if finished.get("status") != standing.succeeded or standing.finished_time is None:
        return None  # the status does not show the end yet; the time counts from that status
    return datetime.fromtimestamp(standing.finished_time.timestamp() + ttl, tz=now.tzinfo)
