"""The applications as processes of their own, the way a pod runs them: arguments in, result and exit code out."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lethe.contract.result import RunResult
from lethe.contract.run import RunSpec

from tests.support.builders import read_result
from tests.support.lake import Lake

SOURCES = Path(__file__).parents[3] / "spark_apps"
CONFS = (
    "spark.master=local[2]",
    "spark.sql.shuffle.partitions=2",
    "spark.driver.memory=768m",
    # So short a life does not repay the second compiler's work, which would take half of it.
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)


@dataclass(frozen=True)
class Ended:
    """The end of a driver, with the results that it delivered, in their order."""

    code: int
    results: tuple[RunResult, ...]
    log: str

    @property
    def result(self) -> RunResult | None:
        """The result of a driver with one run. None: it died before it delivered one."""
        return self.results[0] if self.results else None


@dataclass(frozen=True)
class Driver:
    """Starts drivers on one lake, with their run files and logs in `folder`."""

    lake: Lake
    folder: Path

    def run(self, spec: RunSpec, crash_at: str | None = None, within_seconds: int = 180) -> Ended:
        """Carry out one attempt of a run. With `crash_at` the driver dies at that step, as if it were killed."""
        process = self.start(spec, environment={"LETHE_CRASH_AT": crash_at} if crash_at else {})
        return self.end(process, within_seconds)

    def start(self, spec: RunSpec, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        path = self.file_of(spec)
        path.write_text(spec.to_json())
        return self.start_files("--run", str(path), environment=environment)

    def file_of(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.run_id[:12]}.run.json"

    def start_files(self, *arguments: str, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "lethe_spark.apps.app", *arguments, *(a for c in CONFS for a in ("--conf", c))],
            env={
                **os.environ,
                **self.lake.environment,
                "PYTHONPATH": str(SOURCES),
                "LETHE_TERMINATION_LOG": str(self.folder / "none"),
                **(environment or {}),
            },
            stdout=subprocess.PIPE,
            stderr=(self.folder / "driver.log").open("w"),
            text=True,
        )

    def end(self, process: "subprocess.Popen[str]", within_seconds: int = 180) -> Ended:
        try:
            out, _ = process.communicate(timeout=within_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"the driver did not end within {within_seconds} s:\n{self.log()[-3000:]}") from None
        results = tuple(read_result(line) for line in out.splitlines() if line.strip())
        return Ended(process.returncode, results, self.log())

    def log(self) -> str:
        return (self.folder / "driver.log").read_text()
