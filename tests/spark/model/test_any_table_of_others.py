"""Random tables from which other engines delete rows natively, by position and by equality: a model, Spark, `lethe.scan` and
`lethe_spark.read` agree on every row, before and after each Restatement and each rewrite.

`lethe.scan` refuses a table with equality deletes of other engines by name, because PyIceberg cannot read them.
"""

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from pyspark.sql import SparkSession

from tests.model.conditions import Condition, some_conditions
from tests.spark.model.test_any_table import grow, replace_by_keys
from tests.spark.parameters import some
from tests.spark.support.all_types import alone
from tests.spark.support.any_table import NUMBER, AnyTable, rows_of
from tests.spark.support.foreign_deletes import EQUAL, delete_by_equality, delete_by_position, has_equality_deletes
from tests.spark.support.maintenance import maintain
from tests.support.lake import Lake

# Of format version 2 by equality, of 3 by position.
SEEDS = some(range(60), 4, 5)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_readers_and_all_rewrites_agree_beside_deletes_of_other_engines(
    spark: SparkSession, lake: Lake, seed: int
) -> None:
    table = AnyTable.begin(spark, lake, seed, 2 + seed % 2)
    grow(table)
    before = table.story.head().snapshot_id
    delete_some(table, seed)
    deleted = table.story.head().snapshot_id
    conditions = list(some_conditions(table.maker, table.fields, 4))
    check(table, conditions)
    table.check_spark("beside these deletes")
    check_increment(table, before, deleted)

    table.revert("A", "one")
    table.revert("B", "two")
    check(table, conditions)
    table.undo("B", "two")
    check(table, conditions)

    if seed % 4 == 0:  # rows that arrive later are not concerned
        table.write("E", "lethe")
    table.done("purge", alone(table.story) if seed % 2 else table.story.vacuum())
    table.check_spark("after a purge")
    check(table, conditions)

    replace_by_keys(table)
    table.check_spark("after a Replay by keys")
    check(table, conditions)

    table.done("compaction", maintain(table.story, compact_small_files=True, expire_snapshots=False, key="2"))
    table.check_spark("after a compaction")
    check(table, conditions)


def delete_some(table: AnyTable, seed: int) -> None:
    luck = table.maker.luck
    if seed % 3 != 1:
        some_rows = luck.sample(table.rows, 5)
        delete_by_position(table, {r[-1] for r in some_rows})
    if seed % 3 != 2:
        fields = [f for f in table.fields if f.kind.name in EQUAL and f.name != "batch_id"]
        delete_by_equality(table, NUMBER, luck.sample(table.rows, 3))
        delete_by_equality(table, luck.choice(fields), luck.sample(table.rows, 1))


def check(table: AnyTable, conditions: list[Condition]) -> None:
    if not has_equality_deletes(table):
        table.check(conditions)
        return
    read = table.readers()["lethe_spark.read"]
    for condition in (None, *conditions[:1]):
        found = rows_of(table.fields, read(condition))
        table.same(found, table.wanted(condition=condition), f"read with {condition and condition.sql}")
    with pytest.raises(InputError, match="another engine wrote equality deletes") as refused:
        lethe.scan(table.name).to_arrow()
    assert refused.value.reason == "EqualityDeletes"


def check_increment(table: AnyTable, before: int, deleted: int) -> None:
    """The rows of an increment that ends before the deletes, or begins after them, are found; one across them is refused."""
    for read in (
        lambda **how: lethe.scan(table.name, **how).count(),
        lambda **how: lethe_spark.read(table.story.spark, table.name, **how).count(),
    ):
        assert read(since=deleted) == 0
        with pytest.raises(InputError) as refused:
            read(since=before)
        assert refused.value.reason == "ForeignChange"
