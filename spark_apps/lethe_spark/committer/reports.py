"""How far runs are, told to the operator: that each was begun, and the phase of those that take long.

I/O, most of it in a thread of its own. A run that is over in a second is told of by its result: each patch makes the operator
look.
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

from lethe.contract.result import Phase, Progress
from lethe.contract.run import RunSpec

from lethe_spark.run.kube import StatusConfigMap

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
KEY: Final = "progress.json"


class Unheard:
    """For work that nobody waits for."""

    def phase(self, phase: Phase, message: str = "") -> None:
        log.debug("%s %s", phase, message)


@dataclass(eq=False)
class RunReports:
    """The reports of one run, the first of which is told."""

    place: StatusConfigMap
    state: Progress
    told: Progress
    told_time: float
    _closed: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def phase(self, phase: Phase, message: str = "") -> None:
        self.state = self.state.model_copy(update={"phase": phase, "message": message[:1000]})

    def ended(self, phase: Phase, message: str = "") -> Progress:
        """The last word, for whoever tells it beside the result. Nothing else is told after it."""
        with self._lock:
            self._closed = True
        self.phase(phase, message)
        return self._now()

    def tell(self) -> None:
        """Tell what is new, if the last time is long enough ago."""
        with self._lock:
            if self._closed or self.state == self.told or monotonic() < self.told_time + INTERVAL_SECONDS:
                return
            self.told, self.told_time = self.state, monotonic()
            try:
                self.place.put(KEY, self._now().to_json())
            except (OSError, HTTPException) as e:
                log.warning("progress could not be reported: %s", e)

    def _now(self) -> Progress:
        return self.state.model_copy(update={"updated_time": datetime.now(UTC)})


@dataclass
class Reporting:
    """The reports of all runs that are under way."""

    _runs: list[RunReports] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        threading.Thread(target=self._work, name="lethe-progress", daemon=True).start()

    @contextmanager
    def of_run(self, spec: RunSpec, place: StatusConfigMap, begun: int) -> Iterator[RunReports]:
        """Tell that a run is begun, for the `begun`th time, and report it as long as the block lasts.

        Raises: ApiError, OSError, HTTPException, if the first cannot be told.
        """
        now = datetime.now(UTC)
        first = Progress(run_id=spec.run_id, attempt=spec.attempt, phase=Phase.PLANNING, begun=begun, updated_time=now)
        place.put(KEY, first.to_json())
        reports = RunReports(place, first, first, monotonic())
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
                reports.tell()
