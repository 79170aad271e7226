"""An application as a process: exit codes, results, signals, and what its log may not hold."""

import json
import signal
import time
from pathlib import Path

import pytest
from lethe.contract.result import Phase
from lethe.contract.run import RunBoundary, TableRef
from lethe_spark.run.launching import ARCHIVE
from pyspark.sql import SparkSession

from tests.spark.support.driver import Driver
from tests.spark.support.flights import Flights
from tests.support.lake import CATALOG, Lake


@pytest.mark.long
def test_a_run_reports_its_result_and_exits_with_0(flights: Flights, driver: Driver) -> None:
    flights.lake.buffer(flights.name).put("A", [{"v": n, "day": 1} for n in range(7)])

    ended = driver.run(flights.run_of("A"))

    assert ended.result is not None, ended.log
    assert (
        ended.code,
        ended.result.outcome,
        ended.result.batches_promoted,
        ended.result.rows_added,
    ) == (0, "Committed", 1, 7)
    assert flights.rows_per_batch() == {"A": 7}


def test_a_jvm_maps_the_archive_of_classes(spark: SparkSession) -> None:
    """Of one that does not fit, Java says nothing, and each start takes twice as long."""
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()

    assert f"/{ARCHIVE}\n" in Path(f"/proc/{pid}/maps").read_text()


def test_an_unknown_catalog_ends_with_10_before_spark_starts(flights: Flights, driver: Driver) -> None:
    ended = driver.run(flights.run(table=TableRef(catalog="elsewhere", name="air.flights")), within_seconds=60)

    assert ended.result is not None, ended.log
    assert (ended.code, ended.result.outcome, ended.result.reason) == (10, "Failed", "UnknownCatalog")
    # The lake is shared: which other catalogs it names depends on the tests before.
    known = ended.result.message.partition("it contains: ")[2].partition(".")[0].split(", ")
    assert CATALOG in known


@pytest.mark.long
def test_a_run_outside_its_boundary_ends_with_10_before_spark_starts(flights: Flights, driver: Driver) -> None:
    outside = flights.run().model_copy(update={"boundary": RunBoundary(uris=("s3://elsewhere",))})

    ended = driver.run(outside, within_seconds=60)

    assert ended.result is not None, ended.log
    assert (ended.code, ended.result.reason) == (10, "OutsideBoundary")
    assert f"spec.buffer.uri {outside.buffer.uri} is outside the boundary uris of namespace" in ended.result.message


def test_a_catalog_that_is_away_ends_with_20_and_its_password_stays_out_of_the_log(
    flights: Flights, tmp_path: Path
) -> None:
    away = Lake(tmp_path)
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n  lite:\n    type: sql\n    uri: postgresql+psycopg2://lethe:topsecret@127.0.0.1:9/ice\n"
        "    warehouse: file:///nowhere\n"
    )

    ended = Driver(away, tmp_path).run(flights.run())

    assert ended.result is not None, ended.log
    assert (ended.code, ended.result.reason) == (20, "CatalogOrStorageAway")
    assert "topsecret" not in ended.log + ended.result.to_json()


def test_sigterm_ends_a_run_with_20_and_leaves_the_table_as_it_was(
    flights: Flights, driver: Driver, tmp_path: Path
) -> None:
    """The signal arrives while Spark is busy; nothing is committed after it."""
    buffer = flights.lake.buffer(flights.name)
    for n in range(20):
        buffer.put(f"b{n}", [{"v": i, "day": i % 30} for i in range(20_000)])
    progress = tmp_path / "progress.json"
    run = flights.run_of(*(f"b{n}" for n in range(20)))
    process = driver.start(run, environment={"LETHE_PROGRESS_FILE": str(progress)})
    wait_for_phase(progress, {Phase.READING, Phase.WRITING}, within_seconds=120)

    process.send_signal(signal.SIGTERM)
    ended = driver.end(process, within_seconds=60)

    assert ended.result is not None, ended.log
    assert (ended.code, ended.result.reason) == (20, "Cancelled")
    assert flights.rows() == 0


def wait_for_phase(progress: Path, phases: set[Phase], within_seconds: int) -> None:
    deadline = time.monotonic() + within_seconds
    while time.monotonic() < deadline:
        if progress.exists() and json.loads(progress.read_text())["phase"] in phases:
            return
        time.sleep(0.02)
    pytest.fail(f"the run was not in {phases} within {within_seconds} s")
