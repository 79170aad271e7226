"""What the routes need, as one value, and what they look up with it. I/O, through the services.

The parts are protocols, so tests give others. Resources and pages of them are read with the caller's token, tables after the
rights were checked.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lethe.kube import DATASETS, ResourceKind

from lethe_gateway import paging
from lethe_gateway.freshness import ResourceFreshness
from lethe_gateway.identity.caller import Caller, Identity, Right
from lethe_gateway.limits import Concurrency, GatewayMetrics, RateLimit
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources import client
from lethe_gateway.resources.client import ResourceReader, ResourceWriter
from lethe_gateway.resources.following import Followers
from lethe_gateway.settings import GatewaySettings
from lethe_gateway.tables.indexed import TableStore
from lethe_gateway.tables.records import TableTarget, target_of
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


@dataclass(frozen=True)
class ListRequest:
    """A page of a list in a namespace that a caller asks for."""

    services: Services
    caller: Caller
    namespace: str
    limit: int
    """The largest number of items of the page."""
    cursor: str = ""
    """Where the page begins; "": it is the first one."""


def authenticated(services: Services, address: str, token: str) -> Caller:
    """The owner of a token.

    Raises:
        Problem: `unauthenticated`, `api-server-away`, `too-many-requests`.

    Args:
        address: Where the request comes from. After many invalid tokens, others from there are not looked at for a while.
    """
    wait = services.failures.wait_seconds(address, services.monotonic(), take=0)
    if wait:
        raise Problem(
            Kind.TOO_MANY_REQUESTS, "Too many invalid tokens came from your address.", retry_after_seconds=wait
        )
    try:
        return services.identity.authenticate(token)
    except Problem as e:
        if e.kind is Kind.UNAUTHENTICATED:
            services.failures.wait_seconds(address, services.monotonic())
        raise


def require_namespace(services: Services, namespace: str) -> None:
    """Require a namespace that this gateway shows.

    Raises:
        Problem: `not-found`, for a namespace that this gateway does not show.
    """
    if namespace not in services.settings.namespaces:
        raise not_found()


def require(services: Services, caller: Caller, right: Right) -> None:
    """Call it only for a Dataset that the caller may see.

    Raises:
        Problem: `forbidden`.
    """
    if not services.identity.may(caller, right):
        raise Problem(
            Kind.FORBIDDEN,
            f"You may see the Dataset, and not do this. It needs the right `{right}` in the namespace "
            f"{right.namespace}: see docs/gateway.md.",
        )


def dataset_resource(services: Services, caller: Caller, namespace: str, dataset: str) -> dict[str, Any]:
    """The Dataset of a name.

    Raises:
        Problem: `not-found`, also if the caller may not see it.
    """
    require_namespace(services, namespace)
    return services.resources.get(caller, DATASETS, namespace, dataset)


def scanned(
    asked: ListRequest,
    kind: ResourceKind,
    filters: Mapping[str, Any],
    results: Callable[[dict[str, Any]], list[Any]],
) -> dict[str, Any]:
    """The fields of a page.

    Args:
        filters: What `results` depends on. A cursor belongs to one value of them.
        results: What a resource contributes; may be nothing.
    """
    services, namespace, cursor = asked.services, asked.namespace, asked.cursor
    require_namespace(services, namespace)
    question = {"kind": kind.plural, "namespace": namespace, **filters}
    start = client.ListPosition(*paging.decode(cursor, question, str, str, int)) if cursor else client.ListPosition()
    page = client.page(
        lambda after, size: services.resources.page(asked.caller, kind, namespace, after, size),
        results,
        start,
        asked.limit,
    )
    following = page.next
    return {
        "items": page.items,
        "next_cursor": paging.encode([following.after, following.name, following.skip], question)
        if following
        else None,
        "freshness": resource_freshness(services, page.version),
    }


def resource_freshness(services: Services, version: str) -> ResourceFreshness:
    """The freshness of an answer that was read just now. `version` is a resourceVersion; "": it is unknown."""
    return ResourceFreshness(read_time=services.now(), resource_version=version or None)


def readable(services: Services, caller: Caller, namespace: str, dataset: str) -> TableTarget:
    """The table of a Dataset, if the caller may see it and read its batches.

    Raises:
        Problem: The request fails; the type of the problem says why.
    """
    return readable_table(services, caller, dataset_resource(services, caller, namespace, dataset))


def readable_table(services: Services, caller: Caller, resource: Mapping[str, Any]) -> TableTarget:
    """The table of a Dataset that the caller may see, if the caller may read its batches.

    Raises:
        Problem: The request fails; the type of the problem says why.
    """
    metadata = resource["metadata"]
    require(services, caller, Right.to_read_batches(metadata["namespace"], metadata["name"]))
    return target_of(resource)
