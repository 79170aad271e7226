"""What lies in the mailbox, as the API server tells: listed once, then watched. I/O, for as long as the process lives.

Invariant: who is told of a state was told of it after all that are older; a state that was missed is made up for by a list.
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

# So long one watch lasts. A connection that died unnoticed is noticed soon after.
WATCH_SECONDS: Final = 50
SHORTEST_SECONDS: Final = 0.5
PAUSES_SECONDS: Final = (0.2, 1.0, 2.0, 5.0)


class _Outdated(Exception):
    """The API server does not know any more what came after our version."""


@dataclass
class Watching:
    """Watches one ConfigMap.

    Args:
        put: Told what the ConfigMap holds, each time that this may have changed; nothing while there is no such ConfigMap.
        heard: Told whenever the API server has answered.
    """

    api: Api
    name: str
    put: Callable[[Mapping[str, str]], object]
    heard: Callable[[], object]
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
                    if monotonic() < began + SHORTEST_SECONDS:  # somebody in between cuts watches short
                        self.stopped.wait(SHORTEST_SECONDS)
            except _Outdated:
                log.info("the mailbox is listed anew: what happened since was forgotten by the API server")
            except (OSError, HTTPException, ValueError, KeyError) as e:
                log.warning("the mailbox %s cannot be watched: %s", self.name, e)
                self.stopped.wait(PAUSES_SECONDS[min(failures, len(PAUSES_SECONDS) - 1)])
                failures += 1

    def _list(self) -> str:
        found = self.api.get(self.api.config_maps(), fieldSelector=f"metadata.name={self.name}")
        items = found.get("items") or ()
        self.put((items[0].get("data") or {}) if items else {})
        self.heard()
        return str(found["metadata"]["resourceVersion"])

    def _watch(self, version: str) -> str:
        """Until the server closes. Returns: the version up to which all was told."""
        wanted = {"fieldSelector": f"metadata.name={self.name}", "resourceVersion": version}
        try:
            with self.api.watch(self.api.config_maps(), self.watch_seconds, **wanted) as events:
                self.heard()
                for event in events:
                    version = self._take(event)
                    self.heard()
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
