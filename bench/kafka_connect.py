"""Iceberg's Kafka Connect sink, as a rival of the inlet: one worker in standalone mode, on the same topic. I/O: processes."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.support.servers import process as servers
from tests.support.servers.kafka import Broker
from tests.support.servers.postgres import free_port

# What the worker needs besides its own jars, out of those that PySpark brings along.
_OF_PYSPARK: Final = ("hadoop-client-", "slf4j-api-", "log4j-slf4j2-impl-", "log4j-api-", "log4j-core-")
# The name by which its tables are in the catalog's database.
CATALOG: Final = "local"
HEAP: Final = "-Xmx1g"
TASKS: Final = 2


@contextmanager
def running(
    folder: Path,
    broker: Broker,
    topic: str,
    table: str,
    catalog: dict[str, str],
    commit_seconds: int,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker that reads the topic from its start into the table, for as long as the block lasts.

    Args:
        folder: For its configuration and its log, `connect.log`. Its name is that of the connector, whose offsets are in Kafka.
        catalog: Properties of the catalog, as Iceberg's Java library takes them.
    """
    folder.mkdir(parents=True)
    control_topic = f"control-{folder.name}"
    broker.create_topic(control_topic, 1)
    worker: dict[str, Any] = {
        "bootstrap.servers": broker.servers,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": folder / "offsets",
        "offset.flush.interval.ms": 1000,  # a task that waits for messages looks at the control topic this often
        "listeners": f"HTTP://127.0.0.1:{free_port()}",
        "plugin.discovery": "only_scan",
        "consumer.auto.offset.reset": "earliest",
    }
    connector: dict[str, Any] = {
        "name": folder.name,
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": TASKS,
        "topics": topic,
        "iceberg.tables": table,
        "iceberg.control.topic": control_topic,
        "iceberg.control.commit.interval-ms": commit_seconds * 1000,
        "iceberg.kafka.auto.offset.reset": "earliest",
        "iceberg.catalog": CATALOG,
        **{f"iceberg.catalog.{k}": v for k, v in catalog.items()},
    }
    files = [folder / "worker.properties", folder / "connector.properties"]
    for file, values in zip(files, (worker, connector), strict=True):
        file.write_text("".join(f"{k}={v}\n" for k, v in values.items()))
    jars = servers.class_path("connect", *_OF_PYSPARK, shared="sqlite-jdbc-*.jar")
    log_level = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
    (folder / "log4j2.properties").write_text(
        "rootLogger.level=WARN\nappender.c.type=Console\nappender.c.name=c\nappender.c.layout.type=PatternLayout\n"
        "rootLogger.appenderRef.c.ref=c\n"
    )
    command = ["java", HEAP, log_level, "-cp", jars, "org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files)]
    with (folder / "connect.log").open("wb") as log:
        started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=_environment())
        try:
            yield started
        finally:
            started.terminate()
            started.wait(60)


def _environment() -> dict[str, str]:
    """Without the options for short-lived JVMs of tests."""
    return {k: v for k, v in os.environ.items() if k != "JAVA_TOOL_OPTIONS"}
