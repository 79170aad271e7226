"""What the routes need, as one value. The parts are protocols, so tests give others."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lethe_gateway.identity.caller import Identity
from lethe_gateway.limits import Concurrency, GatewayMetrics, RateLimit
from lethe_gateway.resources.client import ResourceReader, ResourceWriter
from lethe_gateway.resources.following import Followers
from lethe_gateway.settings import GatewaySettings
from lethe_gateway.tables.indexed import TableStore
from lethe_gateway.uploads.buffers import Buffers
from lethe_gateway.uploads.store import Uploads


def utc_now() -> datetime:
    """The time of the system clock, with the time zone UTC."""
    return datetime.now(UTC)


@dataclass
class Services:
    """The parts of one process."""

    settings: GatewaySettings
    identity: Identity
    resources: ResourceReader
    tables: TableStore
    writer: ResourceWriter
    now: Callable[[], datetime] = utc_now
    monotonic: Callable[[], float] = time.monotonic
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    followers: Followers = field(init=False)
    """What the console shows of many resources."""
    buffers: Buffers = field(init=False)
    uploads: Uploads = field(init=False)
    rates: RateLimit = field(init=False)
    """Requests of a caller."""
    failures: RateLimit = field(init=False)
    """Rejected tokens of an address."""
    requests: Concurrency = field(init=False)
    streams: Concurrency = field(init=False)
    sending: Concurrency = field(init=False)
    """Files that are sent through this process."""
    completing: Concurrency = field(init=False)
    """Uploads that are completed."""

    def __post_init__(self) -> None:
        limits = self.settings.limits
        self.followers = Followers(self.resources)
        self.buffers = Buffers(self.settings.boundaries)
        self.uploads = Uploads(self.settings.uploads)
        self.rates = RateLimit(limits.requests_per_second, limits.burst)
        self.failures = RateLimit(limits.failures_per_minute / 60, limits.failures_per_minute)
        self.requests = Concurrency(limits.concurrent_per_caller, limits.concurrent)
        self.streams = Concurrency(limits.streams_per_caller, limits.streams)
        self.sending = _long(self.settings.uploads.through_at_once)
        self.completing = _long(self.settings.uploads.complete_at_once)


def _long(at_once: int) -> Concurrency:
    """Of requests that may take minutes: one caller, and the callers of one namespace, get half of the places.

    Of uploads that are completed, those of one Dataset get an eighth.
    """
    return Concurrency(max(1, at_once // 2), at_once)
