"""The model test with thousands of acts: `make test-model`.

Environment variables: STEPS is the number of acts, SEED makes the choice reproducible (default: random), VERSION is the format
version of the tables, 2 or 3 (default: both in turn), FIRST is the number of the first table, to continue a walk (default: 0).
"""

import os
import random
import time

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import SparkSession

from tests.model.acts import Act, Setup
from tests.model.machine import TableMachine
from tests.model.world import World
from tests.support.lake import Lake

STEPS_PER_TABLE = 40
SETUPS = (Setup(2), Setup(3), Setup(2, "EqualityDeletes"), Setup(2, "PositionDeletes"), Setup(3, "DeletionVectors"))


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_table_and_a_plain_model_of_it_agree_for_thousands_of_steps(spark: SparkSession, lake: Lake) -> None:
    """Each act is printed, so that a failing sequence can be pasted into a call of `play`."""
    steps, chosen = int(os.environ.get("STEPS") or 2000), int(os.environ.get("SEED") or random.randrange(2**32))
    version = os.environ.get("VERSION") or ""
    setups = [s for s in SETUPS if version in ("", str(s.format_version))]
    spark.sparkContext.setLogLevel("ERROR")
    print(f"\nSTEPS={steps} SEED={chosen} VERSION={version}", flush=True)

    class Long(TableMachine):
        setup = setups[0]
        begin = staticmethod(lambda: World.begin(spark, lake, Long.setup))

        def on_step(self, act: Act, seconds: float) -> None:
            print(f"{Long.played:6} {seconds:5.1f}s  {act!r}", flush=True)

    began, table = time.monotonic(), int(os.environ.get("FIRST") or 0)
    while Long.played < steps:
        Long.setup = setups[table % len(setups)]
        print(f"table {table}: {Long.setup}", flush=True)
        run_state_machine_as_test(seed(chosen * 100_000 + table)(Long), settings=_ONE_TABLE)
        table += 1
    print(f"{Long.played} steps in {time.monotonic() - began:.0f} s", flush=True)


# No shrinking, because it would take hours. To shorten a failing sequence, leave out acts by hand.
_ONE_TABLE = settings(
    max_examples=1,
    stateful_step_count=STEPS_PER_TABLE,
    deadline=None,
    database=None,
    print_blob=False,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
