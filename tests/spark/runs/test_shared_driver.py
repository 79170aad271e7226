"""One driver with runs of several Datasets: each ends as it would have alone, whatever becomes of the others."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lethe.contract.result import Phase
from lethe.contract.run import RunSpec, TableRef
from lethe.iceberg import catalogs
from lethe_spark.apps.app import job_of, release
from lethe_spark.run.context import RunContext
from lethe_spark.run.progress import Reporter
from pyspark.sql import SparkSession

from tests.spark.support.driver import Driver
from tests.spark.support.flights import Flights
from tests.support.lake import CATALOG, Recorder

pytestmark = pytest.mark.long


@pytest.fixture
def three(make_flights: Callable[..., Flights]) -> list[Flights]:
    """Datasets with one batch of four rows each in the buffer."""
    made = [make_flights() for _ in range(3)]
    for flights in made:
        flights.lake.buffer(flights.name).put("A", [{"v": n, "day": 1} for n in range(4)])
    return made


def run_of(flights: Flights, number: int, *batches: str, attempt: int = 1) -> RunSpec:
    return flights.run_of(*batches, run_id=f"{number:032x}"[::-1], attempt=attempt)


def test_each_run_reports_its_own_outcome_and_a_failed_one_does_not_delay_the_others(
    three: list[Flights], driver: Driver, tmp_path: Path
) -> None:
    """The table of the second does not exist, and the file of the third is deleted during the first."""
    first, gone, last = (run_of(f, n, "A") for n, f in enumerate(three, start=1))
    bad = three[0].run(run_id="f" * 32, batch_ids=("A",), table=TableRef(catalog=CATALOG, name="air.nowhere"))
    progress = tmp_path / "progress.json"
    process = driver.start(first, bad, gone, last, environment={"LETHE_PROGRESS_FILE": str(progress)})
    wait_for_run(progress, first, within_seconds=120)
    driver.file_of(gone).unlink()

    ended = driver.end(process)

    reported = [(r.run_id, r.outcome, r.reason, r.permanent) for r in ended.results]
    assert reported == [
        (first.run_id, "Committed", "", False),
        (bad.run_id, "Failed", "TableNotFound", True),
        (last.run_id, "Committed", "", False),
    ], ended.log
    assert ended.code == 10
    assert [f.rows_per_batch() for f in three] == [{"A": 4}, {}, {"A": 4}]
    assert "RunFileMissing" in ended.log
    assert "Traceback" not in ended.results[1].to_json()
    assert "Traceback" in ended.log


def test_a_driver_killed_in_the_middle_leaves_the_finished_finished_and_the_rest_are_done_once_by_their_own(
    three: list[Flights], driver: Driver
) -> None:
    runs = [run_of(f, n, "A") for n, f in enumerate(three, start=1)]

    killed = driver.run(*runs, crash_at=f"after-stage@{runs[1].run_id}")

    assert (killed.code, [r.run_id for r in killed.results]) == (137, [runs[0].run_id]), killed.log
    assert [f.rows_per_batch() for f in three] == [{"A": 4}, {}, {}]

    again = [carried_out(f, run_of(f, n, "A", attempt=2)) for n, f in enumerate(three, start=1)]

    assert again == ["AlreadyCommitted", "Committed", "Committed"]
    assert [f.rows_per_batch() for f in three] == [{"A": 4}] * 3


def test_sigterm_ends_the_one_under_way_and_those_to_come_and_not_the_one_that_is_done(
    three: list[Flights], driver: Driver, tmp_path: Path
) -> None:
    busy = [f"b{n}" for n in range(20)]
    for id in busy:
        three[1].lake.buffer(three[1].name).put(id, [{"v": i, "day": i % 30} for i in range(20_000)])
    runs = [run_of(three[0], 1, "A"), run_of(three[1], 2, *busy), run_of(three[2], 3, "A")]
    progress = tmp_path / "progress.json"
    process = driver.start(*runs, environment={"LETHE_PROGRESS_FILE": str(progress)})
    wait_for_run(progress, runs[1], within_seconds=120, phases={Phase.READING, Phase.WRITING})

    process.send_signal(signal.SIGTERM)
    ended = driver.end(process, within_seconds=60)

    assert [r.reason or r.outcome for r in ended.results] == ["Committed", "Cancelled", "Cancelled"], ended.log
    assert ended.code == 20
    assert [f.rows() for f in three] == [4, 0, 0]


def test_nothing_that_a_run_left_cached_is_there_for_the_next(spark: SparkSession) -> None:
    """Twenty runs in the memory of one."""
    before = kept(spark)
    frame = spark.range(10).persist()
    frame.count()
    assert kept(spark) > before

    release()

    assert kept(spark) <= before


def carried_out(flights: Flights, run: RunSpec) -> str:
    """The outcome of a run in this process."""
    context = RunContext(run, Reporter(run, Recorder()), catalogs.properties(CATALOG), spark=flights.spark)
    try:
        return str(job_of(run.kind)(context).outcome)
    finally:
        context.reporter.close(Phase.SUCCEEDED)


def kept(spark: SparkSession) -> set[int]:
    """The ids of what the session keeps in memory; tests before this one may have left some."""
    return set(spark.sparkContext._jsc.getPersistentRDDs().keySet())


def wait_for_run(
    progress: Path, run: RunSpec, within_seconds: int, phases: frozenset[Phase] | set[Phase] = frozenset(Phase)
) -> None:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if progress.exists():
            reported = json.loads(progress.read_text())
            if reported["runId"] == run.run_id and reported["phase"] in phases:
                return
        time.sleep(0.02)
    pytest.fail(f"run {run.run_id} was not in {sorted(phases)} within {within_seconds} s")
