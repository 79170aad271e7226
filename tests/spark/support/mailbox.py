"""The committer as a process, with an API server and a lake, and the operator's side of the mailbox."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lethe.contract.result import Progress, RunResult
from lethe.contract.run import MailboxEntry, ResultPointer, RunSpec
from lethe.iceberg import run_documents

from tests.support.api_server import CONFIG_MAPS, LEASES, ApiServer
from tests.support.builders import read_result
from tests.support.lake import Lake

SOURCES = Path(__file__).parents[3] / "spark_apps"
BOX = "lethe-committer"
_NUMBERS = itertools.count()
_BEGAN = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Namespace:
    """The operator's hand: it puts runs into ConfigMaps and the mailbox, and hears what becomes of them."""

    server: ApiServer

    @classmethod
    def make(cls, server: ApiServer) -> "Namespace":
        server.create(BOX)
        server.create(BOX, LEASES)
        return cls(server)

    def ask(self, spec: RunSpec, document: str | None = None) -> str:
        """Let a run be carried out; later ones come after it. The key in the mailbox."""
        name, prefix = self.config_map(spec), spec.run_id[:12]
        with self.server.news:
            if f"{CONFIG_MAPS}/{name}" not in self.server.objects:
                self.server.create(name)
            self.server.put(name, **{f"{prefix}.run.json": document or spec.to_json()})
            entry = MailboxEntry(
                dataset_uid=spec.dataset.uid,
                run_id=spec.run_id,
                family=spec.family,
                attempt=spec.attempt,
                config_map=name,
                prefix=prefix,
                created_time=_BEGAN + timedelta(seconds=next(_NUMBERS)),
            )
            key = f"{spec.run_id}-{spec.attempt}.json"
            self.server.put(BOX, **{key: entry.to_json()})
        return key

    def config_map(self, spec: RunSpec) -> str:
        return f"{spec.dataset.name}-runs"

    def is_done(self, spec: RunSpec) -> bool:
        """Whether the key of this attempt is not in the mailbox (any more)."""
        return f"{spec.run_id}-{spec.attempt}.json" not in self.server.data(BOX)

    def wait_until_done(self, *specs: RunSpec, within_seconds: float = 90) -> None:
        self.server.wait_for(lambda: all(map(self.is_done, specs)), within_seconds, "the mailbox is empty")

    def result(self, spec: RunSpec, within_seconds: float = 90) -> RunResult:
        """Of this attempt, as soon as its key is taken out."""
        self.wait_until_done(spec, within_seconds=within_seconds)
        text = self.document(spec, "result.json")
        assert text is not None, "no result was delivered"
        if '"uri"' in text and '"kind"' not in text:
            text = (run_documents.read(ResultPointer.model_validate_json(text)) or b"").decode()
        reported = read_result(text)
        assert (reported.run_id, reported.attempt) == (spec.run_id, spec.attempt)
        return reported

    def carried_out(self, spec: RunSpec, within_seconds: float = 90) -> RunResult:
        self.ask(spec)
        return self.result(spec, within_seconds)

    def progress(self, spec: RunSpec) -> Progress | None:
        text = self.document(spec, "progress.json")
        return None if text is None else Progress.model_validate_json(text)

    def document(self, spec: RunSpec, suffix: str) -> str | None:
        return self.server.data(self.config_map(spec)).get(f"{spec.run_id[:12]}.{suffix}")


@dataclass
class Process:
    """A running committer."""

    process: "subprocess.Popen[str]"
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def jvm(self) -> int:
        """The process id of its JVM."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        (java,) = [int(p) for p in found if Path(f"/proc/{p}/comm").read_text().strip() == "java"]
        return java

    def wait(self, within_seconds: float = 60) -> int:
        """Its exit code."""
        try:
            return self.process.wait(timeout=within_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {within_seconds} s:\n{self.log[-3000:]}") from None

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def is_up(self) -> bool:
        """For waiting: raises, if it has ended."""
        assert self.process.poll() is None, f"ended with {self.process.returncode}:\n{self.log[-3000:]}"
        return "serving the mailbox" in self.log


@contextmanager
def committer(server: ApiServer, lake: Lake, log_file: Path, crash_at: str = "") -> Iterator[Process]:
    """A committer for the duration of the block. With `crash_at` it dies at that step, as if it were killed."""
    with log_file.open("a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lethe_spark.committer"],
            env={
                **os.environ,
                **lake.environment,
                **server.environment,
                "PYTHONPATH": str(SOURCES),
                "POD_NAME": "committer-1",
                **({"LETHE_CRASH_AT": crash_at} if crash_at else {}),
            },
            stdout=subprocess.DEVNULL,
            stderr=log,
            text=True,
        )
    running = Process(process, log_file)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=30)


@contextmanager
def serving(server: ApiServer, lake: Lake, log_file: Path) -> Iterator[Process]:
    """One that is up."""
    with committer(server, lake, log_file) as process:
        server.wait_for(process.is_up, 90, "the committer serves")
        yield process
