"""A dry run tells what a group would touch, and leaves the table and everything beside it as it was."""

from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.contract.result import RunResult
from lethe.contract.run import RestatementRequest
from pyspark.sql import SparkSession

from tests.spark.support.built_once import built_once
from tests.spark.support.erases import Names, name_of, row
from tests.spark.support.story import Story, local, results_by_name
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture
@built_once
def story(spark: SparkSession, lake: Lake) -> Story:
    """Batches A and B are in one set of files, C in another."""
    story = Story.begin(spark, lake, partition_by=())
    story.put("A", "B", "C")
    story.consolidate("A", "B")
    story.consolidate("C")
    return story


def rehearsed(story: Story, *requests: RestatementRequest) -> RunResult:
    spec = story.restatement(*requests)
    assert spec.restatement is not None
    return story.run(spec.model_copy(update={"restatement": spec.restatement.model_copy(update={"dry_run": True})}))


def everything(story: Story) -> dict[str, bytes]:
    root = Path(local(story.table().location()))
    return {str(p): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_a_dry_run_reports_what_each_request_alone_would_do_and_does_not_change_the_table(story: Story) -> None:
    story.append_as_foreign_writer("foreign")
    incomplete = story.a_replay("A", by="A2", name="incomplete")
    assert incomplete.replacement is not None
    (Path(local(incomplete.replacement.uri)) / "_SUCCESS").unlink()
    before, head = everything(story), story.head().snapshot_id

    result = rehearsed(
        story,
        a_request("first", batch_ids=["A", "unknown", "foreign"]),
        a_request("second", batch_ids=["A"]),
        a_request("whole", batch_ids=["C"]),
        story.a_replay("B", by="B2", name="replay"),
        incomplete,
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


def test_for_an_erase_by_records_it_reports_which_files_would_be_searched(spark: SparkSession, lake: Lake) -> None:
    """By the bounds of the column, without a search. The result also reports what would keep the request from starting."""
    people = Names.of(Story.begin(spark, lake, partition_by=()))
    people.put("A", "B")
    people.consolidate("A")
    people.consolidate("B")
    (held,) = [p for p, ids in people.files().items() if "A" in ids]
    erase, nobody = people.an_erase(name_of(row("A", 1)[1])), people.an_erase("zzz", name="nobody")
    odd, no_secret = (people.an_erase("x", name=n, column=c) for n, c in (("odd", "none"), ("no-secret", "name")))
    assert no_secret.rows is not None
    Path(no_secret.rows.values_file).unlink()
    before = everything(people)

    found = results_by_name(rehearsed(people, erase, nobody, odd, no_secret))

    assert everything(people) == before
    plans = {n: (r.plan.files, r.plan.bytes) for n, r in found.items() if r.plan is not None}
    assert plans == {"erase": (1, Path(local(held)).stat().st_size), "nobody": (0, 0)}
    reasons = {n: (r.reason, r.again) for n, r in found.items() if not r.succeeded}
    assert reasons == {"odd": ("ColumnNotFound", False), "no-secret": ("SecretNotFound", True)}


def test_the_request_does_what_its_dry_run_reported(story: Story) -> None:
    request = a_request("revert", batch_ids=["A", "unknown"])
    dry = results_by_name(rehearsed(story, request))["revert"]

    real = story.restate(request)

    same = ("rows_deleted", "tombstones_added", "unknown_batch_ids", "unknown_batch_ids_count")
    assert [getattr(dry, f) for f in same] == [getattr(real, f) for f in same]


def test_a_table_that_no_run_has_prepared_yet_is_neither_made_nor_claimed(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake)

    with pytest.raises(InputError) as refused:
        rehearsed(story, a_request("revert"))

    assert refused.value.reason == "TableNotFound"
    assert not spark.catalog.tableExists(story.full_name)
