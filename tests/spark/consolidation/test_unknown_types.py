"""Another engine adds columns of types that Lethe does not read or write. Batches go on, and later all is well without them."""

from collections import Counter
from dataclasses import replace
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.contract.settings import Deletes
from pyspark.sql import SparkSession

from tests.spark.parameters import pairs, tuples
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Story, of_arrow, of_batches, of_spark
from tests.spark.support.unknown_types import KINDS, add_column
from tests.support.lake import Lake

# A table of format version 2 cannot have such a column, and one of version 3 gets no position deletes from Lethe. Those from
# before it was raised have a test of their own.
MODES = [Deletes.LEDGER, Deletes.DELETION_VECTORS]
LEDGER, VECTORS = MODES


def begin(spark: SparkSession, lake: Lake, mode: str) -> Story:
    return replace(Story.begin(spark, lake, format_version=3), deletes=Deletes(mode))


def rows_without(story: Story, everywhere: bool = True) -> Counter[Any]:
    """The rows without the column, of which all readers find the same.

    Args:
        everywhere: Whether they are gone for readers that do not know the ledger, too.
    """
    columns = ("v", "day", "batch_id")
    found = lethe.scan(story.full_name, columns=columns).to_arrow().to_pylist()
    rows = Counter((r["batch_id"], r["v"], r["day"]) for r in found)
    assert of_spark(lethe_spark.read(story.spark, story.full_name).select(*columns)) == rows
    story.spark.catalog.clearCache()
    assert (of_spark(story.spark.table(story.full_name).select(*columns)) == rows) == everywhere
    return rows


@pytest.mark.parametrize(
    ("kind", "mode"), pairs(KINDS, MODES, ("variant", LEDGER), ("geometry", LEDGER), ("variant", VECTORS))
)
def test_batches_restatements_and_vacuums_go_on_beside_such_a_column_and_after_it(
    spark: SparkSession, lake: Lake, kind: str, mode: str
) -> None:
    story = begin(spark, lake, mode)
    story.put("A", "B", "C", "D", "E")
    story.consolidate("A", "C")

    add_column(story, kind)

    assert story.consolidate("B").batches_promoted == 1
    assert story.revert("A").succeeded
    assert rows_without(story, everywhere=mode == VECTORS) == of_batches("B", "C")
    assert story.undo().succeeded
    assert rows_without(story) == of_batches("A", "B", "C")
    assert story.revert("A", name="again").succeeded
    assert story.vacuum().tombstones_purged == 1
    assert rows_without(story) == of_batches("B", "C")
    with pytest.raises(InputError, match=f"column shape has the type {kind}"):
        lethe.scan(story.full_name)

    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    assert story.consolidate("D", "E").batches_promoted == 2
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B", "C", "D", "E")
    assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B", "C", "D", "E")


@pytest.mark.long
def test_position_deletes_from_before_such_a_column_are_kept_taken_back_and_purged(
    spark: SparkSession, lake: Lake
) -> None:
    """The table was raised to the version that has such types. From then on the Dataset uses deletion vectors."""
    story = Native.of(Story.begin(spark, lake), Deletes.POSITION_DELETES).filled()
    assert story.revert("A", name="one").succeeded
    assert story.revert("B", name="two").succeeded
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('format-version' = '3')")
    add_column(story, "variant")
    raised = replace(story, format_version=3, deletes=VECTORS)

    assert rows_without(raised) == of_batches("D", "E")
    assert raised.undo("one").succeeded
    assert rows_without(raised) == of_batches("A", "D", "E")
    assert raised.revert("D", name="three").succeeded
    assert rows_without(raised) == of_batches("A", "E")
    assert raised.vacuum().tombstones_purged == 2
    assert rows_without(raised) == of_batches("A", "E")


@pytest.mark.parametrize("mode", MODES)
def test_values_of_such_a_column_survive_a_vacuum(spark: SparkSession, lake: Lake, mode: str) -> None:
    """B and D are in one file, which is rewritten."""
    story = begin(spark, lake, mode)
    story.put("A")
    story.consolidate("A")
    add_column(story, "variant")
    rows = """VALUES (7, 'B', '{"a": 1}'), (8, 'D', '{"a": 2}') AS t(v, batch_id, json)"""
    spark.sql(f"INSERT INTO {story.full_name} SELECT v, 1, batch_id, parse_json(json) FROM {rows}")
    assert spark.sql(f"SELECT file_path FROM {story.full_name}.files").count() == 3
    assert story.revert("A", "B").succeeded

    result = story.vacuum()

    assert (result.tombstones_purged, result.files_rewritten) == (2, 1)
    (found,) = spark.sql(f"SELECT v, to_json(shape) AS shape FROM {story.full_name}").collect()
    assert (found["v"], found["shape"]) == (8, '{"a":2}')


@pytest.mark.parametrize(
    ("kind", "shreds", "mode"),
    tuples(
        [
            (*stored, mode)
            for stored in (("variant", False), ("variant", True), ("struct<a: int, b: array<variant>>", False))
            for mode in MODES
        ],
        ("variant", True, LEDGER),
        ("variant", False, VECTORS),
    ),
)
def test_files_with_values_of_such_a_column_are_read_without_them(
    spark: SparkSession, lake: Lake, kind: str, shreds: bool, mode: str
) -> None:
    """While the table has the column, and after it was dropped. Also where the values are stored as columns of their own."""
    story = begin(spark, lake, mode)
    story.put("A")
    story.consolidate("A")
    before = story.head().snapshot_id
    if shreds:
        spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.parquet.shred-variants' = 'true')")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN shape {kind}")
    shape = (
        """parse_json('{"x": 1, "y": ["a"]}')"""
        if kind == "variant"
        else "struct(1 AS a, array(parse_json('[1]')) AS b)"
    )
    rows = "VALUES (7, 'B'), (8, 'C') AS t(v, batch_id)"
    spark.sql(f"INSERT INTO {story.full_name} SELECT v, 1, batch_id, {shape} FROM {rows}")
    assert story.revert("C", name="beside").succeeded
    others = [{"v": 7, "day": 1, "batch_id": "B"}]

    def read(**how: Any) -> list[dict[str, Any]]:
        found = lethe.scan(story.full_name, columns=("v", "day", "batch_id"), filter="batch_id IN ('B', 'C')", **how)
        return found.to_arrow().to_pylist()

    assert read() == others
    with pytest.raises(InputError, match="the filter: column shape has the type"):
        lethe.scan(story.full_name, columns=("v",), filter="shape IS NULL")
    assert lethe_spark.read(spark, story.full_name, filter="shape IS NOT NULL").select("v").collect() == [(7,)]

    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    assert read() == others
    assert read(since=before) == others
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("A") + Counter([("B", 7, 1)])
    assert story.revert("A").succeeded
    assert lethe.scan(story.full_name).to_arrow().to_pylist() == others
    with pytest.raises(InputError, match="shape"):
        lethe_spark.read(spark, story.full_name, filter="shape IS NULL")


def test_a_field_of_such_a_type_that_was_dropped_from_a_struct_is_left_out(spark: SparkSession, lake: Lake) -> None:
    """Also if another column has the name of a dropped one by now."""
    story = Story.begin(spark, lake, format_version=3)
    story.put("A")
    story.consolidate("A")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMNS (shape variant, s struct<a: int, b: variant, c: string>)")
    of_b = "parse_json('[1]'), struct(1 AS a, parse_json('{}') AS b, 'x' AS c)"
    spark.sql(f"INSERT INTO {story.full_name} SELECT 7, 1, 'B', {of_b}")
    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN s.b")
    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")
    spark.sql(f"ALTER TABLE {story.full_name} ADD COLUMN shape int")
    assert story.revert("A").succeeded

    found = lethe.scan(story.full_name, filter="s.a = 1 and shape is null").to_arrow().to_pylist()

    assert found == [{"v": 7, "day": 1, "batch_id": "B", "s": {"a": 1, "c": "x"}, "shape": None}]
    assert lethe_spark.read(spark, story.full_name).toArrow().to_pylist() == found


def test_a_required_column_of_such_a_type_stops_batches_and_names_itself(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake, format_version=3)
    story.put("A")
    story.consolidate()
    add_column(story, "variant", required=True)

    with pytest.raises(InputError, match="column shape is required and has the type variant") as refused:
        story.consolidate("A")

    assert refused.value.reason == "UnknownType"
