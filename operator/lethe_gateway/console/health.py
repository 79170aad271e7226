"""Whether an operator acts in a namespace, by the Lease that it renews there. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from lethe_operator.cluster.leadership import CLAIM, CLAIM_LEASE, duration_of, holder_of

from lethe_gateway.console.attention import Attention, Urgency

LEASE: Final = CLAIM_LEASE
"""The name of the Lease."""


@dataclass(frozen=True)
class Health:
    """What the Lease of a namespace says."""

    state: str
    """acts, silent, absent or unknown."""
    holder: str = ""
    """The release that acts in the namespace."""
    renewed: datetime | None = None
    """When it last said so, by its own clock."""

    @property
    def attention(self) -> tuple[Attention, ...]:
        """What somebody must know of it."""
        match self.state:
            case "silent":
                at = f"{self.renewed:%Y-%m-%d %H:%M:%SZ}" if self.renewed is not None else "an unknown time"
                detail = (
                    f"{self.holder} has not renewed the Lease {LEASE} since {at}. Nothing is promoted or taken back."
                )
            case "absent":
                detail = f"Nobody holds the Lease {LEASE}. Nothing is promoted or taken back."
            case _:
                return ()
        return (Attention(Urgency.STOPPED, "", "No operator acts here", detail),)


UNKNOWN: Final = Health("unknown")
"""The caller may not read the Lease."""


def health_of(lease: Mapping[str, Any], now: datetime) -> Health:
    """What a Lease says. A holder that is late by less than the duration of the Lease still acts."""
    holder = holder_of(lease)
    if not holder:
        return Health("absent")
    renewed = _time((lease.get("spec") or {}).get("renewTime"))
    if renewed is None:
        return Health("silent", holder)
    is_late = (now - renewed).total_seconds() > duration_of(lease, CLAIM)
    return Health("silent" if is_late else "acts", holder, renewed)


def _time(text: object) -> datetime | None:
    """A time of a Lease; None: it has none, or none that can be read."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
