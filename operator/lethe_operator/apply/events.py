"""Posts Kubernetes Events about Lethe's resources. I/O. A failure to post is only logged."""

import logging
import os
import socket
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from lethe.logs import about

from lethe_operator.decide.actions import Event
from lethe_operator.kube import EVENTS, Kube, KubeError
from lethe_operator.resources.common import API_VERSION

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
            "metadata": {"name": f"{event.name[:200]}.{time.time_ns():x}", "namespace": namespace},
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": instance[:128],
            "action": "Reconcile",
            "type": "Warning" if event.warning else "Normal",
            "reason": str(event.reason)[:128],
            "note": event.message.encode()[:NOTE_AT_MOST].decode(errors="ignore"),
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
                "%s %s/%s: %s: %s",
                event.kind,
                namespace,
                event.name,
                event.reason,
                event.message,
            )
        try:
            kube.create(EVENTS, namespace, document)
        except KubeError as e:
            log.warning("posting an event failed: %s", e)
