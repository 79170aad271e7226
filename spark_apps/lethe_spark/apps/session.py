"""Makes the SparkSession of a run, with as many executors as its plan needs, or none. I/O: starts a JVM.

Invariant: no secret is part of a command line or of Spark's configuration file. The settings of the catalog, with its
credentials, are set on the session after the JVM has started. Iceberg sends them to executors in its serialized tables.
"""

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, assert_never

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import ExecutorState
from lethe.contract.run import RunSpec
from lethe.contract.settings import ExecutorRule, RunKind
from lethe.iceberg import catalogs
from lethe.jars.provide import FOLDER_ENV, provide
from lethe.storage import azure
from lethe.uri import Backend, backend_of
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lethe_spark.jvm.gateway import activate, has_class
from lethe_spark.run import executors, java
from lethe_spark.run.context import Arguments, RunContext, Scaling
from lethe_spark.run.executors import ExecutorMonitor, ExecutorTracker, refusal_of
from lethe_spark.run.kube import DRIVER, PodApi
from lethe_spark.run.launching import QUICK_START, lacks_iceberg, launch_confs, with_java_options
from lethe_spark.run.progress import Reporter
from lethe_spark.sql import rest_servers

log = logging.getLogger(__name__)

_CLIENTS: Final[Mapping[Backend | None, str]] = {
    Backend.GCS: "com.google.cloud.storage.Storage",
    Backend.AZURE: "com.azure.storage.file.datalake.DataLakeFileSystemClient",
}
"""The client libraries that Iceberg's FileIO of a store needs, and that are not in the image."""

_FEWEST: Final = "spark.dynamicAllocation.minExecutors"
_FIRST: Final = "spark.dynamicAllocation.initialExecutors"
_MOST: Final = "spark.dynamicAllocation.maxExecutors"
_CORES: Final = "spark.executor.cores"
_TEMPLATE: Final = "spark.kubernetes.executor.podTemplateFile"


def make_session(catalog: str, confs: Mapping[str, str] | None = None, fresh: bool = False) -> SparkSession:
    """Make or get the session of this process, with `catalog` configured as in `.pyiceberg.yaml`.

    Example: `spark = lethe_spark.make_session("main")`

    Args:
        catalog: The name of the catalog, for PyIceberg and for Spark.
        confs: Spark settings (`spark.master`, sizes, …). They override the defaults. Ignored if the process has a session.
        fresh: Make a new session, without the settings, views and opened catalogs of earlier ones in this process.

    TransientError: `JarsNotDownloaded`.

    Returns:
        The session. A second call with another catalog adds the catalog to it, unless `fresh`.

    Raises:
        InputError: `UnknownCatalog`. `UnsupportedCatalog`, also if a jar for its store is missing. `CatalogNotServed`, if the
            catalog has type hadoop and an existing session has Spark's own catalog of that name. `UnsupportedSpark`,
            `JavaMissing`, `UnsupportedJava`, `JarsMissing`.
    """
    properties = catalogs.properties(catalog)
    settings = {} if catalogs.is_folder(properties) else rest_servers.spark_properties(catalog, properties)
    session = started_session(confs)
    if fresh:
        session = session.newSession()
        activate(session)
    if catalogs.is_folder(properties):
        settings = rest_servers.serve(session, catalog, properties)
    _require_client(session, catalog, properties)
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def started_session(confs: Mapping[str, str] | None = None) -> SparkSession:
    """Make or get the session of this process, without a catalog."""
    context = SparkContext._active_spark_context or _start(confs or {})
    context.setLogLevel("WARN")
    return SparkSession.builder.getOrCreate()


def _require_client(session: SparkSession, catalog: str, properties: Mapping[str, str]) -> None:
    """Require that the JVM has a client for the store of the warehouse.

    Raises:
        InputError: `UnsupportedCatalog`, if Iceberg cannot open files of the warehouse without a further jar, or with these
            credentials.
    """
    warehouse = properties.get("warehouse", "")
    client = _CLIENTS.get(backend_of(warehouse))
    if client is not None and "spark.io-impl" not in properties and not has_class(session, client):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog} has its warehouse in {warehouse}, and Spark's class path has no {client}, which Iceberg needs "
            "to open files there. See docs/stores.md for stores and their jars, or use another warehouse.",
        )
    if unusable := azure.only_for_buffers(properties):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog} has its warehouse in Azure, and {unusable}, which is for buffers only. Expected for tables: an "
            "account key, a signature (SAS), or the identity of the pods. See docs/stores.md.",
        )


def _with_secret(confs: Mapping[str, str]) -> dict[str, str]:
    """The settings with the secret for executors, if there are any."""
    return {**confs, **(executors.provide(os.environ) if confs.get("spark.master", "").startswith("k8s:") else {})}


def _forget_earlier() -> None:
    """Remove what an earlier context of this process left in the JVM.

    Its settings, which Spark would take as defaults, and the secret of a driver that works alone, which Spark would
    prefer to the one that executors have.
    """
    gateway = SparkContext._gateway
    if gateway is None:
        return
    system = gateway.jvm.java.lang.System
    for name in list(system.getProperties().stringPropertyNames()):
        if name.startswith("spark."):
            system.clearProperty(name)
    # Hadoop's user keeps the secret. A new login has none.
    gateway.jvm.org.apache.hadoop.security.UserGroupInformation.loginUserFromSubject(None)


def _start(settings: Mapping[str, str]) -> SparkContext:
    """Start the Spark context with these settings.

    Raises:
        Exception: As `make_session`, for Spark, Java and jars.
    """
    java.check_spark()
    java.provide_java()
    environ = dict(os.environ)
    if lacks_iceberg(settings, environ):
        environ[FOLDER_ENV] = str(provide(environ))
    confs = launch_confs(_with_secret(settings), environ)
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    if confs["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Python workers import this package, and do not inherit sys.path.
    source = str(Path(__file__).resolve().parents[2])
    python_path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *python_path])
    _forget_earlier()
    return SparkContext(conf=SparkConf().setAll(list(confs.items())))


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
    """The session of one run.

    The run goes on with the executors that it gets. If it gets none, the driver works alone.
    """

    spec: RunSpec
    settings: Arguments
    reporter: Reporter
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event
    monitor: ExecutorMonitor | None = field(default=None, init=False)
    """The monitor of the executors; None: the run has none."""

    def open(self) -> RunContext:
        """Start Spark. With executors, wait until the first one runs.

        Raises:
            InputError: The user has to change something.
            TransientError: A dependency is temporarily unavailable.
        """
        scaling = self.settings.scaling
        if scaling is None:
            return self._context(
                make_session(self.spec.table.catalog, self._starting(self.settings.confs), self.settings.fresh)
            )
        # Otherwise a JVM that starts for a driver alone would use the loopback address for its executors later.
        os.environ.setdefault("SPARK_LOCAL_IP", self.settings.confs.get("spark.driver.host", "127.0.0.1"))
        rule = rule_of(scaling, self.settings.confs)
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

    @property
    def executor_core_seconds(self) -> float:
        """How long executors were there, for each of their cores. Final after `close`."""
        return self.monitor.tracker.core_seconds if self.monitor is not None else 0.0

    def error(self, error: Exception) -> Exception:
        """The cause of a failure of the run."""
        monitor = self.monitor
        if monitor is None or not monitor.starved:
            return error
        return NoExecutors(monitor.tracker.wait_seconds, monitor.tracker.why_none())

    def _scaled(self, scaling: Scaling, most: int) -> RunContext:
        fewest = min(int(self.settings.confs[_FEWEST]), most)
        confs = {**self.settings.confs, _FEWEST: str(fewest), _FIRST: str(most), _MOST: str(most)}
        spark = make_session(self.spec.table.catalog, self._starting(confs))
        api, template = PodApi.from_environment(os.environ, DRIVER), Path(confs[_TEMPLATE])
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
        confs = {
            "spark.app.name": self.settings.confs["spark.app.name"],
            "spark.master": f"local[{scaling.alone_cores}]",
        }
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
