"""Runs in a Spark session that stays up. What one of them breaks is gone before the next one, and a Job carries it out."""

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

    @property
    def sessions(self) -> int:
        """How many sessions it has started."""
        return len([1 for line in self.log.splitlines() if "Setting default log level" in line])

    def carried_out(self, spec: RunSpec, act: str = "") -> object:
        if act:
            (self.folder / spec.run_id).write_text(act)
        result = self.namespace.carried_out(spec, within_seconds=600)
        return result.outcome if result.outcome is not RunOutcome.FAILED else (result.reason, result.message)


@pytest.fixture(scope="module")
def warm(lake: Lake, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Warm]:
    """One for all tests with the same limits: whatever a run does, the next one finds a session without it."""
    tmp_path, more = tmp_path_factory.mktemp("warm"), request.param
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
                **more,
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


AS_EVER: dict[str, str] = {}
as_ever = pytest.mark.parametrize("warm", [pytest.param(AS_EVER, id="as ever")], indirect=True)


def a_replay(story: Story, old: str) -> RunSpec:
    """Replace a batch by one of a new name."""
    return story.restatement(story.a_replay(old, by=f"{old}2", name=f"replay-{old}", rows=4))


@as_ever
def test_each_run_finds_a_session_as_if_it_were_the_first(story: Story, warm: Warm) -> None:
    """Of every kind: a run that leaks, then one that looks for what was left, and a vacuum."""
    assert warm.carried_out(a_replay(story, "A"), "leaks") is RunOutcome.COMMITTED, warm.log[-3000:]
    assert warm.carried_out(a_replay(story, "B"), "looks") is RunOutcome.COMMITTED, warm.log[-3000:]
    story.put("D")
    assert warm.carried_out(story.consolidation("D"), "looks") is RunOutcome.COMMITTED
    assert warm.carried_out(story.vacuuming(), "looks") is RunOutcome.COMMITTED
    story.check_reads(of_batches("A2", "B2", "C", "D"))


BREAKS = {
    "exits": ("WarmDriverEnded", "ended with exit code"),
    "is_killed": ("WarmDriverEnded", "ended with exit code -9"),
    "allocates": ("WarmDriverEnded", "ended with exit code"),
    "fills": ("WarmDriverLimitExceeded", "to the local disk"),
    "hangs": ("WarmDriverLimitExceeded", "longer than"),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("act", "warm"),
    [
        *((act, AS_EVER) for act in ("exits", "is_killed", "allocates", "fills")),
        # Long enough for the run after it, which is the first one of its session.
        ("hangs", {"LETHE_WARM_RUN_SECONDS": "120"}),
    ],
    indirect=["warm"],
    ids=["exits", "is killed", "allocates", "fills", "hangs"],
)
def test_a_run_that_breaks_the_session_affects_only_itself(story: Story, warm: Warm, act: str) -> None:
    reason, text = BREAKS[act]
    bad, after = a_replay(story, "A"), a_replay(story, "B")

    failed = warm.carried_out(bad, act)
    fine = warm.carried_out(after, "looks")

    assert isinstance(failed, tuple), failed
    assert failed[0] == reason
    assert text in failed[1]
    assert fine is RunOutcome.COMMITTED, warm.log[-3000:]
    story.check_reads(of_batches("A", "B2", "C"))
    as_a_job = story.run(bad.model_copy(update={"attempt": 2}))
    assert as_a_job.outcome is RunOutcome.COMMITTED
    story.check_reads(of_batches("A2", "B2", "C"))
