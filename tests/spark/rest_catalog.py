"""Iceberg's own REST catalog server, from the jars that the Iceberg project publishes for its tests."""

import os
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.spark import servers
from tests.spark.postgres import free_port

# What the server needs beside its own jars, out of those that PySpark brings along.
OF_PYSPARK = (
    "slf4j-api",
    "log4j-slf4j2-impl",
    "log4j-api",
    "log4j-core",
    "jackson-core-2",
    "jackson-databind",
    "jackson-annotations",
    "avro-1",
    "hadoop-client-api",
    "hadoop-client-runtime",
    "aircompressor",
    "RoaringBitmap",
)


@dataclass(frozen=True)
class RestServer:
    port: int

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self) -> None:
        with urllib.request.urlopen(f"{self.uri}/v1/config", timeout=5):
            pass


@contextmanager
def running(folder: Path) -> Iterator[RestServer]:
    """A server that keeps its catalog in SQLite and its tables in local files, for as long as the block lasts."""
    folder.mkdir()
    server = RestServer(free_port())
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(server.port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_CLIENTS": "1",  # connections: SQLite takes one writer
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
    }
    jars = servers.class_path("rest", *OF_PYSPARK, shared="sqlite-jdbc-*.jar")
    command = ["java", "-Xmx256m", "-cp", jars, "org.apache.iceberg.rest.RESTCatalogServer"]
    with servers.running("the REST server", command, folder, server.ask, environment):
        yield server
