"""When a buffer is listed again, and which one is next. Pure: the caller gives the time.

- A buffer that has just changed is listed again soon. While nothing changes, its pauses grow to that of an idle buffer.
- The pauses of idle buffers follow from the cost of all listings, so that together they keep within a budget. Expensive listings
  are rarer than cheap ones: pauses in proportion to the square root of the cost have the smallest mean within the budget.
- The longest overdue buffer is next. Urgent ones go first. Each store has a limited number of listings at the same time.
"""

import heapq
from dataclasses import dataclass, field
from math import sqrt
from typing import Final

# The pause after a listing, as a multiple of its duration, and at least this long, because watch events come in bursts.
REST: Final = 2.0
REST_AT_LEAST_SECONDS: Final = 5.0
# Listings of one store at the same time. A long one gives up its place after some time, so that large buffers do not delay small
# ones; but a store that hangs has a limited number of threads.
AT_ONCE: Final = 4
LONG_SECONDS: Final = 5.0
AT_MOST: Final = 16
_OBJECTS_PER_REQUEST: Final = 1000


@dataclass(frozen=True)
class ListingCost:
    """The cost of one listing."""

    took_seconds: float = 0.0
    core_seconds: float = 0.0
    """Of the operator's processor."""
    objects: int = 0

    @property
    def requests(self) -> float:
        """To the store: pages, and the claim."""
        return 2 + self.objects // _OBJECTS_PER_REQUEST


@dataclass(frozen=True)
class ListingLimits:
    """What limits the pauses of idle buffers."""

    # In seconds. The longest pause wins over the budget.
    shortest_seconds: float = 15.0
    longest_seconds: float = 300.0
    # The budget: of one core, and requests to stores.
    core_share: float = 0.05
    requests_per_second: float = 20.0


@dataclass
class ListingBudget:
    """The costs of all buffers, and the pauses that follow."""

    limits: ListingLimits = ListingLimits()
    _costs: dict[str, ListingCost] = field(default_factory=dict)
    """Of the last listing, by Dataset."""
    # Sums of the square roots of all costs.
    _core: float = 0.0
    _requests: float = 0.0

    def record(self, name: str, cost: ListingCost | None) -> None:
        """Set the cost of a Dataset's last listing. None: it has no buffer any more."""
        for sign, of in ((-1, self._costs.pop(name, None)), (1, cost)):
            if of is not None:
                self._core += sign * sqrt(of.core_seconds)
                self._requests += sign * sqrt(of.requests)
        if cost is not None:
            self._costs[name] = cost

    def pause(self, name: str, unchanged: int | None, within_seconds: float = float("inf")) -> float:
        """Seconds between the last listing of a Dataset's buffer and the next.

        Args:
            unchanged: How many listings found no change since the last change; None: no listing has found a change.
            within_seconds: How long a new batch may wait, which also limits the pause of an idle buffer.
        """
        cost = self._costs.get(name, ListingCost())
        shortest = max(REST * cost.took_seconds, REST_AT_LEAST_SECONDS)
        idle = max(
            self.limits.shortest_seconds,
            sqrt(cost.core_seconds) * self._core / self.limits.core_share,
            sqrt(cost.requests) * self._requests / self.limits.requests_per_second,
        )
        longest = min(self.limits.longest_seconds, max(within_seconds, self.limits.shortest_seconds))
        idle = max(min(idle, longest), shortest)
        return idle if unchanged is None else min(shortest * 2.0 ** min(unchanged, 30), idle)


@dataclass
class _Store:
    """The buffers of one store."""

    waiting: list[tuple[bool, float, int, str]] = field(default_factory=list)
    """Not urgent, due, a number that makes entries distinct, name."""
    began: list[float] = field(default_factory=list)
    """Of running listings."""

    def free_in(self, now: float) -> float | None:
        """Seconds until another listing may start; None: when one ends."""
        quick = sorted(b for b in self.began if now - b < LONG_SECONDS)
        if len(self.began) >= AT_MOST:
            return None
        return quick[-AT_ONCE] + LONG_SECONDS - now if len(quick) >= AT_ONCE else 0.0


@dataclass
class ListingSchedule:
    """The order of listings."""

    _stores: dict[str, _Store] = field(default_factory=dict)
    _places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Store and number of the valid entry, by Dataset."""
    _number: int = 0

    def put(self, name: str, store: str, due: float, urgent: bool = False) -> None:
        """List a Dataset's buffer at this time. Replaces an earlier time."""
        self._number += 1
        self._places[name] = (store, self._number)
        heapq.heappush(self._stores.setdefault(store, _Store()).waiting, (not urgent, due, self._number, name))

    def drop(self, name: str) -> None:
        """Cancel the planned listing of a Dataset's buffer, if there is one."""
        self._places.pop(name, None)

    def take(self, now: float) -> str | None:
        """The Dataset whose buffer is listed now; None: none may be. The caller reports when it has ended."""
        ready = [
            (top, name)
            for name, store in self._stores.items()
            if (top := self._top(name)) is not None and top[1] <= now and store.free_in(now) == 0
        ]
        if not ready:
            return None
        (_, _, _, name), of = min(ready)
        heapq.heappop(self._stores[of].waiting)
        del self._places[name]
        self._stores[of].began.append(now)
        return name

    def ended(self, store: str, began: float) -> None:
        """Record that a listing of this store ended, which `take` returned at the time `began`."""
        self._stores[store].began.remove(began)

    def next_in(self, now: float) -> float | None:
        """Seconds until `take` may return a Dataset; None: when a listing ends or another one is put."""
        waits = [w for name in self._stores if (w := self._next_in(name, now)) is not None]
        return min(waits, default=None)

    def overdue_seconds(self, now: float) -> float:
        """How long the longest overdue listing has been due; 0: none is."""
        tops = (self._top(name) for name in self._stores)
        return max((now - top[1] for top in tops if top is not None and top[1] < now), default=0.0)

    def _next_in(self, name: str, now: float) -> float | None:
        top, free = self._top(name), self._stores[name].free_in(now)
        return None if top is None or free is None else max(top[1] - now, free, 0.0)

    def _top(self, store: str) -> tuple[bool, float, int, str] | None:
        waiting = self._stores[store].waiting
        while waiting and self._places.get(waiting[0][3]) != (store, waiting[0][2]):
            heapq.heappop(waiting)  # another time replaced it
        return waiting[0] if waiting else None
