"""A folder of `lethe local` as its users have it: with a buffer, the commands, and a Dataset `orders`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from lethe_local.cli import client, kind_of
from lethe_local.folder import NAMESPACE, Folder
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.support.commands import in_this_process
from tests.support.documents import resource

TIMEOUT_SECONDS = 240


@dataclass
class Lake:
    """A folder of `lethe local`, a buffer, and the commands."""

    home: Path
    buffer: Path
    manifest: Path  # what was applied last
    environ: dict[str, str]
    process: "subprocess.Popen[str] | None" = None
    printed: list[str] = field(default_factory=list)

    def up(self, *options: str) -> None:
        """Start, and wait until it says that it runs."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "lethe.cli", "local", "up", *options],
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.printed.append(self.process.stdout.readline())
        assert "Lethe runs in" in self.printed[-1]

    def stop(self) -> None:
        """Stop, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.end(signal.SIGINT)

    def end(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=60)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        if arguments[0] == "up":
            command = [sys.executable, "-m", "lethe.cli", "local", *arguments]
            return subprocess.run(
                command, env=self.environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
            )
        return self.lethe("local", *arguments)

    def lethe(self, *arguments: str, told: str = "") -> "subprocess.CompletedProcess[str]":
        """A command on resources, with a text on standard input."""
        environ = {k: v for k, v in self.environ.items() if k != "KUBECONFIG" and os.environ.get(k) != v}
        return in_this_process(arguments, environ, told)

    def done(self, *arguments: str) -> str:
        ended = self.run(*arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr + self.logs()
        return ended.stdout

    def apply(self, *documents: dict[str, Any]) -> str:
        self.manifest.write_text(yaml.safe_dump_all(documents))
        return self.done("apply", "-f", str(self.manifest))

    def get(self, kind: str, name: str) -> dict[str, Any]:
        with client(Folder(self.home)) as kube:
            return kube.get(kind_of(kind).resource, NAMESPACE, name)

    def put(self, batch: str, *ids: int) -> None:
        folder = self.buffer / f"batch_id={batch}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()

    def wait_until(self, what: str, holds: Callable[[], bool], every_seconds: float = 0.5) -> None:
        ends = time.monotonic() + TIMEOUT_SECONDS
        while not holds():
            assert time.monotonic() < ends, f"not {what}: {self.done('get', 'datasets', '-o', 'yaml')}{self.logs()}"
            time.sleep(every_seconds)

    def batches(self, dataset: str = "orders") -> int:
        """The number of promoted batches that the status shows."""
        status = self.get("dataset", dataset).get("status") or {}
        return int((status.get("batches") or {}).get("promoted") or 0)

    def promoted(self, number: int, dataset: str = "orders") -> bool:
        return self.batches(dataset) == number

    def ids(self, dataset: str = "orders") -> list[int]:
        return sorted(lethe.scan(self.table(dataset)).to_arrow()["id"].to_pylist())

    def catalog(self) -> Catalog:
        """As PyIceberg sees it, without Lethe."""
        properties = yaml.safe_load((self.home / ".pyiceberg.yaml").read_text())["catalog"]["local"]
        return load_catalog("local", **properties)

    def table(self, dataset: str = "orders") -> Table:
        return self.catalog().load_table(f"shop.{dataset}")

    def processes(self) -> list[str]:
        """The processes that work for this folder."""
        found = subprocess.run(["pgrep", "-f", "-a", str(self.home)], capture_output=True, text=True, check=False)
        return found.stdout.splitlines()

    def part(self, name: str) -> int:
        """The process id of a part of `lethe local up`, such as the operator."""
        return int((self.home / "parts" / name / "pid").read_text().split()[0])

    def kafka_cluster(self, servers: str) -> None:
        """Where the brokers of the cluster `main` are, for an inlet that begins."""
        clusters = {"clusters": {"main": {"properties": {"bootstrap.servers": servers}}}}
        (self.home / "kafka.yaml").write_text(yaml.safe_dump(clusters))

    def logs(self) -> str:
        files = [*self.home.glob("parts/*/log"), *self.home.glob("runs/*/log")]
        return "".join(f"\n== {f}\n{f.read_text(errors='replace')[-2000:]}" for f in files)


def a_lake(folder: Path) -> Lake:
    """Not started yet."""
    home = folder / "lethe"
    return Lake(home, folder / "buffer", folder / "apply.yaml", {**os.environ, "LETHE_LOCAL": str(home)})


@contextmanager
def running(folder: Path, *options: str) -> Iterator[Lake]:
    """A lake that runs as long as the block, with these options of `lethe local up`."""
    lake = a_lake(folder)
    lake.up(*options)
    try:
        yield lake
    finally:
        lake.stop()


def with_two_batches(lake: Lake) -> Lake:
    """The lake with the Dataset `orders` and its promoted batches `monday` and `tuesday`."""
    lake.put("monday", 1, 2)
    lake.put("tuesday", 3)
    assert "dataset/orders created" in lake.apply(orders(lake.buffer))
    lake.wait_until("promoted", lambda: lake.promoted(2))
    return lake


def orders(buffer: Path, name: str = "orders") -> dict[str, Any]:
    """A Dataset that takes each batch at once. Its table has its name."""
    spec = {
        "table": {
            "catalog": "local",
            "name": f"shop.{name}",
            "create": {"schema": "id BIGINT, batch_id STRING"},
        },
        "batchColumn": "batch_id",
        "buffer": {"uri": f"file://{buffer}"},
        "consolidation": {"minBatches": 1},
    }
    return resource("Dataset", name, spec)


def restatement(name: str, operation: str, dataset: str = "orders", **spec: Any) -> dict[str, Any]:
    return resource("Restatement", name, {"datasetRef": {"name": dataset}, "operation": operation, **spec})
