"""A few values of each resource of a namespace, kept for a caller who looks at them. I/O: a thread for each list, the API server.

The list is read with the token of the caller and then followed by a watch with it, so the API server decides what the caller may
see. Nothing is shared between callers. A list without requests is forgotten.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lethe.kube import ResourceKind

from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources.client import Resource, ResourceReader, Watched

log = logging.getLogger(__name__)

T = TypeVar("T")
READ: Final = 500  # resources of one request to the API server
PATIENCE_SECONDS: Final = 0.25
"""How long a request waits for the end of the first reading. Then it shows what has been read."""
IDLE_SECONDS: Final = 120.0
"""A list without a request in this time is forgotten."""
PAUSE_SECONDS: Final = 1.0
"""Between two requests to the API server that come to nothing."""
ROWS_AT_MOST: Final = 200_000
"""Of all lists together. With more, those that were not asked for the longest are forgotten."""
_FINAL: Final = frozenset({Kind.NOT_FOUND, Kind.UNAUTHENTICATED})


@dataclass(frozen=True)
class FollowedList(Generic[T]):
    """What is known of a list."""

    rows: Mapping[str, T]
    """By name."""
    is_complete: bool
    """False: the list is still being read, in the order of names."""
    problem: Problem | None
    """Why it is not followed at present; None: it is."""


class Followers:
    """The lists of one process. Threads may share it."""

    def __init__(self, reader: ResourceReader, clock: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._clock = clock
        self._lock = threading.Lock()
        self._lists: dict[tuple[str, str, str], Follower[Any]] = {}

    def follow(
        self, caller: Caller, kind: ResourceKind, namespace: str, row_of: Callable[[Resource], T]
    ) -> "Follower[T]":
        """The list of a caller, which is read and followed from the first request on. Does not wait.

        Args:
            row_of: The same for each request of a kind.
        """
        key, now = (caller.key, namespace, kind.plural), self._clock()
        with self._lock:
            follower = self._lists.get(key)
            if follower is None:
                self._make_room()
                follower = self._lists[key] = Follower(self, self._reader, kind, namespace, row_of)
                threading.Thread(target=follower.run, name=f"follow {kind.plural}", daemon=True).start()
            follower.use(caller, now)  # before the thread asks for the lock
        return follower

    def close(self) -> None:
        """Follow nothing any more. Does not wait for the threads, which end with their requests."""
        with self._lock:
            for follower in list(self._lists.values()):
                self._drop(follower)

    def is_wanted(self, follower: "Follower[Any]") -> bool:
        """Whether somebody has asked for a list lately. Otherwise it is forgotten."""
        with self._lock:  # so that no request gets a list that ends
            if self._clock() - follower.used <= IDLE_SECONDS:
                return True
            self._drop(follower)
            return False

    def forget(self, follower: "Follower[Any]") -> None:
        """End a list. The next request for it reads it again."""
        with self._lock:
            self._drop(follower)

    def _drop(self, follower: "Follower[Any]") -> None:
        """The caller holds the lock."""
        follower.ended.set()
        self._lists = {key: kept for key, kept in self._lists.items() if kept is not follower}

    def _make_room(self) -> None:
        """The caller holds the lock."""
        total = sum(map(len, self._lists.values()))
        for follower in sorted(self._lists.values(), key=lambda f: f.used):
            if total <= ROWS_AT_MOST:
                return
            total -= len(follower)
            self._drop(follower)


class Follower(Generic[T]):
    """One list."""

    def __init__(
        self,
        followers: Followers,
        reader: ResourceReader,
        kind: ResourceKind,
        namespace: str,
        row_of: Callable[[Resource], T],
    ) -> None:
        self._followers = followers
        self._reader = reader
        self._kind = kind
        self._namespace = namespace
        self._row_of = row_of
        self._lock = threading.Lock()
        self._rows: dict[str, T] = {}
        self._is_complete = False
        self._problem: Problem | None = None
        self._version = ""
        """Up to which the changes are known; "": the list must be read."""
        self._caller: Caller | None = None
        self.used = 0.0
        """When it was last asked for."""
        self.ready = threading.Event()
        """Set at the end of the first reading, or if it failed."""
        self.ended = threading.Event()

    def __len__(self) -> int:
        return len(self._rows)

    def use(self, caller: Caller, now: float) -> None:
        """Note a request, whose token may be newer."""
        self._caller, self.used = caller, now

    def rows(self, patience_seconds: float = PATIENCE_SECONDS) -> FollowedList[T]:
        """The rows of the list.

        Args:
            patience_seconds: How long to wait for the end of the first reading.

        Raises:
            Problem: `not-found`, `unauthenticated`; or nothing is known of the list, and why.
        """
        self.ready.wait(patience_seconds)
        with self._lock:
            found = FollowedList(dict(self._rows), self._is_complete, self._problem)
        if found.problem is not None and (found.problem.kind in _FINAL or not found.is_complete):
            self._followers.forget(self)
            raise found.problem
        return found

    def run(self) -> None:
        """Read the list and follow it, until it has ended or there are no requests for it."""
        while not self.ended.is_set() and self._followers.is_wanted(self):
            try:
                if not self._version:
                    self._read()
                begun = time.monotonic()
                self._watch()
                if time.monotonic() - begun < PAUSE_SECONDS:
                    self.ended.wait(PAUSE_SECONDS)
            except Problem as e:
                if e.kind is Kind.CURSOR_EXPIRED:
                    self._version = ""
                    self.ended.wait(PAUSE_SECONDS)
                else:
                    self._fail(e)
            except Exception:
                log.exception("a list of %s cannot be followed", self._kind.plural)
                self._fail(Problem(Kind.INTERNAL, "The list cannot be read; the log of the gateway has the cause."))

    def _fail(self, problem: Problem) -> None:
        with self._lock:
            self._problem = problem
        self.ready.set()
        if problem.kind in _FINAL:
            self._followers.forget(self)
        self.ended.wait(PAUSE_SECONDS)

    def _read(self) -> None:
        """Read the whole list.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """
        assert self._caller is not None
        names: set[str] = set()
        after = version = ""
        while True:
            page = self._reader.page(self._caller, self._kind, self._namespace, after, READ)
            version = version or page.version
            rows = {_name(resource): self._row_of(resource) for resource in page.items}
            names |= rows.keys()
            with self._lock:
                self._rows |= rows
            after = page.after
            if not after:
                break
        with self._lock:
            self._rows = {name: row for name, row in self._rows.items() if name in names}
            self._is_complete, self._problem = True, None
        self._version = version
        self.ready.set()

    def _watch(self) -> None:
        """Follow the list for a while.

        Raises:
            Problem: The request fails; the type of the problem says why.
        """
        assert self._caller is not None
        events = self._reader.watch(
            self._caller, self._kind, self._namespace, Watched(self._version), lambda _end: self._opened()
        )
        for event in events:
            if event.get("type") == "ERROR":
                self._version = ""
                return
            resource = event["object"]
            if event["type"] == "DELETED":
                with self._lock:
                    self._rows.pop(_name(resource), None)
            elif event["type"] != "BOOKMARK":
                row = self._row_of(resource)
                with self._lock:
                    self._rows[_name(resource)] = row
            self._version = str(resource["metadata"].get("resourceVersion") or self._version)
            if self.ended.is_set():
                return

    def _opened(self) -> None:
        with self._lock:
            self._problem = None


def _name(resource: Resource) -> str:
    return str(resource["metadata"]["name"])
