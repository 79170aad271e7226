"""Limits on rates and on numbers at the same time, for each caller and for all, and metrics. I/O: the port of metrics.

Limits are pure: `now` is given, in monotonic seconds. The number of callers that are remembered is bounded: the one that was
seen longest ago is forgotten, with a full allowance.

The metrics count requests by declared route. Their port is not that of the API, so a client that reads metrics needs no token,
and a client of the API cannot read them.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from lethe.metrics_server import serve_metrics
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

REMEMBERED_AT_MOST: Final = 10_000


@dataclass
class _Bucket:
    tokens: float
    time: float
    """When `tokens` was computed."""


class RateLimit:
    """An allowance for each key that refills with time. Threads may share it."""

    def __init__(self, per_second: float, burst: float, remembered: int = REMEMBERED_AT_MOST) -> None:
        self._per_second = per_second
        self._burst = burst
        self._remembered = remembered
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_seconds(self, key: str, now: float, take: float = 1) -> float:
        """Take from the allowance of a key. 0: there was one left; otherwise the seconds until there is, and nothing was taken.

        Args:
            take: 0 only asks.
        """
        with self._lock:
            bucket = self._refilled(key, now)
            if bucket.tokens >= 1:
                bucket.tokens -= take
                return 0
            return (1 - bucket.tokens) / self._per_second

    def headers(self, key: str, now: float) -> dict[str, str]:
        """The allowance of a key as the headers `RateLimit-Policy` and `RateLimit` of the IETF's draft say it."""
        with self._lock:
            left = self._refilled(key, now).tokens
        window, refill = self._burst / self._per_second, (self._burst - left) / self._per_second
        return {
            "RateLimit-Policy": f'"caller";q={self._burst:.0f};w={math.ceil(window)}',
            "RateLimit": f'"caller";r={math.floor(left)};t={math.ceil(refill)}',
        }

    def _refilled(self, key: str, now: float) -> _Bucket:
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, now)
            if len(self._buckets) > self._remembered:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.tokens = min(self._burst, bucket.tokens + max(0, now - bucket.time) * self._per_second)
            bucket.time = now
        return bucket


@dataclass
class CallerBusy(Exception):
    """This caller, or another one of the keys, has as many at the same time as one may have."""

    most: int


class AllBusy(Exception):
    """All callers together have as many at the same time as the process carries out."""


class Concurrency:
    """How many are carried out at the same time, for each key and for all. Threads may share it."""

    def __init__(self, per_key: int, total: int) -> None:
        self.per_key = per_key
        self._total = total
        self._lock = threading.Lock()
        self._of: dict[str, int] = {}
        self._all = 0

    @property
    def active(self) -> int:
        """How many are carried out now, for all keys together."""
        return self._all

    def enter(self, *keys: str, fewer: Mapping[str, int] = {}) -> None:
        """Take one place, which counts for each of the keys.

        Args:
            fewer: Keys that may have another number of places than the others.

        Raises:
            CallerBusy: This caller, or another one of the keys, has as many at the same time as one may have.
            AllBusy: All callers together have as many at the same time as the process carries out.
        """
        with self._lock:
            for key in keys:
                if self._of.get(key, 0) >= (most := fewer.get(key, self.per_key)):
                    raise CallerBusy(most)
            if self._all >= self._total:
                raise AllBusy
            for key in keys:
                self._of[key] = self._of.get(key, 0) + 1
            self._all += 1

    def leave(self, *keys: str) -> None:
        """Leave the places that were entered.

        Args:
            keys: As they were given to `enter`.
        """
        with self._lock:
            self._all -= 1
            for key in keys:
                self._of[key] -= 1
                if not self._of[key]:
                    del self._of[key]


# Bounds of the histogram, in seconds.
BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics:
    """One per process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "lethe_gateway_requests_total",
            "Requests by declared route, method and status of the answer (0: the connection ended without one).",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "lethe_gateway_request_duration_seconds",
            "Seconds from a request to the end of its answer, by declared route.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )

    def request_ended(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route`: as declared; "": no route matched."""
        self._requests.labels(route or "none", method, str(status)).inc()
        self._seconds.labels(route or "none").observe(seconds)

    def serve(self, port: int | None) -> None:
        """Serve `/metrics` on a port, in a thread; None: do not.

        Raises:
            OSError: The port is in use.
        """
        if port is not None:
            serve_metrics(port, self.registry)
