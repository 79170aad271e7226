"""Whether the operator still hears and still works. Pure but for the clock given to it.

Kubernetes restarts an operator that does not; since nothing is remembered, a restart costs nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from lethe_operator.resources.common import is_newer

# A change that the API server listed and no watch told of: after this long the watch is dead.
WATCH_LAG_SECONDS: Final = 120.0
# A reconcile is bounded by the time limits of everything in it; one this long hangs.
RECONCILE_SECONDS: Final = 900.0
RESYNC_GRACE_SECONDS: Final = 120.0
RESTATEMENTS: Final = "restatements"  # there may be too many to list them every time


@dataclass
class _Watch:
    """Of what is listed together, by UID: the version that was heard last, and since when one is listed that was not."""

    seen: dict[str, str] = field(default_factory=dict)
    unheard: dict[str, float] = field(default_factory=dict)


@dataclass
class OperatorHealth:
    """`clock` counts seconds, from wherever."""

    clock: Callable[[], float]
    resync_seconds: float
    _watches: dict[str, _Watch] = field(default_factory=dict)
    _resynced: float | None = None

    def heard(self, uid: str, version: str, of: str = "") -> None:
        """A watch told of an object.

        Args:
            of: What is listed together with it, "" for all that is listed every time.
        """
        watch = self._watches.setdefault(of, _Watch())
        watch.seen[uid] = version
        watch.unheard.pop(uid, None)

    def listed(self, objects: Iterable[tuple[str, str]], of: str = "") -> None:
        """The resync listed objects, as UID and version: what is newer than what was heard must be heard of soon."""
        now = self.clock()
        watch = self._watches.setdefault(of, _Watch())
        there = dict(objects)
        for uid, version in there.items():
            seen = watch.seen.get(uid)
            if seen is not None and not is_newer(version, seen):
                watch.unheard.pop(uid, None)
            else:
                watch.unheard.setdefault(uid, now)
        for uid in [u for u in watch.unheard if u not in there]:
            del watch.unheard[uid]
        for uid in [u for u in watch.seen if u not in there]:
            del watch.seen[uid]
        if not of:
            self._resynced = now

    def trouble(self, longest_reconcile_seconds: float, started: float) -> str | None:
        """What is wrong, in a sentence; None when all is well. `started`: when the operator was, on the same clock."""
        now = self.clock()
        if longest_reconcile_seconds > RECONCILE_SECONDS:
            return f"A reconcile has been running for {longest_reconcile_seconds:.0f} seconds."
        quiet = now - (self._resynced if self._resynced is not None else started)
        if quiet > 3 * self.resync_seconds + RESYNC_GRACE_SECONDS:
            return f"The last listing of all resources was {quiet:.0f} seconds ago."
        lag = max((now - since for w in self._watches.values() for since in w.unheard.values()), default=0.0)
        if lag > WATCH_LAG_SECONDS:
            return f"A change that is {lag:.0f} seconds old was listed, but no watch told of it."
        return None
