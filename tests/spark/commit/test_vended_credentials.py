"""Tables whose files are opened with credentials that a REST catalog vends, and that expire while they are in use."""

from collections.abc import Iterator

import lethe
import lethe_spark
import pytest
from lethe.iceberg import catalogs
from lethe.storage import vended
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.support.story import ALL_GONE, Story, of_arrow, of_batches, of_spark
from tests.support.lake import Lake
from tests.support.servers.vending import Vending, running

SHORT = 4.0  # seconds


@pytest.fixture(scope="module")
def vending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vending]:
    with running(tmp_path_factory.mktemp("vending") / "server") as found:
        yield found


@pytest.fixture(autouse=True)
def _local_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers here are local folders, although the tables are in S3."""
    monkeypatch.setattr(catalogs, "is_local", lambda _: True)


def a_story(
    spark: SparkSession, lake: Lake, vending: Vending, with_endpoint: bool, life_seconds: float = SHORT
) -> Story:
    """Batches A and B are in the table.

    Args:
        with_endpoint: The catalog names an endpoint that new credentials are asked of.
    """
    vending.vault.with_endpoint, vending.vault.life_seconds = with_endpoint, life_seconds
    name = f"vended_{with_endpoint}".lower()
    lake.add_catalog(name, **vending.properties)
    make_session(name)
    story = Story.begin(spark, lake, ("day",), name).filled("AB")
    vended._vendors.clear()
    return story


def test_runs_outlive_the_credentials_that_they_begin_with(spark: SparkSession, lake: Lake, vending: Vending) -> None:
    story, vault = a_story(spark, lake, vending, with_endpoint=True), vending.vault
    make_session(story.catalog)
    story.put("C")

    story.consolidate("C", after_write=vault.outlive)
    story.revert("A")
    story.vacuum(ALL_GONE, after_write=vault.outlive)

    assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B", "C")
    assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B", "C")
