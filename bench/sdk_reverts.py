"""Batches taken out of a table in one warm session, one at a time and many at once: by the SDK, and by SQL's DELETE. I/O."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lethe_spark
from lethe.contract.run import CreateTable
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext
from pyspark.sql import DataFrame

from bench import rivals
from bench.lake import CATALOG, METRICS, Lake, files_of, our_properties, promote
from bench.many_commits import in_windows
from bench.restatement_scales import RestatementScale
from bench.rivals import Rival
from bench.scales import BATCH_COLUMN, PARTITION, SCHEMA, Size
from bench.tables import base
from bench.timing import WARM_UP, Case, Sample, in_turns, seconds_of

SDK = "Lethe's SDK"
KINDS = (SDK, rivals.DELETION_VECTORS, rivals.COPY_ON_WRITE)


@dataclass(frozen=True)
class Sdk:
    """`lethe_spark.revert`, as a user's own job calls it."""

    lake: Lake
    table: SparkTable
    size: Size

    def delete(self, indexes: Sequence[int]) -> float:
        ids = [self.size.batch_id(i) for i in indexes]
        return seconds_of(lambda: lethe_spark.revert(self.lake.spark, self.table.full_name, ids))

    def read(self) -> DataFrame:
        return lethe_spark.read(self.lake.spark, self.table.full_name)


def sql(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Revert one batch, and a group of batches, by each kind in turns. Each round takes other batches."""
    size = scale.table
    name = base(lake, size, ordered=True)
    subjects: dict[str, Rival] = {k: _subject(lake, name, k, size) for k in KINDS}
    taken: dict[str, set[int]] = {kind: set() for kind in subjects}

    def case(kind: str, count: int) -> Case:
        rewrites = kind == rivals.COPY_ON_WRITE

        def act(number: int) -> Sample:
            indexes = size.spread(count, 2 * (number - WARM_UP) + (count > 1))
            taken[kind].update(indexes)
            return Sample(subjects[kind].delete(indexes))

        rounds = scale.rewrite_rounds if rewrites else scale.rounds
        return Case({"kind": kind, "batches": count}, act, rounds, warm_up=not rewrites)

    results = in_turns([case(k, n) for n in (1, scale.group) for k in subjects])
    for kind, subject in subjects.items():
        if problem := rivals.wrong(subject, size, taken[kind]):
            for r in results:
                if r["kind"] == kind:
                    r["error"] = problem
    return {"rows": size.all_rows, "batches": size.all_batches, "group": scale.group, "results": results}


def commits(lake: Lake, scale: RestatementScale) -> dict[str, Any]:
    """Reverts of one batch each, one after the other; tidied up after each as every run does."""
    wanted = CreateTable(table_schema=SCHEMA, partition_by=(PARTITION,))
    table = SparkTable.create(lake.spark, CATALOG, "run.restated", wanted, METRICS | our_properties())
    table.ensure_layout(BATCH_COLUMN)

    def commit(_context: RunContext, number: int, _prepared: None) -> None:
        lethe_spark.revert(lake.spark, table.full_name, [f"flights-{number:06d}"])

    return in_windows(lake, table, scale.commits, scale.window, lambda _: None, commit)


def _subject(lake: Lake, base: str, kind: str, size: Size) -> Rival:
    if kind != SDK:
        return rivals.a_clone(lake, base, kind, size)
    source = lake.load(base)
    assert source is not None
    table = lake.create(f"run.sdk_{uuid.uuid4().hex[:8]}", properties=our_properties())
    promote(lake, table, size, files_of(source))
    return Sdk(lake, table, size)
