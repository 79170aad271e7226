"""The view of docs/deletes.md, for engines that read no native deletes."""

import re
from collections import Counter
from pathlib import Path

import duckdb
import pytest
from lethe import batches_table
from lethe.iceberg import catalogs
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches, of_spark
from tests.support.lake import Lake

PAGE = Path(__file__).parents[3] / "docs/deletes.md"

pytestmark = pytest.mark.long


def the_view(table: str, batches: str) -> str:
    """The query of the view on the page, on other tables."""
    (view,) = re.findall(r"```sql\nCREATE VIEW \S+ AS\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return re.sub(r"\bair\.flights\b", table, view.replace("air.flights_batches", batches))


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    """A was reverted, B was replaced by B2, and C is as it was; a foreign writer has appended a row without a batch."""
    story = Story.begin(spark, lake).filled("ABC")
    story.revert("A")
    story.replay("B", by="B2")
    story.append_as_foreign_writer(None)
    wanted = batches_table.TrackingUpdate(create=True)
    batches_table.bring_up_to_date(catalogs.load(story.catalog), story.name, "batch_id", wanted, lambda _: None)
    return story


def test_the_view_shows_what_lethe_shows(spark: SparkSession, story: Story) -> None:
    wanted = of_batches("C") + of_batches("B2", rows=3) + Counter({(None, 500, 1): 1})

    by_spark = of_spark(spark.sql(the_view(story.full_name, f"{story.full_name}_batches")))
    flights = story.table().scan().to_arrow()
    batches = catalogs.load(story.catalog).load_table(f"{story.name}_batches").scan().to_arrow()
    by_duckdb = duckdb.sql(f"SELECT batch_id, v, day FROM ({the_view('flights', 'batches')})").fetchall()

    assert by_spark == wanted
    assert Counter(by_duckdb) == wanted
    assert flights.num_rows > wanted.total() > 0
    assert batches.num_rows == 4
