"""A REST catalog that wants to plan scans itself, and leaves out rows. The server and its planner are Iceberg's own."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from lethe.base.errors import ConflictError
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from lethe_spark.jobs.vacuum import purge
from lethe_spark.jvm.scan_tasks import ScannedFiles
from lethe_spark.sql import rest_servers
from pyspark.sql import SparkSession

from tests.spark.support.erases import Names, but, row
from tests.spark.support.maintenance import maintain
from tests.spark.support.story import Row, Story, of_batches, of_spark
from tests.support.lake import Lake
from tests.support.servers.faults import Switch
from tests.support.servers.faulty_proxy import before, forward_to

CATALOG = "planned"


@pytest.fixture(scope="module")
def planner(spark: SparkSession, lake: Lake, rest: Switch) -> Iterator[list[str]]:
    """The catalog `planned`: it says of each table that it plans the scans, and a plan has only the first file. Returns the
    requests for plans."""
    assert (rest.fault, spark.sparkContext._jsc is None) == (None, False)
    forward, plans = forward_to(str(catalogs.properties("rest")["uri"])), list[str]()

    def answered(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        plainly = {k: v for k, v in headers.items() if k.lower() != "accept-encoding"}
        status, fields, content = forward(method, path, plainly, body)
        if status != 200 or not content.startswith(b"{"):
            return status, fields, content
        document = json.loads(content)
        if "metadata" in document:
            document["config"] = {**document.get("config", {}), "scan-planning-mode": "server"}
        if "plan" in path.rpartition("/tables/")[2]:
            plans.append(path)
            if document.get("file-scan-tasks"):
                document["file-scan-tasks"] = document["file-scan-tasks"][:1]
        changed = json.dumps(document).encode()
        kept = [(k, v) for k, v in fields if k.lower() not in ("content-length", "content-encoding", "etag")]
        return status, [*kept, ("Content-Length", str(len(changed)))], changed

    with before(answered) as proxy, pytest.MonkeyPatch.context() as patch:
        # As in a user's own Spark session, it is asked directly: otherwise the guard would drop what it says of plans.
        patch.setattr(rest_servers, "spark_properties", catalogs.spark_properties)
        lake.add_catalog(CATALOG, type="rest", uri=proxy.endpoint)
        make_session(CATALOG)
        yield plans


def plain(story: Story) -> Counter[Row]:
    story.spark.catalog.clearCache()
    return of_spark(story.spark.table(story.full_name))


def through_rest(story: Names) -> Names:
    """The same table, by a catalog that plans nothing."""
    return replace(story, catalog="rest")


def test_rewrites_keep_the_rows_that_the_plan_of_a_catalog_leaves_out(
    spark: SparkSession, lake: Lake, planner: list[str]
) -> None:
    story = Names.of(Story.begin(spark, lake, catalog=CATALOG)).filled()
    make_session("rest")
    everything = of_batches("A", "B", "D")
    assert plain(through_rest(story)) == everything
    assert plain(story) < everything
    assert planner

    assert story.revert("A").succeeded
    assert maintain(story, key="1", compact_small_files=True).tombstones_purged == 1
    assert story.erase(row("B", 1)).succeeded

    assert plain(through_rest(story)) == but(row("B", 1), batches=("B", "D"))


def test_a_rewrite_that_did_not_read_every_row_is_not_committed(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever leaves out rows between Spark and the files."""
    story = Story.begin(spark, lake)
    story.put("A", "B")
    story.consolidate("A", "B")
    assert story.revert("A").succeeded
    head, files = story.head().snapshot_id, story.data_folder()
    original: Any = purge.scan_tasks

    def without_a_row(*arguments: Any) -> ScannedFiles:
        scanned: ScannedFiles = original(*arguments)
        return replace(scanned, frame=scanned.frame.filter("v % 1000 <> 1"))

    monkeypatch.setattr(purge, "scan_tasks", without_a_row)

    with pytest.raises(ConflictError, match=r"have 8 rows by the table's metadata, and Spark read 6") as refused:
        story.vacuum()

    assert refused.value.reason == "RowsDiffer"
    assert (story.head().snapshot_id, story.data_folder()) == (head, files)
