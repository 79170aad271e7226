"""A table is made of values: no text of spec.table.create becomes part of a statement, and unusual names are only names."""

import itertools
from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.contract.run import CreateTable, TableRef
from lethe_spark.commit.opening import open_table
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.support.story import Story
from tests.support.lake import CATALOG, Lake

_NUMBERS = itertools.count(1)


def a_name() -> str:
    return f"air.defined_{next(_NUMBERS)}"


TEXTS: dict[str, tuple[CreateTable, bool]] = {
    "partitionBy": (CreateTable(schema="x bigint", partition_by=("x) LOCATION 'file://{place}' --",)), False),
    "schema": (CreateTable(schema="x bigint) USING iceberg LOCATION 'file://{place}' --"), False),
    "schema with a comment": (CreateTable(schema="x bigint) USING iceberg LOCATION 'file://{place}' /*"), False),
    "a column's comment": (
        CreateTable(schema="x bigint COMMENT 'a') USING iceberg LOCATION 'file://{place}' --"),
        False,
    ),
    "an escape in a comment": (
        CreateTable(schema="x bigint COMMENT 'a\\\\\\') LOCATION \\'file://{place}\\' -- '"),
        True,
    ),
    "the property location": (CreateTable(schema="x bigint", properties={"location": "file://{place}"}), False),
    "a property's value": (CreateTable(schema="x bigint", properties={"a": "b') LOCATION 'file://{place}' --"}), True),
}


@pytest.mark.parametrize(("given", "made"), TEXTS.values(), ids=TEXTS)
@pytest.mark.usefixtures("lake")
def test_no_text_of_a_definition_chooses_the_place_of_a_table(
    spark: SparkSession, tmp_path: Path, given: CreateTable, made: bool
) -> None:
    """Either it is refused, or it is a value or a comment like any other."""
    other = tmp_path / "other"
    filled = CreateTable.model_validate_json(given.model_dump_json(by_alias=True).replace("{place}", str(other)))
    name = a_name()

    if made:
        table = SparkTable.create(spark, CATALOG, name, filled, {}, "batch_id")
        assert str(other) not in table.location
    else:
        with pytest.raises(InputError, match="InvalidTableDefinition"):
            SparkTable.create(spark, CATALOG, name, filled, {}, "batch_id")
        assert SparkTable.load(spark, CATALOG, name) is None
    assert not other.exists()


def test_unusual_names_of_columns_are_names(spark: SparkSession, lake: Lake) -> None:
    schema = (
        "`a b` timestamp NOT NULL, `c.d` bigint COMMENT 'it''s \\\\', `e``f` string, g struct<`h i`: int, j: string>"
    )
    fields = ("days(`a b`)", "bucket(4, `c.d`)", "truncate(2, `e``f`)", "g.j", "identity(g.`h i`)")

    made = SparkTable.create(spark, CATALOG, a_name(), CreateTable(schema=schema, partition_by=fields), {}, "b id")

    table = lake.catalog.load_table(made.name)
    assert [f.name for f in table.schema().fields] == ["a b", "c.d", "e`f", "g", "b id"]
    assert [f.required for f in table.schema().fields] == [True, False, False, False, False]
    assert [(str(f.transform), table.schema().find_column_name(f.source_id)) for f in table.spec().fields] == [
        ("day", "a b"),
        ("bucket[4]", "c.d"),
        ("truncate[2]", "e`f"),
        ("identity", "g.j"),
        ("identity", "g.h i"),
    ]
    assert SparkTable.create(spark, CATALOG, made.name, CreateTable(schema="x int"), {}).uuid == made.uuid


@pytest.mark.parametrize(
    ("wrong", "expected_text"),
    [
        (CreateTable(schema="x bigint", partition_by=("days(x)",)), "spec.table.create"),
        (CreateTable(schema="x bigint", partition_by=("y",)), "spec.table.create"),
        (CreateTable(schema="x bigint DEFAULT 1"), "spec.table.create"),
        (CreateTable(schema="x interval"), "spec.table.create"),
        (CreateTable(schema="x bigint, x bigint"), "spec.table.create"),
        (CreateTable(schema="x bigint, shape variant", format_version=3), "column shape has the type variant"),
        (CreateTable(schema="shape geometry(4326)", format_version=3), "column shape has the type geometry"),
        (CreateTable(schema="s struct<a: array<variant>>", format_version=3), "column s has the type variant"),
        (CreateTable(schema="a struct<b: int>, `a.b` int", partition_by=("a.b",)), "multiple fields for name a.b"),
    ],
    ids=[
        "a transform of another type",
        "no such column",
        "a default",
        "a type that Iceberg lacks",
        "a name twice",
        "a variant",
        "a geometry",
        "a variant in a struct",
        "a name of a column and a field",
    ],
)
def test_what_no_table_can_be_made_of_is_refused_by_its_field(
    spark: SparkSession, lake: Lake, wrong: CreateTable, expected_text: str
) -> None:
    story = Story.begin(spark, lake)
    spec = story.consolidation("A", table=TableRef(catalog=CATALOG, name=story.name, create=wrong))

    with pytest.raises(InputError, match="InvalidTableDefinition") as refused:
        open_table(story.context(spec))

    assert expected_text in refused.value.message
