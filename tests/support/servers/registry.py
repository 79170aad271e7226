"""Apicurio, a schema registry, with the interface of Confluent's."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.servers import process
from tests.support.servers.postgres import free_port

HEAP = "-Xmx320m"


@dataclass(frozen=True)
class SchemaRegistry:
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def ask(self) -> None:
        with urllib.request.urlopen(f"{self.url}/subjects", timeout=5):
            pass

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        """Returns: the id of the schema."""
        document = json.dumps({"schema": json.dumps(schema), "schemaType": kind}).encode()
        headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", document, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])


@contextmanager
def running(folder: Path) -> Iterator[SchemaRegistry]:
    """A registry that keeps its schemas in memory, for as long as the block lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    registry = SchemaRegistry(free_port())
    cache = Path(os.environ.get("LETHE_CACHE", "~/.cache/lethe")).expanduser()
    jar = cache / "bin" / "apicurio" / "runner.jar"
    if not jar.exists():
        subprocess.run([Path(__file__).parents[3] / "dev" / "tools.sh", "apicurio"], check=True)
    options = [f"-Dquarkus.http.port={registry.port}", "-Dquarkus.http.host=127.0.0.1", "-Dquarkus.log.level=WARN"]
    with process.running("Apicurio", ["java", HEAP, *options, "-jar", str(jar)], folder, registry.ask):
        yield registry
