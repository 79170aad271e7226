"""Deletion vectors, or position deletes on format version 2, beside the ledger: readers without Lethe see the right rows at once,
and no others."""

from collections import Counter

import lethe
import pytest
from lethe.base.errors import InputError
from lethe.contract.result import RequestResult, RunResult
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import Deletes
from lethe.ledger.tombstone import Mask
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import ALL_GONE, Row, Story, avro, of_arrow, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.steps import Killed, die

VECTORS = "DeletionVectors"
POSITIONS = "PositionDeletes"
ALL = ("A", "B", "D", "E")
# For tests whose promise depends on the kind of deletes least: `make test` runs them with one kind.
MOSTLY_VECTORS = pytest.mark.parametrize("story", some([VECTORS, POSITIONS], VECTORS), indirect=True)
MOSTLY_POSITIONS = pytest.mark.parametrize("story", some([VECTORS, POSITIONS], POSITIONS), indirect=True)


@pytest.fixture(params=[VECTORS, POSITIONS])
@built_once
def story(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> Native:
    return Native.of(Story.begin(spark, lake), request.param).filled()


def group(story: Native, *requests: RestatementRequest) -> dict[str, RequestResult]:
    result: RunResult = story.run(story.restatement(*requests))
    return {r.name.removeprefix("ns/"): r for r in result.requests}


def all_of(*more: str, but: tuple[str, ...] = ()) -> Counter[Row]:
    return of_batches(*(b for b in (*ALL, *more) if b not in but))


def test_a_revert_hides_its_rows_by_position_in_one_snapshot_with_the_ledger(story: Native) -> None:
    """A is in files with other batches: these stay, and get a delete file each. E's are its own, and are dropped by metadata."""
    files, snapshots = story.files(), len(story.snapshots())

    result = story.revert("A", "E")

    assert (result.succeeded, result.rows_deleted, result.tombstones_added) == (True, 8, 2)
    assert len(story.snapshots()) == snapshots + 1
    assert result.snapshot_id == story.head().snapshot_id
    assert sorted(story.files()) == sorted(p for p, ids in files.items() if set(ids) != {"E"})
    end = ".puffin" if story.deletes == VECTORS else "-lethe-deletes.parquet"
    assert [(path.endswith(end), n) for _, path, n in story.deletes_now()] == [(True, 2), (True, 2)]
    assert story.masks() == {"A": Mask(story.deletes, 4), "E": Mask(story.deletes, 4)}
    keys = story.keys()
    assert (keys["lethe.deletes"], keys["lethe.masked"]) == (story.deletes, "true")
    assert {t["id"] for t in avro(keys["tombstone.vacuum.file"])} == {"A", "E"}
    story.check_native(all_of(but=("A", "E")))


@MOSTLY_POSITIONS
def test_an_undo_shows_exactly_the_rows_again_and_only_the_others_stay_deleted(story: Native) -> None:
    """A data file has one delete file of Lethe at most: the second revert adds to it, the Undo takes out of it."""
    story.revert("A", name="one")
    story.revert("D", name="two")
    assert [n for _, _, n in story.deletes_now()] == [4, 4]

    undone = story.undo("one")

    assert (undone.succeeded, undone.rows_restored, story.hidden_rows()) == (True, 4, 4)
    assert story.masks() == {"D": Mask(story.deletes, 4)}
    story.undo("two", name="undo-two")
    assert story.deletes_now() == []
    story.revert("A", name="again")
    story.check_native(all_of(but=("A",)))


@pytest.mark.long
def test_an_undo_of_one_of_two_that_were_hidden_by_one_commit_is_seen_by_every_reader(story: Native) -> None:
    """PyIceberg takes all vectors of a Puffin file for those of today, so no two data files may share one."""
    story.put("F", "G")
    story.consolidate("F", "G")
    reported = group(story, a_request("one", batch_ids=("A",)), a_request("two", batch_ids=("F",)))
    assert {r.group_size for r in reported.values()} == {2}

    assert story.undo("one").succeeded

    story.check_native(all_of("G"))


@MOSTLY_POSITIONS
def test_a_replay_brings_the_new_rows_in_the_snapshot_that_hides_the_old_ones(story: Native) -> None:
    """Nobody sees both, or neither. Who replaces a replacement of the same group goes after it."""
    first, second = story.a_replay("A", by="A2"), story.a_replay("A2", by="A3", name="second", rows=2)

    reported = group(story, first, second, a_request("revert", batch_ids=("B",)))

    assert {n: (r.succeeded, r.reason) for n, r in reported.items()} == {
        "replay": (True, ""),
        "second": (False, "WaitingForRestatement"),
        "revert": (True, ""),
    }
    assert reported["second"].again
    assert story.operation() == "overwrite"
    assert story.plain() == all_of(but=("A", "B")) + of_batches("A2", rows=3)
    story.restate(second)
    story.check_native(all_of(but=("A", "B")) + of_batches("A3", rows=2), since=story.snapshots()[2].snapshot_id)


@MOSTLY_VECTORS
def test_an_undo_of_a_batch_of_which_whole_files_were_dropped_is_refused(story: Native) -> None:
    story.revert("A", "E")
    head = story.head().snapshot_id

    undone = story.undo()

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert (story.head().snapshot_id, story.masks().keys()) == (head, {"A", "E"})


@pytest.mark.long
def test_rows_that_were_deleted_by_others_before_are_not_brought_back(story: Native) -> None:
    """Whose a position is cannot be told from a vector: the Undo is refused, with the reason."""
    name = ".".join(f"`{p}`" for p in story.full_name.split("."))
    story.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    gone = next(iter(of_batches("A")))
    story.spark.sql(f"DELETE FROM {name} WHERE v = {gone[1]}")
    story.revert("A")
    assert story.plain() == all_of(but=("A",))

    undone = story.undo()

    assert (undone.succeeded, undone.reason) == (False, "AlreadyPurged")
    assert story.plain() == all_of(but=("A",))


@MOSTLY_VECTORS
def test_tombstones_from_before_the_mode_are_masked_by_the_next_restatement(story: Native) -> None:
    """Also rows that a foreign writer appended to a batch taken back, once somebody has looked."""
    story.run(story.restatement(a_request("before", batch_ids=("A",)), deletes="Ledger"))
    assert (story.plain(), story.masks()) == (all_of(), {"A": None})

    story.revert("B")

    assert story.plain() == all_of(but=("A", "B"))
    name = ".".join(f"`{p}`" for p in story.full_name.split("."))
    story.spark.sql(f"INSERT INTO {name} (v, day, batch_id) VALUES (500, 1, 'A'), (501, 1, 'B'), (502, 1, 'X')")
    story.revert("D", name="late")
    assert story.masks() == {"A": Mask(story.deletes, 5), "B": Mask(story.deletes, 5), "D": Mask(story.deletes, 4)}
    wanted = of_batches("E") + Counter({("X", 502, 1): 1})
    assert (story.plain(), of_arrow(lethe.scan(story.full_name).to_arrow())) == (wanted, wanted)
    assert of_arrow(story.table().scan().to_arrow()) == wanted


@pytest.mark.long
def test_a_vacuum_purges_the_hidden_rows_and_the_deletes_with_them(story: Native) -> None:
    story.revert("A", "E")

    result = story.vacuum()

    assert (result.tombstones_purged, story.masks(), story.deletes_now()) == (2, {}, [])
    assert "A" not in {i for ids in story.files().values() for i in ids}
    story.check_native(all_of(but=("A", "E")))
    story.vacuum(ALL_GONE, key="2")
    story.check_native(all_of(but=("A", "E")))


@pytest.mark.long
def test_an_undo_lifts_masks_whatever_the_mode_is_by_then(story: Native) -> None:
    """And a consolidation in between leaves them as they are."""
    story.revert("A")
    story.put("F")
    story.consolidate("F")

    (undone,) = story.run(
        story.restatement(a_request("undo", "Undo", batch_ids=(), undoes="ns/revert/0"), deletes="Ledger")
    ).requests

    assert (undone.succeeded, undone.rows_restored, story.deletes_now()) == (True, 4, [])
    story.check_native(all_of("F"))


@pytest.mark.parametrize(("deletes", "version"), [(VECTORS, 2), (POSITIONS, 3)])
def test_vectors_are_for_version_3_and_position_deletes_for_version_2(
    spark: SparkSession, lake: Lake, deletes: Deletes, version: int
) -> None:
    story = Native(spark, lake, Story.begin(spark, lake).name, format_version=version, deletes=deletes)
    story.put("A")
    story.consolidate("A")
    head = story.head().snapshot_id

    with pytest.raises(InputError, match=f"format version {version}") as refused:
        story.revert("A")

    assert (refused.value.reason, story.head().snapshot_id) == ("FormatVersionMismatch", head)


# --- deaths ---------------------------------------------------------------------------------------------------------


@MOSTLY_POSITIONS
@pytest.mark.parametrize("step", some(["after-search", "before-commit", "after-commit"], "after-commit"))
def test_a_restatement_that_died_is_finished_by_its_repetition(story: Native, step: str) -> None:
    run = story.restatement(a_request("revert", batch_ids=("A",)))
    with pytest.raises(Killed):
        story.run(run, **{step.replace("-", "_"): die})

    (result,) = story.run(run).requests

    assert result.succeeded
    assert sum(story.keys(s).get("lethe.run-id") == run.run_id for s in story.snapshots()) == 1
    assert (story.hidden_rows(), story.plain()) == (4, all_of(but=("A",)))
