"""Opens the Spark session of a run: with as many executors as its plan needs, or without. I/O.

The run goes on with the executors that it gets. If it gets none, the driver works alone.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never

from lethe.base.errors import TransientError
from lethe.contract.executors import ExecutorRule
from lethe.contract.kind import RunKind
from lethe.contract.result import ExecutorState
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from lethe_spark.apps.session import make_session
from lethe_spark.run.arguments import Arguments, Scaling
from lethe_spark.run.context import RunContext
from lethe_spark.run.executors import ExecutorMonitor, ExecutorTracker, refusal_of
from lethe_spark.run.kube import Api
from lethe_spark.run.launching import QUICK_START, with_java_options
from lethe_spark.run.progress import Reporter

log = logging.getLogger(__name__)

_FEWEST: Final = "spark.dynamicAllocation.minExecutors"
_FIRST: Final = "spark.dynamicAllocation.initialExecutors"
_MOST: Final = "spark.dynamicAllocation.maxExecutors"
_CORES: Final = "spark.executor.cores"
_TEMPLATE: Final = "spark.kubernetes.executor.podTemplateFile"


class NoExecutors(TransientError):
    """All executors were lost, and no other one started in time."""

    def __init__(self, seconds: float, why: str) -> None:
        super().__init__(
            "NoExecutors",
            f"the run had no executor for {seconds:.0f} seconds while tasks waited. {why} What was committed stays, the next "
            "attempt does the rest.",
        )


@dataclass
class RunSession:
    """The session of one run."""

    spec: RunSpec
    given: Arguments
    reporter: Reporter
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event
    # None: the run has no executors.
    monitor: ExecutorMonitor | None = field(default=None, init=False)

    def open(self) -> RunContext:
        """Start Spark. With executors, wait until the first one runs. Raises: InputError, TransientError."""
        scaling = self.given.scaling
        if scaling is None:
            return self._context(
                make_session(self.spec.table.catalog, self._starting(self.given.confs), self.given.fresh)
            )
        # Otherwise a JVM that starts for a driver alone would use the loopback address for its executors later.
        os.environ.setdefault("SPARK_LOCAL_IP", self.given.confs.get("spark.driver.host", "127.0.0.1"))
        rule = rule_of(scaling, self.given.confs)
        most = rule.most
        read = bytes_by_plan(self.spec.kind) if scaling.by_plan else None
        if read is not None:
            context = self._alone(scaling)
            planned = read(context)
            most = rule.executors(planned)
            log.info("the run reads %d bytes, so it gets %d executors", planned, most)
            if not most:
                return context
            context.spark.stop()
        return self._scaled(scaling, most)

    def close(self) -> None:
        """Stop the observation of executors. The session remains."""
        if self.monitor is not None:
            self.monitor.close()

    def error(self, error: Exception) -> Exception:
        """The cause of a failure of the run."""
        monitor = self.monitor
        if monitor is None or not monitor.starved:
            return error
        return NoExecutors(monitor.tracker.wait_seconds, monitor.tracker.why_none())

    def _scaled(self, scaling: Scaling, most: int) -> RunContext:
        fewest = min(int(self.given.confs[_FEWEST]), most)
        confs = {**self.given.confs, _FEWEST: str(fewest), _FIRST: str(most), _MOST: str(most)}
        spark = make_session(self.spec.table.catalog, self._starting(confs))
        api, template = Api.from_environment(os.environ), Path(confs[_TEMPLATE])
        tracker = ExecutorTracker(
            most, int(confs[_CORES]), scaling.wait_seconds, lambda: refusal_of(api, template, confs)
        )
        monitor = ExecutorMonitor(spark.sparkContext, tracker, self.reporter, spark.sparkContext.cancelAllJobs)
        if monitor.wait_for_first(self.cancelled) or self.cancelled.is_set():
            self.monitor = monitor
            monitor.start()
            return self._context(spark)
        why = f"No executor started within {scaling.wait_seconds:.0f} seconds, so the driver works alone."
        why = f"{why} {tracker.why_none()}"
        log.warning("%s", why)
        spark.stop()
        context = self._alone(scaling)
        self.reporter.executors(ExecutorState(planned=most, running=0, message=why, alone=True))
        return context

    def _alone(self, scaling: Scaling) -> RunContext:
        """A session whose driver works without executors."""
        confs = {"spark.app.name": self.given.confs["spark.app.name"], "spark.master": f"local[{scaling.alone_cores}]"}
        return self._context(make_session(self.spec.table.catalog, self._starting(confs)))

    def _starting(self, confs: Mapping[str, str]) -> Mapping[str, str]:
        """The settings to start Java with. Of a consolidation, Python does most of the work."""
        of_python = self.spec.kind in (RunKind.CONSOLIDATION, RunKind.REANCHORING)
        return with_java_options(confs, QUICK_START) if of_python else confs

    def _context(self, spark: SparkSession) -> RunContext:
        self.reporter.watch(spark.sparkContext)
        return RunContext(self.spec, self.reporter, self.catalog_properties, self.cancelled, spark=spark)


def rule_of(scaling: Scaling, confs: Mapping[str, str]) -> ExecutorRule:
    """The rule for the number of executors, with the limits of the run's settings."""
    return ExecutorRule(scaling.alone_cores, int(confs[_CORES]), int(confs[_FEWEST]), int(confs[_MOST]))


def bytes_by_plan(kind: RunKind) -> Callable[[RunContext], int] | None:
    """What finds out how many bytes a run of this kind reads; None: the operator knows it."""
    match kind:
        case RunKind.VACUUM:
            from lethe_spark.jobs.vacuum import job as vacuum

            return vacuum.bytes_to_read
        case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT | RunKind.ERASURE_CHECK:
            return None
        case _:
            assert_never(kind)
