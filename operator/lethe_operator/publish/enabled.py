"""When status events were first enabled for a namespace. I/O.

A ConfigMap in the namespace has the time. It is created once and never changed, so that a table that was created while no
publisher ran is published from its beginning.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from lethe_operator.kube import CONFIG_MAPS, AlreadyExists, Document, NotFound, ResourceKind
from lethe_operator.resources.common import MANAGED_LABELS

NAME: Final = "lethe-events"
KEY: Final = "enabledTime"
# Clocks of runs and of the operator may differ. Too early is harmless: more is published.
CLOCKS_DIFFER_BY: Final = timedelta(minutes=10)


class KubeObjects(Protocol):
    """The part of `Kube` that this needs."""

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Document: ...

    def create(self, kind: ResourceKind, namespace: str, document: Document) -> Document: ...


class EnabledTimes:
    """Reads or creates the ConfigMap of each namespace once. Thread-safe."""

    def __init__(self, kube: KubeObjects, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._kube = kube
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}

    def of(self, namespace: str) -> int:
        """In milliseconds since 1970, a little early. Raises: KubeError, NotLeading."""
        with self._lock:
            if namespace not in self._known:
                found = datetime.fromisoformat(self._read(namespace)) - CLOCKS_DIFFER_BY
                self._known[namespace] = int(found.timestamp() * 1000)
            return self._known[namespace]

    def _read(self, namespace: str) -> str:
        try:
            return _time(self._kube.get(CONFIG_MAPS, namespace, NAME))
        except NotFound:
            pass
        document = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME, "namespace": namespace, "labels": dict(MANAGED_LABELS)},
            "data": {KEY: self._clock().isoformat(timespec="seconds")},
        }
        try:
            return _time(self._kube.create(CONFIG_MAPS, namespace, document))
        except AlreadyExists:
            return _time(self._kube.get(CONFIG_MAPS, namespace, NAME))


def _time(document: Document) -> str:
    """Nothing, or something that is no time, counts as the beginning of time: then everything is published."""
    text = str((document.get("data") or {}).get(KEY, ""))
    try:
        return text if datetime.fromisoformat(text).tzinfo is not None else _BEGINNING
    except ValueError:
        return _BEGINNING


_BEGINNING: Final = "1970-01-02T00:00:00+00:00"
