"""Columns of types that Lethe does not read or write, as another engine adds them."""

from typing import Any

from lethe_spark.jvm.spark_table import SparkTable

from tests.spark.support.story import Story

KINDS = ("variant", "geometry", "geography")


def java(story: Story) -> Any:
    found = SparkTable.load(story.spark, story.catalog, story.name)
    assert found is not None
    return found


def add_column(story: Story, kind: str, name: str = "shape", required: bool = False) -> None:
    table = java(story)
    types = table.jvm.org.apache.iceberg.types.Types
    made = {
        "variant": types.VariantType.get,
        "geometry": types.GeometryType.crs84,
        "geography": types.GeographyType.crs84,
    }[kind]()
    update = table.java.updateSchema()
    if required:
        update.allowIncompatibleChanges().addRequiredColumn(name, made).commit()
    else:
        update.addColumn(name, made).commit()
