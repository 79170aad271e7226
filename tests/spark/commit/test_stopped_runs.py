"""Runs that SIGTERM stops right after one of their commits: what was committed stays, and every file of it is there."""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import pytest
from lethe.contract.result import Phase
from lethe.contract.run import RunSpec
from lethe.contract.settings import Deletes
from lethe_spark.apps.app import job_of
from lethe_spark.run.context import Cancelled
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.erases import Names, but, name_of, row
from tests.spark.support.erasures import DUE, an_erasure_check, next_attempt
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import of_batches, of_spark
from tests.support.builders import a_request
from tests.support.lake import Lake


def stop() -> None:
    raise Cancelled


def stopped_after_each_commit(story: Names | Native, spec: RunSpec, check: Callable[[], None]) -> int:
    """Repeat a run, stopped after the first commit of each attempt, until an attempt commits nothing. The number of stops."""
    for stops in range(20):
        context = story.context(spec, after_commit=stop)
        with suppress(Cancelled):
            job_of(spec.kind)(context)
        context.reporter.close(Phase.SUCCEEDED)
        check()
        if context.at:
            return stops
        spec = next_attempt(spec)
    raise AssertionError("the run does not come to an end")


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_an_erasure_of_a_partition(spark: SparkSession, lake: Lake, version: int) -> None:
    """The run writes manifests again, and drops delete files."""
    story = Names.begin(spark, lake, ("name",), format_version=version).filled()
    gone = row("B", 1)

    def check() -> None:
        spark.catalog.clearCache()
        assert of_spark(spark.table(story.full_name)) == but(gone)
        story.check_reads(but(gone))

    assert story.restate(story.an_erase(name_of(gone[1]), evict_by_seconds=DUE)).succeeded
    assert stopped_after_each_commit(story, story.vacuuming(), check) >= 1
    stopped_after_each_commit(story, an_erasure_check(story), check)

    assert len(story.ledger().open_erasures) == 0


@pytest.mark.parametrize("deletes", [Deletes.DELETION_VECTORS, Deletes.POSITION_DELETES])
def test_native_deletes_that_follow_an_erase(spark: SparkSession, lake: Lake, deletes: Deletes) -> None:
    """An Erase of records and a Revert in one run: the Revert's native deletes are a commit of their own."""
    story = Names.begin(spark, lake, ("day",), deletes=deletes).filled()
    gone = row("B", 1)
    spec = story.restatement(story.an_erase(name_of(gone[1])), a_request("revert", batch_ids=("A",)))
    wanted = but(gone) - of_batches("A")

    def check() -> None:
        spark.catalog.clearCache()
        of_spark(spark.table(story.full_name))
        story.check_reads(wanted)

    assert stopped_after_each_commit(story, spec, check) == 2
    assert of_spark(spark.table(story.full_name)) == wanted


def test_files_that_leave_a_partition_whose_column_was_dropped(spark: SparkSession, lake: Lake) -> None:
    story = Native.begin(spark, lake, deletes=Deletes.DELETION_VECTORS).filled("AB", "D")
    spark.sql(f"ALTER TABLE {story.full_name} DROP PARTITION FIELD day")
    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN day")

    def check() -> None:
        spark.catalog.clearCache()
        assert spark.table(story.full_name).count() in (8, 12)

    assert stopped_after_each_commit(story, story.restatement(a_request("revert", batch_ids=("A",))), check) >= 2
    found = Counter(r["batch_id"] for r in spark.table(story.full_name).collect())
    assert found == {"B": 4, "D": 4}
