"""The holds of a run's Dataset: which rows must stay in data files. I/O through executors; `lethe.search.covered` looks."""

from collections.abc import Sequence
from typing import Final

from lethe.iceberg.holds import Holds
from lethe.search.covered import CoverageSearch, Covering, HeldTable, Leaving, LeavingRows, Question
from pyspark import SparkContext

from lethe_spark.commit.table_state import Base
from lethe_spark.run.context import Run, RunContext, table_properties

NOTHING_ELSE: Final = Leaving()


def holds_of(context: Run, base: Base) -> Holds:
    """The holds of the run, for this table.

    Raises:
        InputError: `InvalidHold`, if the filter of one is not a condition on rows of the table.
    """
    return Holds.of(context.spec.holds, base.iceberg.schema())


def covering(
    context: RunContext, base: Base, files: Sequence[LeavingRows], leaving: Leaving = NOTHING_ELSE
) -> Covering:
    """Which holds cover rows that a commit would remove from data files of the head.

    Args:
        files: Each another data file.
        leaving: Which rows leave from all of them.

    Raises:
        InputError: `InvalidHold`.
        Exception: What Spark raises.
    """
    holds, head_id = holds_of(context, base), base.facts.head_id
    if not holds.holds or head_id is None:
        return {}
    held = HeldTable(base.iceberg, head_id, base.field_id, holds)

    def ask(search: CoverageSearch, questions: Sequence[Question]) -> list[tuple[str, frozenset[str]]]:
        return _ask(context.spark.sparkContext, search, questions)

    return held.covering(files, leaving, table_properties(context), ask)


def _ask(
    spark: SparkContext, search: CoverageSearch, questions: Sequence[Question]
) -> list[tuple[str, frozenset[str]]]:
    shared = spark.broadcast(search)
    try:
        groups = max(1, min(len(questions), spark.defaultParallelism))
        return spark.parallelize(list(questions), groups).map(lambda q: shared.value.of_file(q)).collect()
    finally:
        shared.destroy()  # from the disks of the executors too
