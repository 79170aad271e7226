"""Restatements whose batch ids lie in a file that the run reads."""

from pathlib import Path

import pytest
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import LISTED_IDS_AT_MOST, parse_ids
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Story, of_batches, results_by_name
from tests.support.builders import a_request, ago
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B and C are in the table."""
    story = Story.begin(spark, lake)
    story.put("A", "B", "C")
    story.consolidate("A", "B", "C")
    return story


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    return tmp_path / "ids.txt"


def by_list(path: Path, name: str = "listed", **changes: object) -> RestatementRequest:
    return a_request(name, batch_ids=(), batch_ids_uri=f"file://{path}", **changes)


def test_a_listed_revert_is_carried_out_remembered_and_undone_when_the_list_is_gone(story: Story, ids: Path) -> None:
    before = story.rows_at()
    ids.write_bytes(b"A\nunknown\n\nB\nA\n")
    request, snapshots = by_list(ids), len(story.snapshots())

    first = story.restate(request)
    assert len(story.snapshots()) == snapshots + 1
    ids.unlink()
    again = story.restate(request)
    reverted = story.rows_at()
    story.undo(of="listed")

    assert reverted == of_batches("C")
    assert (first.batch_ids_count, first.batch_ids_sha256) == (3, parse_ids(b"A\nunknown\n\nB\nA\n", "").sha256)
    assert (first.rows_deleted, first.unknown_batch_ids_count) == (8, 1)
    assert (again.succeeded, again.batch_ids_sha256, again.snapshot_id) == (
        True,
        first.batch_ids_sha256,
        first.snapshot_id,
    )
    story.check_reads(before)


def test_a_list_that_cannot_be_used_keeps_out_its_own_request_only(story: Story, ids: Path) -> None:
    ids.write_bytes(b" A")

    result = story.run(
        story.restatement(
            by_list(ids.with_name("missing"), "missing"), by_list(ids, "broken"), a_request("revert", batch_ids=["C"])
        )
    )

    assert {name: (r.reason, r.again) for name, r in results_by_name(result).items()} == {
        "missing": ("ListNotFound", True),
        "broken": ("InvalidIdList", False),
        "revert": ("", False),
    }
    story.check_reads(of_batches("A", "B"))


@pytest.mark.long
def test_in_its_group_a_list_counts_for_the_order(story: Story, ids: Path) -> None:
    ids.write_bytes(b"A2")
    older = by_list(ids, creation_time=ago(hours=2))

    result = story.run(story.restatement(older, story.a_replay("A", by="A2")))

    assert results_by_name(result)["listed"].unknown_batch_ids_count == 0
    assert results_by_name(result)["replay"].rows_added == 3
    assert (story.states()["A"], story.states()["A2"]) == ("replaced", "reverted")


@pytest.mark.long
def test_a_replacement_that_is_in_the_list_of_what_it_replaces_is_refused(story: Story, ids: Path) -> None:
    ids.write_bytes(b"A\nA2")
    replay = story.a_replay("A", by="A2", name="listed").model_copy(
        update={"batch_ids": (), "batch_ids_uri": f"file://{ids}"}
    )

    assert story.restate(replay).reason == "ReplacementIsReplaced"


@pytest.mark.long
def test_a_dry_run_reads_the_list_as_well(story: Story, ids: Path) -> None:
    ids.write_bytes(b"A\nB")
    spec = story.restatement(by_list(ids))
    assert spec.restatement is not None

    (result,) = story.run(
        spec.model_copy(update={"restatement": spec.restatement.model_copy(update={"dry_run": True})})
    ).requests

    assert (result.batch_ids_count, result.rows_deleted, result.plan is not None) == (2, 8, True)


@pytest.mark.parametrize("dry_run", some([True, False], False))
def test_a_line_of_a_list_that_is_no_id_of_the_table_is_not_reported(story: Story, ids: Path, dry_run: bool) -> None:
    """The list may be any object that the credentials of the run can read."""
    ids.write_bytes(b"A\naws_secret_access_key = wJalrXUtnFEMI\n")
    spec = story.restatement(by_list(ids))
    assert spec.restatement is not None

    result = story.run(
        spec.model_copy(update={"restatement": spec.restatement.model_copy(update={"dry_run": dry_run})})
    )

    (reported,) = result.requests
    assert (reported.succeeded, reported.unknown_batch_ids_count) == (True, 1)
    assert "wJalrXUtnFEMI" not in result.to_json()


@pytest.mark.long
def test_as_many_ids_as_a_list_may_have_are_one_commit(story: Story, ids: Path) -> None:
    ids.write_text("\n".join(["A", *(f"2013-01-{n:06}.航班" for n in range(LISTED_IDS_AT_MOST - 1))]))
    before = len(story.snapshots())

    result = story.restate(by_list(ids))

    assert (result.tombstones_added, result.unknown_batch_ids_count) == (LISTED_IDS_AT_MOST, LISTED_IDS_AT_MOST - 1)
    assert len(story.snapshots()) == before + 1
    assert story.rows_at() == of_batches("B", "C")
