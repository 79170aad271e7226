"""A caller, a right, and what the gateway needs to know about both. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from lethe.contract.kubernetes import GROUP

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
