"""Which operator acts in a namespace. Pure.

Within a release, it is the holder of the release's Lease; between releases, the holder of the namespace's Lease.

The times in a Lease come from the clock of another machine. So an operator that waits for a Lease measures by its own clock how
long it has read the same version.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final


@dataclass(frozen=True)
class LeaseTerms:
    """All in seconds."""

    lease_seconds: int
    """Another operator may take the Lease when its version has not changed for this long."""
    act_within_seconds: float
    """A holder whose last renewal began longer ago than this stops acting."""
    renew_every_seconds: float
    """The interval of the holder's renewals, and of the others' reads."""
    retry_seconds: float
    """The pause after a renewal that failed."""


# The Lease of a release. From the last renewal to the take-over it takes at most 3 + 9 seconds, and usually 9.3.
LEADER: Final = LeaseTerms(9, 6.5, 3, 0.5)
# An operator that waits reads a little earlier each time, until it finds the version before: then it reads again soon. So it
# reads each renewal soon after it was written, without comparing clocks.
EARLIER_SECONDS: Final = 0.1
SOON_SECONDS: Final = 0.3
# A renewal that is later than this is not waited for.
LATE_SECONDS: Final = 1.0
# The Lease of a namespace. Only the leader of the release renews it.
CLAIM: Final = LeaseTerms(180, 120, 60, 5)
# The name of the Lease of a namespace.
CLAIM_LEASE: Final = "lethe-operator"
# How often an operator reads the Lease of a namespace that another one holds.
CLAIM_READ_SECONDS: Final = 10.0


class LeaderTurn(StrEnum):
    """What this operator does with a Lease now."""

    RENEW = "Renew"
    """This operator holds it."""
    TAKE = "Take"
    """It is free or expired."""
    WAIT = "Wait"
    """Another operator holds it."""


def holder_of(lease: Mapping[str, Any]) -> str:
    """The identity of the operator that holds a Lease, also if it has expired; empty: none does."""
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def transitions_of(lease: Mapping[str, Any]) -> int:
    """How often the Lease was taken."""
    return int((lease.get("spec") or {}).get("leaseTransitions") or 0)


def duration_of(lease: Mapping[str, Any], terms: LeaseTerms) -> float:
    """For how long its holder may be silent, in seconds, as the holder wrote it."""
    return float((lease.get("spec") or {}).get("leaseDurationSeconds") or terms.lease_seconds)


def turn(lease: Mapping[str, Any], own: str, unchanged_seconds: float, terms: LeaseTerms) -> LeaderTurn:
    """What to do with a Lease.

    Args:
        own: The identity of this operator.
        unchanged_seconds: For how long this operator has read the same version of the Lease.
    """
    holder = holder_of(lease)
    if holder == own:
        return LeaderTurn.RENEW
    return LeaderTurn.TAKE if not holder or unchanged_seconds >= duration_of(lease, terms) else LeaderTurn.WAIT


def read_in(unchanged_seconds: float, terms: LeaseTerms) -> float:
    """Seconds until the next read by an operator that waits for a Lease.

    Args:
        unchanged_seconds: As of the last read; 0: it found a new version.
    """
    every = terms.renew_every_seconds
    if unchanged_seconds == 0:
        return every - EARLIER_SECONDS
    return SOON_SECONDS if unchanged_seconds <= every + LATE_SECONDS else every


def held_since(lease: Mapping[str, Any], own: str, now: datetime, terms: LeaseTerms) -> dict[str, Any]:
    """The spec that renews the Lease or takes it."""
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    renewed = {"renewTime": time, "leaseDurationSeconds": terms.lease_seconds}
    if holder_of(lease) == own:
        return renewed
    return {**renewed, "holderIdentity": own, "acquireTime": time, "leaseTransitions": transitions_of(lease) + 1}


def released() -> dict[str, Any]:
    """The spec that gives the Lease up. The API server accepts no duration of 0."""
    return {"holderIdentity": None, "leaseDurationSeconds": 1}
