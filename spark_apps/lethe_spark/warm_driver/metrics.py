"""Prometheus metrics of the warm driver's supervisor."""

import threading
from typing import Any

from lethe_spark.mailbox import Mailbox, MailboxMetrics
from lethe_spark.warm_driver.delivery import SessionUse

# The outcome of a run that has delivered its own result, which may be a failure.
DELIVERED = "Delivered"
# The outcome of a run whose failure the supervisor has delivered.
STOPPED = "Stopped"


class WarmDriverMetrics(MailboxMetrics):
    """One per process."""

    def __init__(self, namespace: str, mailbox: Mailbox[Any], lock: threading.Condition) -> None:
        super().__init__("lethe_warm_driver", namespace, mailbox, lock)
        # Whether the session can take a run, or carries one out.
        self.session_works = False
        # What the session used when it was last measured; None: it was not.
        self.use: SessionUse | None = None
        self.sessions = self.counter(
            "sessions_total", "Spark sessions that were started: the first one, and those that replaced another."
        )
        self.gauge("session_up", "1 while the Spark session works, 0 while it starts.", lambda: self.session_works)
        self.gauge(
            "session_memory_bytes",
            "Memory of the processes of the session, as last measured, during a run or after it.",
            lambda: self.use.memory if self.use else 0,
        )
        self.gauge(
            "session_disk_bytes",
            "Space of the session's files, as last measured, during a run or after it.",
            lambda: self.use.disk if self.use else 0,
        )
