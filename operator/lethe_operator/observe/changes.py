"""Reads what has changed since a version, as a new leader does that has watched so far. I/O.

A list of 60,000 objects takes the API server half a minute. A watch from the newest known version on begins with everything that
has changed since, and costs as much as that.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from lethe_operator.kube import Document, Kube, KubeError, ResourceKind
from lethe_operator.observe.object_store import Seen

# A watch sends what has happened before at once. This is the time that the API server has for it.
WATCH_SECONDS: Final = 1
_ERROR, _BOOKMARK = "ERROR", "BOOKMARK"
_GONE: Final = 410  # the status of an answer, if the version is too old
Event = tuple[str, Document]


def newest(known: Mapping[str, Seen]) -> str:
    """The highest version of known objects; "": it is unknown."""
    versions = [seen.version for seen in known.values()]
    return max(versions, key=int) if versions and all(v.isdigit() for v in versions) else ""


def changes_since(kube: Kube, kind: ResourceKind, namespace: str, labels: str, version: str) -> Sequence[Event] | None:
    """The changes of objects after a version: type (ADDED, MODIFIED, DELETED) and object.

    Returns: None, if the API server does not know them any more, or the version is "".
    Raises: KubeError.
    """
    if not version:
        return None
    found: list[Event] = []
    try:
        for event in kube.watch(kind, namespace, version, labels=labels, seconds=WATCH_SECONDS):
            if event["type"] == _ERROR:
                return None
            if event["type"] != _BOOKMARK:
                found.append((event["type"], event["object"]))
    except KubeError as e:
        if e.status != _GONE:
            raise
        return None
    return found
