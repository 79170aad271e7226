"""The tasks of a run, as progress reports them."""

import threading

from lethe_spark.run.progress import running_tasks
from pyspark.sql import SparkSession


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
