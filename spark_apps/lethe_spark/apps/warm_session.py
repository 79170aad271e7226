"""The Spark session of a warm driver: carries out the runs that its supervisor hands over, one after the other. I/O.

    python -m lethe_spark.apps.warm_session [--conf k=v …]

Each run has a new SparkSession, a new thread and its own working directory. After each run, what it cached, registered or set is
removed, and the memory that remains is reported. The supervisor ends this process if that is too much, if the run exceeds its
limits, or if it does not answer. So nothing here has to survive a broken run.
"""

import logging
import os
import select
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from lethe import tracing
from lethe.base.errors import EXIT_TRANSIENT, LetheError
from lethe.contract.result import BEGINNING, log_fields
from lethe.logs import process_is_about
from pyspark.sql import SparkSession

from lethe_spark.apps import app
from lethe_spark.apps.session import started_session
from lethe_spark.jvm.errors import understood
from lethe_spark.jvm.gateway import delete_shuffles, heap_after_collection, is_jvm_alive
from lethe_spark.jvm.scan_tasks import forget_staged
from lethe_spark.run import context, progress
from lethe_spark.run.handover import ANSWERS, Handover, SessionAnswer
from lethe_spark.run.launching import QUICK_START, with_java_options
from lethe_spark.run.redact import RedactingFormatter, forbid_core_dumps, log_to_stderr

log = logging.getLogger("lethe_spark.apps.warm_session")  # not __name__, which is __main__ here

OPTIONS: Final = f"-XX:+ExitOnOutOfMemoryError {QUICK_START}"
"""The JVM must not run on after it was out of memory."""
SMALL_RUNS: Final = {"spark.shuffle.compress": "false"}
"""Blocks of rows are compressed already, and other shuffles of a small run fit on the disk as they are."""
GONE: Final = 1
IDLE_SECONDS: Final = 1.0
"""A session that gets no run for so long loads what the first run would have to load."""
ENDS_WITHIN_SECONDS: Final = 2.0
"""A JVM that is ending may do so for this time after its last call has failed."""


def main() -> int:
    """Serve until the standard input ends or SIGTERM.

    Returns:
        The exit code.
    """
    forbid_core_dumps()
    formatter = log_to_stderr()
    tracing.start("lethe-run")
    confs = with_java_options({**SMALL_RUNS, **context.parse(sys.argv[1:], {})[1].confs}, OPTIONS)
    cancelled = threading.Event()
    with os.fdopen(int(os.environ[ANSWERS]), "w", buffering=1) as answers:
        threading.Thread(target=load_jobs, name="lethe-imports", daemon=True).start()  # while the JVM starts
        base = started_session(confs)
        app.cancel_on_sigterm(cancelled)
        _answer(answers, SessionAnswer(ready=True))
        if not select.select([sys.stdin], [], [], IDLE_SECONDS)[0]:
            warm_up(base)  # a run that waits already does this by itself
        for line in sys.stdin:
            handover = Handover.of(line)
            delivered = _in_a_thread_of_its_own(handover, base, cancelled, formatter)
            _answer(answers, SessionAnswer(ready=False, delivered=delivered))
            if cancelled.is_set() or not is_jvm_alive(base):
                return GONE
            _answer(answers, cleaned_up(base))
    return 0


def _answer(answers: TextIO, answer: SessionAnswer) -> None:
    print(answer.line(), file=answers, flush=True)


def load_jobs() -> None:
    """Load the modules of the jobs."""
    import lethe_spark.jobs.consolidation.job
    import lethe_spark.jobs.restatement.job
    import lethe_spark.jobs.vacuum.job  # noqa: F401


def warm_up(session: SparkSession) -> None:
    """Start the daemon that forks Python workers, with a shuffle between them.

    Failures do not matter here: a run reports them.
    """
    try:
        pairs = session.sparkContext.parallelize([(0, b""), (1, b"")], 2)
        pairs.mapPartitions(lambda of_one: of_one).partitionBy(2, int).values().collect()
    except Exception as e:
        log.warning("warming up: %s", type(e).__name__)


def _in_a_thread_of_its_own(
    handover: Handover, base: SparkSession, cancelled: threading.Event, formatter: RedactingFormatter
) -> bool:
    """Carry out a run in a new thread.

    It has a thread of its own in the JVM, without the local properties and the active session of earlier ones.

    Returns:
        Whether its result was delivered.
    """
    outcome: list[bool] = []

    def work() -> None:
        outcome.append(_carry_out(handover, base, cancelled, formatter))

    thread = threading.Thread(target=work, name="lethe-run")
    thread.start()
    thread.join()
    return bool(outcome) and outcome[0]


def _carry_out(
    handover: Handover, base: SparkSession, cancelled: threading.Event, formatter: RedactingFormatter
) -> bool:
    environ = {
        **os.environ,
        "LETHE_STATUS_CONFIGMAP": handover.config_map,
        "LETHE_STATUS_PREFIX": handover.prefix,
        "LETHE_TERMINATION_LOG": os.devnull,
    }
    with _working_in(Path(handover.folder)):
        path = Path(handover.run_file)
        try:
            spec = context.load_run(path)
        except Exception as e:
            error = understood(e)
            log.error("run %s: %s", handover.run_id, error, exc_info=e)
            return _refused(handover, error, environ)
        if (spec.run_id, spec.family, spec.attempt) != (handover.run_id, handover.family, handover.attempt):
            log.info("run %s, attempt %d, was replaced by another one", handover.run_id, handover.attempt)
            return True
        process_is_about(**log_fields(spec))
        log.info("%s%s", BEGINNING, spec.attempt_name)
        done = app.carry_out(
            context.RunInvocation(path, environ),
            context.Arguments({}, fresh=True),
            cancelled,
            formatter,
            on_error=lambda: _end_with_jvm(base),
        )
        process_is_about()  # the next lines are not about this run
        return done.delivered


def _end_with_jvm(base: SparkSession) -> None:
    """If the JVM has ended, end without a result: the supervisor reports that, because the run may not be the cause."""
    if not is_jvm_alive(base, ENDS_WITHIN_SECONDS):
        log.error("the JVM has ended")
        sys.stderr.flush()
        os._exit(GONE)


def _refused(handover: Handover, error: LetheError, environ: Mapping[str, str]) -> bool:
    """Deliver the result of a run whose document cannot be read.

    Returns:
        Whether it was delivered.
    """
    return progress.deliver(progress.failed(handover, error), environ)


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Temporary files of Python go into the folder, which is removed afterwards. Variables that the run sets are removed, too."""
    before, directory, variables = tempfile.tempdir, Path.cwd(), dict(os.environ)
    tempfile.tempdir = str(folder)
    os.chdir(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(variables)
        shutil.rmtree(folder, ignore_errors=True)


def cleaned_up(base: SparkSession) -> SessionAnswer:
    """Remove what a run left in the session, and measure what remains."""
    with suppress(Exception):  # the heap shows whether it helped
        base.catalog.clearCache()
        for frame in dict(base.sparkContext._jsc.getPersistentRDDs()).values():
            frame.unpersist(True)
        forget_staged()
        delete_shuffles(base)
    # Also if the heap is nearly empty: Spark deletes local files of broadcasts only after their objects have been collected.
    used, most = heap_after_collection(base)
    return SessionAnswer(ready=True, heap_used=used, heap_max=most)


if __name__ == "__main__":
    exit_code = EXIT_TRANSIENT
    try:
        exit_code = main()
        tracing.stop()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # sys.exit would wait for threads of py4j.
        os._exit(exit_code)
