"""A small JVM with Iceberg and its catalogs, without a Spark session. I/O: starts a process.

Spark's launcher starts it, so it has the class path, authentication and callbacks of a driver. Of Spark, only the gateway runs
in it. Its command line contains no secrets: the properties of catalogs are sent through the gateway.
"""

import logging
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway

from lethe_spark.jvm.errors import JvmError, says_no_such_table, transient, unknown_type, unparsed_type
from lethe_spark.jvm.gateway import listen_for_callbacks, names_of
from lethe_spark.jvm.table import IcebergTable

log = logging.getLogger(__name__)

_HADOOP: Final = "spark.hadoop."
"""The prefix of Hadoop's settings among Spark's."""

HEAP: Final = "256m"
OPTIONS: Final = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:ReservedCodeCacheSize=64m",
    "-XX:MaxDirectMemorySize=64m",
    "-XX:+ExitOnOutOfMemoryError",
)
"""One collector thread and one compiler are enough, and start fast. A JVM without memory must exit, not run on half-broken."""
TIMEOUTS: Final[Mapping[str, Mapping[str, str]]] = {
    "jdbc:postgresql": {"jdbc.connectTimeout": "5", "jdbc.socketTimeout": "60", "jdbc.tcpKeepAlive": "true"},
    "http": {"rest.client.connection-timeout-ms": "5000", "rest.client.socket-timeout-ms": "60000"},
}
"""Timeouts, so that a catalog that does not answer does not block a thread. Seconds for JDBC, milliseconds for REST."""


@dataclass(frozen=True)
class SmallJvm:
    """The JVM and its process."""

    gateway: Any
    process: "subprocess.Popen[bytes]"
    hadoop: Mapping[str, str] = field(default_factory=dict)
    """Settings of Hadoop."""

    @classmethod
    def start(cls, confs: Mapping[str, str], heap: str = HEAP) -> "SmallJvm":
        """Start the JVM and wait until it answers.

        Args:
            confs: Settings of Spark's launcher, as `lethe_spark.run.launching.launch_confs` makes them: class path and options.
            heap: The largest heap, as -Xmx takes it.

        Raises:
            PySparkRuntimeError: It does not start.
        """
        options = f"{' '.join(OPTIONS)} {confs.get('spark.driver.extraJavaOptions', '')}".strip()
        settings = {**confs, "spark.driver.memory": heap, "spark.driver.extraJavaOptions": options}
        gateway = launch_gateway(SparkConf(loadDefaults=False).setAll(list(settings.items())))
        api = gateway.jvm.org.apache.logging.log4j
        api.core.config.Configurator.setRootLevel(api.Level.WARN)
        listen_for_callbacks(gateway)  # before several threads use the gateway
        hadoop = {key.removeprefix(_HADOOP): value for key, value in confs.items() if key.startswith(_HADOOP)}
        return cls(gateway, gateway.proc, hadoop)

    def answers(self) -> bool:
        """Whether the JVM answers. Waits without a limit."""
        try:
            return self.process.poll() is None and int(self.gateway.jvm.java.lang.System.currentTimeMillis()) > 0
        except JvmError:
            return False

    def on_end(self, then: Callable[[int], object]) -> None:
        """Call `then` with the exit code when the process has ended."""
        threading.Thread(target=lambda: then(self.process.wait()), name="lethe-jvm-end", daemon=True).start()

    def open_catalog(self, name: str, properties: Mapping[str, str]) -> "JvmCatalog":
        """Open a catalog.

        Args:
            properties: As in Spark's settings, without their prefix.

        Raises:
            TransientError: The catalog does not answer.
        """
        jvm = names_of(self.gateway)
        java_properties = jvm.java.util.HashMap()
        for key, value in with_timeouts(properties).items():
            java_properties.put(key, value)
        try:
            configuration = jvm.org.apache.hadoop.conf.Configuration()
            for key, value in self.hadoop.items():
                configuration.set(key, value)
            java = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(name, java_properties, configuration)
        except JvmError as e:
            raise transient(e, f"opening the catalog {name}") from e
        return JvmCatalog(self, name, java)


@dataclass(frozen=True)
class JvmCatalog:
    """A catalog that stays open. Several threads may use it at once."""

    jvm: SmallJvm
    name: str
    java: Any

    def load(self, table: str) -> IcebergTable | None:
        """The table `table` ("namespace.table"). None: it does not exist.

        Raises:
            TransientError: A dependency is temporarily unavailable.
        """
        gateway = self.jvm.gateway
        identifier = names_of(gateway).org.apache.iceberg.catalog.TableIdentifier.parse(table)
        try:
            java = self.java.loadTable(identifier)
        except JvmError as e:
            if says_no_such_table(names_of(gateway), e):
                return None
            if (kind := unparsed_type(e)) is not None:
                raise unknown_type(f"{self.name}.{table}", kind) from e
            raise transient(e, f"loading the table {self.name}.{table}") from e
        return IcebergTable(gateway, self.name, table, java)


def with_timeouts(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with timeouts, unless they set their own. Pure."""
    uri = properties.get("uri", "")
    limits = next((found for start, found in TIMEOUTS.items() if uri.startswith(start)), {})
    return {**limits, **properties}
