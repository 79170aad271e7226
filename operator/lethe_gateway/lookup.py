"""What routes look up: resources and pages of them with the caller's token, and tables, after the rights were checked.

I/O, through the services.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lethe.kube import DATASETS, ResourceKind

from lethe_gateway import paging
from lethe_gateway.etags import ResourceFreshness
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources import client
from lethe_gateway.services import Services
from lethe_gateway.tables.records import TableTarget, target_of


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
