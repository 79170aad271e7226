"""Tables that engines read which know nothing of Lethe: what was taken back is gone for them, too, and at once.

Two of them read here, without Lethe's code and without the tombstones: PyIceberg in the test, Spark SQL in a pod of its own.
"""

from collections.abc import Callable

import pytest

from tests.cluster.lake import CATALOG, COLUMNS, a_table_of, rows_of
from tests.cluster.other_engine import rows_by_spark
from tests.cluster.story import RUN_SECONDS, WARM, ClusterStory

pytestmark = pytest.mark.cluster

ROWS = {"a": 100, "b": 101, "c": 102, "d": 103}


def begun(story: ClusterStory, format_version: int, deletes: str) -> ClusterStory:
    """Batches `a` to `d` are promoted, two days with two batches in a file each, and `whole`, which has a file of its own."""
    for number, (batch, rows) in enumerate(ROWS.items()):
        story.put_batch(batch, rows=rows, day=1 + number % 2)
    story.put_batch("whole", rows=50, day=9)
    create = {"schema": COLUMNS, "partitionBy": ["days(at)"], "formatVersion": format_version}
    table = {"catalog": CATALOG, "name": story.table, "create": create}
    story.apply(story.a_dataset(table=table, deletes=deletes, runTemplate=WARM))
    story.wait_for_status(batches_promoted=5)
    return story


def revert(story: ClusterStory, name: str, *batches: str) -> None:
    story.apply(story.a_restatement(name, batchIds=list(batches)))
    story.wait_for_success(name)
    for batch in batches:
        story.forget(batch)


def replay(story: ClusterStory, batch: str) -> None:
    """By a batch with `.2` behind its id, of other rows."""
    corrected = a_table_of(60, first_id=5000, day=2)
    story.lake.put_batch(f"{story.restated}/{batch}.2", corrected)
    replacement = {"batchId": f"{batch}.2", "uri": f"{story.restated}/{batch}.2/"}
    story.apply(story.a_restatement("replay", "Replay", batchIds=[batch], replacement=replacement))
    story.wait_for_success("replay")
    story.forget(batch)
    story.expected += rows_of(f"{batch}.2", corrected)


def change_mode(story: ClusterStory, deletes: str) -> None:
    """And wait until the operator has seen it."""
    story.cluster.patch(story.dataset, {"spec": {"deletes": deletes}})
    story.cluster.wait_for_condition(story.dataset, "Ready", within_seconds=60)


def data_files(story: ClusterStory) -> set[str]:
    return set(story.lake.catalog.load_table(story.table).inspect.data_files()["file_path"].to_pylist())


@pytest.fixture(scope="module")
def vectors(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return begun(stories("vectors"), 3, "DeletionVectors")


def test_deletion_vectors_hide_a_revert_from_all_readers(vectors: ClusterStory) -> None:
    """No data file is written for it, and none goes, so that an Undo could show the rows. The tombstone is there beside it."""
    before = data_files(vectors)

    revert(vectors, "revert", "a", "whole")

    assert vectors.lake.plain_rows(vectors.table) == vectors.expected
    assert rows_by_spark(vectors.cluster, vectors.lake.services, vectors.table) == vectors.expected
    assert data_files(vectors) == before
    assert "a" in {t["id"] for t in vectors.lake.tombstones(vectors.table)}


@pytest.mark.long
def test_of_a_replay_they_see_the_new_batch_alone(vectors: ClusterStory) -> None:
    replay(vectors, "b")

    assert vectors.lake.plain_rows(vectors.table) == vectors.expected
    assert vectors.lake.rows(vectors.table) == vectors.expected


@pytest.mark.long
def test_after_a_change_of_the_mode_the_next_revert_follows_it_and_makes_up_for_those_before(
    vectors: ClusterStory,
) -> None:
    """With tombstones alone they still see what was taken back: this is how the others are known to look at no tombstones."""
    kept = vectors.expected

    change_mode(vectors, "Ledger")
    revert(vectors, "by-ledger", "c")

    assert vectors.lake.plain_rows(vectors.table) == kept
    assert vectors.lake.rows(vectors.table) == vectors.expected

    change_mode(vectors, "DeletionVectors")
    revert(vectors, "by-vector", "d")

    assert vectors.lake.plain_rows(vectors.table) == vectors.expected
    assert vectors.lake.rows(vectors.table) == vectors.expected


@pytest.mark.long
def test_an_undo_shows_the_rows_to_everybody_again(vectors: ClusterStory) -> None:
    vectors.apply(vectors.a_restatement("undo", "Undo", undoes={"name": f"{vectors.name}-by-vector"}))

    undo = vectors.wait_for_success("undo")

    vectors.expected += rows_of("d", a_table_of(ROWS["d"], day=2))
    assert undo["status"]["result"]["rowsRestored"] == ROWS["d"]
    assert vectors.lake.plain_rows(vectors.table) == vectors.expected
    assert vectors.lake.rows(vectors.table) == vectors.expected


@pytest.mark.long
def test_what_left_the_table_with_its_file_cannot_be_undone(vectors: ClusterStory) -> None:
    """And nothing of that Revert is, though the rows of its other batch are still there."""
    vectors.apply(vectors.a_restatement("undo-whole", "Undo", undoes={"name": f"{vectors.name}-revert"}))

    vectors.cluster.wait_for_condition(
        vectors.restatement("undo-whole"),
        "Succeeded",
        status="False",
        reason="AlreadyPurged",
        within_seconds=RUN_SECONDS,
    )

    assert vectors.lake.plain_rows(vectors.table) == vectors.expected


@pytest.fixture(scope="module")
def positions(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return begun(stories("positions"), 2, "PositionDeletes")


@pytest.mark.long
def test_position_deletes_hide_a_revert_from_all_readers_on_version_2(positions: ClusterStory) -> None:
    before = data_files(positions)

    revert(positions, "revert", "a", "whole")

    assert positions.lake.plain_rows(positions.table) == positions.expected
    assert rows_by_spark(positions.cluster, positions.lake.services, positions.table) == positions.expected
    assert data_files(positions) < before


@pytest.mark.long
def test_a_replay_and_an_undo_by_position_deletes_are_seen_by_pyiceberg(positions: ClusterStory) -> None:
    replay(positions, "b")
    revert(positions, "by-position", "d")
    assert positions.lake.plain_rows(positions.table) == positions.expected

    positions.apply(positions.a_restatement("undo", "Undo", undoes={"name": f"{positions.name}-by-position"}))
    positions.wait_for_success("undo")

    positions.expected += rows_of("d", a_table_of(ROWS["d"], day=2))
    assert positions.lake.plain_rows(positions.table) == positions.expected
    assert positions.lake.rows(positions.table) == positions.expected
