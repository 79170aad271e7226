"""Changes resources in the API server in the name of a caller. I/O.

The API server decides what the caller may change. The gateway's own ServiceAccount has no rights on resources.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from lethe_operator.kube import AlreadyExists, Kube, KubeError, NotFound, Refused, ResourceKind

from lethe_gateway.identity.caller import Caller
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.reader import Resource, problem_of


class ResourceWriter(Protocol):
    """Implementations may be called from any thread. All methods raise Problem (`forbidden`, `rejected`, `not-found`,
    `api-server-away`, `unauthenticated`)."""

    def create(self, caller: Caller, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Resource:
        """Raises also: Problem (`already-exists`)."""

    def annotate(
        self, caller: Caller, kind: ResourceKind, namespace: str, name: str, annotations: Mapping[str, str]
    ) -> Resource: ...


class KubeWriter:
    """Writes with the token of the caller."""

    def __init__(self, kube: Kube) -> None:
        """Args:
        kube: Without credentials of its own.
        """
        self._kube = kube

    def create(self, caller: Caller, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Resource:
        try:
            return self._kube.with_token(caller.token).create(kind, namespace, document)
        except KubeError as e:
            raise problem_of_change(e, f"create {kind.plural}.lethe.dev in the namespace {namespace}") from e

    def annotate(
        self, caller: Caller, kind: ResourceKind, namespace: str, name: str, annotations: Mapping[str, str]
    ) -> Resource:
        patch = {"metadata": {"annotations": dict(annotations)}}
        try:
            return self._kube.with_token(caller.token).patch(kind, namespace, name, patch)
        except KubeError as e:
            raise problem_of_change(e, f"patch {kind.plural}.lethe.dev {name} in the namespace {namespace}") from e


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
    if isinstance(error, Refused) and error.status != 401:
        return Problem(Kind.REJECTED, f"The API server says: {said}")
    return problem_of(error)
