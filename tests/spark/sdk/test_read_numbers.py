"""A filter of `lethe_spark.read` finds NaN and both zeros, which Iceberg's bounds do not show as Spark orders them."""

import lethe_spark
import pytest
from pyspark.sql import SparkSession

from tests.support.lake import CATALOG, Lake

NUMBERS = ("'NaN'", "'0.0'", "'-0.0'", "'1.0'", "'Infinity'", "NULL")
WANTED = {
    "x > 0.5": [0, 3, 4],
    "NOT (x <= 0.5)": [0, 3, 4],
    "x = 0": [1, 2],
    "x IN (0.0, 2.0)": [1, 2],
    "x >= 0.0D": [0, 1, 2, 3, 4],
    "s.x <= -0.0D -- both zeros": [1, 2],
    "s.x > FLOAT('0.5')": [0, 3, 4],
    "x NOT IN (1.0)": [0, 1, 2, 4],
}


@pytest.fixture(scope="module")
def table(spark: SparkSession, lake: Lake) -> str:
    """Each number in a file of its own."""
    _ = lake.catalog
    name = f"{CATALOG}.air.read_numbers"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.air")
    spark.sql(
        f"CREATE TABLE {name} (n INT, x DOUBLE, s STRUCT<x: FLOAT>, batch_id STRING) USING iceberg PARTITIONED BY (n)"
    )
    rows = ", ".join(f"({n}, DOUBLE({x}), named_struct('x', FLOAT({x})), 'A')" for n, x in enumerate(NUMBERS))
    spark.sql(f"SELECT * FROM VALUES {rows} AS t(n, x, s, batch_id)").writeTo(name).append()
    return name


@pytest.mark.parametrize("condition", WANTED)
def test_a_filter_finds_nan_and_both_zeros_whatever_their_files(
    spark: SparkSession, table: str, condition: str
) -> None:
    found = lethe_spark.read(spark, table, filter=condition).select("n").collect()

    assert sorted(r["n"] for r in found) == WANTED[condition]
