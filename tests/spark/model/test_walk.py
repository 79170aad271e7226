"""Random walks on real tables. Each act is printed, so that a failing sequence can be pasted into a call of `play`."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from pyspark.sql import SparkSession

from tests.model.acts import Act, Setup
from tests.model.machine import TableMachine
from tests.model.strategies import IDS
from tests.spark.model.play import Play
from tests.spark.model.world import World
from tests.spark.parameters import some
from tests.support.lake import Lake

SETUPS = (Setup(2), Setup(3), Setup(2, "Auto"), Setup(3, "Auto"))
SHORT_STEPS, SHORT_WALKS = 5, 3  # walks with each setup
FEW_IDS = "ABCDEFGH"  # in short walks, so that acts meet
LONG_STEPS = 40
SEED = 20261127


@dataclass
class Told(Play):
    """Prints each act."""

    def do(self, act: Act) -> None:
        before = time.monotonic()
        try:
            super().do(act)
        finally:
            print(f"{len(self.sequence):4} {time.monotonic() - before:5.1f}s  {act!r},", flush=True)


def walk(begin: Callable[[], Play], number: int, steps: int, examples: int = 1) -> None:
    """Take walks that follow from a number. Without shrinking, which would take hours: leave acts out by hand."""

    class Walk(TableMachine):
        ids = FEW_IDS if steps == SHORT_STEPS else IDS

    Walk.begin = begin
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=(Phase.generate,),
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(Walk), settings=how)


@pytest.mark.parametrize(
    "setup", some(SETUPS, Setup(3), Setup(2, "Auto")), ids=lambda s: f"v{s.format_version}-{s.deletes}"
)
def test_the_table_and_a_plain_model_of_it_agree_in_short_random_walks(
    spark: SparkSession, lake: Lake, setup: Setup
) -> None:
    """They are the same each time, and compare all reads after their last act."""
    walk(
        lambda: Told(World.begin(spark, lake, setup), SHORT_STEPS), SEED + SETUPS.index(setup), SHORT_STEPS, SHORT_WALKS
    )


def test_the_table_and_a_plain_model_of_it_agree_in_a_walk_that_nobody_took_before(
    spark: SparkSession, lake: Lake
) -> None:
    number = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    repeat = f"to repeat this walk: SEED={number} python -m pytest tests/spark/model/test_walk.py -k nobody_took_before"
    print(repeat)
    try:
        walk(lambda: Told(World.begin(spark, lake, SETUPS[number % len(SETUPS)]), SHORT_STEPS), number, SHORT_STEPS)
    except BaseException as e:
        e.add_note(repeat)
        raise


@pytest.mark.long
@pytest.mark.timeout(0)
def test_the_table_and_a_plain_model_of_it_agree_for_thousands_of_steps(spark: SparkSession, lake: Lake) -> None:
    """`make test-model STEPS=5000 SEED=1 VERSION=2`. FIRST=7 begins with the eighth table of a seed."""
    steps, number = int(os.environ.get("STEPS") or 1000), int(os.environ.get("SEED") or random.randrange(2**32))
    version = os.environ.get("VERSION") or ""
    setups = [s for s in SETUPS if version in ("", str(s.format_version))]
    spark.sparkContext.setLogLevel("ERROR")
    print(f"\nSTEPS={steps} SEED={number} VERSION={version}", flush=True)
    began, table, tables = time.monotonic(), int(os.environ.get("FIRST") or 0), list[Play]()

    def begin() -> Play:
        tables.append(Told(World.begin(spark, lake, setups[table % len(setups)])))
        return tables[-1]

    while (played := sum(len(t.sequence) for t in tables)) < steps:
        print(f"table {table}, after {played} steps: {setups[table % len(setups)]}", flush=True)
        walk(begin, number * 100_000 + table, LONG_STEPS)
        table += 1
    print(f"{played} steps in {time.monotonic() - began:.0f} s", flush=True)
