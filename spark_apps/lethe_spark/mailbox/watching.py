"""Follow the mailbox on the API server: list it once, then watch it. I/O, for the lifetime of the process.

Invariant: states are delivered in their order. After a missed state the mailbox is listed again.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from time import monotonic
from typing import Any, Final

from lethe_spark.run.kube import Api, ApiError

log = logging.getLogger(__name__)

# Duration of one watch. It also limits how long a dead connection goes unnoticed.
WATCH_SECONDS: Final = 50
# A watch that ended sooner is followed by a pause of this length.
SHORTEST_SECONDS: Final = 0.5
# Pauses after the first, second, … failure in a row.
PAUSES_SECONDS: Final = (0.2, 1.0, 2.0, 5.0)


class _Outdated(Exception):
    """The API server no longer has the changes since our version."""


@dataclass
class Watching:
    """Watches one ConfigMap."""

    api: Api
    # Name of the ConfigMap.
    name: str
    # Called with the data after each possible change. Empty data: the ConfigMap does not exist.
    put: Callable[[Mapping[str, str]], object]
    # Called after each answer of the API server.
    on_answer: Callable[[], object]
    # Duration of one watch.
    watch_seconds: int = WATCH_SECONDS
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self.follow, name="lethe-mailbox", daemon=True).start()

    def follow(self) -> None:
        """List and watch until stopped."""
        failures = 0
        while not self.stopped.is_set():
            try:
                version = self._list()
                failures = 0
                while not self.stopped.is_set():
                    began = monotonic()
                    version = self._watch(version)
                    if monotonic() < began + SHORTEST_SECONDS:  # a proxy cuts watches short
                        self.stopped.wait(SHORTEST_SECONDS)
            except _Outdated:
                log.info("the API server no longer has the changes since the last event: listing the mailbox again")
            except (OSError, HTTPException, ValueError, KeyError) as e:
                log.warning("the mailbox %s cannot be watched: %s", self.name, e)
                self.stopped.wait(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
                failures += 1

    def _list(self) -> str:
        found = self.api.get(self.api.config_maps(), fieldSelector=f"metadata.name={self.name}")
        items = found.get("items") or ()
        self.put((items[0].get("data") or {}) if items else {})
        self.on_answer()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Watch until the server closes. Returns: the version of the last event."""
        wanted = {"fieldSelector": f"metadata.name={self.name}", "resourceVersion": version}
        try:
            with self.api.watch(self.api.config_maps(), self.watch_seconds, **wanted) as events:
                self.on_answer()
                for event in events:
                    version = self._take(event)
                    self.on_answer()
        except ApiError as e:
            if e.status == 410:
                raise _Outdated from e
            raise
        return version

    def _take(self, event: Any) -> str:
        found = event["object"]
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self.put(found.get("data") or {})
            case "DELETED":
                self.put({})
            case "ERROR" if found.get("code") == 410:
                raise _Outdated
            case "ERROR":
                raise OSError(f"the API server ended the watch: {found.get('code')} {found.get('reason')}")
        return str(found["metadata"]["resourceVersion"])
