"""Report the progress of runs to the operator: that each began, and the phases of long ones.

I/O, most of it in one thread. Each patch makes the operator reconcile, so a run of a second reports no phases, only its result.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPException
from time import monotonic
from typing import Final

from lethe import tracing
from lethe.contract.result import Phase, Progress
from lethe.contract.run import RunSpec

from lethe_spark.run.kube import StatusConfigMap

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
KEY: Final = "progress.json"


class LoggedPhases:
    """Logs phases. For upkeep, which is not reported to the operator."""

    def phase(self, phase: Phase, message: str = "") -> None:
        log.debug("%s %s", phase, message)


@dataclass(eq=False)
class RunReports:
    """The reports of one run. The first one was sent before this was made."""

    config_map: StatusConfigMap
    # The current progress.
    state: Progress
    # The progress that was sent last.
    sent: Progress
    # When it was sent: monotonic seconds.
    sent_time: float
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def phase(self, phase: Phase, message: str = "") -> None:
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
            except (OSError, HTTPException) as e:
                log.warning("progress could not be reported: %s", e)

    def _now(self) -> Progress:
        return self.state.model_copy(update={"updated_time": datetime.now(UTC)})


@dataclass
class Reporting:
    """Sends the reports of all runs in progress."""

    _runs: list[RunReports] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        threading.Thread(target=self._work, name="lethe-progress", daemon=True).start()

    @contextmanager
    def of_run(self, spec: RunSpec, config_map: StatusConfigMap, begun: int) -> Iterator[RunReports]:
        """Report that a run began, for the `begun`th time, and its phases while the block is executed.

        Raises: ApiError, OSError, HTTPException, if the first report cannot be sent.
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
