"""The rows of a namespace, and pages of lists of them. I/O, through the services."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fastapi import Request, Response
from lethe.kube import DATASETS, RESTATEMENTS

from lethe_gateway import paging
from lethe_gateway.console import pages, rows
from lethe_gateway.console.rows import DatasetRow, RestatementRow
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.following import PATIENCE_SECONDS, FollowedList, Follower
from lethe_gateway.services import ListRequest, Services, require_namespace

T = TypeVar("T")
EVERY_SECONDS: Final = 30
SOON_SECONDS: Final = 1


@dataclass(frozen=True)
class Namespace:
    """What is known of the resources of a namespace."""

    name: str
    datasets: Sequence[DatasetRow]
    """By name."""
    restatements: Sequence[RestatementRow]
    is_complete: bool
    """False: the resources are still being read."""
    problem: str
    """Why the resources are those of a moment ago; "": they are current."""

    @property
    def refresh_seconds(self) -> int:
        """When a page that shows it looks again."""
        return EVERY_SECONDS if self.is_complete else SOON_SECONDS


def namespace_of(services: Services, caller: Caller, namespace: str) -> Namespace:
    """The rows of a namespace, without Restatements if the caller may not list them.

    Raises:
        Problem: `not-found`, `unauthenticated`, `api-server-away`.
    """
    (found,) = namespaces_of(services, caller, [namespace])
    return found


def namespaces_of(services: Services, caller: Caller, namespaces: Sequence[str]) -> list[Namespace]:
    """The rows of several namespaces, which are read at the same time.

    Raises:
        Problem: `not-found`, `unauthenticated`, `api-server-away`.
    """
    lists = []
    for namespace in namespaces:
        require_namespace(services, namespace)
        if not services.identity.may(caller, Right.to_list(namespace)):
            raise not_found()
        follow = services.followers.follow
        datasets = follow(caller, DATASETS, namespace, rows.dataset_row)
        lists.append((namespace, datasets, follow(caller, RESTATEMENTS, namespace, rows.restatement_row)))
    until = services.monotonic() + PATIENCE_SECONDS
    return [_namespace(services, until, *found) for found in lists]


def _namespace(
    services: Services, until: float, name: str, datasets: Follower[DatasetRow], requests: Follower[RestatementRow]
) -> Namespace:
    """What is known at a time, or earlier if everything is.

    Raises:
        Problem: `not-found`, `unauthenticated`, `api-server-away`.
    """

    def left() -> float:
        return max(0.0, until - services.monotonic())

    known = datasets.rows(left())
    restatements: FollowedList[RestatementRow] = FollowedList({}, True, None)
    try:
        restatements = requests.rows(left())
    except Problem as e:
        if e.kind is not Kind.NOT_FOUND:
            raise
    problem = known.problem or restatements.problem
    return Namespace(
        name,
        rows.by_name(known.rows),
        list(restatements.rows.values()),
        known.is_complete and restatements.is_complete,
        problem.detail if problem is not None else "",
    )


def rows_page(
    request: Request,
    template: str,
    asked: ListRequest,
    known: Namespace,
    chosen: Sequence[T],
    key_of: Callable[[T], str],
    filters: Mapping[str, Any],
    **values: Any,
) -> Response:
    """Render a page of a list of rows.

    Args:
        known: The namespace that the rows are from.
        chosen: All rows of the list, in the order of their keys.
        key_of: Returns the key of a row.
        filters: What the choice depends on.

    Raises:
        Problem: `invalid-cursor`.
    """
    question = {"console": template, "namespace": asked.namespace, **filters}
    shown, following = paging.part_in_order(chosen, key_of, asked.limit, asked.cursor, question)
    return pages.list_page(
        request,
        template,
        asked,
        following,
        filters,
        known=known,
        items=shown,
        count=len(chosen),
        refresh_seconds=known.refresh_seconds,
        **values,
    )
