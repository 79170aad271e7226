"""The long walk: thousands of steps. `make test-model`; STEPS says how many, SEED which ones (else each time others)."""

import os
import random

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import SparkSession

from tests.model.acts import Act
from tests.model.machine import TableMachine
from tests.model.world import World
from tests.spark.lake import Lake

STEPS_PER_TABLE = 40


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_table_and_a_plain_model_of_it_agree_for_thousands_of_steps(spark: SparkSession, lake: Lake) -> None:
    """What fails is printed as a sequence of acts, to be pasted into a call of `play`."""
    steps, chosen = int(os.environ.get("STEPS") or 2000), int(os.environ.get("SEED") or random.randrange(2**32))
    spark.sparkContext.setLogLevel("ERROR")
    print(f"\nSTEPS={steps} SEED={chosen}", flush=True)

    class Long(TableMachine):
        begin = staticmethod(lambda: World.begin(spark, lake))

        def on_step(self, act: Act, seconds: float) -> None:
            print(f"{Long.played:6} {seconds:5.1f}s  {act!r}", flush=True)

    run_state_machine_as_test(
        seed(chosen)(Long),
        settings=settings(
            max_examples=max(1, steps // STEPS_PER_TABLE),
            stateful_step_count=STEPS_PER_TABLE,
            deadline=None,
            database=None,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{Long.played} steps", flush=True)
