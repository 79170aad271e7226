"""The session of a warm driver, in which the runs that a test names leak, or look for what leaked, before they do their work.

    python -m tests.spark.support.misbehaving_session [--conf k=v …]

The file `<TEST_ACTS>/<run id>` names what the run does.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lethe.contract.result import RunResult
from lethe.contract.run import RunKind
from lethe_spark.apps import app, warm_session
from lethe_spark.run.context import RunContext

from tests.support.clock import wait_until

SETTING = "spark.sql.shuffle.partitions"
LEAKED = "LEAKED"


def leaks(context: RunContext) -> None:
    """Everything that a run may leave in a session."""
    spark, core = context.spark, context.spark.sparkContext
    assert spark.range(1000).cache().count() == 1000
    assert core.parallelize(range(10)).persist().count() == 10
    spark.range(5).createOrReplaceTempView(LEAKED)
    spark.conf.set(SETTING, "777")
    spark.conf.set("spark.sql.catalog.leaked", "org.apache.iceberg.spark.SparkCatalog")
    core.setLocalProperty(LEAKED, "1")
    core.accumulator(0).add(1)
    assert spark.range(1000).repartition(3).count() == 1000
    assert files_of_shuffles()
    os.environ[LEAKED] = "1"
    (Path(tempfile.gettempdir()) / LEAKED).write_bytes(b"1")
    Path(LEAKED).write_bytes(b"1")


def files_of_shuffles() -> list[str]:
    """Names of the local files with rows that Spark moves between its tasks."""
    return [p.name for p in Path(os.environ["SPARK_LOCAL_DIRS"]).rglob("shuffle_*")]


def looks(context: RunContext) -> None:
    """Nothing of an earlier run is here."""
    spark, core = context.spark, context.spark.sparkContext
    assert [t.name for t in spark.catalog.listTables()] == []
    assert spark.conf.get(SETTING) != "777"
    assert spark.conf.get("spark.sql.catalog.leaked", "none") == "none"
    assert core.getLocalProperty(LEAKED) is None
    assert core._jsc.getPersistentRDDs().isEmpty()
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    assert LEAKED not in os.environ
    wait_until(lambda: not files_of_shuffles(), 10)  # Spark deletes them in a thread of its own
    assert os.listdir(tempfile.gettempdir()) == [] == os.listdir(".")


ACTS: dict[str, Callable[[RunContext], None]] = {act.__name__: act for act in (leaks, looks)}


def main() -> int:
    right = app.job_of

    def job_of(kind: RunKind) -> Callable[[RunContext], RunResult]:
        def run(context: RunContext) -> RunResult:
            act = Path(os.environ["TEST_ACTS"], context.run_id)
            if act.exists():
                ACTS[act.read_text()](context)
            return right(kind)(context)

        return run

    app.job_of = job_of
    return warm_session.main()


if __name__ == "__main__":
    exit_code = 20
    try:
        exit_code = main()
    finally:
        sys.stderr.flush()
        os._exit(exit_code)
