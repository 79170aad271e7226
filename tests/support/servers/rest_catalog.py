"""Iceberg's own REST catalog server, from the jars that the Iceberg project publishes for its tests."""

import os
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.servers import process
from tests.support.servers.postgres import free_port

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
def running(
    folder: Path, more: Mapping[str, str] | None = None, with_s3: bool = False, version: str = ""
) -> Iterator[RestServer]:
    """A server that keeps its catalog in SQLite and its tables in local files, for as long as the block lasts.

    Args:
        more: Of its environment: other properties of its catalog.
        with_s3: With the classes for tables on S3.
        version: An older one, such as 1.8.
    """
    folder.mkdir()
    server = RestServer(free_port())
    environment = {
        **os.environ,
        "CATALOG_REST_PORT": str(server.port),
        "CATALOG_URI": f"jdbc:sqlite:{folder}/catalog.db",
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_CLIENTS": "1",  # connections: SQLite takes one writer
        "CATALOG_WAREHOUSE": f"file://{folder}/warehouse",
        **(more or {}),
    }
    jars = process.class_path(f"rest-{version}" if version else "rest", *OF_PYSPARK, shared="sqlite-jdbc-*.jar")
    if with_s3:  # S3FileIO is in Iceberg's jar for Spark; what both have is the same version
        jars = os.pathsep.join((jars, process.class_path(".", shared="iceberg-*.jar")))
    command = ["java", "-Xmx256m", *process.SHORT_LIVED, "-cp", jars, "org.apache.iceberg.rest.RESTCatalogServer"]
    with process.running("the REST server", command, folder, server.ask, environment):
        yield server
