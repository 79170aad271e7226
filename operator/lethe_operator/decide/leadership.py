"""Which operator acts in a namespace that several operators watch: the holder of the namespace's Lease. Pure."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

LEASE: Final = "lethe-operator"
LEASE_SECONDS: Final = 45
# A holder that could not renew the Lease for this long stops acting, before another operator may take the Lease.
RENEW_WITHIN_SECONDS: Final = 30.0
RENEW_EVERY_SECONDS: Final = 10.0


class Turn(StrEnum):
    RENEW = "Renew"  # this operator holds it
    TAKE = "Take"  # it is free or expired
    WAIT = "Wait"  # another operator holds it


def holder_of(lease: Mapping[str, Any]) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def turn(lease: Mapping[str, Any], own: str, unchanged_seconds: float) -> Turn:
    """What to do with a Lease.

    Args:
        own: The identity of this operator.
        unchanged_seconds: For how long this operator has read the same version of the Lease. The times in the Lease come from
            the clock of another machine.
    """
    holder = holder_of(lease)
    if holder == own:
        return Turn.RENEW
    duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or LEASE_SECONDS)
    return Turn.TAKE if not holder or unchanged_seconds >= duration else Turn.WAIT


def held_since(lease: Mapping[str, Any], own: str, now: datetime) -> dict[str, Any]:
    """The spec that renews the Lease or takes it."""
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = lease.get("spec") or {}
    if holder_of(lease) == own:
        return {"renewTime": time, "leaseDurationSeconds": LEASE_SECONDS}
    return {
        "holderIdentity": own,
        "acquireTime": time,
        "renewTime": time,
        "leaseDurationSeconds": LEASE_SECONDS,
        "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1,
    }
