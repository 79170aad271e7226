"""Measure the inlet: messages of one topic per second, against Iceberg's Kafka Connect sink. I/O.

Both read the same messages from one broker, which shares the cores with them, and both commit every few seconds: the inlet
complete batches into a buffer, the sink snapshots of a table. The time is from the start of the process to the last row.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import yaml
from confluent_kafka import Producer
from lethe.base import names
from lethe.iceberg import catalogs
from lethe_local.folder import NAMESPACE, Folder
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, TimestamptzType

from bench.gateway_site import GatewayScale, Site, kind_of_datasets
from bench.lake import total_records
from bench.timing import cpu_seconds, memory_bytes, say
from tests.support.servers import kafka
from tests.support.servers import process as servers
from tests.support.servers.kafka import Broker
from tests.support.servers.postgres import free_port

INLET: Final = "inlet"
RIVAL: Final = "Iceberg's Kafka Connect sink"
TOPIC: Final = "departures"
PARTITIONS: Final = 2
COMMIT_SECONDS: Final = 5
WITHIN_SECONDS: Final = 300.0
_COLUMNS: Final = (
    ("carrier", StringType()),
    ("flight", IntegerType()),
    ("origin", StringType()),
    ("dest", StringType()),
    ("delay", IntegerType()),
    ("seq", LongType()),
    ("time", TimestamptzType()),
    ("batch_id", StringType()),
)


@dataclass(frozen=True)
class Round:
    """One reader, a table and a buffer of its own."""

    site: Site
    broker: Broker
    number: int

    @property
    def name(self) -> str:
        return f"inlet-{self.number}"

    @property
    def table(self) -> str:
        return f"air.departures_{self.number}"

    @property
    def buffer(self) -> Path:
        return self.site.folder / "buffers" / self.name

    def create_table(self) -> None:
        catalog = self.site.catalog
        if catalog.table_exists(self.table):
            catalog.drop_table(self.table)
        schema = Schema(*(NestedField(n, name, kind) for n, (name, kind) in enumerate(_COLUMNS, 1)))
        properties = {"format-version": "2", names.CLAIM: f"{NAMESPACE}/{self.name}"}
        catalog.create_table(self.table, schema, properties=properties)


def inlet(site: Site, scale: GatewayScale) -> dict[str, Any]:
    """Each reader in turns, with a fresh table."""
    folder = site.folder / "kafka-inlet"
    shutil.rmtree(folder, ignore_errors=True)  # of an interrupted run, whose broker had another port
    with kafka.running(folder) as broker:
        broker.create_topic(TOPIC, PARTITIONS)
        size = _produce(broker, scale.messages)
        results = []
        for n in range(scale.inlet_rounds):
            for m, (kind, read) in enumerate(((INLET, _by_inlet), (RIVAL, _by_rival))):
                found = {"kind": kind, "round": n, **read(Round(site, broker, 2 * n + m), scale.messages)}
                say(f"  {kind}: {found.get('rows_per_second', 0):,.0f} rows a second")
                results.append(found)
    return {"messages": scale.messages, "bytes": size, "commit_seconds": COMMIT_SECONDS, "results": results}


def _produce(broker: Broker, messages: int) -> int:
    """Returns: the bytes of all values."""
    producer = Producer(
        {"bootstrap.servers": broker.servers, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    )
    size = 0
    for n in range(messages):
        value = (
            f'{{"carrier": "{"UA AA B6 DL"[n % 4 * 3 :][:2]}", "flight": {n % 7919}, "origin": "JFK", "dest": "LAX", '
            f'"delay": {n % 180 - 20}, "seq": {n}, "time": "2013-01-01T{n % 24:02}:{n % 60:02}:00Z"}}'
        ).encode()
        size += len(value)
        producer.produce(TOPIC, value, partition=n % PARTITIONS)
        if n % 10_000 == 0:
            producer.poll(0)
            producer.flush(60)
    assert producer.flush(120) == 0
    return size


def _by_inlet(of: Round, messages: int) -> dict[str, Any]:
    of.create_table()
    shutil.rmtree(of.buffer, ignore_errors=True)
    folder = Folder(of.site.folder)
    clusters = of.site.folder / "kafka.yaml"
    clusters.write_text(
        yaml.safe_dump({"clusters": {"main": {"properties": {"bootstrap.servers": of.broker.servers}}}})
    )
    objects, kind = of.site.objects, kind_of_datasets(of.site.objects)
    source = {"cluster": "main", "topics": [TOPIC], "format": "JSON", "epoch": {"maxSeconds": COMMIT_SECONDS}}
    spec = {
        "table": {"catalog": "local", "name": of.table},
        "batchColumn": "batch_id",
        "buffer": {"uri": f"file://{of.buffer}"},
        "source": {"kafka": source},
    }
    head = {"apiVersion": "lethe.dev/v1beta1", "kind": "Dataset", "metadata": {"name": of.name}}
    objects.create(kind, NAMESPACE, {**head, "spec": spec})
    # In place of an operator, which accepts the Dataset.
    objects.patch(kind, (NAMESPACE, of.name, "status"), {"status": {"observedGeneration": 1, "conditions": []}})
    environ = {
        **os.environ,
        "KUBECONFIG": str(folder.kubeconfig),
        "POD_NAMESPACE": NAMESPACE,
        "LETHE_INLET_CLUSTERS": str(clusters),
        "PYICEBERG_HOME": str(of.site.folder),
    }
    with (of.site.folder / f"{of.name}.log").open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "lethe_inlet"], env=environ, stdout=log, stderr=log)
    known: dict[Path, int] = {}

    def rows() -> int:
        for marker in of.buffer.glob(f"*/{names.SUCCESS_MARKER}"):
            for file in marker.parent.glob("*.parquet"):
                if file not in known:
                    known[file] = pq.read_metadata(file).num_rows
        return sum(known.values())

    try:
        with _measured(process) as used:
            seconds = _until(lambda: rows() >= messages, started, process)
    finally:
        process.terminate()
        process.wait(60)
        objects.delete(kind, NAMESPACE, of.name)
    return _result(messages, rows(), seconds, used, list(known))


def _by_rival(of: Round, messages: int) -> dict[str, Any]:
    of.create_table()
    given = catalogs.properties("local")
    path = str(given["uri"]).removeprefix("sqlite:///")
    catalog = {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{path}",
        "warehouse": str(given["warehouse"]),
        "jdbc.schema-version": "V1",
    }
    folder = of.site.folder / f"connect-{of.number}"
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    with (
        running(folder, of.broker, TOPIC, of.table, catalog, COMMIT_SECONDS) as process,
        _measured(process) as used,
    ):
        seconds = _until(lambda: _rows_in(of.site.catalog, of.table) >= messages, started, process)
    table = of.site.catalog.load_table(of.table)
    files = [Path(f.file.file_path.removeprefix("file://").removeprefix("file:")) for f in table.scan().plan_files()]
    return _result(messages, _rows_in(of.site.catalog, of.table), seconds, used, files)


def _rows_in(catalog: Catalog, table: str) -> int:
    return total_records(catalog.load_table(table))


def _until(holds: Callable[[], bool], started: float, process: "subprocess.Popen[bytes]") -> float | None:
    """Seconds until it holds; None: it did not within the limit, or before the process ended."""
    while not holds():
        if time.monotonic() - started > WITHIN_SECONDS or process.poll() is not None:
            return None
        time.sleep(0.1)
    return time.monotonic() - started


@contextmanager
def _measured(process: "subprocess.Popen[bytes]") -> Iterator[dict[str, float]]:
    """The processor time and the peak memory of a process that still runs at the end of the block."""
    used: dict[str, float] = {}
    yield used
    if process.poll() is not None:
        return
    used["cpu_seconds"] = cpu_seconds(process.pid)
    used["memory_mib"] = round(memory_bytes(process.pid, peak=True) / 2**20, 1)


def _result(
    messages: int, rows: int, seconds: float | None, used: dict[str, float], files: list[Path]
) -> dict[str, Any]:
    found: dict[str, Any] = {**used, "rows": rows, "files": len(files), "bytes": sum(f.stat().st_size for f in files)}
    if seconds is None:
        return {
            **found,
            "error": f"{rows:,} of {messages:,} rows came within {WITHIN_SECONDS:.0f} s, or before it ended",
        }
    if rows != messages:
        found["error"] = f"{rows:,} rows of {messages:,} messages"
    return {**found, "seconds": round(seconds, 3), "rows_per_second": round(messages / seconds, 1)}


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
