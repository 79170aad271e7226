"""Reports the progress and the result of a run: in a pod to a ConfigMap and as termination message, otherwise to stdout. I/O.

`progress.json` is written at each change of phase, and at most every five seconds in between, in one separate thread, so that a
slow API server does not delay the run, and documents keep their order. Failures to report progress are only logged.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Final, Protocol, TypeVar

from lethe import tracing
from lethe.base.errors import EXIT_INPUT, LetheError
from lethe.contract.result import ExecutorState, Phase, Progress, RestatementGroupResult, RunOutcome, RunResult
from lethe.contract.run import INLINE_BYTES_AT_MOST, ResultPointer, RunSpec, TableRef
from lethe.contract.settings import RunFamily
from lethe.iceberg import catalogs, run_documents
from lethe.kube import KubeError, NotFound
from lethe.process import since_last_report
from lethe.version import version
from pyspark import SparkContext

from lethe_spark.run.kube import StatusConfigMap

log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 5.0
PROGRESS_FILE: Final = "LETHE_PROGRESS_FILE"

TERMINATION_LOG: Final = "/dev/termination-log"
TERMINATION_LOG_ENV: Final = "LETHE_TERMINATION_LOG"
LARGEST: Final = INLINE_BYTES_AT_MOST
TRIES: Final = 5
R = TypeVar("R", bound=RunResult)


class ProgressSink(Protocol):
    """Takes the progress of a run to where the operator or a person reads it."""

    def __call__(self, progress: Progress) -> None:
        """Write the whole progress. It may replace what was written before.

        Raises:
            OSError: The file or the stream cannot be written.
            KubeError: The ConfigMap cannot be patched.
        """


def sink_of(environ: Mapping[str, str]) -> ProgressSink:
    """The ConfigMap, if the operator launched the run; else the file in LETHE_PROGRESS_FILE; else stderr."""
    if config_map := StatusConfigMap.from_environment(environ):
        return lambda progress: config_map.put("progress.json", progress.to_json())
    if path := environ.get(PROGRESS_FILE):
        return lambda progress: _replace(Path(path), progress.to_json())
    return lambda progress: print(_line(progress), file=sys.stderr, flush=True)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old document or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _line(p: Progress) -> str:
    tasks = f" · {p.tasks_done}/{p.tasks_total} tasks" if p.tasks_total else ""
    rows = f" · {p.rows} rows" if p.rows else ""
    return f"{p.updated_time:%H:%M:%S} {p.phase}{tasks}{rows}{' · ' + p.message if p.message else ''}"


class Reporter:
    """Reports one run.

    Args:
        tasks: Returns the number of finished tasks and of all tasks in Spark's active jobs. None: tasks are not counted.
        interval: Seconds between two reports within a phase.
    """

    def __init__(
        self,
        spec: RunSpec,
        sink: ProgressSink,
        tasks: Callable[[], tuple[int, int]] | None = None,
        interval: float = INTERVAL_SECONDS,
    ) -> None:
        self._sink = sink
        self._tasks = tasks
        self._interval = interval
        self._lock = threading.Condition()
        self._state = Progress(
            run_id=spec.run_id, attempt=spec.attempt, phase=Phase.STARTING, updated_time=datetime.now(UTC)
        )
        self._urgent = True
        self._closed = False
        self._thread = threading.Thread(target=self._report, name="lethe-progress", daemon=True)
        self._thread.start()

    def watch(self, context: SparkContext) -> None:
        """Count the tasks of this Spark context from now on."""
        self._tasks = lambda: running_tasks(context)

    def phase(self, phase: Phase, message: str = "") -> None:
        """Set the phase and at most 1,000 characters of the message, reset the counted tasks, and report at once."""
        tracing.note(phase.value)
        with self._lock:
            self._state = self._state.model_copy(
                update={"phase": phase, "message": message[:1000], "tasks_done": 0, "tasks_total": 0}
            )
            self._urgent = True
            self._lock.notify()

    def rows(self, rows: int, size: int = 0) -> None:
        """Set the number of rows and bytes that this run reads or writes."""
        with self._lock:
            self._state = self._state.model_copy(update={"rows": rows, "bytes": size})

    def executors(self, state: ExecutorState | None) -> None:
        """Set the state of the run's executors; None: it has none."""
        with self._lock:
            old = self._state.executors
            self._state = self._state.model_copy(update={"executors": state})
            if state is not None and (old is None or (old.message, old.alone) != (state.message, state.alone)):
                self._urgent = True
                self._lock.notify()

    def close(self, phase: Phase, message: str = "") -> None:
        """Report the end of the run, and wait up to 15 seconds for the report."""
        self.phase(phase, message)
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(timeout=15)

    def _report(self) -> None:
        last: Progress | None = None
        due = 0.0
        while True:
            with self._lock:
                while not (self._urgent or self._closed) and monotonic() < due:
                    self._lock.wait(due - monotonic())
                closed, urgent, self._urgent = self._closed, self._urgent, False
                state = self._state
            due = monotonic() + self._interval
            if closed and not urgent:
                return
            current = self._counted(state)
            if urgent or last is None or current != last:
                self._send(current.model_copy(update={"updated_time": datetime.now(UTC)}))
                last = current
            if closed:
                return

    def _counted(self, state: Progress) -> Progress:
        if self._tasks is None or state.phase in (Phase.SUCCEEDED, Phase.FAILED):
            return state
        try:
            done, total = self._tasks()
        except Exception:  # the JVM may be shutting down
            return state
        return state.model_copy(update={"tasks_done": done, "tasks_total": total})

    def _send(self, progress: Progress) -> None:
        try:
            self._sink(progress)
        except (OSError, KubeError) as e:
            log.warning("progress could not be reported: %s", e)


def running_tasks(context: SparkContext) -> tuple[int, int]:
    """The number of finished tasks and of all tasks, in all stages of the active jobs."""
    tracker = context.statusTracker()
    stages = {s for job in tracker.getActiveJobsIds() if (info := tracker.getJobInfo(job)) for s in info.stageIds}
    stages_found = [info for stage in stages if (info := tracker.getStageInfo(stage))]
    return sum(s.numCompletedTasks for s in stages_found), sum(s.numTasks for s in stages_found)


class Asked(Protocol):
    """Identifies a run: a `run.json`, or a document that points to one."""

    @property
    def run_id(self) -> str:
        """The id of the run, which all its attempts have in common."""

    @property
    def family(self) -> RunFamily:
        """The name of the run's kind in results."""

    @property
    def attempt(self) -> int:
        """The number of the attempt, which its result repeats."""


def failed(asked: Asked, error: LetheError) -> RunResult:
    """The result of a run that ended with an error: a reason and full sentences, no stack trace. Pure, except for the clock."""
    return RunResult(
        run_id=asked.run_id,
        family=asked.family,
        attempt=asked.attempt,
        outcome=RunOutcome.FAILED,
        reason=error.reason,
        permanent=error.exit_code == EXIT_INPUT,
        message=error.message[:2000],
        finished_time=datetime.now(UTC),
        version=version(),
    )


def of_this_process(result: R) -> R:
    """The result, with the version of this process, and with the processor time that it has used since its last result."""
    return result.model_copy(update={"version": version(), "cpu_seconds": since_last_report()})


def deliver(result: RunResult, environ: Mapping[str, str], table: TableRef | None = None) -> bool:
    """Report the result, and return whether it was reported. Never raises, because the table already contains what was committed.

    Args:
        environ: Says where to report.
        table: A large result is written to this table's folder of runs. None: its lists are cut instead.
    """
    result = of_this_process(result)
    log_file = Path(environ.get(TERMINATION_LOG_ENV, TERMINATION_LOG))
    if log_file.exists():
        try:
            log_file.write_text(result.compact())
        except OSError as e:
            log.warning("the termination message could not be written: %s", e)
    config_map = StatusConfigMap.from_environment(environ)
    if config_map is None:
        print(result.to_json(), flush=True)
        return True
    try:
        put(config_map, {"result.json": for_config_map(result, table)})
    except KubeError as e:
        log.warning("the result could not be reported: %s", e)
        return False
    return True


def put(config_map: StatusConfigMap, documents: Mapping[str, str]) -> None:
    """Put documents into a ConfigMap, with retries.

    Raises:
        NotFound: It does not exist.
        KubeError: The API server rejected each attempt, or did not answer.
    """
    for attempt in range(1, TRIES + 1):
        try:
            config_map.put_all(documents)
            return
        except KubeError as e:
            if attempt == TRIES or isinstance(e, NotFound):
                raise
            log.warning("attempt %d of %d to report the result failed: %s", attempt, TRIES, e)
            time.sleep(attempt)


def for_config_map(result: RunResult, table: TableRef | None) -> str:
    """The result as JSON, or a pointer to it if it is too large for the ConfigMap, which several results share.

    Never raises: if the large result cannot be written to the table's folder of runs, its lists are cut.
    """
    whole = result.to_json()
    if table is not None and len(whole.encode()) > LARGEST:
        try:
            folder = run_documents.folder(catalogs.load(table.catalog).load_table(table.name).location())
            uri = f"{folder}/{result.run_id}-result-{result.attempt}.json"
            digest = run_documents.write(table.catalog, uri, whole)
        except Exception as e:
            log.warning("the result could not be written to the table's folder and is truncated: %s", type(e).__name__)
        else:
            pointer = ResultPointer(
                catalog=table.catalog, uri=uri, sha256=digest, run_id=result.run_id, attempt=result.attempt
            )
            return pointer.to_json()
    return bounded(result)


def bounded(result: RunResult) -> str:
    """The result as JSON, small enough for the ConfigMap: lists are cut, counts stay. Pure.

    The list of requests keeps those that were not carried out, because the table's ledger contains the others.
    """
    whole = result.to_json()
    if len(whole.encode()) <= LARGEST:
        return whole
    if not isinstance(result, RestatementGroupResult):
        return result.compact()
    refused = tuple(r for r in result.requests if not r.succeeded)
    while True:
        document = result.model_copy(update={"requests": refused}).to_json()
        if len(document.encode()) <= LARGEST:
            return document
        if not refused:
            return result.compact()
        refused = refused[: len(refused) // 2]
