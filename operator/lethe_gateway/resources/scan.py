"""Pages of what resources contain, filtered, over the pages of the API server.

Pure, apart from the reader that is given. The API server cannot filter by fields of specs, so a page may need several of its
pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lethe_gateway.resources.reader import ResourcePage

T = TypeVar("T")
READ: Final = 100  # resources of one request to the API server
REQUESTS_AT_MOST: Final = 12  # to the API server, for one page


@dataclass(frozen=True)
class Position:
    """Where a page begins. Lists are in the order of names, so it stays right while resources come and go."""

    after: str = ""  # where the page of the API server begins
    name: str = ""  # the resource to begin with; "": the first of that page
    skip: int = 0  # results of this resource that were given already


@dataclass(frozen=True)
class Found(Generic[T]):
    """One page. It may be shorter than was asked, even empty, although there are more."""

    items: list[T]
    next: Position | None  # None: this is the last page
    version: str  # the resourceVersion of the list


def page(
    read: Callable[[str, int], ResourcePage],
    results: Callable[[dict[str, Any]], Sequence[T]],
    start: Position,
    limit: int,
) -> Found[T]:
    """Raises: Problem, as `read` does.

    Args:
        read: Reads a page of the API server: where it begins, and its size.
        results: What a resource contributes; may be nothing.
    """
    items: list[T] = []
    at, version = start, ""
    for _ in range(REQUESTS_AT_MOST):
        got = read(at.after, READ)
        version = version or got.version
        for resource in got.items:
            name = str(resource["metadata"]["name"])
            if name < at.name:
                continue
            skip = at.skip if name == at.name else 0
            here = results(resource)
            room = limit - len(items)
            items += here[skip : skip + room]
            if len(here) - skip > room:
                return Found(items, Position(at.after, name, skip + room), version)
        if not got.after:
            return Found(items, None, version)
        at = Position(got.after)
        if len(items) == limit:
            break
    return Found(items, at, version)
