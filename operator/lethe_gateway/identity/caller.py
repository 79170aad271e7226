"""A caller, a right, and what the gateway needs to know about both. Pure.

Remembers answers for a short time, in bounded memory. Pure: `now` is given, in monotonic seconds.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

from lethe.contract.kubernetes import GROUP

K = TypeVar("K")
V = TypeVar("V")


class ShortCache(Generic[K, V]):
    """Threads may share it. With more entries than it may have, it forgets those that were added first."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max = max_entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K, now: float) -> V | None:
        """None: it is unknown, or no longer valid."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            until, value = entry
            if now >= until:
                del self._entries[key]
                return None
            return value

    def put(self, key: K, value: V, until: float) -> None:
        """Add or replace an entry, which is valid until this time, in monotonic seconds."""
        with self._lock:
            self._entries[key] = (until, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)


DATASETS: Final = "datasets"


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    username: str
    uid: str = ""
    groups: Sequence[str] = ()
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    """For requests in the caller's name."""

    @property
    def key(self) -> str:
        """Identifies the caller among others, for limits and caches."""
        return f"{self.uid}\0{self.username}"


@dataclass(frozen=True)
class Right:
    """A right on resources of the group lethe.dev."""

    verb: str
    namespace: str
    resource: str = DATASETS
    subresource: str = ""
    name: str = ""
    """Empty: all."""

    @staticmethod
    def to_list(namespace: str) -> "Right":
        """To see a namespace."""
        return Right("list", namespace)

    @staticmethod
    def to_read_batches(namespace: str, dataset: str) -> "Right":
        """To see what is in the table of a Dataset: batches, purges, erasures."""
        return Right("get", namespace, subresource="batches", name=dataset)

    @staticmethod
    def to_upload(namespace: str, dataset: str) -> "Right":
        """To write batches into the buffer of a Dataset."""
        return Right("create", namespace, subresource="batches", name=dataset)

    @staticmethod
    def to_restate(namespace: str) -> "Right":
        """To create Restatements."""
        return Right("create", namespace, resource="restatements")

    @staticmethod
    def to_annotate(namespace: str, dataset: str) -> "Right":
        """To approve and to request the vacuum of a Dataset."""
        return Right("patch", namespace, name=dataset)

    def __str__(self) -> str:
        resource = f"{self.resource}.{GROUP}" + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {resource}" + (f" {self.name}" if self.name else "")


class Identity(Protocol):
    """Decides who a token belongs to, and what its owner may do. Implementations may be called from any thread."""

    def authenticate(self, token: str) -> Caller:
        """Authenticate it.

        Raises:
            Problem: `unauthenticated`, `api-server-away`.
        """

    def remembered(self, token: str) -> Caller | None:
        """The owner of a token that was accepted a moment ago. Does not wait. None: ask."""

    def may(self, caller: Caller, right: Right) -> bool:
        """Whether a caller has a right.

        Raises:
            Problem: `api-server-away`.
        """


def digest_of(token: str) -> str:
    """A name for a token that does not contain it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
