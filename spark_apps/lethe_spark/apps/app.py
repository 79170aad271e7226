"""The entry point of all applications: arguments -> run.json -> a job -> result and exit code. I/O.

    python -m lethe_spark.apps.app [--run FILE] [--conf k=v …]

Exit codes: 0 done, or nothing to do; 10 permanent error, the user has to change something; 20 transient error or SIGTERM, try
again. Stack traces go to the log on stderr, with the catalog's secrets redacted; never into a result.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

from lethe import tracing
from lethe.base.errors import EXIT_DONE, EXIT_INPUT, EXIT_TRANSIENT
from lethe.contract.result import Phase, RunResult, log_fields, span_attributes
from lethe.contract.run import RunKind, RunSpec
from lethe.guards.boundary import require_run_within
from lethe.iceberg import catalogs
from lethe.logs import process_is_about
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lethe_spark.apps.session import RunSession
from lethe_spark.jvm.errors import understood
from lethe_spark.run import context as run_context
from lethe_spark.run import progress
from lethe_spark.run.context import Cancelled, RunContext, crash_point
from lethe_spark.run.redact import RedactingFormatter, forbid_core_dumps, log_to_stderr, secrets_of

log = logging.getLogger("lethe_spark")

STOP_SECONDS: Final = 30
"""The longest wait for Spark to stop."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out the run and return the exit code."""
    forbid_core_dumps()
    formatter = log_to_stderr()
    tracing.start("lethe-run")
    invocation, settings = run_context.parse(sys.argv[1:] if argv is None else argv, os.environ)
    cancelled = threading.Event()
    cancel_on_sigterm(cancelled)
    return carry_out(invocation, settings, cancelled, formatter).code


@dataclass(frozen=True)
class RunEnd:
    """The end of a run."""

    code: int
    """The exit code."""
    delivered: bool
    """Whether its result was reported."""


def carry_out(
    invocation: run_context.RunInvocation,
    settings: run_context.Arguments,
    cancelled: threading.Event,
    formatter: RedactingFormatter,
    on_error: Callable[[], object] = lambda: None,
) -> RunEnd:
    """Carry out one run.

    Args:
        on_error: Called when the run has failed, before its result is reported.
    """
    try:
        spec = run_context.load_run(invocation.run_file)
    except Exception as e:
        error = understood(e)
        log.error("%s", error, exc_info=e)
        print(f"{error}", file=sys.stderr)
        asked = run_context.identity_of(invocation.run_file)
        delivered = asked is not None and progress.deliver(progress.failed(asked, error), invocation.environ)
        return RunEnd(error.exit_code, delivered)
    process_is_about(**log_fields(spec))
    if cancelled.is_set():
        error = Cancelled()
        return RunEnd(error.exit_code, progress.deliver(progress.failed(spec, error), invocation.environ))
    log.info("run %s of Dataset %s, attempt %d", spec.run_id, spec.dataset.claim, spec.attempt)
    with tracing.span(f"run {spec.family}", span_attributes(spec), spec.traceparent):
        end = _work(spec, invocation, settings, cancelled, formatter, on_error)
        tracing.describe({"lethe.run.exit_code": end.code})
    return end


def _work(
    spec: RunSpec,
    invocation: run_context.RunInvocation,
    settings: run_context.Arguments,
    cancelled: threading.Event,
    formatter: RedactingFormatter,
    on_error: Callable[[], object],
) -> RunEnd:
    reporter = progress.Reporter(spec, progress.sink_of(invocation.environ))
    session: RunSession | None = None
    try:
        require_run_within(spec)
        properties = catalogs.properties(spec.table.catalog)
        formatter.secrets |= secrets_of(properties)
        session = RunSession(spec, settings, reporter, properties, cancelled)
        with tracing.span("start Spark"):
            context = session.open()
        context.step("after-start")
        done = job_of(spec.kind)(context)
        code = EXIT_DONE
    except Exception as e:
        on_error()
        error = Cancelled() if cancelled.is_set() else understood(session.error(e) if session is not None else e)
        log.error("%s", error, exc_info=e)
        done, code = progress.failed(spec, error), error.exit_code
    if session is not None:
        session.close()
        done = done.model_copy(update={"executor_cpu_seconds": session.executor_core_seconds})
    return RunEnd(code, _deliver(spec, done, reporter, invocation.environ, code))


def job_of(kind: RunKind) -> Callable[[RunContext], RunResult]:
    """The job that carries out a kind of run. Imported on use, so that a vacuum does not load what a consolidation needs."""
    match kind:
        case RunKind.CONSOLIDATION:
            from lethe_spark.jobs.consolidation import job as consolidation

            return consolidation.run
        case RunKind.REANCHORING:
            from lethe_spark.jobs.consolidation import job as consolidation

            return consolidation.run_reanchoring
        case RunKind.RESTATEMENT:
            from lethe_spark.jobs.restatement import job as restatement

            return restatement.run
        case RunKind.VACUUM:
            from lethe_spark.jobs.vacuum import job as vacuum

            return vacuum.run
        case RunKind.ERASURE_CHECK:
            from lethe_spark.jobs.vacuum import job as vacuum

            return vacuum.run_erasure_check
        case _:
            assert_never(kind)


def _deliver(
    spec: RunSpec, done: RunResult, reporter: progress.Reporter, environ: Mapping[str, str], code: int
) -> bool:
    crash_point("before-result")
    reporter.close(Phase.SUCCEEDED if code == EXIT_DONE else Phase.FAILED, done.message)
    delivered = progress.deliver(done, environ, spec.table)
    if code == EXIT_INPUT:
        log.error("run %s is not retried until the user changes something: %s", spec.run_id, done.reason)
    return delivered


def cancel_on_sigterm(cancelled: threading.Event) -> None:
    """Cancel Spark's jobs from a second thread. The main thread may be in a call to the JVM, whose connection it occupies."""

    def cancel_jobs() -> None:
        while True:  # also jobs that start before the run reaches its next step; ends with the process
            context = SparkContext._active_spark_context
            if context is not None:
                try:
                    context.cancelAllJobs()
                except Exception as e:
                    log.warning("cancelling Spark jobs: %s", type(e).__name__)
            time.sleep(1)

    def on_sigterm(_signal: int, _frame: Any) -> None:
        if not cancelled.is_set():
            cancelled.set()
            threading.Thread(target=cancel_jobs, name="lethe-cancel", daemon=True).start()

    signal.signal(signal.SIGTERM, on_sigterm)


def stop_spark() -> None:
    """Stop the session and its executors. A JVM that hangs ends with this process."""
    session = SparkSession.getActiveSession()
    if session is None:
        return
    stopping = threading.Thread(target=session.stop, name="lethe-stop", daemon=True)
    stopping.start()
    stopping.join(STOP_SECONDS)


if __name__ == "__main__":
    exit_code = EXIT_TRANSIENT
    try:
        exit_code = main()
        stop_spark()
        tracing.stop()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    # sys.exit would wait for a callback thread of py4j.
    os._exit(exit_code)
