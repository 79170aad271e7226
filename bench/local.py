"""`lethe local` and the demo as a user has them: from a command to the commit, and from nothing to the first result.

python -m bench.local [--rounds 10] [--demo] [--cold]

--demo also runs `lethe demo`, twice. --cold does so with an empty home: a new Python environment, `pip install` of the wheel, and
Java and jars from their registries. Prints a table, and writes docs/benchmarks/local.json, which keeps
earlier values of what was not measured again.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.kube import DATASETS, RESTATEMENTS, Kube
from lethe_local.cli import client, folder_of
from lethe_local.folder import NAMESPACE
from pyiceberg.catalog import load_catalog

from bench.timing import ROOT, describe_host

OUT: Final = ROOT / "docs/benchmarks/local.json"
LIMIT_SECONDS: Final = 300
HIDDEN: Final = "Revert, until PyIceberg sees it"
GOALS: Final = {HIDDEN: 1.5, "demo, warm": 60, "demo, cold": 180}  # seconds
_API: Final = "lethe.dev/v1beta1"


@dataclass
class Bench:
    """A running `lethe local` with one Dataset."""

    home: Path
    kube: Kube

    def put(self, folder: Path, *ids: int) -> None:
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / "part-0.parquet")
        (folder / "_SUCCESS").touch()

    def batch(self, name: str, *ids: int) -> float:
        """Seconds until a new batch is committed."""
        began = time.time()
        self.put(self.home / f"buffer/batch_id={name}", *ids)
        self.wait(lambda: name in self.promoted())
        return self.head_time() - began

    def promoted(self) -> set[str]:
        """The batches whose rows PyIceberg sees, which knows nothing of the ledger."""
        try:
            table = load_catalog("local", type="sql", uri=f"sqlite:///{self.home}/catalog.db").load_table("b.t")
        except Exception:  # the first run creates the table
            return set()
        self._head_time = (table.metadata.last_updated_ms or 0) / 1000
        return set(table.scan(selected_fields=("batch_id",)).to_arrow()["batch_id"].to_pylist())

    def head_time(self) -> float:
        """When the commit that `promoted` saw last was made, by time.time."""
        return self._head_time

    def restate(self, name: str, operation: str, **spec: Any) -> float:
        """Seconds until a new Restatement is committed."""
        began = self.ask(name, operation, **spec)

        def result() -> Any:
            return (self.kube.get(RESTATEMENTS, NAMESPACE, name).get("status") or {}).get("result")

        self.wait(lambda: bool(result()))
        self.promoted()  # `committedTime` has whole seconds
        return self.head_time() - began

    def hide(self, name: str, batch: str) -> float:
        """Seconds until PyIceberg no longer sees the rows of a batch that a new Restatement reverts."""
        began = self.ask(name, "Revert", batchIds=[batch])
        self.wait(lambda: batch not in self.promoted())
        return time.time() - began

    def ask(self, name: str, operation: str, **spec: Any) -> float:
        """Create a Restatement. Returns: the time before that, by time.time."""
        body = {"datasetRef": {"name": "bench"}, "operation": operation, **spec}
        began = time.time()
        document = {"apiVersion": _API, "kind": "Restatement", "metadata": {"name": name}, "spec": body}
        self.kube.create(RESTATEMENTS, NAMESPACE, document)
        return began

    def wait(self, holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + LIMIT_SECONDS
        while not holds():
            if time.monotonic() > ends:
                raise TimeoutError(f"not done within {LIMIT_SECONDS} s; see {self.home}/parts and {self.home}/runs")
            time.sleep(0.05)


@contextmanager
def started(home: Path, environment: Mapping[str, str] | None = None) -> Iterator[Kube]:
    """`lethe local` in a folder, until the block ends. `environment`: None: that of this process."""
    command = [sys.executable, "-m", "lethe.cli", "local", "up", "--dir", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            with client(folder_of(home)) as kube:
                yield kube
        finally:
            process.send_signal(signal.SIGINT)


@contextmanager
def running() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as name, started(Path(name)) as kube:
        home = Path(name)
        bench = Bench(home, kube)
        spec = {
            "table": {"catalog": "local", "name": "b.t", "create": {"schema": "id BIGINT, batch_id STRING"}},
            "batchColumn": "batch_id",
            "buffer": {"uri": f"file://{home}/buffer"},
            "consolidation": {"minBatches": 1},
        }
        bench.put(home / "buffer/batch_id=first", 0)
        document = {"apiVersion": _API, "kind": "Dataset", "metadata": {"name": "bench"}, "spec": spec}
        kube.create(DATASETS, NAMESPACE, document)
        bench.wait(lambda: bool(bench.promoted()))
        yield bench


def commits(rounds: int) -> dict[str, list[float]]:
    """Seconds of each round, by what was committed."""
    found: dict[str, list[float]] = {"small consolidation": [], "Revert": [], "Replay": [], HIDDEN: []}
    with running() as bench:
        for n in range(rounds):
            found["small consolidation"].append(bench.batch(f"a{n}", 1, 2, 3))
            bench.batch(f"b{n}", 4, 5, 6)
            found["Revert"].append(bench.restate(f"revert-{n}", "Revert", batchIds=[f"a{n}"]))
            bench.put(bench.home / f"new/{n}", 7, 8)
            new = {"batchId": f"c{n}", "uri": f"file://{bench.home}/new/{n}"}
            found["Replay"].append(bench.restate(f"replay-{n}", "Replay", batchIds=[f"b{n}"], replacement=new))
            bench.batch(f"d{n}", 9)
            found[HIDDEN].append(bench.hide(f"hide-{n}", f"d{n}"))
            print(f"{n + 1}/{rounds}", {k: round(v[-1], 2) for k, v in found.items()}, file=sys.stderr, flush=True)
    return found


def seconds_of(command: list[str], **how: Any) -> float:
    began = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **how)
    return time.monotonic() - began


def demo() -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(prefix="lethe-demo-") as name:
        command = [sys.executable, "-m", "lethe.cli", "demo", "--dir", f"{name}/demo"]
        return {"demo, warm": [seconds_of(command) for _ in range(2)]}


def cold() -> dict[str, list[float]]:
    """From a wheel and an empty home."""
    with tempfile.TemporaryDirectory(prefix="lethe-cold-") as name:
        home = Path(name)
        subprocess.run([str(ROOT / "dev/dist.sh"), str(home / "dist")], check=True, stdout=subprocess.DEVNULL)
        (wheel,) = (home / "dist").glob("lethe_lake-*.whl")
        kept = ("PATH", "PIP_INDEX_URL", "PIP_CONFIG_FILE", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "MAVEN_REPO")
        environ = {"HOME": name, **{k: os.environ[k] for k in kept if k in os.environ}}
        began = time.monotonic()
        subprocess.run([sys.executable, "-m", "venv", f"{name}/venv"], check=True, env=environ)
        install = [f"{name}/venv/bin/pip", "install", "--quiet", f"lethe-lake[local,java] @ file://{wheel}"]
        installed = seconds_of(install, env=environ)
        seconds_of([f"{name}/venv/bin/lethe", "demo"], env=environ)
        return {"pip install": [installed], "demo, cold": [time.monotonic() - began]}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=10)
    options.add_argument("--demo", action="store_true")
    options.add_argument("--cold", action="store_true")
    asked = options.parse_args()
    machine, began = describe_host(), datetime.now(UTC)
    found = commits(asked.rounds)
    found |= demo() if asked.demo else {}
    found |= cold() if asked.cold else {}
    print("| seconds to | median | min | max | goal |\n|---|---|---|---|---|")
    for what, values in found.items():
        numbers = " | ".join(f"{f(values):.1f}" for f in (statistics.median, min, max))
        print(f"| {what} | {numbers} | {GOALS.get(what, '')} |")
    command = " ".join(["python -m bench.local", *sys.argv[1:]])
    earlier = json.loads(OUT.read_text())
    kept = earlier.get("earlier", {}) | {
        what: {"commit": earlier["machine"]["commit"], "seconds": values} for what, values in earlier["seconds"].items()
    }
    document = {
        "machine": machine,
        "began": began.isoformat(),
        "command": command,
        "seconds": found,
        "earlier": {what: values for what, values in kept.items() if what not in found},
    }
    OUT.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
