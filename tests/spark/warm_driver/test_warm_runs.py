"""Runs in a Spark session that stays up. What one of them leaves in it is gone before the next one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from lethe.contract.result import RunOutcome
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.support.driver import CONFS, SOURCES
from tests.spark.support.story import Story, of_batches
from tests.support import api_server
from tests.support.lake import Lake
from tests.support.mailbox import WARM_DRIVER, Namespace

ROOT = Path(__file__).parents[3]
MIB = 1024**2
SERVE = """
import os, sys
from lethe_spark.run.redact import log_to_stderr
from lethe_spark.warm_driver import serve

log_to_stderr()
command = (sys.executable, "-m", "tests.spark.support.misbehaving_session")
serve.end(serve.WarmDriver(serve.WarmSettings.of(os.environ), sys.argv[1:], command).run())
"""
LIMITS = {
    "LETHE_WARM_RUN_SECONDS": "600",
    "LETHE_WARM_DISK_BYTES": str(100 * MIB),
    "LETHE_WARM_MEMORY_BYTES": str(3000 * MIB),
}


@dataclass(frozen=True)
class Warm:
    """A warm driver, and the operator's side of its mailbox."""

    namespace: Namespace
    folder: Path

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def carried_out(self, spec: RunSpec, act: str = "") -> object:
        if act:
            (self.folder / spec.run_id).write_text(act)
        result = self.namespace.carried_out(spec, within_seconds=600)
        return result.outcome if result.outcome is not RunOutcome.FAILED else (result.reason, result.message)


@pytest.fixture
def warm(lake: Lake, tmp_path: Path) -> Iterator[Warm]:
    (tmp_path / "account").mkdir()
    confs = [argument for conf in CONFS for argument in ("--conf", conf)]
    with api_server.running(tmp_path / "account") as server, (tmp_path / "log").open("w") as log:
        namespace = Namespace.make(server, WARM_DRIVER)
        process = subprocess.Popen(
            [sys.executable, "-c", SERVE, *confs],
            env={
                **os.environ,
                **lake.environment,
                **server.environment,
                **LIMITS,
                "PYTHONPATH": f"{SOURCES}:{ROOT}",
                "SPARK_LOCAL_DIRS": str(tmp_path / "scratch"),
                "TEST_ACTS": str(tmp_path),
            },
            stderr=log,
        )
        try:
            yield Warm(namespace, tmp_path)
        finally:
            process.terminate()
            try:
                process.wait(40)
            finally:
                process.kill()


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake).filled("ABC")


def a_replay(story: Story, old: str) -> RunSpec:
    """Replace a batch by one of a new name."""
    return story.restatement(story.a_replay(old, by=f"{old}2", name=f"replay-{old}", rows=4))


def test_each_run_finds_a_session_as_if_it_were_the_first(story: Story, warm: Warm) -> None:
    """Of every kind: a run that leaks, then one that looks for what was left, and a vacuum."""
    assert warm.carried_out(a_replay(story, "A"), "leaks") is RunOutcome.COMMITTED, warm.log[-3000:]
    assert warm.carried_out(a_replay(story, "B"), "looks") is RunOutcome.COMMITTED, warm.log[-3000:]
    story.put("D")
    assert warm.carried_out(story.consolidation("D"), "looks") is RunOutcome.COMMITTED
    assert warm.carried_out(story.vacuuming(), "looks") is RunOutcome.COMMITTED
    story.check_reads(of_batches("A2", "B2", "C", "D"))
