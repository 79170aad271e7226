"""Prometheus metrics of the committer."""

import threading
from time import monotonic
from typing import Any

from lethe.contract.result import RunOutcome, RunResult

from lethe_spark.committer.heartbeat import CommitterHealth
from lethe_spark.mailbox.entries import Mailbox
from lethe_spark.mailbox.metrics import MailboxMetrics

# The outcome of a run that a Job carries out instead. It is no failure.
LEFT_TO_A_JOB = "LeftToAJob"


class CommitterMetrics(MailboxMetrics):
    """One per process."""

    def __init__(
        self, namespace: str, mailbox: Mailbox[Any], lock: threading.Condition, health: CommitterHealth
    ) -> None:
        super().__init__("lethe_committer", namespace, mailbox, lock)
        self.upkeeps = self.counter(
            "upkeeps_total", "How often snapshots were expired, and files removed, after the runs of a Dataset."
        )
        self.gauge(
            "healthy",
            "1 while the mailbox and the JVM answer, so that the Lease is renewed; otherwise 0.",
            lambda: not health.trouble(monotonic()),
        )

    def result_delivered(self, result: RunResult, seconds: float) -> None:
        left = result.outcome is RunOutcome.FAILED and result.reason == "NeedsSpark"
        self.run_ended(result.family, LEFT_TO_A_JOB if left else result.outcome.value, result.reason, seconds)
