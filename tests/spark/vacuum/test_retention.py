"""Retention: rows that are too old leave the table, whole files by metadata, and no other row does."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.result import VacuumResult
from lethe.contract.settings import Deletes
from lethe_spark.jobs.vacuum import job
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.aging import AgingStory, numbers, old, young
from tests.spark.support.built_once import built_once
from tests.support.lake import Lake
from tests.support.steps import Killed, die

DAILY = ("days(booked_at)",)


def of_days(result: VacuumResult) -> tuple[int, int, int, int]:
    return result.files_deleted, result.files_rewritten, result.files_added, result.bytes_rewritten


def test_the_oldest_of_many_daily_partitions_leaves_by_metadata_alone(spark: SparkSession, lake: Lake) -> None:
    """No byte is rewritten: the commit adds no data file, and removes one."""
    story = AgingStory.begin(spark, lake, DAILY)
    story.promoted(A=(old(), *(young(n) for n in range(11))))
    assert len(story.live()) == 12

    result = story.age()

    assert (of_days(result), result.rows_purged) == ((1, 0, 0, 0), 1)
    keys = story.keys()
    assert (story.operation(), keys["deleted-data-files"], keys["lethe.retention-cutoff"]) == (
        "delete",
        "1",
        "2024-06-01",
    )
    assert "added-data-files" not in keys
    assert story.rows() == numbers("A", *range(1, 12))
    assert result.retention is not None
    assert (result.retention.left, str(result.retention.next_cutoff)) == (False, "2024-06-02")


# Each type, format of files and of tables, and place of the column. Only files in ORC and Avro are filtered by Spark.
SHAPES: dict[str, dict[str, Any]] = {
    "timestamp in a struct, format version 3": {"type": "TIMESTAMP_NTZ", "nested": True, "format_version": 3},
    "date without metrics": {"type": "DATE", "properties": {"write.metadata.metrics.column.booked_at": "none"}},
    "timestamptz in ORC": {"properties": {"write.format.default": "orc"}},
    "timestamptz in Avro": {"properties": {"write.format.default": "avro"}},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_file_with_young_rows_is_written_again_without_the_old_ones(
    spark: SparkSession, lake: Lake, shape: str
) -> None:
    """Rows without a time stay, and so does one of the cutoff's first moment. A second vacuum has nothing to do."""
    story = AgingStory.begin(spark, lake, (), **SHAPES[shape])
    story.promoted(A=(old(), young(), None, old(5)), B=(young(1),))
    ids = row_ids(story)

    result = story.age()

    assert (result.files_rewritten, result.rows_purged, story.operation()) == (1, 2, "overwrite")
    assert story.rows() == numbers("A", 1, 2) + numbers("B", 0)
    assert row_ids(story) == {row: id for row, id in ids.items() if row in story.rows()}
    again = story.age("2")
    assert (again.outcome, again.files_rewritten) == ("NothingToDo", 0)


def row_ids(story: AgingStory) -> dict[tuple[str | None, int], int | None]:
    """The ids of the rows, which they have in format version 3."""
    names = ["batch_id", "v", *(["_row_id"] if story.format_version == 3 else [])]
    rows = story.spark.read.table(story.full_name).select(*names).collect()
    return {(r["batch_id"], r["v"]): r["_row_id"] if story.format_version == 3 else None for r in rows}


def test_tombstoned_rows_of_other_files_leave_in_the_same_commit(spark: SparkSession, lake: Lake) -> None:
    """Of three files one loses rows for their age, one for a tombstone, and one stays as it is."""
    story = AgingStory.begin(spark, lake, ("days(booked_at)",))
    story.promoted(A=(old(), young(), young(40)), B=(old(), young(), young(40)), C=(young(40),))
    story.sql("ALTER TABLE {t} REPLACE PARTITION FIELD booked_at_day WITH months(booked_at)")
    story.compact()
    story.promoted(D=(old(1), young(3)))
    story.revert("A")

    result = story.age()

    assert (result.steps, result.tombstones_purged) == (1, 1)
    assert story.rows() == numbers("B", 1, 2) + numbers("C", 0) + numbers("D", 1)


def test_a_file_without_bounds_is_gone_if_all_its_rows_are_too_old(spark: SparkSession, lake: Lake) -> None:
    story = AgingStory.begin(spark, lake, (), properties={"write.format.default": "avro"})
    story.promoted(A=(old(), old()))

    story.age()

    assert (story.rows(), story.live()) == (numbers("A"), {})


# --- with tombstones -------------------------------------------------------------------------------------------------


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> AgingStory:
    """Two days in one file each, and one file with both: old rows 0 and 1 of A and B, young rows 2 and 3."""
    return AgingStory.begin(spark, lake, DAILY).promoted(
        A=(old(), old(), young(), young()), B=(old(), old(), young(), young())
    )


@pytest.mark.parametrize("deletes", [Deletes.LEDGER, Deletes.POSITION_DELETES, Deletes.DELETION_VECTORS])
def test_rows_that_are_too_old_and_tombstoned_rows_of_a_file_leave_together(
    spark: SparkSession, lake: Lake, deletes: Deletes
) -> None:
    """What an Undo could not bring back is refused as purged. No delete file is left, and each engine sees the same rows."""
    story = AgingStory.begin(spark, lake, (), deletes=deletes)
    story.promoted(A=(old(), young()), B=(old(), young()), C=(young(),))
    story.revert("A")

    result = story.age()

    assert (result.steps, result.files_rewritten, result.rows_purged, result.tombstones_purged) == (1, 1, 3, 1)
    assert story.purged_by_head() == {"A"}
    assert story.rows() == numbers("B", 1) + numbers("C", 0)
    assert story.keys().get("total-delete-files", "0") == "0"
    found = story.spark.read.table(story.full_name).collect()
    assert {(r["batch_id"], r["v"]) for r in found} == {("B", 1), ("C", 0)}
    assert story.undo().reason == "AlreadyPurged"


def test_an_undo_after_old_rows_of_its_batch_left_is_refused_although_its_tombstone_is_still_there(
    story: AgingStory,
) -> None:
    """The revert comes while the vacuum commits: it was not in the plan, and its old rows are gone with their file."""
    result = story.age(at={"before_commit": lambda: story.revert("A")})

    assert result.files_deleted == 1
    assert (story.tombstones(), story.purged_by_head()) == ({"A"}, {"A"})
    assert story.undo().reason == "AlreadyPurged"


def test_an_undo_that_comes_first_shows_its_rows_but_for_those_that_are_too_old(
    spark: SparkSession, lake: Lake
) -> None:
    """The vacuum has written its files without A, and plans again."""
    story = AgingStory.begin(spark, lake, ())
    story.promoted(A=(old(), young()), B=(old(), young()))
    story.revert("A")

    result = story.age(at={"before_commit": lambda: story.undo()})

    assert result.outcome == "Committed"
    assert story.rows() == numbers("A", 1) + numbers("B", 1)


def test_the_batches_stay_known_and_are_not_promoted_again(spark: SparkSession, lake: Lake) -> None:
    story = AgingStory.begin(spark, lake, DAILY).promoted(A=(old(), old(1)))
    story.age()
    assert story.rows() == numbers("A")

    assert story.states() == {"A": "promoted"}
    assert story.consolidate("A").outcome == "AlreadyCommitted"


# --- races and deaths ------------------------------------------------------------------------------------------------

Act = Callable[[AgingStory], object]
OTHERS: dict[str, Act] = {
    "a consolidation with an old row": lambda s: s.promoted(C=(old(), young())),
    "a compaction": lambda s: s.compact(),
    "a revert": lambda s: s.revert("B"),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_commit_of_another_writer_before_the_vacuum_commits_loses_no_row(story: AgingStory, other: str) -> None:
    result = story.age(at={"before_commit": lambda: OTHERS[other](story)})

    assert result.outcome == "Committed"
    young_rows = numbers("A", 2, 3) + (numbers("B", 2, 3) if other != "a revert" else numbers("B"))
    added = numbers("C", 0, 1) if other == "a consolidation with an old row" else numbers("C")
    assert story.rows() == young_rows + added
    story.age("2")
    assert story.rows() == young_rows + numbers("C", *([1] if added else []))


DEATHS = ("step_1", "after_write", "before_commit", "after_commit")


@pytest.mark.parametrize("step", some(DEATHS, "before_commit", "after_commit"))
def test_a_vacuum_that_died_at_any_step_is_repeated_and_removes_exactly_the_old_rows(
    spark: SparkSession, lake: Lake, step: str
) -> None:
    story = AgingStory.begin(spark, lake, ()).promoted(A=(old(), young()), B=(young(1),))
    run = story.aging()
    with pytest.raises(Killed):
        story.run(run, **{step: die})

    story.run(run)

    assert story.rows() == numbers("A", 1) + numbers("B", 0)
    assert sum("lethe.retention-cutoff" in story.keys(s) for s in story.snapshots()) == 1


# --- plans -----------------------------------------------------------------------------------------------------------


def test_a_plan_names_what_is_too_old_first_and_is_approved_for_its_day_only(story: AgingStory) -> None:
    planned = story.age(plan_only=True)
    next_day = story.age("2", plan_only=True, cutoff=young(1).date())

    assert planned.plan is not None
    assert next_day.plan is not None
    assert planned.outcome == "Planned"
    assert (planned.plan.retention_whole_files, planned.plan.retention_rows, planned.plan.bytes) == (1, 4, 0)
    assert planned.plan.digest != next_day.plan.digest
    of_another_day = story.age("3", approved_plan=planned.plan.digest, cutoff=young(1).date())
    assert (of_another_day.outcome, sum(story.rows().values())) == ("Planned", 8)
    approved = story.age("4", approved_plan=planned.plan.digest)
    assert (approved.outcome, approved.rows_purged) == ("Committed", 4)


def test_rewrites_keep_to_the_limit_of_bytes_and_the_rest_is_left(spark: SparkSession, lake: Lake) -> None:
    story = AgingStory.begin(spark, lake, ())
    story.promoted(A=(old(), young()))
    story.promoted(B=(old(), young()))

    first = story.age(max_bytes=1)
    second = story.age("2", max_bytes=1)

    assert [(r.files_rewritten, r.files_left) for r in (first, second)] == [(1, 1), (1, 0)]
    assert [r.retention.left for r in (first, second) if r.retention is not None] == [True, False]


def test_a_column_that_has_no_time_stops_retention_and_not_the_purge(story: AgingStory) -> None:
    story.revert("A")
    run = story.aging()
    assert run.vacuum is not None
    assert run.vacuum.retention is not None
    wrong = run.vacuum.retention.model_copy(update={"column": "v"})

    result = story.run(run.model_copy(update={"vacuum": run.vacuum.model_copy(update={"retention": wrong})}))

    assert isinstance(result, VacuumResult)
    assert (result.tombstones_purged, result.retention is not None and "type long" in result.retention.problem) == (
        1,
        True,
    )
    assert "spec.retention.column" in result.message
    assert story.rows() == numbers("B", 0, 1, 2, 3)


# --- the age of batches ----------------------------------------------------------------------------------------------


def later(monkeypatch: pytest.MonkeyPatch, **time: float) -> None:
    """The vacuum's clock is ahead of that of the promotions."""
    original = job.retention_for

    def shifted(table: Any, ledger: Any, field_id: Any, spec: Any, now: Any, name: str) -> Any:
        return original(table, ledger, field_id, spec, now + timedelta(**time), name)

    monkeypatch.setattr(job, "retention_for", shifted)


@pytest.mark.parametrize("format_version", some([2, 3], 3))
def test_rows_of_batches_that_are_too_old_leave_hidden_ones_included(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, format_version: int
) -> None:
    """Those of another writer have no known age, also in the same file. D has a file of its own, and A was taken back."""
    story = AgingStory.begin(spark, lake, (), format_version=format_version)
    story.promoted(A=(young(),), B=(young(), young()))
    story.promoted(D=(young(),))
    story.sql(
        "INSERT INTO {t} (v, booked_at, batch_id) VALUES (7, current_timestamp(), 'X'), (8, current_timestamp(), 'B')"
    )
    cutoff = story.ledger().batches["B"].time.date() + timedelta(days=5)
    story.revert("A")
    later(monkeypatch, days=10)

    result = story.age(by_batches=True, cutoff=cutoff)

    assert (result.outcome, result.rows_purged) == ("Committed", 5)
    assert (result.plan is not None and result.plan.retention_whole_files, result.files_rewritten) == (1, 1)
    assert story.rows() == numbers("X", 7)
    assert ({story.states()[i] for i in "BD"}, story.tombstones()) == ({"promoted"}, set())
    assert story.keys()["lethe.retention-cutoff"] == str(cutoff)
    assert story.age("2", by_batches=True, cutoff=cutoff).outcome == "NothingToDo"
