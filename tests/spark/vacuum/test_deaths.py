"""Real processes of a vacuum: one killed between two steps, one whose disk fills up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lethe.contract.result import RunResult
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.driver import CONFS, Driver
from tests.spark.support.story import Story, of_batches
from tests.spark.vacuum.test_steps import commits_of, in_files, in_steps, tombstones
from tests.support.builders import read_result
from tests.support.lake import Lake

TINY = "5m"  # libraries unpack some megabytes of native code there; the rows to be sorted take more than is left


@built_once
def a_story(spark: SparkSession, lake: Lake, rows: int = 4) -> Story:
    story = Story.begin(spark, lake)
    story.put("A", "B", rows=rows)
    story.consolidate("A", "B")
    story.revert("A")
    return story


def test_a_process_killed_between_two_steps_has_kept_the_first_and_its_successor_does_the_second(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    """What an operator may conclude from the table: a commit of this run is there, and it says that there is more to come."""
    story, driver = a_story(spark, lake), Driver(lake, tmp_path)
    run = in_steps(story)

    assert driver.run(run, crash_at="step-2", within_seconds=400).code == 137
    assert (commits_of(story, run), in_files(story)["A"], tombstones(story)) == (["true"], 2, {"A"})
    result = story.run(run)

    assert (result.outcome, result.steps) == ("Committed", 1)
    assert (commits_of(story, run), tombstones(story)) == (["true", None], set())
    story.check_reads(of_batches("B"))


def can_mount() -> bool:
    try:
        return subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], check=False).returncode == 0
    except FileNotFoundError:
        return False


def on_a_tiny_disk(driver: Driver, spec: RunSpec, folder: Path) -> tuple[int, RunResult]:
    """Carry a run out in a process that alone sees a disk of next to nothing, for what Spark keeps locally."""
    path = driver.file_of(spec)
    path.write_text(spec.to_json())
    mounted = f'mount -t tmpfs -o size={TINY} tmpfs "{folder}" && exec "$@"'
    confs = [a for c in (*CONFS, "spark.shuffle.compress=false") for a in ("--conf", c)]
    done = subprocess.run(
        [
            "unshare",
            "-rm",
            "sh",
            "-c",
            mounted,
            "sh",
            sys.executable,
            "-m",
            "lethe_spark.apps.app",
            "--run",
            str(path),
            *confs,
        ],
        env={
            **os.environ,
            **driver.lake.environment,
            "PYTHONPATH": str(Path(__file__).parents[3] / "spark_apps"),
            "SPARK_LOCAL_DIRS": str(folder),
            "LETHE_TERMINATION_LOG": str(folder / "none"),
        },
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-3000:]
    return done.returncode, read_result(lines[-1])


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="only root may mount a disk of its own")
def test_a_full_disk_fails_the_attempt_clearly_and_leaves_nothing_behind(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    story = a_story(spark, lake, rows=150_000)
    before, head = story.data_folder(), story.head().snapshot_id
    disk = tmp_path / "disk"
    disk.mkdir()

    code, result = on_a_tiny_disk(Driver(lake, tmp_path), story.vacuuming(), disk)

    assert (code, result.outcome, result.reason, result.permanent) == (20, "Failed", "DiskFull", False)
    assert "ephemeral storage" in result.message
    assert (story.data_folder(), story.head().snapshot_id) == (before, head)
    assert story.vacuum().rows_purged == 150_000
