"""Statuses: written through the subresource, as one patch, and only when something changed. I/O."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from lethe_operator.apply.merge_patch import merge_patch
from lethe_operator.kube import Conflict, Document, Kube, NotFound, ResourceKind

log = logging.getLogger(__name__)

TRIES: Final = 5
Status = Mapping[str, Any]


def write(kube: Kube, kind: ResourceKind, namespace: str, name: str, old: Status, new: Status) -> Document | None:
    """Make the status `new`; the object as it is then, None when nothing was written.

    Only one reconcile writes this status, so that no version is compared. An object that was deleted meanwhile is fine.
    Raises: Refused, Away.
    """
    patch = merge_patch(old, new)
    if not patch:
        return None
    try:
        return kube.patch(kind, namespace, name, {"status": patch}, "status")
    except NotFound:
        return None


def change(kube: Kube, kind: ResourceKind, namespace: str, name: str, transaction: Callable[[Status], Status]) -> bool:
    """Change a status that several reconciles write: read, compute, write only if nobody wrote meanwhile, else again.

    Args:
        transaction: A pure function of the status; it may be called several times.
    Raises: Conflict, after several tries; Refused, Away.
    """
    for tried in range(1, TRIES + 1):
        try:
            body = kube.get(kind, namespace, name)
            old = body.get("status") or {}
            patch = merge_patch(old, transaction(old))
            if not patch:
                return False
            version = {"resourceVersion": body["metadata"]["resourceVersion"]}
            kube.patch(kind, namespace, name, {"metadata": version, "status": patch}, "status")
            return True
        except NotFound:
            return False
        except Conflict:
            if tried == TRIES:
                raise
    return False
