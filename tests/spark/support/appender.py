"""A process that appends batches to a table: `python -m tests.spark.support.appender TABLE NAME COUNT`.

It says READY when its session is up, starts when a line comes in, and repeats a write that Lethe says may be repeated.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import lethe_spark
from lethe.base.errors import ConflictError, UnknownCommitState
from lethe_spark.apps.session import make_session
from pyspark.sql import DataFrame

from tests.spark.support.driver import CONFS
from tests.support.lake import Lake

READY = "READY"
ROOT = Path(__file__).parents[3]


def main(table: str, name: str, count: str) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = make_session(table.partition(".")[0], CONFS)
    spark.range(1).count()
    print(READY, flush=True)
    sys.stdin.readline()
    for n in range(int(count)):
        append(spark.createDataFrame([(n, 1)], "v bigint, day int"), table, f"{name}-{n}")
    spark.stop()


def append(frame: DataFrame, table: str, batch_id: str) -> None:
    """Until it is there: twelve lost races in a row are no reason to give up here."""
    for _ in range(20):
        try:
            lethe_spark.write(frame, table, batch_id=batch_id)
            return
        except (ConflictError, UnknownCommitState):
            continue
    raise AssertionError(f"{batch_id} did not come through")


@contextmanager
def appenders(
    lake: Lake, folder: Path, table: str, processes: int, count: int
) -> Iterator["list[subprocess.Popen[str]]"]:
    """Processes that wait for a line to start with."""
    with ExitStack() as stack:
        started = []
        for n in range(processes):
            log = stack.enter_context((folder / f"appender-{n}.log").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.support.appender", table, f"p{n}", str(count)],
                env={**os.environ, **lake.environment, "PYTHONPATH": f"{ROOT}/spark_apps:{ROOT}/operator:{ROOT}"},
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.callback(process.kill)
            started.append(process)
        for n, process in enumerate(started):
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            assert said == READY, (folder / f"appender-{n}.log").read_text()[-3000:]
        yield started


if __name__ == "__main__":
    main(*sys.argv[1:])
