"""Whether the operator still hears and still works. Pure but for the clock given to it.

Kubernetes restarts an operator that does not; since nothing is remembered, a restart costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

# A change that the API server listed and no watch told of: after this long the watch is dead.
WATCH_LAG_SECONDS: Final = 120.0
# A reconcile is bounded by the time limits of everything in it; one this long hangs.
RECONCILE_SECONDS: Final = 900.0
RESYNC_GRACE_SECONDS: Final = 120.0


@dataclass
class Health:
    """`clock` counts seconds, from wherever."""

    clock: Callable[[], float]
    resync_seconds: float
    _seen: dict[str, str] = field(default_factory=dict)
    _unheard: dict[str, float] = field(default_factory=dict)
    _resynced: float | None = None

    def heard(self, uid: str, version: str) -> None:
        """A watch told of an object."""
        self._seen[uid] = version
        self._unheard.pop(uid, None)

    def listed(self, objects: Iterable[tuple[str, str]]) -> None:
        """The resync listed objects, as UID and version: what differs from what was heard must be heard of soon."""
        now = self.clock()
        there = dict(objects)
        for uid, version in there.items():
            if self._seen.get(uid) == version:
                self._unheard.pop(uid, None)
            else:
                self._unheard.setdefault(uid, now)
        for uid in [u for u in self._unheard if u not in there]:
            del self._unheard[uid]
        for uid in [u for u in self._seen if u not in there]:
            del self._seen[uid]
        self._resynced = now

    def trouble(self, longest_reconcile_seconds: float, started: float) -> str | None:
        """What is wrong, in a sentence; None when all is well. `started`: when the operator was, on the same clock."""
        now = self.clock()
        if longest_reconcile_seconds > RECONCILE_SECONDS:
            return f"A reconcile has been running for {longest_reconcile_seconds:.0f} seconds."
        quiet = now - (self._resynced if self._resynced is not None else started)
        if quiet > 3 * self.resync_seconds + RESYNC_GRACE_SECONDS:
            return f"The last listing of all resources was {quiet:.0f} seconds ago."
        lag = max((now - since for since in self._unheard.values()), default=0.0)
        if lag > WATCH_LAG_SECONDS:
            return f"A change that is {lag:.0f} seconds old was listed, but no watch told of it."
        return None
