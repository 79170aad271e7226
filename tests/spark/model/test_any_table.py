"""A model and all readers agree on every row of random tables in each mode of deletes, before and after each rewrite.

Iceberg itself skips files with NaN and -0.0 for some conditions that are true for them, so Spark SQL is asked for all rows only.
"""

import lethe
import lethe_spark
import pytest
from lethe.contract.run import Replacement
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.model.conditions import some_conditions
from tests.spark.parameters import tuples
from tests.spark.support.all_types import alone
from tests.spark.support.any_table import AnyTable, rows_of
from tests.spark.support.maintenance import maintain
from tests.support.builders import a_request
from tests.support.lake import BufferFolder, Lake

VERSIONS = (2, 3, 1)  # by seed
VECTORS, POSITIONS = Deletes.DELETION_VECTORS, Deletes.POSITION_DELETES


def suits(deletes: Deletes, seed: int) -> bool:
    """Whether a table of this seed can be in this mode, at least after it was upgraded."""
    version = VERSIONS[seed % 3]
    return deletes.named is None or version in (1, deletes.named.format_version)


# One of each format version in `make test`, and each mode of deletes.
SEEDS = tuples(
    [(seed, d) for seed in range(60) for d in (Deletes.LEDGER, POSITIONS, VECTORS) if suits(d, seed)],
    *((1, Deletes.LEDGER), (3, POSITIONS), (7, VECTORS)),
)
BATCHES = "ABCD"
CONDITIONS = 4


@pytest.mark.parametrize(("seed", "deletes"), SEEDS)
def test_all_readers_and_all_rewrites_agree_on_every_row(
    spark: SparkSession, lake: Lake, seed: int, deletes: Deletes
) -> None:
    table = AnyTable.begin(spark, lake, seed, VERSIONS[seed % 3], deletes)
    since, later = grow(table)
    conditions = list(some_conditions(table.maker, table.fields, CONDITIONS))
    table.check_plain("before any Restatement")
    table.check(conditions)
    appended = table.wanted(table.rows[later:])
    table.same(rows_of(table.fields, lethe.scan(table.name, since=since).to_arrow()), appended, "scan since")
    increment = lethe_spark.read(spark, table.name, since=since).toArrow()
    table.same(rows_of(table.fields, increment), appended, "read since")

    table.revert("A", "one")
    table.revert("B", "two")
    table.undo("B", "two")
    if table.hides_natively:
        table.check_plain("after an Undo")
    table.check(conditions)

    table.done("purge", alone(table.story) if seed % 2 else table.story.vacuum())
    table.check_plain("after a purge")
    table.check(conditions)

    replace_by_keys(table)
    table.check_plain("after a Replay by keys")
    table.check(conditions)

    table.done("compaction", maintain(table.story, compact_small_files=True, expire_snapshots=False, key="2"))
    table.check_plain("after a compaction")
    table.check(conditions)


def grow(table: AnyTable) -> tuple[int, int]:
    """Batches of several writers, and steps of evolution between them.

    Returns: a snapshot on the way, and the number of rows that it has.
    """
    luck, since, later = table.maker.luck, 0, 0
    for n, batch in enumerate(BATCHES):
        if n == 2:
            table.upgrade()
        # A table of format version 1 has no ledger.
        writers = ("spark", "arrow") if table.format_version == 1 else ("lethe", "spark", "arrow")
        table.write(batch, luck.choice(writers))
        if n == 1:
            since, later = table.story.head().snapshot_id, len(table.rows)
        if n < len(BATCHES) - 1:
            for _ in range(2):
                table.evolve()
            if luck.random() < 0.5:
                table.repartition()
    return since, later


def replace_by_keys(table: AnyTable) -> None:
    """A Replay that replaces two rows by their key, and adds one."""
    old = [r for r in table.visible if r[0] == "C"][:2]
    new = [table.maker.row(table.fields) | {0: "K", -1: n} for n in (*(r[-1] for r in old), 1000)]
    rows = table.as_arrow(new, table.fields).drop_columns(["batch_id"])
    folder = BufferFolder(table.story.lake.home / "restated" / table.story.name).put("K", rows)
    replacement = Replacement(batch_id="K", uri=f"file://{folder}", key_columns=("n",))
    result = table.story.restate(a_request("by-keys", "Replay", batch_ids=(), replacement=replacement))
    assert result.succeeded, result
    table.rows = [r for r in table.rows if not any(r is o for o in old)] + new
    table.done("a Replay by keys", result)
