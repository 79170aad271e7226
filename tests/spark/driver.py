"""The applications as processes of their own, the way a pod runs them: arguments in, result and exit code out."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from lethe.run import RunResult, RunSpec

from tests.spark.lake import Lake

SOURCES = Path(__file__).parents[2] / "spark_apps"
CONFS = ("spark.master=local[2]", "spark.sql.shuffle.partitions=2", "spark.driver.memory=768m")


@dataclass(frozen=True)
class Ended:
    """A driver's end. `result` is None when it died before it could tell."""

    code: int
    result: RunResult | None
    log: str


@dataclass(frozen=True)
class Driver:
    """Starts drivers on one lake, with their run files and logs in `folder`."""

    lake: Lake
    folder: Path

    def run(self, spec: RunSpec, crash_at: str | None = None, within_seconds: int = 180) -> Ended:
        """One attempt, to its end; with `crash_at` it dies at that step as if it had been killed."""
        process = self.start(spec, {"LETHE_CRASH_AT": crash_at} if crash_at else {})
        return self.end(process, within_seconds)

    def start(self, spec: RunSpec, environment: dict[str, str] | None = None) -> "subprocess.Popen[str]":
        path = self.folder / f"{spec.run_id[:12]}.run.json"
        path.write_text(spec.to_json())
        return subprocess.Popen(
            [sys.executable, "-m", "lethe_spark.app", "--run", str(path), *(a for c in CONFS for a in ("--conf", c))],
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
        return Ended(process.returncode, RunResult.model_validate_json(out) if out.strip() else None, self.log())

    def log(self) -> str:
        return (self.folder / "driver.log").read_text()
