"""Equality deletes beside the ledger, on format version 2: engines that apply them see the right rows at once."""

from collections import Counter

import lethe
import pytest
from lethe.base.errors import InputError
from lethe.ledger.tombstone import Mask
from pyiceberg.manifest import DataFileContent
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import ALL_GONE, Row, Story, of_arrow, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

EQUALITY = "EqualityDeletes"
ALL = ("A", "B", "D", "E")


@pytest.fixture(params=[("day",), ()], ids=["by day", "whole"])
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    return Native.of(Story.begin(spark, lake, request.param), EQUALITY).filled()


def all_of(*more: str, but: tuple[str, ...] = ()) -> Counter[Row]:
    return of_batches(*(b for b in (*ALL, *more) if b not in but))


@pytest.mark.parametrize("story", some([("day",), ()], ("day",)), ids=["by day", "whole"], indirect=True)
def test_a_revert_writes_one_file_of_ids_for_each_partition_and_drops_files_of_nothing_else(story: Native) -> None:
    """Lethe's readers leave these files out, by their names: PyIceberg alone refuses such a table."""
    files = story.files()

    result = story.revert("A", "B", "E")

    assert result.snapshot_id == story.head().snapshot_id
    assert sorted(story.files()) == sorted(p for p, ids in files.items() if set(ids) != {"E"})
    written = story.deletes_now()
    assert [(c, n) for c, _, n in written] == [(DataFileContent.EQUALITY_DELETES, 2)] * (2 if story.partition_by else 1)
    assert all(path.rpartition("/")[2].startswith("lethe-tombstones-") for _, path, _ in written)
    assert story.masks() == {i: Mask(EQUALITY, 4) for i in ("A", "B", "E")}
    story.check_native(all_of(but=("A", "B", "E")))


@pytest.mark.long
def test_an_undo_takes_the_ids_out_of_the_files_and_leaves_the_others_in(story: Native) -> None:
    story.revert("A", name="one")
    story.revert("B", "D", name="two")

    undone = story.undo("one")

    assert (undone.succeeded, undone.rows_restored) == (True, 4)
    assert story.masks() == {"B": Mask(EQUALITY, 4), "D": Mask(EQUALITY, 4)}
    assert {n for _, _, n in story.deletes_now()} == {2}
    story.undo("two", name="undo-two")
    assert story.deletes_now() == []
    story.check_native(all_of())


@pytest.mark.long
def test_a_replay_and_a_concurrent_vacuum(story: Native) -> None:
    """The vacuum removes the rows, the tombstones and the equality deletes, which are of no row any more."""
    story.replay("A", by="A2")
    story.revert("E")

    result = story.vacuum()

    assert (result.tombstones_purged, story.masks(), story.deletes_now()) == (2, {}, [])
    assert story.plain() == all_of(but=("A", "E")) + of_batches("A2", rows=3)
    story.vacuum(ALL_GONE, key="2")
    story.check_native(all_of(but=("A", "E")) + of_batches("A2", rows=3))


@pytest.mark.long
def test_a_revert_during_a_vacuum_hides_its_rows_in_the_files_that_the_vacuum_writes(story: Native) -> None:
    """And the vacuum is not planned again for it: what it writes is as old as what it read."""
    story.revert("A")

    result = story.vacuum(after_write=lambda: story.revert("B", name="meanwhile"))

    assert (result.tombstones_purged, result.outcome) == (1, "Committed")
    assert story.masks() == {"B": Mask(EQUALITY, 4)}
    story.check_native(all_of(but=("A", "B")))


@pytest.mark.long
def test_an_undo_after_a_compaction_by_others_is_refused(story: Native) -> None:
    """Whoever wrote the files again left out what was hidden: the rows are counted, and are not there."""
    story.revert("A", name="one")
    story.spark.sql(
        f"CALL lite.system.rewrite_data_files(table => '{story.name}', options => map('rewrite-all', 'true'))"
    )
    assert "A" not in {i for ids in story.files().values() for i in ids}

    undone = story.undo("one")

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert story.plain() == all_of(but=("A",))


@pytest.mark.long
def test_what_others_appended_to_a_batch_taken_back_is_hidden_by_the_next_restatement(story: Native) -> None:
    story.revert("A")
    name = ".".join(f"`{p}`" for p in story.full_name.split("."))
    story.spark.sql(f"INSERT INTO {name} (v, day, batch_id) VALUES (900, 1, 'A'), (901, 2, 'X')")

    story.revert("B", name="next")

    wanted = all_of(but=("A", "B")) + Counter({("X", 901, 2): 1})
    assert (story.plain(), of_arrow(lethe.scan(story.full_name).to_arrow())) == (wanted, wanted)


@pytest.mark.long
def test_equality_deletes_are_not_for_version_3(spark: SparkSession, lake: Lake) -> None:
    story = Native(spark, lake, Story.begin(spark, lake).name, format_version=3, deletes=EQUALITY)
    story.put("A")
    story.consolidate("A")

    with pytest.raises(InputError, match="DeletionVectors") as refused:
        story.restate(a_request("revert", batch_ids=("A",)))

    assert refused.value.reason == "FormatVersionMismatch"


@pytest.mark.long
def test_an_increment_has_the_rows_that_another_writers_compaction_left_out(story: Native) -> None:
    """It applies the equality deletes, so that the rows are in no data file any more."""
    first = story.head().snapshot_id
    story.revert("A", "B")
    story.spark.sql(
        f"CALL {story.catalog}.system.rewrite_data_files(table => '{story.name}', options => map('rewrite-all', 'true'))"
    )

    went = lethe.scan(story.full_name, since=first, rows="deleted")

    assert of_arrow(went.to_arrow()) == of_batches("A", "B")
    story.check_native(all_of(but=("A", "B")))
