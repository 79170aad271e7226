"""Whether the operator's watches and its work queue still work. Pure, apart from the given clock.

If not, Kubernetes restarts the operator. A restart loses nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from lethe_operator.resources.common import is_newer

# If a watch has not reported a listed change after this time, it is dead.
WATCH_LAG_SECONDS: Final = 120.0
# Time limits bound each step of a reconcile, so one that takes this long hangs.
RECONCILE_SECONDS: Final = 900.0
RESYNC_GRACE_SECONDS: Final = 120.0
RESTATEMENTS: Final = "restatements"  # listed less often, because there may be very many


@dataclass
class _Watch:
    """Objects that are listed together, by UID."""

    seen: dict[str, str] = field(default_factory=dict)  # the last version that a watch reported
    unreported: dict[str, float] = field(default_factory=dict)  # since when a listed change has not been reported


@dataclass
class OperatorHealth:
    # Monotonic, in seconds.
    clock: Callable[[], float]
    resync_seconds: float
    _watches: dict[str, _Watch] = field(default_factory=dict)
    _resynced: float | None = None

    def watched(self, uid: str, version: str, of: str = "") -> None:
        """Record that a watch reported an object.

        Args:
            of: The group of objects that are listed together; "": those of every resync.
        """
        watch = self._watches.setdefault(of, _Watch())
        watch.seen[uid] = version
        watch.unreported.pop(uid, None)

    def listed(self, objects: Iterable[tuple[str, str]], of: str = "") -> None:
        """Record that the resync listed objects, as UID and version. A watch must soon report newer versions."""
        now = self.clock()
        watch = self._watches.setdefault(of, _Watch())
        there = dict(objects)
        for uid, version in there.items():
            seen = watch.seen.get(uid)
            if seen is not None and not is_newer(version, seen):
                watch.unreported.pop(uid, None)
            else:
                watch.unreported.setdefault(uid, now)
        for uid in [u for u in watch.unreported if u not in there]:
            del watch.unreported[uid]
        for uid in [u for u in watch.seen if u not in there]:
            del watch.seen[uid]
        if not of:
            self._resynced = now

    def trouble(self, longest_reconcile_seconds: float, started: float) -> str | None:
        """What is wrong, as a sentence; None: nothing.

        Args:
            started: When the operator started, by the same clock.
        """
        now = self.clock()
        if longest_reconcile_seconds > RECONCILE_SECONDS:
            return f"A reconcile has been running for {longest_reconcile_seconds:.0f} seconds."
        quiet = now - (self._resynced if self._resynced is not None else started)
        if quiet > 3 * self.resync_seconds + RESYNC_GRACE_SECONDS:
            return f"The last listing of all resources was {quiet:.0f} seconds ago."
        lag = max((now - since for w in self._watches.values() for since in w.unreported.values()), default=0.0)
        if lag > WATCH_LAG_SECONDS:
            return f"A change was listed {lag:.0f} seconds ago, and no watch has reported it."
        return None
