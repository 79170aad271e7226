"""A Trino server whose catalog `lake` can register Iceberg tables by their metadata files. I/O.

`dev/tools.sh trino` fetches its libraries. It needs a JDK of version 25 or later: that of the environment variable
TRINO_JAVA_HOME, or one in /usr/lib/jvm.
"""

import os
import re
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support.servers.postgres import free_port

JVM = ["-server", "-Xmx2G", "-XX:+UseG1GC", "-Djdk.attach.allowAttachSelf=true", "--add-modules=jdk.incubator.vector"]
MAIN = Path(__file__).parents[3] / "dev" / "trino" / "Trino.java"
START_SECONDS = 180
JAVA_AT_LEAST = 25


def java_home() -> str | None:
    """The folder of a JDK that Trino takes; None: there is none."""
    if chosen := os.environ.get("TRINO_JAVA_HOME"):
        return chosen
    for file in sorted(Path("/usr/lib/jvm").glob("*/release"), reverse=True):
        version = re.search(r'^JAVA_VERSION="(\d+)', file.read_text(), re.MULTILINE)
        if version is not None and int(version[1]) >= JAVA_AT_LEAST:
            return str(file.parent)
    return None


class TrinoError(Exception):
    """A query that failed; the text is Trino's message."""


@dataclass(frozen=True)
class Trino:
    url: str

    def query(self, sql: str) -> list[list[Any]]:
        """All rows. Raises: TrinoError."""
        headers = {"X-Trino-User": "test", "X-Trino-Catalog": "lake", "X-Trino-Schema": "s"}
        answer = requests.post(f"{self.url}/v1/statement", data=sql.encode(), headers=headers, timeout=60).json()
        rows = list(answer.get("data") or [])
        while "nextUri" in answer:
            answer = requests.get(answer["nextUri"], headers=headers, timeout=60).json()
            rows += answer.get("data") or []
        if "error" in answer:
            raise TrinoError(answer["error"]["message"])
        return rows

    def rows(
        self, metadata: str, location: str, columns: Sequence[str], snapshot_id: int | None = None
    ) -> list[list[Any]]:
        """All rows of the table with this metadata file and this location. Raises: TrinoError."""
        file = metadata.rpartition("/")[2]
        name = f"t_{uuid.uuid4().hex}"
        self.query(f"CALL lake.system.register_table('s', '{name}', '{location}', '{file}')")
        at = f" FOR VERSION AS OF {snapshot_id}" if snapshot_id is not None else ""
        return self.query(f"SELECT {', '.join(columns)} FROM lake.s.{name}{at}")

    @property
    def version(self) -> str:
        return str(requests.get(f"{self.url}/v1/info", timeout=10).json()["nodeVersion"]["version"])


@contextmanager
def running(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Trino]:
    """For as long as the block lasts, with its files in the folder.

    Args:
        settings: Further ones of the catalog.
    """
    port = free_port()
    home = java_home()
    assert home is not None, f"no JDK of version {JAVA_AT_LEAST} or later: set TRINO_JAVA_HOME"
    server = (Path(os.environ["LETHE_CACHE"]) / "bin" / "trino").resolve()
    (folder / "catalogs").mkdir()
    (folder / "metastore").mkdir()
    (folder / "config.properties").write_text(
        f"node.environment=test\nnode.id=one\nplugin.dir={server}/plugin\n"
        f"coordinator=true\nnode-scheduler.include-coordinator=true\nhttp-server.http.port={port}\n"
        f"discovery.uri=http://127.0.0.1:{port}\nquery.max-memory-per-node=512MB\n"
        f"catalog.management=static\ncatalog.config-dir={folder}/catalogs\n"
    )
    (folder / "catalogs" / "lake.properties").write_text(
        "connector.name=iceberg\niceberg.catalog.type=TESTING_FILE_METASTORE\n"
        f"hive.metastore.catalog.dir=file://{folder}/metastore\nfs.hadoop.enabled=true\n"
        "iceberg.register-table-procedure.enabled=true\n" + "".join(f"{k}={v}\n" for k, v in (settings or {}).items())
    )
    environ = {**os.environ, "JAVA_HOME": home}
    environ.pop("JAVA_TOOL_OPTIONS", None)  # those of the tests' own JVMs choose another garbage collector
    command = [f"{home}/bin/java", *JVM, f"-Dconfig={folder}/config.properties", "-cp", f"{server}/lib/*"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([*command, str(MAIN)], cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        trino = Trino(f"http://127.0.0.1:{port}")
        _wait(trino, process, folder / "log")
        trino.query(f"CREATE SCHEMA lake.s WITH (location = 'file://{folder}/schema')")
        yield trino
    finally:
        process.terminate()
        process.wait(60)


def _wait(trino: Trino, process: "subprocess.Popen[bytes]", log: Path) -> None:
    ends = time.monotonic() + START_SECONDS
    while True:
        running = process.poll() is None and time.monotonic() < ends
        assert running, log.read_text()[-3000:]
        try:
            if not requests.get(f"{trino.url}/v1/info", timeout=5).json()["starting"]:
                return
        except (requests.exceptions.RequestException, ValueError):
            pass
        time.sleep(0.5)
