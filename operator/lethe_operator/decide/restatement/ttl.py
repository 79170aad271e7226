"""When Restatements that have ended are deleted. Pure; the table remembers their requests."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lethe_operator.decide import conditions
from lethe_operator.decide.actions import earliest
from lethe_operator.decide.erasure.status import is_awaited
from lethe_operator.decide.restatement.assessment import Assessment
from lethe_operator.resources.restatement import Restatement

# The time of thousands that were carried out together is over together. Each takes the API server some milliseconds, and nothing
# else is done for the Dataset meanwhile.
DELETED_AT_ONCE: Final = 100
DELETED_AGAIN_AFTER: Final = timedelta(seconds=5)


@dataclass(frozen=True)
class Expired:
    """Names of those to delete now; `look_again`: when the next ones are due."""

    names: tuple[str, ...] = ()
    look_again: datetime | None = None


def expired(standings: Iterable[tuple[Restatement, Assessment]], now: datetime) -> Expired:
    """Those whose time is over, so many at a time, the first to end first."""
    times = [(at, r.meta.name) for r, s in standings if (at := expires(r, s, now)) is not None]
    over = sorted((at, name) for at, name in times if at <= now)
    later = now + DELETED_AGAIN_AFTER if len(over) >= DELETED_AT_ONCE else None
    next_one = earliest(later, *(at for at, _ in times if at > now))
    return Expired(tuple(name for _, name in over[:DELETED_AT_ONCE]), next_one)


def expires(restatement: Restatement, standing: Assessment, now: datetime) -> datetime | None:
    """When a finished Restatement is to be deleted; None: never, or it has not finished, or its erasure has not: it says so."""
    ttl = restatement.spec.ttl_seconds_after_finished
    if ttl is None or not standing.finished or is_awaited(restatement.status):
        return None
    finished = conditions.find(restatement.status, conditions.SUCCEEDED)
    if finished.get("status") != standing.succeeded or standing.finished_time is None:
        return None  # its end is being written now; the time of that is what counts
    return datetime.fromtimestamp(standing.finished_time.timestamp() + ttl, tz=now.tzinfo)
