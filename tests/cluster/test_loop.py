"""The whole loop on a real cluster, as one story: batches in, some taken back, one replaced, all of it purged.

Every number is compared with what the test wrote, and the table is read without Lethe's code.
"""

from collections.abc import Callable

import pytest

from tests.cluster.kube import condition
from tests.cluster.lake import a_table_of, batch_folder, rows_of, summary
from tests.cluster.story import RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

# Ids may be any text; in the buffer they are percent-encoded.
ODD = "größe 1/2 %"
CORRUPT, MISFIT, UNFINISHED = "corrupt", "misfit", "unfinished"


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset whose buffer held good batches and bad ones when it was created; the first consolidation has ended."""
    story = stories("loop")
    for number, batch in enumerate(["a", "b", "c", "d", ODD]):
        story.put_batch(batch, rows=100 + number, day=1 + number % 2)
    story.put_batch("whole", rows=50, day=9)  # alone on its day, so that a vacuum can drop the file unread
    story.put_batch(UNFINISHED, complete=False)
    story.lake.put(f"{batch_folder(story.buffer, CORRUPT)}/part-0.parquet", b"PAR1 this is no Parquet file PAR1")
    story.lake.put(f"{batch_folder(story.buffer, CORRUPT)}/_SUCCESS")
    misfit = a_table_of(5).set_column(2, "value", [["much"] * 5])
    story.lake.put_batch(batch_folder(story.buffer, MISFIT), misfit)
    story.apply(story.a_dataset())
    story.wait_for_status(batches_promoted=6, batches_refused=2)
    return story


def test_complete_batches_are_promoted_exactly_as_written(story: ClusterStory) -> None:
    assert story.lake.rows(story.table) == story.expected
    assert len(story.lake.run_ids(story.table)) == 1


def test_a_folder_without_success_waits_and_is_counted(story: ClusterStory) -> None:
    body = story.wait_for_status(buffer_waiting=1)

    assert UNFINISHED not in {batch for batch, _ in story.lake.rows(story.table)}
    assert body["status"]["buffer"]["batches"] == 0


def test_a_bad_file_causes_the_refusal_of_its_batch_and_the_others_are_promoted(story: ClusterStory) -> None:
    body = story.wait_for_status(batches_refused=2)

    refused = {one["batchId"]: one for one in body["status"]["batches"]["refusedBatches"]}
    assert refused.keys() == {CORRUPT, MISFIT}
    assert "part-0.parquet" in refused[CORRUPT]["message"]
    assert "value" in refused[MISFIT]["message"]
    assert condition(body, "Ready")["status"] == "True"


def test_restatements_of_one_moment_both_hold(story: ClusterStory) -> None:
    """A Revert and a Replay from one apply: neither commit loses the other; unknown ids are reported, not fatal."""
    corrected = a_table_of(60, first_id=5000, day=2)
    story.lake.put_batch(f"{story.restated}/b.2", corrected)
    story.apply(
        story.a_restatement("revert", batchIds=["a", "whole", "never-seen"], unknownBatches="Allow"),
        story.a_restatement(
            "replay", "Replay", batchIds=["b"], replacement={"batchId": "b.2", "uri": f"{story.restated}/b.2/"}
        ),
    )

    revert, replay = story.wait_for_success("revert"), story.wait_for_success("replay")

    for batch in ("a", "b", "whole"):
        story.forget(batch)
    story.expected += rows_of("b.2", corrected)
    assert story.lake.rows(story.table) == story.expected
    assert {t["id"] for t in story.lake.tombstones(story.table)} >= {"a", "b", "whole"}
    assert (revert["status"]["result"]["rowsDeleted"], revert["status"]["result"].get("rowsAdded", 0)) == (150, 0)
    assert (replay["status"]["result"]["rowsDeleted"], replay["status"]["result"]["rowsAdded"]) == (101, 60)
    assert revert["status"]["plan"]["unknownBatchIds"] == ["never-seen"]
    assert story.lake.keys(f"{story.restated}/b.2"), "the replacement's folder belongs to its producer"


def test_a_request_applied_again_changes_nothing(story: ClusterStory) -> None:
    """The table remembers it, whatever became of the resource: GitOps may delete and re-create it."""
    before = story.lake.head(story.table).snapshot_id
    first = story.cluster.get(story.restatement("revert"))
    assert first is not None
    story.cluster.delete(story.restatement("revert"))
    story.apply(story.a_restatement("revert", batchIds=["a", "whole", "never-seen"], unknownBatches="Allow"))

    again = story.wait_for_success("revert", within_seconds=60)

    assert again["status"]["result"] == first["status"]["result"]
    assert story.lake.head(story.table).snapshot_id == before


def test_a_batch_that_was_taken_back_before_it_came_is_withheld(story: ClusterStory) -> None:
    """And one that was completed late goes in: both in the buffer at the same time."""
    late = a_table_of(10, first_id=9000)
    story.lake.put_batch(batch_folder(story.buffer, "never-seen"), late)
    story.wait_for_status(batches_withheld=1, within_seconds=60)
    story.lake.put(f"{batch_folder(story.buffer, UNFINISHED)}/_SUCCESS")
    story.expected += rows_of(UNFINISHED, a_table_of(100))

    body = story.wait_for_status(batches_withheld=1, buffer_waiting=0, buffer_batches=0, batches_promoted=5)

    assert story.lake.rows(story.table) == story.expected
    assert body["status"]["batches"]["reverted"] == 4  # a, b, whole, never-seen


def test_a_vacuum_purges_when_the_threshold_is_reached(story: ClusterStory) -> None:
    """The rows leave the data files, the files leave the bucket, and the tombstones the ledger; readers see no difference."""
    active = len(story.lake.tombstones(story.table))
    before = story.lake.data_files(story.table)
    story.apply(story.a_policy(triggers={"activeTombstones": active}))

    body = story.wait_for_status(tombstones_active=0)
    story.cluster.wait_for(
        story.dataset,
        lambda b: any(r["kind"] == "Vacuum" and r["phase"] == "Succeeded" for r in b["status"]["runs"]),
        within_seconds=RUN_SECONDS,
        why="the vacuum's end",
    )

    after = story.lake.data_files(story.table)
    location = body["status"]["table"]["location"]
    assert before - after, "no data file was purged"
    assert not (before - after) & story.lake.keys(location), "purged files are still in the bucket"
    loaded = story.lake.catalog.load_table(story.table)
    assert loaded.scan().to_arrow().num_rows == story.expected.total()
    assert story.lake.rows(story.table) == story.expected
    written = summary(story.lake.head(story.table))
    assert written["tombstone.metrics.total.count"] == "0"
    assert {t["id"] for t in story.lake.avro(written["tombstone.vacuum.file"])} == {"a", "b", "whole"}
    policy = story.cluster.wait_for(
        f"vacuumpolicies.lethe.dev/{story.name}",
        lambda b: "lastRunTime" in b.get("status", {}),
        within_seconds=30,
        why="lastRunTime",
    )
    assert policy["status"]["datasetsCount"] == 1


def test_every_snapshot_carries_the_ledgers_keys(story: ClusterStory) -> None:
    """An empty set is an empty file: a reader never has to guess what a missing key means."""
    for snapshot in story.lake.history(story.table):
        keys = summary(snapshot).keys()
        counts = {f"tombstone.metrics.{which}.count" for which in ("added", "deleted", "total")}
        assert {"lethe.ledger", "lethe.run-id", "tombstone.file"} | counts <= keys


def test_events_show_what_happened(story: ClusterStory) -> None:
    reasons = {
        event["reason"] for event in story.cluster.list("events") if event["involvedObject"]["name"] == story.name
    }

    assert {"RunStarted", "RunSucceeded"} <= reasons
