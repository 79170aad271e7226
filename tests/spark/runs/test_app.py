"""An application as a process: exit codes, results, signals, and what its log may not hold."""

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from lethe import tracing
from lethe.contract.result import Phase
from lethe.contract.run import TableRef
from lethe_spark.run.launching import ARCHIVE, LOCAL_FILES
from lethe_spark.run.progress import running_tasks
from pyspark.sql import SparkSession

from tests.spark.support.driver import Driver
from tests.spark.support.flights import Flights
from tests.support import trace_collector
from tests.support.clock import wait_until
from tests.support.lake import CATALOG


def test_a_jvm_maps_the_archive_of_classes(spark: SparkSession) -> None:
    """Of one that does not fit, Java says nothing, and each start takes twice as long."""
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()

    assert f"/{ARCHIVE}\n" in Path(f"/proc/{pid}/maps").read_text()


def test_local_files_are_created_without_a_process_for_each(spark: SparkSession) -> None:
    assert spark._jvm is not None
    hadoop = spark._jvm.org.apache.hadoop
    path, configuration = hadoop.fs.Path("file:///tmp"), spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]

    assert path.getFileSystem(configuration).getClass().getName() == LOCAL_FILES


def test_an_unknown_catalog_ends_with_10_before_spark_starts(flights: Flights, driver: Driver) -> None:
    ended = driver.run(flights.run(table=TableRef(catalog="elsewhere", name="air.flights")), within_seconds=60)

    assert ended.result is not None, ended.log
    assert (ended.code, ended.result.outcome, ended.result.reason) == (10, "Failed", "UnknownCatalog")
    # The lake is shared: which other catalogs it names depends on the tests before.
    known = ended.result.message.partition("it contains: ")[2].partition(".")[0].split(", ")
    assert CATALOG in known


def test_sigterm_ends_a_run_with_20_and_leaves_the_table_as_it_was(
    flights: Flights, driver: Driver, tmp_path: Path
) -> None:
    """The signal arrives while Spark is busy; nothing is committed after it."""
    buffer = flights.lake.buffer(flights.name)
    rows = pa.table({"v": range(20_000), "day": pa.array((i % 30 for i in range(20_000)), pa.int32())})
    for n in range(20):
        buffer.put(f"b{n}", rows)
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


# --- sessions --------------------------------------------------------------------------------------------------------
# Spark within a driver: one session after the other, what its Python workers have, and the tasks that progress reports.


def test_a_task_finds_no_archive_on_its_path_and_what_it_imports_loaded(spark: SparkSession) -> None:
    """An archive is gone through again by every task, which takes longer than a hundred small files do."""

    def look(_: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        import pyspark
        from lethe.decoder.process import _Server

        archives = [p for p in sys.path if Path(p).is_file()]
        yield pd.DataFrame(
            {
                "archives": [len(archives)],
                "loaded": ["lethe.ingest.buffer_files" in sys.modules],
                "pyspark": [pyspark.__file__],
                "decoders": [_Server._control is not None and _Server._program is None],
            }
        )

    found = (
        spark.range(0, 1, 1, 1)
        .mapInPandas(look, "archives int, loaded boolean, pyspark string, decoders boolean")
        .collect()
    )

    assert [(r.archives, r.loaded, Path(r.pyspark).is_file()) for r in found] == [(0, True, True)]
    assert [r.decoders for r in found] == [True]  # the server of decoders is a fork of the daemon


def test_a_worker_returns_the_memory_of_its_task(spark: SparkSession) -> None:
    """Also what its C library would keep: blocks that were freed below one that is in use."""

    def use_and_free(rows: Iterator[int]) -> Iterator[tuple[int, int]]:
        assert len(list(rows)) == 1  # a worker that has not read all of its task ends with it
        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        blocks = [library.malloc(100_000) for _ in range(2_000)]
        for block in blocks:
            ctypes.memset(block, 1, 100_000)
        for block in blocks[:-1]:
            library.free(ctypes.c_void_p(block))
        yield os.getpid(), resident_mib(os.getpid())

    def resident_mib(pid: int) -> int:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 1024**2

    ((pid, used),) = spark.sparkContext.parallelize([0], 1).mapPartitions(use_and_free).collect()

    wait_until(lambda: resident_mib(pid) < used - 150, within_seconds=30)


def test_tasks_of_running_jobs_are_counted(spark: SparkSession) -> None:
    done, running = (
        threading.Event(),
        threading.Thread(
            target=lambda: spark.sparkContext.parallelize(range(4), 4).foreach(lambda _: __import__("time").sleep(1))
        ),
    )
    running.start()
    seen: tuple[int, int] = (0, 0)
    while running.is_alive() and seen[1] == 0:
        seen = running_tasks(spark.sparkContext)
        done.wait(0.05)
    running.join()

    assert seen[1] == 4
    assert running_tasks(spark.sparkContext) == (0, 0)


# --- traces ----------------------------------------------------------------------------------------------------------
# A run and its commit continue the trace of the reconcile that started them, in a Job and in the committer.


TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def test_a_job_sends_its_run_and_its_commit(flights: Flights, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    flights.lake.buffer(flights.name).put("A", [{"v": 1, "day": 1}])
    spec = flights.run_of("A", traceparent=PARENT)
    monkeypatch.setenv("LETHE_LOG_FORMAT", "json")
    with trace_collector.running() as collector:
        monkeypatch.setenv(tracing.ENDPOINT, collector.url)

        ended = driver.run(spec)

    assert ended.code == 0, ended.log
    run, session, commit = (collector.named(n) for n in ("run Consolidation", "start Spark", "commit"))
    assert (run.service, run.trace, run.parent) == ("lethe-run", TRACE, SPAN)
    assert (run.attributes["lethe.run.id"], run.attributes["lethe.run.exit_code"]) == (spec.run_id, 0)
    assert {session.parent, commit.parent} == {run.id}
    assert ended.result is not None
    assert (ended.result.outcome, flights.rows_per_batch()) == ("Committed", {"A": 1})
    assert commit.attributes["lethe.snapshot.id"] == ended.result.snapshot_id
    assert "Committing" in run.events
    assert f'"trace": "{TRACE}"' in ended.log
