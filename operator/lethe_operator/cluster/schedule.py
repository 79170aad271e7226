"""Which key is reconciled next. Pure: the caller passes the time, in seconds of a monotonic clock.

A request names a key, a priority and the time from which it is due. The order of those that are due:

- By priority.
- Within a priority, the namespaces take turns.
- Within a namespace, the longest overdue first. So no key runs twice while an older request of the same or a higher priority
  of its namespace waits.
- One of AGED_EVERY starts ignores priorities: it takes a request that has waited for AGED_SECONDS, if there is one. Of m
  namespaces with such requests, one with n older requests in its own namespace starts at the latest with the
  (AGED_EVERY * m * (n + 1))th start after it has become that old.
- A namespace that already has `per_namespace` running reconciles is passed over, and keeps its turn.

Adding, starting and finishing cost O(log n) of all keys.
"""

import heapq
import itertools
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum
from typing import Final

# From this lateness on, a request of a lower priority gets a share of the starts.
AGED_SECONDS: Final = 30.0
AGED_EVERY: Final = 8
# Idle looks of different keys are spread over this share of the interval.
SPREAD: Final = 0.2
# Each look that finds nothing to do makes the next interval so many times longer.
GROWTH: Final = 4.0
_COMPACT_FROM: Final = 64


class Priority(IntEnum):
    """Why a key is requested; the smallest goes first."""

    CHANGED = 0
    """A user or the cluster changed something."""
    DUE = 1
    """A time that the last reconcile asked for has come, or a retry."""
    PERIODIC = 2
    """An idle look."""


@dataclass(frozen=True, order=True)
class Key:
    """What is reconciled: a resource, or the offered runs of a namespace."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields for `lethe.logs`."""
        field = {"Dataset": "dataset", "VacuumPolicy": "vacuumPolicy", "Restatement": "restatement"}.get(self.kind)
        return {"namespace": self.namespace, **({field: self.name} if field else {})}


@dataclass(frozen=True)
class Next:
    """When to reconcile a key again, as its reconcile says."""

    time: datetime | None = None
    """At this time; None: no time is known."""
    idle: bool = True
    """Nothing was done, nothing runs, and nothing waits that only time reveals: the interval grows."""
    within_seconds: float | None = None
    """The longest interval, in seconds, while it is idle; None: the queue's."""
    for_namespace: bool = False
    """What changed matters to the other keys of the namespace: they are looked at, too."""
    others: tuple[Key, ...] = ()
    """What changed matters to these keys: they are looked at, too."""


@dataclass(frozen=True)
class Intervals:
    """The time between two looks at a key of which nothing is requested."""

    shortest_seconds: float = 15.0
    """Seconds; while something runs or waits, and first when it is idle."""
    longest_seconds: float = 300.0
    """Seconds."""

    def pause(self, key: Key, idle_looks: int, within_seconds: float | None = None) -> float:
        """Seconds until the next look.

        Args:
            idle_looks: How many looks in a row found nothing to do; 0: the last one did.
            within_seconds: As of `Next`.
        """
        if idle_looks <= 0:
            return self.shortest_seconds
        longest = self.longest_seconds if within_seconds is None else min(self.longest_seconds, within_seconds)
        pause = max(min(self.shortest_seconds * GROWTH ** min(idle_looks - 1, 30), longest), self.shortest_seconds)
        # Keys that were created together do not stay together. The share of a key is the same after each restart.
        share = zlib.crc32(str(key).encode()) / 2**32
        return pause * (1 - SPREAD * share)


@dataclass(frozen=True)
class Start:
    """A reconcile that starts now."""

    key: Key
    priority: Priority
    late_seconds: float
    """Since the request became due."""


@dataclass(slots=True, eq=False)
class _Request:
    """A key may have one request of each priority."""

    key: Key
    priority: Priority
    due: float
    """From when on it may start."""
    waits: bool = True
    """False: it was started, replaced or forgotten; heaps drop it when they find it."""
    ready: bool = False
    """It is due."""


class _Heap:
    """Requests by time, with lazy deletion: it contains requests that no longer wait, at most as many as that wait."""

    def __init__(self) -> None:
        self._items: list[tuple[float, int, _Request]] = []
        self._numbers = itertools.count()
        self._limit = _COMPACT_FROM

    def push(self, at: float, request: _Request) -> None:
        if len(self._items) >= self._limit:
            self._items = [i for i in self._items if i[2].waits]
            heapq.heapify(self._items)
            self._limit = max(_COMPACT_FROM, 2 * len(self._items))
        heapq.heappush(self._items, (at, next(self._numbers), request))

    def first(self) -> tuple[float, _Request] | None:
        """The earliest that waits, and its time."""
        while self._items:
            at, _, request = self._items[0]
            if request.waits:
                return at, request
            heapq.heappop(self._items)
        return None

    def pop_until(self, now: float) -> Iterable[_Request]:
        """Remove those whose time has come."""
        while (earliest := self.first()) is not None and earliest[0] <= now:
            heapq.heappop(self._items)
            yield earliest[1]


class _Line:
    """Requests that are due. The namespaces take turns; within one, the longest overdue is first."""

    def __init__(self) -> None:
        self._namespaces: OrderedDict[str, _Heap] = OrderedDict()

    def push(self, request: _Request) -> None:
        self._namespaces.setdefault(request.key.namespace, _Heap()).push(request.due, request)

    def first(self, may_start: Callable[[str], bool]) -> _Request | None:
        """The request whose turn it is, among the namespaces that may start one."""
        key, empty = None, []
        for namespace, heap in self._namespaces.items():
            head = heap.first()
            if head is None:
                empty.append(namespace)
            elif may_start(namespace):
                key = head[1]
                break
        for namespace in empty:
            del self._namespaces[namespace]
        return key

    def end_turn(self, namespace: str) -> None:
        if namespace in self._namespaces:
            self._namespaces.move_to_end(namespace)


@dataclass(slots=True)
class _Entry:
    """What is known of a key."""

    requests: dict[Priority, _Request] = field(default_factory=dict)
    running: bool = False
    rests_until: float = 0.0
    """No reconcile starts before."""


class Schedule:
    """The requests of all keys. Not for several threads."""

    def __init__(self, workers: int, per_namespace: int) -> None:
        """Create `Schedule`.

        Args:
            workers: How many reconciles run at most.
            per_namespace: How many of one namespace, at least 1.
        """
        self._workers = workers
        self._per_namespace = max(1, min(per_namespace, workers))
        self._entries: dict[Key, _Entry] = {}
        self._running: Counter[str] = Counter()  # by namespace
        self._later = _Heap()  # not due yet
        self._lines = {p: _Line() for p in Priority}
        self._ages = _Heap()  # due, by the time at which they become aged
        self._aged = _Line()
        self._starts_since_aged = 0
        self._depths = dict.fromkeys(Priority, 0)

    def __contains__(self, key: Key) -> bool:
        """Whether the key is requested or running."""
        return key in self._entries

    def is_requested(self, key: Key) -> bool:
        """Whether a request of the key waits, due or not."""
        return key in self._entries and bool(self._entries[key].requests)

    def depth(self, priority: Priority) -> int:
        """How many requests of a priority were due and had not started when `take` was last called."""
        return self._depths[priority]

    def add(self, key: Key, priority: Priority, due: float) -> bool:
        """Request a key. The earliest request of each priority counts; a start answers all of them.

        Returns:
            Whether something changed.
        """
        entry = self._entries.setdefault(key, _Entry())
        due = max(due, entry.rests_until)
        before = entry.requests.get(priority)
        if before is not None:
            if before.due <= due:
                return False
            self._drop(before)
        entry.requests[priority] = request = _Request(key, priority, due)
        if not entry.running:
            self._later.push(due, request)
        return True

    def take(self, now: float) -> Start | None:
        """Start the next reconcile; None: none is due, or as many run as may."""
        self._advance(now)
        if self._running.total() >= self._workers:
            return None
        request = self._next()
        if request is None:
            return None
        key, entry = request.key, self._entries[request.key]
        for other in entry.requests.values():
            self._drop(other)
        entry.requests.clear()
        entry.running = True
        self._running[key.namespace] += 1
        return Start(key, request.priority, now - request.due)

    def finish(self, key: Key, rests_until: float) -> None:
        """A reconcile ended.

        Requests that came meanwhile count from `rests_until`, which is now or later: what others asked for before goes first. A
        key without a request is forgotten.
        """
        entry = self._entries[key]
        entry.running = False
        entry.rests_until = rests_until
        self._running[key.namespace] -= 1
        for request in entry.requests.values():
            request.due = max(request.due, rests_until)
            self._later.push(request.due, request)
        if not entry.requests:
            del self._entries[key]

    def next_time(self) -> float | None:
        """When `take` may start something that it did not start last time, unless a reconcile ends before; None: unknown."""
        earliest = self._later.first()
        return earliest[0] if earliest is not None and self._running.total() < self._workers else None

    def _next(self) -> _Request | None:
        if self._starts_since_aged >= AGED_EVERY - 1:
            request = self._aged.first(self._may_start)
            if request is not None:
                self._starts_since_aged = 0
                self._aged.end_turn(request.key.namespace)
                return request
        for line in self._lines.values():
            request = line.first(self._may_start)
            if request is not None:
                self._starts_since_aged += 1
                line.end_turn(request.key.namespace)
                return request
        return None

    def _may_start(self, namespace: str) -> bool:
        return self._running[namespace] < self._per_namespace

    def _advance(self, now: float) -> None:
        for request in self._later.pop_until(now):
            request.ready = True
            self._depths[request.priority] += 1
            self._lines[request.priority].push(request)
            self._ages.push(request.due + AGED_SECONDS, request)
        for request in self._ages.pop_until(now):
            self._aged.push(request)

    def _drop(self, request: _Request) -> None:
        request.waits = False
        if request.ready:
            self._depths[request.priority] -= 1
