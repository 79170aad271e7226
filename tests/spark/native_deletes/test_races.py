"""Others at the same table while a restatement writes native deletes: nobody's deletes are lost, no row is shown again."""

from collections import Counter

import pytest
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, row
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import Row, Story, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake

ALL = ("A", "B", "D", "E")
MODES = "DeletionVectors", "PositionDeletes"


@pytest.fixture(params=MODES)
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    return Native.of(Story.begin(spark, lake), request.param).filled()


NAMED = (3, "DeletionVectors"), (2, "PositionDeletes")
NAMED_V3 = pytest.mark.parametrize("named", some(NAMED, NAMED[0]), ids=["v3", "v2"], indirect=True)


@pytest.fixture
def named(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> tuple[Names, Native]:
    """A table of batches A, B and D with a name in each row, and the same table for Restatements with native deletes."""
    version, deletes = request.param
    names = Names.of(Story.begin(spark, lake), version).filled()
    return names, Native(spark, lake, names.name, names.partition_by, names.catalog, version, deletes)


def sql(story: Story, text: str) -> None:
    name = ".".join(f"`{p}`" for p in story.full_name.split("."))
    story.spark.sql(text.format(table=name))


@pytest.mark.parametrize("story", some(MODES, "PositionDeletes"), indirect=True)
def test_a_foreign_delete_on_the_same_file_stays_and_the_undo_is_refused(story: Native) -> None:
    sql(story, "ALTER TABLE {table} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    gone: Row = next(iter(of_batches("A")))

    result = story.restate(
        a_request("revert", batch_ids=("A",)),
        before_commit=lambda: sql(story, f"DELETE FROM {{table}} WHERE v = {gone[1]}"),
    )

    assert result.succeeded
    wanted = of_batches("B", "D", "E")
    assert (story.plain(), story.rows_at()) == (wanted, wanted)
    assert story.undo().reason == "AlreadyPurged"


@pytest.mark.long
def test_files_that_another_compacted_in_between_are_searched_again(story: Native) -> None:
    compact = "CALL lite.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))"

    result = story.restate(
        a_request("revert", batch_ids=("A",)),
        before_commit=lambda: story.spark.sql(compact.format(name=story.name)),
    )

    assert result.succeeded
    assert story.plain() == of_batches("B", "D", "E")
    assert story.undo().succeeded
    story.check_native(of_batches(*ALL))


@pytest.mark.parametrize("story", some(MODES, "DeletionVectors"), indirect=True)
def test_two_groups_on_one_file_both_hide_their_rows(story: Native) -> None:
    result = story.restate(
        a_request("one", batch_ids=("A",)), before_commit=lambda: story.revert("B", name="meanwhile")
    )

    assert (result.succeeded, story.hidden_rows()) == (True, 8)
    story.check_native(of_batches("D", "E"))


@pytest.mark.parametrize("story", some(MODES, "PositionDeletes"), indirect=True)
def test_a_vacuum_of_the_same_file_is_planned_again(story: Native) -> None:
    story.revert("A")

    result = story.vacuum(after_write=lambda: story.revert("B", name="meanwhile"))

    assert result.tombstones_purged == 2
    story.check_native(of_batches("D", "E"))


@pytest.mark.long
def test_a_vacuum_in_between_moves_the_rows_that_are_to_be_hidden(story: Native) -> None:
    story.revert("A")

    result = story.restate(a_request("late", batch_ids=("B",)), before_commit=story.vacuum)

    assert result.succeeded
    assert "A" not in {i for ids in story.files().values() for i in ids}
    story.check_native(of_batches("D", "E"))


@NAMED_V3
def test_an_undo_does_not_bring_back_what_was_erased_under_the_mask(named: tuple[Names, Native]) -> None:
    """Revert, erase a row of the batch, Undo: the delete file does not tell the position from the others."""
    names, native = named
    native.revert("A")
    erased = names.erase(row("A", 1))
    assert erased.succeeded

    undone = native.undo()

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert native.plain() == of_batches("B", "D")


@pytest.mark.long
def test_an_undo_does_not_bring_back_a_row_that_was_erased_beside_a_visible_one(named: tuple[Names, Native]) -> None:
    """On version 2 the Erase rewrites the file of the visible row only. The other file still has the hidden one."""
    names, native = named
    native.revert("A")
    hidden, visible = row("A", 1), row("B", 2)
    assert hidden[2] != visible[2]

    assert names.erase(hidden, visible).succeeded

    undone = native.undo()
    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert native.plain() == of_batches("B", "D") - Counter([visible])


@pytest.mark.long
def test_the_rewrite_of_an_erase_removes_the_deletes_of_its_files(named: tuple[Names, Native]) -> None:
    names, native = named
    native.revert("A")

    names.erase(*(row("B", n) for n in range(4)))

    assert native.plain() == native.rows_at() == of_batches("D")
    assert native.files_of_deletes() <= native.files().keys()


@pytest.mark.long
def test_an_erase_of_records_and_a_revert_of_one_group_leave_both_rows_out(named: tuple[Names, Native]) -> None:
    """The Erase is committed with the ledger, the mask right after it, by the same run."""
    names, native = named
    erase = names.an_erase(*(f"passenger <{v}>" for _, v, _ in (row("B", 1),)))

    native.run(native.restatement(a_request("revert", batch_ids=("A",)), erase))

    wanted = of_batches("B", "D") - Counter([row("B", 1)])
    assert (native.plain(), native.rows_at(), native.keys()["lethe.masked"]) == (wanted, wanted, "true")
