"""Another engine adds columns of types that Lethe does not read or write. Batches go on, and later all is well without them."""

from collections import Counter
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.story import Story, of_arrow, of_batches, of_spark
from tests.spark.support.unknown_types import KINDS, add_column
from tests.support.lake import Lake


def rows_without(story: Story) -> Counter[Any]:
    columns = ("v", "day", "batch_id")
    found = lethe.scan(story.full_name, columns=columns).to_arrow().to_pylist()
    rows = Counter((r["batch_id"], r["v"], r["day"]) for r in found)
    assert of_spark(lethe_spark.read(story.spark, story.full_name).select(*columns)) == rows
    return rows


@pytest.mark.parametrize("kind", some(KINDS, "variant", "geometry"))
def test_batches_restatements_and_vacuums_go_on_beside_such_a_column_and_after_it(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    story = Story.begin(spark, lake, format_version=3)
    story.put("A", "B", "D", "E")
    story.consolidate("A")

    add_column(story, kind)

    assert story.consolidate("B").batches_promoted == 1
    assert story.revert("A").succeeded
    assert rows_without(story) == of_batches("B")
    assert story.vacuum().tombstones_purged == 1
    assert rows_without(story) == of_batches("B")
    with pytest.raises(InputError, match=f"column shape has the type {kind}"):
        lethe.scan(story.full_name)

    spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    assert story.consolidate("D", "E").batches_promoted == 2
    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B", "D", "E")
    assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B", "D", "E")


def test_values_of_such_a_column_survive_a_vacuum(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake, format_version=3)
    story.put("A")
    story.consolidate("A")
    add_column(story, "variant")
    spark.sql(f"""INSERT INTO {story.full_name} SELECT 7, 1, 'B', parse_json('{{"a": 1}}')""")
    spark.sql(f"""INSERT INTO {story.full_name} SELECT 8, 1, 'D', parse_json('{{"a": 2}}')""")
    assert story.revert("A", "B").succeeded

    assert story.vacuum().tombstones_purged == 2

    (found,) = spark.sql(f"SELECT v, to_json(shape) AS shape FROM {story.full_name}").collect()
    assert (found["v"], found["shape"]) == (8, '{"a":2}')


@pytest.mark.parametrize(
    ("kind", "shreds"),
    tuples(
        [("variant", False), ("variant", True), ("struct<a: int, b: array<variant>>", False)],
        ("variant", True),
    ),
)
def test_files_with_values_of_such_a_column_are_read_without_them(
    spark: SparkSession, lake: Lake, kind: str, shreds: bool
) -> None:
    """While the table has the column, and after it was dropped. Also where the values are stored as columns of their own."""
    story = Story.begin(spark, lake, format_version=3)
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
    spark.sql(f"INSERT INTO {story.full_name} SELECT 7, 1, 'B', {shape}")
    others = [{"v": 7, "day": 1, "batch_id": "B"}]

    def read(**how: Any) -> list[dict[str, Any]]:
        found = lethe.scan(story.full_name, columns=("v", "day", "batch_id"), filter="batch_id = 'B'", **how)
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
