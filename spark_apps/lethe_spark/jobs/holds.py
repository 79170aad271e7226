"""The holds of a run's Dataset: which rows must stay in data files. I/O through executors; `lethe.search.covered` looks."""

import logging
from collections.abc import Iterable, Sequence

from lethe.iceberg.holds import Holds
from lethe.search.covered import CoverageSearch, Covering, HeldTable, LeavingRows, Question
from pyspark import SparkContext

from lethe_spark.commit.table_state import Base
from lethe_spark.run.context import Run, RunContext, table_properties

log = logging.getLogger(__name__)


def holds_of(context: Run, base: Base) -> Holds:
    """The holds of the run, for this table.

    Raises:
        InputError: `InvalidHold`, if the filter of one is not a condition on rows of the table.
    """
    return Holds.of(context.spec.holds, base.iceberg.schema())


def covering(context: RunContext, base: Base, leaving: Sequence[LeavingRows], ids: Iterable[str] = ()) -> Covering:
    """Which holds cover rows that a commit would remove from data files of the head.

    Args:
        leaving: Each of another data file.
        ids: The rows of these batches leave, too, from all of these files.

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

    return held.covering(leaving, frozenset(ids), table_properties(context), ask)


def _ask(
    spark: SparkContext, search: CoverageSearch, questions: Sequence[Question]
) -> list[tuple[str, frozenset[str]]]:
    shared = spark.broadcast(search)
    try:
        groups = max(1, min(len(questions), spark.defaultParallelism))
        return spark.parallelize(list(questions), groups).map(lambda q: shared.value.of_file(q)).collect()
    finally:
        shared.destroy()  # from the disks of the executors too
