"""Check that the process can work, and renew its Lease while it can. I/O in two threads.

The operator reads the Lease: it does not send runs to a committer whose `renewTime` is older than `leaseDurationSeconds`.
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
# A watch of the mailbox answers at least when it ends, after WATCH_SECONDS.
WATCH_LIMIT_SECONDS: Final = 75.0
# Longer than a garbage collection of the JVM.
JVM_LIMIT_SECONDS: Final = 20.0
# A JVM that has not answered for this time will not answer again.
HUNG_SECONDS: Final = 120.0


@dataclass
class CommitterHealth:
    """When the mailbox and the JVM last answered. No I/O."""

    # Monotonic seconds. None: never.
    mailbox_time: float | None = None
    # Monotonic seconds. None: never.
    jvm_time: float | None = None

    def trouble(self, now: float) -> str:
        """Why this process cannot work; empty if it can."""
        if self.mailbox_time is None or now - self.mailbox_time > WATCH_LIMIT_SECONDS:
            return "the mailbox cannot be watched"
        if self.jvm_time is None or now - self.jvm_time > JVM_LIMIT_SECONDS:
            return "the JVM does not answer"
        return ""

    def is_hung(self, now: float) -> bool:
        return self.jvm_time is not None and now - self.jvm_time > HUNG_SECONDS


@dataclass
class Heartbeat:
    """Asks the JVM for an answer, and renews the Lease."""

    api: Api
    # Name of the Lease.
    lease: str
    # The holder that the Lease names: this pod.
    holder: str
    health: CommitterHealth
    # Whether the JVM answers. May block.
    answers: Callable[[], bool]
    # Called when the JVM has not answered for HUNG_SECONDS.
    on_hung: Callable[[], object]
    # Time between two renewals.
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
                self.on_hung()
            trouble = self.health.trouble(now) or self._patch()
            if trouble != last:
                if trouble:
                    log.warning("the Lease %s is not renewed: %s", self.lease, trouble)
                else:
                    log.info("the Lease %s is renewed again", self.lease)
                last = trouble
            # Retry soon: at the start the mailbox and the JVM have not answered yet.
            self.stopped.wait(self.renew_seconds if not trouble else self.renew_seconds / 10)

    def _patch(self) -> str:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.api.namespace}/leases/{self.lease}"
        try:
            self.api.merge(path, {"spec": renewal(self.holder, datetime.now(UTC))}, "lethe-committer")
        except (OSError, HTTPException) as e:
            return str(e)
        return ""


def renewal(holder: str, now: datetime) -> dict[str, Any]:
    """The spec of the Lease. Pure."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}
