"""The committer as a process, with an API server and a lake."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.api_server import ApiServer
from tests.support.lake import Lake

SOURCES = Path(__file__).parents[3] / "spark_apps"


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
