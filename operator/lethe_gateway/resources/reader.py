"""Reads resources from the API server in the name of a caller. I/O.

The API server decides what the caller may read. What it forbids looks as if it did not exist.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lethe_operator.kube import Away, Kube, KubeError, NotFound, Refused, ResourceKind

from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem, not_found, unauthenticated

Resource = dict[str, Any]
OnOpen = Callable[[Callable[[], None]], None]
# A watch is renewed after this time: then the API server checks the token and the rights again.
WATCH_SECONDS: Final = 20


@dataclass(frozen=True)
class ResourcePage:
    """A part of a list, in the order of names."""

    items: list[Resource]
    after: str  # where the next page begins; "": this is the last one
    version: str  # the resourceVersion of the list


@dataclass(frozen=True)
class Watched:
    """What a watch reports."""

    after: str  # changes after this resourceVersion
    name: str = ""  # only this object; "": all


class ResourceReader(Protocol):
    """Implementations may be called from any thread. All methods raise Problem (`not-found`, `api-server-away`,
    `unauthenticated`)."""

    def get(self, caller: Caller, kind: ResourceKind, namespace: str, name: str) -> Resource: ...

    def page(self, caller: Caller, kind: ResourceKind, namespace: str, after: str, limit: int) -> ResourcePage:
        """Raises also: Problem (`cursor-expired`)."""

    def watch(
        self, caller: Caller, kind: ResourceKind, namespace: str, watched: Watched, on_open: OnOpen
    ) -> Iterator[Resource]:
        """The events of a watch, for a while. `on_open` gets a function that ends it."""


class KubeReader:
    """Reads with the token of the caller."""

    def __init__(self, kube: Kube) -> None:
        """Args:
        kube: Without credentials of its own.
        """
        self._kube = kube

    def get(self, caller: Caller, kind: ResourceKind, namespace: str, name: str) -> Resource:
        try:
            return self._kube.with_token(caller.token).get(kind, namespace, name)
        except KubeError as e:
            raise problem_of(e) from e

    def page(self, caller: Caller, kind: ResourceKind, namespace: str, after: str, limit: int) -> ResourcePage:
        try:
            found = self._kube.with_token(caller.token).page(kind, namespace, after=after, limit=limit)
        except KubeError as e:
            raise problem_of(e) from e
        return ResourcePage(list(found.items), found.after, found.version)

    def watch(
        self, caller: Caller, kind: ResourceKind, namespace: str, watched: Watched, on_open: OnOpen
    ) -> Iterator[Resource]:
        kube = self._kube.with_token(caller.token)
        try:
            name, after = watched.name, watched.after
            yield from kube.watch(kind, namespace, after, name, seconds=WATCH_SECONDS, on_open=on_open)
        except KubeError as e:
            raise problem_of(e) from e


def problem_of(error: KubeError) -> Problem:
    """What an error of the API server means for the caller. Pure."""
    if error.status == 401:
        return unauthenticated()
    if error.status == 410:
        return Problem(
            Kind.CURSOR_EXPIRED,
            "The API server no longer has the state of the list that the cursor names. Begin again without a cursor.",
        )
    if error.status == 429:
        return Problem(
            Kind.OVERLOADED, "The API server asks for fewer requests. Try again later.", retry_after_seconds=2
        )
    if isinstance(error, NotFound) or error.status == 403:
        return not_found()
    if isinstance(error, Refused) and error.status == 400:
        return Problem(Kind.INVALID_CURSOR, "The API server rejects the cursor. Begin again without a cursor.")
    assert isinstance(error, Away | KubeError)
    return Problem(
        Kind.API_SERVER_AWAY,
        f"The API server does not answer ({error.status or 'no answer'}). Try again later.",
        retry_after_seconds=2,
    )
