"""Reads and changes resources in the API server in the name of a caller. I/O.

The API server decides what the caller may read and change; the gateway's own ServiceAccount has no rights on resources. What it
forbids to read looks as if it did not exist. It cannot filter by fields of specs, so a filtered page may need several of its
pages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from lethe.contract.kubernetes import GROUP
from lethe.kube import SECRETS, AlreadyExists, Away, Kube, KubeError, NotFound, RequestRefused, ResourceKind
from lethe_operator.cluster import run_pods

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
    after: str
    """Where the next page begins; "": this is the last one."""
    version: str
    """The resourceVersion of the list."""


@dataclass(frozen=True)
class Watched:
    """What a watch reports."""

    after: str
    """Changes after this resourceVersion."""
    name: str = ""
    """Only this object; "": all."""


class ResourceReader(Protocol):
    """Implementations may be called from any thread.

    All methods raise Problem (`not-found`, `api-server-away`, `unauthenticated`).
    """

    def get(self, caller: Caller, kind: ResourceKind, namespace: str, name: str) -> Resource:
        """Read one object. The problem is `not-found` also if the caller has no right to see it."""

    def page(self, caller: Caller, kind: ResourceKind, namespace: str, after: str, limit: int) -> ResourcePage:
        """Raises also: Problem (`cursor-expired`)."""

    def watch(
        self, caller: Caller, kind: ResourceKind, namespace: str, watched: Watched, on_open: OnOpen
    ) -> Iterator[Resource]:
        """The events of a watch, for a while. `on_open` gets a function that ends it."""

    def log(self, caller: Caller, namespace: str, run: str, last: int) -> list[str]:
        """The last lines of a run's log. Empty: there is none in the cluster.

        Raises also: Problem (`forbidden`).
        """


class KubeReader:
    """Reads with the token of the caller."""

    def __init__(self, kube: Kube) -> None:
        """Create `KubeReader`.

        Args:
            kube: Without credentials of its own.
        """
        self._kube = kube

    def get(self, caller: Caller, kind: ResourceKind, namespace: str, name: str) -> Resource:
        """Read one object from the API server with the token of the caller; one request.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of`.
        """
        try:
            return self._kube.with_token(caller.token).get(kind, namespace, name)
        except KubeError as e:
            raise problem_of(e) from e

    def page(self, caller: Caller, kind: ResourceKind, namespace: str, after: str, limit: int) -> ResourcePage:
        """Read a page of a list, in one request. `after` is the `after` of the page before; "": the first page.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of`.
        """
        try:
            objects = self._kube.with_token(caller.token).page(kind, namespace, after=after, limit=limit)
        except KubeError as e:
            raise problem_of(e) from e
        return ResourcePage(list(objects.items), objects.after, objects.version)

    def watch(
        self, caller: Caller, kind: ResourceKind, namespace: str, watched: Watched, on_open: OnOpen
    ) -> Iterator[Resource]:
        """Yield the events of one watch, which the API server ends after WATCH_SECONDS.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of`.
        """
        kube = self._kube.with_token(caller.token)
        try:
            name, after = watched.name, watched.after
            yield from kube.watch(kind, namespace, after, name, seconds=WATCH_SECONDS, on_open=on_open)
        except KubeError as e:
            raise problem_of(e) from e

    def log(self, caller: Caller, namespace: str, run: str, last: int) -> list[str]:
        """Read the last lines of a run's log from its pod, or from the warm driver that has carried it out.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of`. `forbidden`: the caller may not read logs.
        """
        try:
            return run_pods.last_lines(self._kube.with_token(caller.token), namespace, run, last)
        except KubeError as e:
            if isinstance(e, RequestRefused) and e.status == 400:
                raise Problem(Kind.NOT_FOUND, f"The API server has no log yet: {e.explanation}.") from e
            if e.status == 403:
                rights = "list pods and get pods/log"
                raise Problem(Kind.FORBIDDEN, f"You need the rights to {rights} in the namespace {namespace}.") from e
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
    if isinstance(error, RequestRefused) and error.status == 400:
        return Problem(Kind.INVALID_CURSOR, "The API server rejects the cursor. Begin again without a cursor.")
    assert isinstance(error, Away | KubeError)
    return Problem(
        Kind.API_SERVER_AWAY,
        f"The API server does not answer ({error.status or 'no answer'}). Try again later.",
        retry_after_seconds=2,
    )


T = TypeVar("T")
READ: Final = 100  # resources of one request to the API server
REQUESTS_AT_MOST: Final = 12  # to the API server, for one page


@dataclass(frozen=True)
class ListPosition:
    """Where a page begins. Lists are in the order of names, so it stays right while resources come and go."""

    after: str = ""
    """Where the page of the API server begins."""
    name: str = ""
    """The resource to begin with; "": the first of that page."""
    skip: int = 0
    """Results of this resource that were given already."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """One page. It may be shorter than was asked, even empty, although there are more."""

    items: list[T]
    next: ListPosition | None
    """None: this is the last page."""
    version: str
    """The resourceVersion of the list."""


def page(
    read: Callable[[str, int], ResourcePage],
    results: Callable[[dict[str, Any]], Sequence[T]],
    start: ListPosition,
    limit: int,
) -> Found[T]:
    """A page of results.

    Raises:
        Problem: As `read` does.

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
                return Found(items, ListPosition(at.after, name, skip + room), version)
        if not got.after:
            return Found(items, None, version)
        at = ListPosition(got.after)
        if len(items) == limit:
            break
    return Found(items, at, version)


class ResourceWriter(Protocol):
    """Implementations may be called from any thread.

    All methods raise Problem (`forbidden`, `rejected`, `not-found`, `api-server-away`, `unauthenticated`).
    """

    def create(
        self, caller: Caller, kind: ResourceKind, namespace: str, document: Mapping[str, Any], dry_run: bool = False
    ) -> Resource:
        """Create an object. A dry run lets the API server check it, and creates nothing.

        Raises also: Problem (`already-exists`).
        """

    def patch(
        self,
        caller: Caller,
        kind: ResourceKind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        dry_run: bool = False,
    ) -> Resource:
        """Change an object by a merge patch. A dry run lets the API server check it, and changes nothing.

        Returns:
            The object with the changes.
        """


class KubeWriter:
    """Writes with the token of the caller."""

    def __init__(self, kube: Kube) -> None:
        """Create `KubeWriter`.

        Args:
            kube: Without credentials of its own.
        """
        self._kube = kube

    def create(
        self, caller: Caller, kind: ResourceKind, namespace: str, document: Mapping[str, Any], dry_run: bool = False
    ) -> Resource:
        """Create an object with the token of the caller, and return it as the API server has stored it.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of_change`.
        """
        try:
            return self._kube.with_token(caller.token).create(kind, namespace, document, dry_run)
        except KubeError as e:
            shown = _discreet(e, kind)
            raise problem_of_change(shown, f"create {_resource(kind)} in the namespace {namespace}") from shown

    def patch(
        self,
        caller: Caller,
        kind: ResourceKind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        dry_run: bool = False,
    ) -> Resource:
        """Change an object by a merge patch with the token of the caller, and return it with the changes.

        Raises:
            Problem: The API server refuses it or does not answer; see `problem_of_change`.
        """
        try:
            return self._kube.with_token(caller.token).patch(kind, namespace, name, patch, dry_run=dry_run)
        except KubeError as e:
            shown = _discreet(e, kind)
            raise problem_of_change(shown, f"patch {_resource(kind)} {name} in the namespace {namespace}") from shown


def _resource(kind: ResourceKind) -> str:
    """As in `kubectl create role --resource`."""
    return kind.plural + (f".{GROUP}" if GROUP in kind.api else "")


def _discreet(error: KubeError, kind: ResourceKind) -> KubeError:
    """An error that does not repeat what was sent, if that is a Secret."""
    if kind is not SECRETS or error.status in (0, 403):
        return error
    return type(error)(error.status, error.reason, f"{kind.name}: the Secret was not accepted ({error.reason})")


def problem_of_change(error: KubeError, right: str) -> Problem:
    """What a rejected change means for the caller. Pure.

    Args:
        right: What the caller must be allowed to do.
    """
    said = error.message.partition(": ")[2] or error.reason
    if error.status == 403 and error.reason == "Forbidden" and "cannot" in said:
        return Problem(Kind.FORBIDDEN, f"You need the right to {right}. Apply the YAML by Git, or ask for the right.")
    if isinstance(error, AlreadyExists):
        return Problem(Kind.ALREADY_EXISTS, f"{said}. Look at it, or choose another name.")
    if isinstance(error, NotFound):
        return not_found()
    if isinstance(error, RequestRefused) and error.status != 401:
        return Problem(Kind.REJECTED, f"The API server says: {said}")
    return problem_of(error)
