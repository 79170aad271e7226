"""REST catalogs of others: what differs in their answers, and older servers. One story on each, with a race."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers import rest_catalog
from tests.support.servers.rest_dialects import DIALECTS, Dialect, speaking

OLDER = ("1.8", "1.10")
CASES = [
    *(pytest.param(d, "", id=d.name, marks=() if d.name == "polaris" else pytest.mark.long) for d in DIALECTS),
    *(pytest.param(None, v, id=f"iceberg-{v}", marks=pytest.mark.long) for v in OLDER),
]


@pytest.fixture
def story(spark: SparkSession, lake: Lake, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    dialect, version = request.param
    with rest_catalog.running(tmp_path / "server", version=version) as server:
        catalog = f"of_{dialect.name if dialect else version.replace('.', '_')}"
        with speaking(dialect or Dialect("plain", ""), server.uri) as uri:
            lake.add_catalog(catalog, **{**(dialect.properties if dialect else {"type": "rest"}), "uri": uri})
            # Unity's namespaces are made by its own API.
            lake.add_catalog(f"{catalog}_itself", type="rest", uri=server.uri)
            make_session(f"{catalog}_itself")
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}_itself.air")
            make_session(catalog)
            yield Story.begin(spark, lake, catalog=catalog)


@pytest.mark.parametrize("story", [pytest.param(p.values, id=p.id, marks=p.marks) for p in CASES], indirect=True)
def test_batches_are_promoted_restated_in_a_race_and_purged(story: Story) -> None:
    theirs: list[bool] = []
    story.put("A", "B", "C")
    story.consolidate("A", "B", "C")

    def commit_theirs_first() -> None:
        if not theirs:
            theirs.append(story.restate(a_request("theirs", batch_ids=("B",))).succeeded)

    mine = story.restate(a_request("mine", batch_ids=("A",)), before_commit=commit_theirs_first)
    restated = story.rows_at()
    story.vacuum()

    assert (mine.succeeded, theirs) == (True, [True])
    assert (restated, story.rows_at()) == (of_batches("C"), of_batches("C"))
    assert story.in_files() == Counter({"C": 4})
    assert set(story.ledger().requests) == {"ns/mine/0", "ns/theirs/0"}
    story.check_reads()
