"""Writes statuses, and posts Kubernetes Events about Lethe's resources. I/O.

A status is written through the subresource, as one merge patch, and only if something changed. A failure to post an event is
only logged.
"""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from lethe.contract.kubernetes import API_VERSION
from lethe.contract.status import Status, StoredStatus, stored_status
from lethe.kube import EVENTS, Away, Conflict, Document, Kube, KubeError, NotFound, ResourceKind
from lethe.logs import about

from lethe_operator.actions import Event
from lethe_operator.resources.common import Meta

log = logging.getLogger(__name__)

NOTE_AT_MOST: Final = 1000  # the API takes 1024 bytes
CONTROLLER: Final = "lethe.dev/operator"


def post(kube: Kube, namespace: str, events: Iterable[Event], uids: dict[tuple[str, str], str]) -> None:
    """Post events.

    Args:
        uids: Of the resources, by kind and name; `kubectl describe` finds events by them.
    """
    instance = os.environ.get("POD_NAME") or socket.gethostname()
    for event in events:
        document = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            # A part of a name ends neither with a hyphen nor with a dot.
            "metadata": {"name": f"{event.name[:200].rstrip('-.')}.{time.time_ns():x}", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": instance[:128],
            "action": "Reconcile",
            "type": "Warning" if event.warning else "Normal",
            "reason": str(event.verdict.reason)[:128],
            "note": event.verdict.message.encode()[:NOTE_AT_MOST].decode(errors="ignore"),
            "regarding": {
                "apiVersion": API_VERSION,
                "kind": event.kind,
                "namespace": namespace,
                "name": event.name,
                "uid": uids.get((event.kind, event.name), ""),
            },
        }
        with about(namespace=namespace, **{f"{event.kind[0].lower()}{event.kind[1:]}": event.name}):
            log.log(
                logging.WARNING if event.warning else logging.INFO,
                "%s %s/%s: %s",
                event.kind,
                namespace,
                event.name,
                event.verdict,
            )
        try:
            kube.create(EVENTS, namespace, document)
        except KubeError as e:
            log.warning("posting an event failed: %s", e)


TRIES: Final = 5
# An API server answers a write within milliseconds, and thousands may be due after one run.
THREADS: Final = 8
ONE_BY_ONE: Final = 16  # up to this number of writes, no threads are started
Write = Callable[[], object]
S = TypeVar("S", bound=Status)


@dataclass(frozen=True)
class KnownStatus(Generic[S]):
    """The status of an object at one version."""

    version: str
    """ResourceVersion."""
    stored: StoredStatus[S]


def write(kube: Kube, kind: ResourceKind, meta: Meta, old: StoredStatus[S], new: S) -> Document | None:
    """Set the status of an object, unless it was deleted since. Another one may have its name by now.

    The API server compares no UID here, only a version. No other reconcile writes the status, so a new version of the same object
    changes nothing.

    Returns:
        The written object; None: nothing was written.

    Raises:
        Conflict: After several tries.
        RequestRefused: Rights, quota, admission or validation forbid the request.
        Away: No answer, or one that asks to retry later.
    """
    patch, version = patch_of(old, new), meta.resource_version
    if not patch:
        return None
    for tried in range(1, TRIES + 1):
        try:
            if tried > 1:
                now = kube.get(kind, meta.namespace, meta.name)["metadata"]
                if now["uid"] != meta.uid:
                    return None
                version = now["resourceVersion"]
            document = {"metadata": {"resourceVersion": version}, "status": patch}
            return kube.patch(kind, meta.namespace, meta.name, document, "status")
        except NotFound:
            return None
        except Conflict:
            if tried == TRIES:
                raise
    return None


def change(
    kube: Kube,
    kind: ResourceKind,
    namespace: str,
    name: str,
    known: KnownStatus[S],
    transaction: Callable[[S], S],
) -> bool:
    """Change a status that several reconciles write: compute, write if the version is unchanged, else read and repeat.

    Args:
        known: As last seen.
        transaction: A pure function of the status; it may be called several times.

    Raises:
        Conflict: After several tries.
        RequestRefused: Rights, quota, admission or validation forbid the request.
        Away: No answer, or one that asks to retry later.
    """
    for tried in range(1, TRIES + 1):
        try:
            if tried > 1:
                body = kube.get(kind, namespace, name)
                stored = stored_status(known.stored.model, body)
                known = KnownStatus(body["metadata"]["resourceVersion"], stored)
            patch = patch_of(known.stored, transaction(known.stored.parsed))
            if not patch:
                return False
            version = {"resourceVersion": known.version}
            kube.patch(kind, namespace, name, {"metadata": version, "status": patch}, "status")
            return True
        except NotFound:
            return False
        except Conflict:
            if tried == TRIES:
                raise
    return False


def write_all(writes: Sequence[Write]) -> KubeError | None:
    """Do all writes, in any order. When the API server does not answer, the rest is left for the next reconcile.

    Returns:
        The first error, after all others were tried; None: there was none.
    """
    failures: list[KubeError] = []

    def attempt(write: Write) -> None:
        if any(isinstance(e, Away) for e in failures):
            return
        try:
            write()
        except KubeError as e:
            failures.append(e)

    if len(writes) <= ONE_BY_ONE:
        for write in writes:
            attempt(write)
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="status") as pool:
            for done in [pool.submit(attempt, write) for write in writes]:
                done.result()
    return failures[0] if failures else None


def patch_of(old: StoredStatus[S], new: S) -> dict[str, Any]:
    """The JSON merge patch to a status. Empty: both are equal. Pure.

    It removes values that do not fit, and with any other change also fields that this version does not know.
    """
    return {} if old.fits and new == old.parsed else merge_patch(old.document, new.to_document())


def merge_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON merge patch from one document to another: null removes, lists are replaced. Empty: both are equal. Pure."""
    patch: dict[str, Any] = {key: None for key in old if key not in new}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            inner = merge_patch(before, value)
            if inner:
                patch[key] = inner
        elif key not in old or before != value:
            patch[key] = value
    return patch
