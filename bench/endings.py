"""When each Restatement came to its end, as the API server's watch tells it. I/O: a thread."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubernetes import watch
from kubernetes.client import ApiException

from bench.site import GROUP, NAMESPACE, VERSION, Site

WATCH_SECONDS = 240


@dataclass(frozen=True)
class Ending:
    """`seen`: when the status said so, and `committed`, both in seconds since the epoch; `group`: how many shared the commit."""

    succeeded: bool
    reason: str
    seen: float
    committed: float | None
    group: int


class Endings:
    """Use as a context; `by_name` grows while it is open."""

    def __init__(self, site: Site, label: str) -> None:
        self.by_name: dict[str, Ending] = {}
        self._site, self._label = site, label
        self._more = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._follow, name="endings", daemon=True)

    def __enter__(self) -> "Endings":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True

    def wait(self, number: int, within_seconds: float) -> bool:
        """Until so many have ended. Returns: whether they have."""
        with self._more:
            return self._more.wait_for(lambda: len(self.by_name) >= number, within_seconds)

    def _follow(self) -> None:
        """Watch, and start again after an interruption. Restatements that were seen to end are not counted a second time."""
        stream = watch.Watch()
        while not self._closed:
            try:
                for event in stream.stream(
                    self._site.objects.list_namespaced_custom_object,
                    GROUP,
                    VERSION,
                    NAMESPACE,
                    "restatements",
                    label_selector=self._label,
                    timeout_seconds=WATCH_SECONDS,
                ):
                    self._take(event["object"])
                    if self._closed:
                        return
            except ApiException:
                time.sleep(1)

    def _take(self, body: Mapping[str, Any]) -> None:
        name, now = body["metadata"]["name"], time.time()
        if name in self.by_name:
            return
        status = body.get("status") or {}
        ended: Mapping[str, str] = next((c for c in status.get("conditions") or () if c["type"] == "Succeeded"), {})
        if ended.get("status") not in ("True", "False"):
            return
        result = status.get("result") or {}
        committed = result.get("committedTime")
        with self._more:
            self.by_name[name] = Ending(
                ended["status"] == "True",
                ended["reason"],
                now,
                datetime.fromisoformat(committed).timestamp() if committed else None,
                result.get("groupSize", 0),
            )
            self._more.notify_all()
