"""Prometheus metrics of a process that serves a mailbox: the committer, and the warm driver. I/O: a port.

They start again at zero with the process. Only these processes know them: the operator counts the same runs by Dataset.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from lethe.contract.kind import RunFamily
from lethe.metrics_server import serve_metrics
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from lethe_spark.mailbox.entries import Mailbox

# Bounds of histograms, in seconds.
BUCKETS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


def metrics_port(environ: Mapping[str, str]) -> int | None:
    """The port of `/metrics`; None: no metrics are served."""
    return int(environ.get("LETHE_METRICS_PORT") or 0) or None


class MailboxMetrics:
    """One per process.

    Args:
        process: The prefix of all names, such as `lethe_committer`.
        namespace: The value of the label `namespace`.
        lock: Guards the mailbox.
    """

    def __init__(self, process: str, namespace: str, mailbox: Mailbox[Any], lock: threading.Condition) -> None:
        self.registry = CollectorRegistry()
        self._process = process
        self._namespace = namespace
        self._mailbox = mailbox
        self._lock = lock
        ProcessCollector(registry=self.registry)
        self._runs = Counter(
            f"{process}_runs_total",
            "Runs that ended, by kind, outcome and reason.",
            ("namespace", "kind", "outcome", "reason"),
            registry=self.registry,
        )
        self._durations = Histogram(
            f"{process}_run_duration_seconds",
            "Seconds from the start of a run to the delivery of its result.",
            ("namespace", "kind"),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._put_off = Counter(
            f"{process}_runs_put_off_total",
            "How often a run stayed in the mailbox because its documents could not be read or its result could not be delivered.",
            ("namespace",),
            registry=self.registry,
        )
        self._put_off.labels(namespace)
        self.gauge(
            "runs_waiting", "Runs in the mailbox that have not begun.", lambda: self._mailbox.waiting(monotonic())
        )
        self.gauge("runs_in_progress", "Runs in progress.", lambda: self._mailbox.runs_in_progress)
        self.gauge(
            "mailbox_oldest_age_seconds",
            "How long ago the oldest entry of the mailbox was made that is not done; 0 if there is none.",
            self._oldest_age,
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read, with the lock, when it is scraped."""

        def read() -> float:
            with self._lock:
                return float(value())

        gauge = Gauge(f"{self._process}_{name}", text, ("namespace",), registry=self.registry)
        gauge.labels(self._namespace).set_function(read)

    def counter(self, name: str, text: str) -> Counter:
        """Add a counter, which starts at 0. Its only label is the namespace."""
        added = Counter(f"{self._process}_{name}", text, ("namespace",), registry=self.registry)
        return added.labels(self._namespace)

    def run_ended(self, family: RunFamily, outcome: str, reason: str, seconds: float) -> None:
        self._runs.labels(self._namespace, family.value, outcome, reason).inc()
        self._durations.labels(self._namespace, family.value).observe(seconds)

    def put_off(self) -> None:
        self._put_off.labels(self._namespace).inc()

    def serve(self, port: int | None) -> None:
        """Serve `/metrics` on a port, in a thread; None: do not. Raises: OSError, if the port is in use."""
        if port is not None:
            serve_metrics(port, self.registry)

    def _oldest_age(self) -> float:
        oldest = self._mailbox.oldest_time(monotonic())
        return 0.0 if oldest is None else max(0.0, (datetime.now(UTC) - oldest).total_seconds())
