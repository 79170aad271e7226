"""When which Dataset is published: the oldest due first, with pauses after failures. No I/O, no locks: the caller has one.

A sink that fails for all is tried by one Dataset at a time. Otherwise ten thousand Datasets would each wait for its time limit.
"""

import heapq
from dataclasses import dataclass, field
from random import Random
from typing import Final

from lethe_operator.publish.sinks.sink import Scope, SinkError

# A sink that does not answer is reported after this time, so not after one lost connection.
TROUBLE_SECONDS: Final = 10.0


@dataclass
class Pacing:
    """The due times of Datasets, as `namespace/name`. Times are in seconds, of a monotonic clock."""

    base_seconds: float  # the pause after a first failure
    max_seconds: float  # the longest pause
    random: Random = field(default_factory=Random)
    _due: dict[str, float] = field(default_factory=dict)
    _heap: list[tuple[float, str]] = field(default_factory=list)
    _failures: dict[str, int] = field(default_factory=dict)  # in a row, of Datasets
    _sink_failures: int = 0  # in a row, of the sink
    _closed_until: float = 0.0  # nothing is sent before

    def add(self, name: str, time: float) -> None:
        """Publish a Dataset at this time, or earlier if this was asked for before."""
        if name not in self._due or time < self._due[name]:
            self._due[name] = time
            heapq.heappush(self._heap, (time, name))

    def is_planned(self, name: str) -> bool:
        return name in self._due

    def remove(self, name: str) -> None:
        self._due.pop(name, None)
        self._failures.pop(name, None)

    def take(self, now: float) -> str | None:
        """The next Dataset; None: none is due, or the sink is given a pause."""
        if now < self._closed_until:
            return None
        while self._heap and self._heap[0][0] <= now:
            time, name = heapq.heappop(self._heap)
            if self._due.get(name) == time:
                del self._due[name]
                return name
        return None

    def next_time(self) -> float | None:
        """When something may be due; None: nothing is planned."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # replaced or removed
        return max(self._heap[0][0], self._closed_until) if self._heap else None

    def succeeded(self, name: str) -> None:
        self._failures.pop(name, None)
        self._sink_failures = 0

    def failed(self, name: str, now: float, error: Exception) -> None:
        """Plan the next attempt."""
        self._failures[name] = self._failures.get(name, 0) + 1
        pause = self._pause(self._failures[name])
        if isinstance(error, SinkError) and error.scope is Scope.SINK:
            self._sink_failures += 1
            closed = max(self._pause(self._sink_failures), error.retry_after_seconds or 0.0)
            self._closed_until = max(self._closed_until, now + closed)
        self.add(name, now + pause)

    def _pause(self, failures: int) -> float:
        pause: float = min(self.max_seconds, self.base_seconds * 2 ** min(failures - 1, 20))
        return pause * self.random.uniform(0.9, 1.1)
