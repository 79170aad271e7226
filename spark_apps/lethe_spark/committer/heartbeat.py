"""Whether this process can do its work, and a Lease that says so for as long as it can. I/O in threads of its own.

The operator reads the Lease's `renewTime`: who is not heard of for `leaseDurationSeconds` is not counted on.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from time import monotonic
from typing import Any, Final

from lethe_spark.run.kube import Api

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 30
# A watch says something at least when it ends; a JVM is asked all the time, and may have to collect its garbage.
UNHEARD_SECONDS: Final = 75.0
UNANSWERED_SECONDS: Final = 20.0
# A JVM that does not answer for so long never will.
HUNG_SECONDS: Final = 120.0


@dataclass
class Health:
    """When the mailbox and the JVM were heard of last, on a monotonic clock; None for never. Pure but for remembering."""

    mailbox_time: float | None = None
    jvm_time: float | None = None

    def trouble(self, now: float) -> str:
        """Why this process cannot be counted on; "" when it can."""
        if self.mailbox_time is None or now - self.mailbox_time > UNHEARD_SECONDS:
            return "the mailbox cannot be watched"
        if self.jvm_time is None or now - self.jvm_time > UNANSWERED_SECONDS:
            return "the JVM does not answer"
        return ""

    def is_hung(self, now: float) -> bool:
        return self.jvm_time is not None and now - self.jvm_time > HUNG_SECONDS


@dataclass
class Heartbeat:
    """Asks the JVM, and renews the Lease.

    Args:
        holder: Who we are: the pod's name.
        answers: Whether the JVM does; may take as long as it likes.
        hung: What to do once it has not for too long.
    """

    api: Api
    lease: str
    holder: str
    health: Health
    answers: Callable[[], bool]
    hung: Callable[[], object]
    renew_seconds: float = RENEW_SECONDS
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._ask, name="lethe-jvm-pulse", daemon=True).start()
        threading.Thread(target=self._renew, name="lethe-heartbeat", daemon=True).start()

    def _ask(self) -> None:
        while not self.stopped.is_set():
            if self.answers():
                self.health.jvm_time = monotonic()
            self.stopped.wait(self.renew_seconds / 2)

    def _renew(self) -> None:
        last = ""
        while not self.stopped.is_set():
            now = monotonic()
            if self.health.is_hung(now):
                self.hung()
            trouble = self.health.trouble(now) or self._patch()
            if trouble != last:
                log.warning("the Lease %s is not renewed: %s", self.lease, trouble) if trouble else log.info(
                    "well again"
                )
                last = trouble
            # Soon again at the start, when there is nothing to say yet.
            self.stopped.wait(self.renew_seconds if not trouble else self.renew_seconds / 10)

    def _patch(self) -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.api.namespace}/leases/{self.lease}"
        try:
            self.api.merge(path, {"spec": renewal(self.holder, datetime.now(UTC))}, "lethe-committer")
        except (OSError, HTTPException) as e:
            return str(e)
        return ""


def renewal(holder: str, now: datetime) -> dict[str, Any]:
    """The Lease's spec. Pure."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
