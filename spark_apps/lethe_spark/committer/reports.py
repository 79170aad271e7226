"""Reports the committer's runs, and whether it can work: progress to ConfigMaps, a Lease, metrics. I/O in two threads."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from lethe import tracing
from lethe.contract.result import Phase, Progress, RunOutcome, RunResult
from lethe.contract.run import RunSpec
from lethe.kube import LEASES, KubeError

from lethe_spark.mailbox import Mailbox, MailboxMetrics
from lethe_spark.run.kube import PodApi, StatusConfigMap

log = logging.getLogger(__name__)

RENEW_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 30
WATCH_LIMIT_SECONDS: Final = 75.0
"""How long the mailbox may be silent: a watch answers at least when it ends, after WATCH_SECONDS."""
JVM_LIMIT_SECONDS: Final = 20.0
"""How long a ping of the JVM may take: longer than a garbage collection."""
HUNG_SECONDS: Final = 120.0
"""A JVM that has not answered for this time will not answer again."""

LEFT_TO_A_JOB = "LeftToAJob"
"""The outcome of a run that a Job carries out instead. It is no failure."""

INTERVAL_SECONDS: Final = 5.0
KEY: Final = "progress.json"


@dataclass
class CommitterHealth:
    """When the mailbox and the JVM last answered. No I/O."""

    mailbox_time: float | None = None
    """When the mailbox was last heard of, in monotonic seconds; None: never."""
    jvm_time: float | None = None
    """When the JVM last answered, in monotonic seconds; None: never."""

    def trouble(self, now: float) -> str:
        """Why this process cannot work; empty if it can."""
        if self.mailbox_time is None or now - self.mailbox_time > WATCH_LIMIT_SECONDS:
            return "the mailbox cannot be watched"
        if self.jvm_time is None or now - self.jvm_time > JVM_LIMIT_SECONDS:
            return "the JVM does not answer"
        return ""

    def is_hung(self, now: float) -> bool:
        """Whether the JVM has answered before, and not for the last HUNG_SECONDS; False while it starts."""
        return self.jvm_time is not None and now - self.jvm_time > HUNG_SECONDS


@dataclass
class Heartbeat:
    """Asks the JVM for an answer, and renews the Lease.

    The operator reads the Lease: it does not send runs to a committer whose `renewTime` is older than `leaseDurationSeconds`.
    """

    api: PodApi
    lease: str
    """Name of the Lease."""
    holder: str
    """The holder that the Lease names: this pod."""
    health: CommitterHealth
    answers: Callable[[], bool]
    """Whether the JVM answers. May block."""
    on_hung: Callable[[], object]
    """Called when the JVM has not answered for HUNG_SECONDS."""
    renew_seconds: float = RENEW_SECONDS
    """Time between two renewals."""
    stopped: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start two daemon threads: one asks the JVM, one renews the Lease. They work until `stopped` is set."""
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
        renewed = {"spec": renewal(self.holder, datetime.now(UTC))}
        try:
            self.api.kube.patch(LEASES, self.api.namespace, self.lease, renewed)
        except KubeError as e:
            return str(e)
        return ""


def renewal(holder: str, now: datetime) -> dict[str, Any]:
    """The spec of the Lease. Pure."""
    renewed = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}


class CommitterMetrics(MailboxMetrics):
    """The Prometheus metrics of the committer, one object per process."""

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
        """Count an ended run and observe its seconds. A run that needs Spark counts as `LeftToAJob`, not as failed."""
        left = result.outcome is RunOutcome.FAILED and result.reason == "NeedsSpark"
        self.run_ended(result.family, LEFT_TO_A_JOB if left else result.outcome.value, result.reason, seconds)


class LoggedPhases:
    """Logs phases. For upkeep, which is not reported to the operator."""

    def phase(self, phase: Phase, message: str = "") -> None:
        """Write the phase and the message to the log, at level DEBUG."""
        log.debug("%s %s", phase, message)


@dataclass(eq=False)
class RunReports:
    """The reports of one run. The first one was sent before this was made."""

    config_map: StatusConfigMap
    state: Progress
    """The current progress."""
    sent: Progress
    """The progress that was sent last."""
    sent_time: float
    """When it was sent: monotonic seconds."""
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def phase(self, phase: Phase, message: str = "") -> None:
        """Set the phase, and at most 1,000 characters of the message, for the next `send`; sends nothing itself."""
        tracing.note(phase.value)
        self.state = self.state.model_copy(update={"phase": phase, "message": message[:1000]})

    def ended(self, phase: Phase, message: str = "") -> Progress:
        """The final progress, which the caller sends together with the result. No report is sent after this."""
        with self._lock:
            self._closed = True
        self.phase(phase, message)
        return self._now()

    def send(self) -> None:
        """Send the progress if it has changed and the last report is INTERVAL_SECONDS ago."""
        with self._lock:
            if self._closed or self.state == self.sent or monotonic() < self.sent_time + INTERVAL_SECONDS:
                return
            self.sent, self.sent_time = self.state, monotonic()
            try:
                self.config_map.put(KEY, self._now().to_json())
            except KubeError as e:
                log.warning("progress could not be reported: %s", e)

    def _now(self) -> Progress:
        return self.state.model_copy(update={"updated_time": datetime.now(UTC)})


@dataclass
class Reporting:
    """Sends the reports of all runs in progress.

    Each patch makes the operator reconcile, so a run of a second reports no phases, only its result.
    """

    _runs: list[RunReports] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start a daemon thread that calls `send` of all runs in progress each second."""
        threading.Thread(target=self._work, name="lethe-progress", daemon=True).start()

    @contextmanager
    def of_run(self, spec: RunSpec, config_map: StatusConfigMap, begun: int) -> Iterator[RunReports]:
        """Report that a run began, for the `begun`th time, and its phases while the block is executed.

        Raises:
            KubeError: The first report cannot be sent.
        """
        now = datetime.now(UTC)
        first = Progress(run_id=spec.run_id, attempt=spec.attempt, phase=Phase.PLANNING, begun=begun, updated_time=now)
        config_map.put(KEY, first.to_json())
        reports = RunReports(config_map, first, first, monotonic())
        with self._lock:
            self._runs.append(reports)
        try:
            yield reports
        finally:
            with self._lock:
                self._runs.remove(reports)

    def _work(self) -> None:
        pause = threading.Event()
        while not pause.wait(1):
            with self._lock:
                runs = list(self._runs)
            for reports in runs:
                reports.send()
