"""A group of Restatements is one commit; each has its own result, and a bad one is set aside. A dry run reports the same."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.contract.result import RunResult
from lethe.contract.run import Replacement, RestatementRequest
from lethe.contract.settings import UnknownBatches
from lethe.restatement.group import LISTED_IDS_AT_MOST, parse_ids
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, name_of, row
from tests.spark.support.story import Story, an_undo, local, of_batches, reasons, rehearsal, results_by_name
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A, B, C and D are in the table."""
    return Story.begin(spark, lake).filled("ABCD")


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    return tmp_path / "ids.txt"


def by_list(path: Path, name: str = "listed") -> RestatementRequest:
    return a_request(name, batch_ids=(), batch_ids_uri=f"file://{path}", unknown_batches=UnknownBatches.ALLOW)


def file_of(request: RestatementRequest) -> Path:
    assert request.replacement is not None
    return Path(local(request.replacement.uri)) / "part-0.parquet"


def test_a_group_is_one_snapshot_with_all_its_replacements_in_files_that_they_share(story: Story) -> None:
    requests = [
        a_request("revert", batch_ids=["A"]),
        story.a_replay("B", by="B2", name="first"),
        story.a_replay("C", by="C2", name="second", rows=2),
    ]

    result = story.restate_all(*requests)

    assert len(story.snapshots()) == 2
    assert (result.outcome, result.snapshot_id, result.rows_added) == ("Committed", story.head().snapshot_id, 5)
    assert [r.name for r in result.requests] == ["ns/revert", "ns/first", "ns/second"]
    counts = [(r.rows_deleted, r.rows_added, r.group_size, r.snapshot_id) for r in result.requests]
    assert counts == [(4, n, 3, result.snapshot_id) for n in (0, 3, 2)]
    story.check_reads(of_batches("D") + of_batches("B2", rows=3) + of_batches("C2", rows=2))
    assert {"B2", "C2"} in [set(ids) for ids in story.files().values()]
    remembered = [story.ledger().requests[r.key].result for r in requests]
    assert {(r["groupSize"], r["snapshotId"]) for r in remembered} == {(3, result.snapshot_id)}


def test_bad_requests_are_set_aside_each_with_its_own_reason_and_the_others_go_on(story: Story, ids: Path) -> None:
    story.filled("EFGH")
    story.replay("D", by="D2", name="before")
    damaged, incomplete, empty, other, good = (
        story.a_replay(batch, by=f"{batch}2", name=name)
        for batch, name in zip("EFGHA", ("damaged", "incomplete", "empty", "other", "good"), strict=True)
    )
    file_of(damaged).write_bytes(b"PAR1")
    (file_of(incomplete).parent / "_SUCCESS").unlink()
    file_of(empty).unlink()
    pq.write_table(pa.table({"v": ["a text"], "day": pa.array([1], pa.int32())}), file_of(other))
    buffered, elsewhere = (
        a_request(name, "Replay", batch_ids=["B"], replacement=Replacement(batch_id=name, uri=uri))
        for name, uri in (("buffered", f"{story.buffer.uri}/batch_id=buffered"), ("elsewhere", "hdfs://lake/B2"))
    )
    ids.write_bytes(b" A")

    result = story.restate_all(
        damaged,
        incomplete,
        empty,
        other,
        buffered,
        elsewhere,
        story.a_replay("I", by="B", name="in the table", unknown_batches=UnknownBatches.ALLOW),
        story.a_replay("D", by="D3", name="replaced"),
        an_undo("nobody"),
        by_list(ids, "broken list"),
        by_list(ids.with_name("missing"), "missing list"),
        good,
        a_request("revert", batch_ids=["C", "unknown"], unknown_batches=UnknownBatches.ALLOW),
    )

    assert reasons(result) == {
        "damaged": "UnreadableFile",
        "incomplete": "ReplacementIncomplete",
        "empty": "ReplacementEmpty",
        "other": "SchemaMismatch",
        "buffered": "ReplacementInBuffer",
        "elsewhere": "UnsupportedScheme",
        "in the table": "ReplacementAlreadyPromoted",
        "replaced": "AlreadyReplaced",
        "undo": "UnknownRestatement",
        "broken list": "InvalidIdList",
        "missing list": "ListNotFound",
        "good": "",
        "revert": "",
    }
    assert result.outcome == "Committed"
    assert [r.name for r in result.requests if r.again] == ["ns/missing list"]
    assert [results_by_name(result)[n].group_size for n in ("good", "revert", "damaged")] == [2, 2, 0]
    assert results_by_name(result)["damaged"].message.startswith("Restatement ns/damaged: spec.replacement.uri file://")
    assert results_by_name(result)["revert"].unknown_batch_ids == ("unknown",)
    assert len(story.snapshots()) == 4
    story.check_reads(of_batches("B", "E", "F", "G", "H") + of_batches("D2", "A2", rows=3))
    story.check_storage()  # no row of a bad one was left anywhere


# --- not now --------------------------------------------------------------------------------------------------------


def test_a_replacement_that_cannot_be_had_now_waits_with_what_builds_on_it_and_the_others_go_on(story: Story) -> None:
    """C2 alone would be seen beside A, which is still there for the replacement that did not come."""
    first, second = story.a_replay("A", by="A2", name="first"), story.a_replay("A2", by="C2", name="second")
    other, revert = story.a_replay("B", by="B2", name="other"), a_request("revert", batch_ids=["D"])
    content = file_of(first).read_bytes()

    result = story.restate_all(second, first, other, revert, after_list=file_of(first).unlink)

    assert reasons(result) == {"first": "ObjectGone", "second": "WaitingForRestatement", "other": "", "revert": ""}
    assert [r.again for r in result.requests] == [True, True, False, False]
    assert (result.outcome, len(story.snapshots())) == ("Committed", 2)
    story.check_reads(of_batches("A", "C") + of_batches("B2", rows=3))
    file_of(first).write_bytes(content)
    again = story.restate_all(second, first, other, revert)
    assert [r.succeeded for r in again.requests] == [True] * 4
    assert [r.group_size for r in again.requests] == [2] * 4
    story.check_reads(of_batches("C") + of_batches("B2", "C2", rows=3))


# --- lists of ids ---------------------------------------------------------------------------------------------------


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

    assert reverted == of_batches("C", "D")
    assert (first.batch_ids_count, first.batch_ids_sha256) == (3, parse_ids(b"A\nunknown\n\nB\nA\n", "").sha256)
    assert (first.rows_deleted, first.unknown_batch_ids_count) == (8, 1)
    assert again == first
    story.check_reads(before)


@pytest.mark.parametrize("dry_run", some([True, False], False))
def test_a_line_of_a_list_that_is_no_id_of_the_table_is_not_reported(story: Story, ids: Path, dry_run: bool) -> None:
    """The list may be any object that the credentials of the run can read."""
    ids.write_bytes(b"A\naws_secret_access_key = wJalrXUtnFEMI\n")
    spec = story.restatement(by_list(ids))

    result = story.run(rehearsal(spec) if dry_run else spec)

    (reported,) = result.requests
    assert (reported.succeeded, reported.batch_ids_count, reported.unknown_batch_ids_count) == (True, 2, 1)
    assert "wJalrXUtnFEMI" not in result.to_json()


@pytest.mark.long
def test_as_many_ids_as_a_list_may_have_are_one_commit(story: Story, ids: Path) -> None:
    ids.write_text("\n".join(["A", *(f"2013-01-{n:06}.航班" for n in range(LISTED_IDS_AT_MOST - 1))]))
    before = len(story.snapshots())

    result = story.restate(by_list(ids))

    assert (result.tombstones_added, result.unknown_batch_ids_count) == (LISTED_IDS_AT_MOST, LISTED_IDS_AT_MOST - 1)
    assert len(story.snapshots()) == before + 1
    assert story.rows_at() == of_batches("B", "C", "D")


# --- dry runs -------------------------------------------------------------------------------------------------------


def rehearsed(story: Story, *requests: RestatementRequest) -> RunResult:
    return story.run(rehearsal(story.restatement(*requests)))


def everything(story: Story) -> dict[str, bytes]:
    root = Path(local(story.table().location()))
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_dry_run_reports_what_each_request_alone_would_do_and_does_not_change_the_table(
    spark: SparkSession, lake: Lake
) -> None:
    """And the request then does what was reported."""
    story = Story.begin(spark, lake, partition_by=()).filled("AB", "C")
    story.append_as_foreign_writer("foreign")
    incomplete = story.a_replay("A", by="A2", name="incomplete")
    (file_of(incomplete).parent / "_SUCCESS").unlink()
    before, head = everything(story), story.head().snapshot_id
    first = a_request("first", batch_ids=["A", "unknown", "foreign"], unknown_batches=UnknownBatches.ALLOW)
    typo = a_request("typo", batch_ids=["A", "unknown"])

    result = rehearsed(
        story,
        first,
        a_request("second", batch_ids=["A"]),
        a_request("whole", batch_ids=["C"]),
        story.a_replay("B", by="B2", name="replay"),
        incomplete,
        typo,
    )

    found = results_by_name(result)
    assert (result.outcome, result.snapshot_id) == ("Planned", None)
    assert (everything(story), story.head().snapshot_id) == (before, head)
    sizes = {path: Path(local(path)).stat().st_size for path in story.files()}
    of = {i: [p for p, ids in story.files().items() if i in ids] for i in ("A", "C", "foreign")}
    plans = {name: r.plan for name, r in found.items() if r.plan is not None}
    assert {name: p.files for name, p in plans.items()} == {
        "first": len({*of["A"], *of["foreign"]}),
        "second": len(of["A"]),
        "whole": len(of["C"]),
        "replay": len(of["A"]),
    }
    assert plans["whole"].whole_files == len(of["C"]) > 0
    assert plans["second"].whole_files == 0
    assert plans["whole"].bytes == sum(sizes[p] for p in of["C"])
    assert [found[n].rows_deleted for n in ("first", "second", "whole")] == [4, 4, 4]
    assert found["first"].unknown_batch_ids == ("unknown",)
    assert (found["incomplete"].succeeded, found["incomplete"].reason) == (False, "ReplacementIncomplete")
    refused = story.restate(typo)
    assert (found["typo"].reason, found["typo"].message) == ("UnknownBatches", refused.message)
    real = story.restate(first)
    for field in ("rows_deleted", "tombstones_added", "unknown_batch_ids", "unknown_batch_ids_count"):
        assert getattr(real, field) == getattr(found["first"], field), field


def test_for_an_erase_by_records_it_reports_which_files_would_be_searched(spark: SparkSession, lake: Lake) -> None:
    """By the bounds of the column, without a search. The result also reports what would keep the request from starting."""
    people = Names.begin(spark, lake, partition_by=()).filled("A", "B")
    (held,) = [p for p, ids in people.files().items() if "A" in ids]
    erase, nobody = people.an_erase(name_of(row("A", 1)[1])), people.an_erase("zzz", name="nobody")
    odd, no_secret = (people.an_erase("x", name=n, column=c) for n, c in (("odd", "none"), ("no-secret", "name")))
    assert no_secret.rows is not None
    Path(no_secret.conditions[0].values_file).unlink()
    before = everything(people)

    found = results_by_name(rehearsed(people, erase, nobody, odd, no_secret))

    assert everything(people) == before
    plans = {n: (r.plan.files, r.plan.bytes) for n, r in found.items() if r.plan is not None}
    assert plans == {"erase": (1, Path(local(held)).stat().st_size), "nobody": (0, 0)}
    refused = {n: (r.reason, r.again) for n, r in found.items() if not r.succeeded}
    assert refused == {"odd": ("ColumnNotFound", False), "no-secret": ("SecretNotFound", True)}
