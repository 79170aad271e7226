"""Iceberg's own REST catalog server, from the jars that the Iceberg project publishes for its tests."""

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

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


def class_path() -> str:
    jars = Path(os.environ.get("LETHE_JARS", "~/.cache/lethe/jars")).expanduser()
    own = sorted((jars / "rest").glob("*.jar"))
    assert own, f"no jars in {jars}/rest: run `make jars`"
    bundled = Path(pyspark.__file__).parent / "jars"
    theirs = [jar for name in OF_PYSPARK for jar in sorted(bundled.glob(f"{name}*.jar"))]
    return os.pathsep.join(map(str, [*own, *sorted(jars.glob("sqlite-jdbc-*.jar")), *theirs]))


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
    command = ["java", "-Xmx256m", "-cp", class_path(), "org.apache.iceberg.rest.RESTCatalogServer"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait_for(server, process, folder / "log")
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(server: RestServer, process: "subprocess.Popen[bytes]", log: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        assert process.poll() is None, f"the REST server ended with {process.returncode}:\n{log.read_text()[-3000:]}"
        try:
            with urllib.request.urlopen(f"{server.uri}/v1/config", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(f"the REST server did not answer within 60 s:\n{log.read_text()[-3000:]}")
