"""One vacuum that keeps a table small in everything, on a real cluster: what it finds are many small commits by others."""

from collections.abc import Callable

import pytest

from tests.cluster.lake import a_table_of
from tests.cluster.story import ClusterStory

pytestmark = pytest.mark.cluster

SAME_DAY, OTHER_DAYS = 3, 9


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A table with a data file and a manifest for each of twelve appends, four of the files for one day; and a file in `data/`
    that nobody names, but that is young."""
    story = stories("tidy")
    story.put_batch("a")
    story.apply(story.a_dataset())
    story.wait_for_status(batches_promoted=1)
    for number in range(SAME_DAY):
        story.expected += story.lake.append(story.table, f"b{number}", a_table_of(100, 1000 * number))
    for number in range(OTHER_DAYS):
        story.expected += story.lake.append(story.table, f"c{number}", a_table_of(100, day=2 + number))
    return story


@pytest.mark.long
def test_one_run_compacts_rewrites_manifests_and_leaves_young_orphans(story: ClusterStory) -> None:
    """The statuses of its runs show what it did in numbers, and no row has changed."""
    lost = f"{story.lake.catalog.load_table(story.table).location()}/data/lost.parquet"
    story.lake.put(lost, b"of a writer that may still commit it")
    before = story.lake.data_files(story.table)
    maintenance = {
        "compactSmallFiles": True,
        "rewriteManifests": True,
        "removeOrphanFiles": {"olderThanSeconds": 86_400},
    }
    story.apply(story.a_policy(triggers={}, maintenance=maintenance))

    told = story.vacuum_now("tidy up")

    after = story.lake.data_files(story.table)
    assert told["outcome"] == "Succeeded"
    assert "0 tombstones purged, 0 files rewritten, 0 files deleted," in told["message"]
    assert f", {SAME_DAY + 1} small files compacted, " in told["message"]
    assert told["message"].endswith(" manifests rewritten.")
    assert len(before) == 1 + SAME_DAY + OTHER_DAYS
    assert len(after) == 1 + OTHER_DAYS
    assert len(story.lake.manifests(story.table)) == 1
    assert story.lake.keys(lost.rpartition("/")[0]) >= {lost, *after}
    assert story.lake.plain_rows(story.table) == story.expected
    story.cluster.wait_for(
        story.dataset,
        lambda d: [r["message"] for r in d["status"]["runs"] if r["kind"] == "Vacuum"] == [told["message"]],
        within_seconds=60,
        why="the vacuum's message in status.runs",
    )
