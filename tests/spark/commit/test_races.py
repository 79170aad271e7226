"""Writers meet: whatever comes between a job's plan and its commit, each row is there once or not at all."""

from collections import Counter

import pyarrow as pa
import pytest
from lethe.contract.result import RequestResult
from pyspark.sql import SparkSession

from tests.spark.parameters import named, some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import ALL_GONE, Row, Story, avro, local, of_batches
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and D are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "D")
    story.consolidate("A", "B", "D")
    return story


def tombstones(story: Story) -> set[str]:
    return {t["id"] for t in avro(story.keys()["tombstone.file"])}


# --- restatements ---------------------------------------------------------------------------------------------------


def test_two_restatements_at_one_moment_both_hold(story: Story) -> None:
    """Iceberg alone would let the second one's ledger, planned on the same base, swallow the first."""
    theirs: list[RequestResult] = []

    mine = story.restate(
        a_request("mine", batch_ids=["A"]), before_commit=lambda: theirs.append(story.revert("D", name="theirs"))
    )

    assert (mine.succeeded, theirs[0].succeeded, mine.rows_deleted) == (True, True, 4)
    assert tombstones(story) == {"A", "D"}
    assert set(story.ledger().requests) == {"ns/mine/0", "ns/theirs/0"}
    story.check_reads(of_batches("B"))


@pytest.mark.long
def test_one_request_carried_out_by_two_runs_at_one_moment_is_done_once(story: Story) -> None:
    request = story.a_replay("A", by="A2")
    theirs: list[RequestResult] = []

    mine = story.restate(request, before_commit=lambda: theirs.append(story.restate(request)))

    assert mine == theirs[0]
    story.check_reads(of_batches("B", "D") + of_batches("A2", rows=3))


def test_of_two_replays_of_one_batch_the_second_is_refused_and_adds_nothing(story: Story) -> None:
    """Both had written their rows. A union of the two ledgers would show both replacements."""
    mine, theirs = story.a_replay("A", by="M", name="mine"), story.a_replay("A", by="T", name="theirs")

    result = story.restate(mine, before_commit=lambda: story.restate(theirs))

    assert (result.succeeded, result.reason, result.rows_added) == (False, "AlreadyReplaced", 0)
    story.check_reads(of_batches("B", "D") + of_batches("T", rows=3))


# --- consolidations -------------------------------------------------------------------------------------------------


def test_a_foreign_append_during_a_consolidation_loses_nobodys_rows(story: Story) -> None:
    story.put("E")

    story.consolidate("E", before_commit=lambda: story.append_as_foreign_writer("x"))

    story.check_reads(of_batches("A", "B", "D", "E") + Counter({("x", 500, 1): 1}))


@pytest.mark.parametrize("step", some(["after_list", "after_write", "after_stage", "before_commit"], "after_stage"))
def test_a_batch_that_two_runs_promote_at_one_moment_is_promoted_once(story: Story, step: str) -> None:
    story.put("E")

    mine = story.run(
        story.consolidation("E", run_id="e" * 32),
        **{step: lambda: story.run(story.consolidation("E", run_id="f" * 32))},
    )

    assert (mine.batches_promoted, mine.outcome) == (0, "AlreadyCommitted")
    story.check_reads(of_batches("A", "B", "D", "E"))


def test_files_shared_with_a_batch_promoted_by_another_run_are_written_again_for_the_other_batches(
    story: Story,
) -> None:
    """E and F lie in common staged files; another run promotes E. Publishing would double E, dropping lose F."""
    story.put("E", "F")

    mine = story.consolidate("E", "F", after_stage=lambda: story.consolidate("E"))

    assert mine.batches_promoted == 1
    assert story.states().items() >= {"E": "promoted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "E", "F"))


def test_a_batch_reverted_while_its_rows_were_being_written_is_not_promoted(story: Story) -> None:
    story.put("E", "F")

    story.consolidate("E", "F", after_stage=lambda: story.revert("E"))

    assert story.states().items() >= {"E": "reverted", "F": "promoted"}.items()
    story.check_reads(of_batches("A", "B", "D", "F"))


def test_a_vacuum_does_not_expire_the_files_of_a_concurrent_consolidation(story: Story) -> None:
    """Staged and not yet published: their snapshot is no ancestor of anything."""
    story.put("E")
    story.revert("A")

    story.consolidate("E", after_stage=lambda: story.vacuum(ALL_GONE))

    story.check_reads(of_batches("B", "D", "E"))


@pytest.mark.long
def test_expired_staged_files_are_written_again(story: Story) -> None:
    """Somebody else's expiry knows no grace: committing their names would leave a table that cannot be read."""
    story.put("E")

    def expire_by_hand() -> None:
        (staged,) = [s for s in story.table().snapshots() if (s.summary or {}).get("wap.id") == run.run_id]
        story.spark.sql(
            f"CALL lite.system.expire_snapshots(table => '{story.name}', snapshot_ids => ARRAY({staged.snapshot_id}))"
        )

    run = story.consolidation("E")
    story.run(run, after_stage=expire_by_hand)

    story.check_reads(of_batches("A", "B", "D", "E"))


@pytest.mark.parametrize(
    "others", named({"itself": (Counter[Row](),), "a copy": (Counter({("x", 500, 1): 1}),)}, "a copy")
)
def test_files_that_another_tool_published_are_recorded_and_not_committed_again(
    story: Story, others: Counter[Row]
) -> None:
    """`cherrypick_snapshot` puts a staged snapshot's rows in the table and writes no ledger. If the head has not moved, the
    staged snapshot itself becomes the head."""
    story.put("E")
    run = story.consolidation("E")

    def publish() -> None:
        (staged,) = [s for s in story.table().snapshots() if (s.summary or {}).get("wap.id") == run.run_id]
        if others:
            story.append_as_foreign_writer("x")
        story.spark.sql(f"CALL lite.system.cherrypick_snapshot('{story.name}', {staged.snapshot_id})")

    story.run(run, after_stage=publish)

    assert story.states()["E"] == "promoted"
    story.check_reads(of_batches("A", "B", "D", "E") + others)


@pytest.mark.long
def test_files_that_we_published_cannot_be_published_again_by_another_tool(story: Story) -> None:
    """The staged snapshot stays for a while; Iceberg looks for `published-wap-id` before it picks one."""
    story.put("E")
    run = story.consolidation("E")
    story.run(run)
    (staged,) = [s for s in story.table().snapshots() if (s.summary or {}).get("wap.id") == run.run_id]

    with pytest.raises(Exception, match="Duplicate request to cherry pick wap id"):
        story.spark.sql(f"CALL lite.system.cherrypick_snapshot('{story.name}', {staged.snapshot_id})")

    story.check_reads(of_batches("A", "B", "D", "E"))


# --- vacuums --------------------------------------------------------------------------------------------------------


def test_rows_that_arrive_after_a_vacuums_plan_stay_hidden(story: Story) -> None:
    """A foreign writer appends rows of A while A is being purged: A's tombstone has to outlive the vacuum."""
    story.revert("A", "D")

    result = story.vacuum(before_commit=lambda: story.append_as_foreign_writer("A"))

    assert result.tombstones_purged == 1
    assert tombstones(story) == {"A"}
    assert {t["id"] for t in avro(story.keys()["tombstone.vacuum.file"])} == {"A", "D"}
    story.check_reads(of_batches("B"))
    story.vacuum(key="2")
    assert (tombstones(story), story.rows_at()) == (set(), of_batches("B"))


@pytest.mark.long
def test_rows_of_a_purged_batch_that_a_foreign_writer_brings_back_are_hidden_by_our_next_commit(story: Story) -> None:
    story.revert("A")
    story.vacuum()
    story.append_as_foreign_writer("A")
    story.put("E")

    story.consolidate("E")

    assert tombstones(story) == {"A"}
    story.check_reads(of_batches("B", "D", "E"))
    assert story.vacuum(key="2").rows_purged == 1


def test_a_revert_during_a_vacuum_is_neither_lost_nor_purged_unseen(story: Story) -> None:
    """The written files still hold D's rows: its tombstone was no part of the plan and stays."""
    story.revert("A")

    story.vacuum(before_commit=lambda: story.revert("D", name="second"))

    assert tombstones(story) == {"D"}
    story.check_reads(of_batches("B"))


@pytest.mark.long
def test_a_revert_does_not_wait_for_a_vacuum_that_is_under_way(story: Story) -> None:
    """It is committed at its first attempt, whatever the vacuum is about to commit; the vacuum is the one to try again."""
    story.revert("A")
    reverting = story.context(story.restatement(a_request("second", batch_ids=["D"])))
    vacuuming = story.context(story.vacuuming(), before_commit=lambda: story.carry_out(reverting))

    story.carry_out(vacuuming)

    tries = [c.steps.count("before-commit") for c in (reverting, vacuuming)]
    assert tries == [1, 2]
    assert (tombstones(story), story.keys(story.snapshots()[1])["lethe.run-id"]) == ({"D"}, reverting.run_id)


@pytest.mark.long
def test_a_second_restatement_of_a_batch_during_a_vacuum_makes_it_plan_again(story: Story) -> None:
    story.revert("A")

    result = story.vacuum(before_commit=lambda: story.revert("A", name="second"))

    assert (result.outcome, result.tombstones_purged, tombstones(story)) == ("Committed", 1, set())
    (vacuumed,) = avro(story.keys()["tombstone.vacuum.file"])
    assert vacuumed["meta"]["restatements"] == "ns/revert/0\nns/second/0"
    story.check_reads(of_batches("B", "D"))


def test_a_foreign_rewrite_of_the_planned_files_makes_a_vacuum_plan_again(story: Story) -> None:
    """Committing its files would bring the rewritten rows in twice."""
    story.revert("A")

    def compact() -> None:
        table = story.table()
        rows = table.scan().to_arrow().to_pylist()
        schema = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])
        table.overwrite(pa.Table.from_pylist(rows, schema=schema))

    result = story.vacuum(before_commit=compact)

    assert (result.outcome, tombstones(story)) == ("Committed", set())
    story.check_reads(of_batches("B", "D"))
    assert story.table().scan().to_arrow().num_rows == 8


def test_rows_deleted_by_another_engine_under_a_vacuum_stay_deleted(story: Story) -> None:
    """Spark deletes B's rows merge-on-read in a file that the vacuum has just written again."""
    story.spark.sql(f"ALTER TABLE lite.{story.name} SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    story.revert("A")

    story.vacuum(before_commit=lambda: story.spark.sql(f"DELETE FROM lite.{story.name} WHERE batch_id = 'B'"))

    story.check_reads(of_batches("D"))
    assert tombstones(story) == set()


def test_a_consolidation_and_a_vacuum_at_one_moment_both_land(story: Story) -> None:
    story.revert("A")
    story.put("E")

    story.vacuum(before_commit=lambda: story.consolidate("E"))

    story.check_reads(of_batches("B", "D", "E"))
    assert tombstones(story) == set()
    assert {local(p) for p in story.files()} <= story.data_folder()


def test_two_vacuums_at_one_moment_purge_once(story: Story) -> None:
    story.revert("A")

    mine = story.vacuum(before_commit=lambda: story.vacuum(key="theirs"))

    assert mine.outcome == "NothingToDo"
    story.check_reads(of_batches("B", "D"))


@pytest.mark.long
def test_a_foreign_append_during_a_restatement_is_hidden_or_kept_by_what_it_holds(story: Story) -> None:
    story.restate(a_request("revert", batch_ids=["A"]), before_commit=lambda: story.append_as_foreign_writer("A", "x"))

    story.check_reads(of_batches("B", "D") + Counter({("x", 501, 1): 1}))
