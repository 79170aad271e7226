"""What happens between the data files of a run and its snapshot: its progress is shown, S3 goes away, another run commits.

A gate before S3 holds the requests of a run at that step, so each case is forced.
"""

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.cluster.kube import Cluster, Object, condition
from tests.cluster.lake import GATED, ClusterLake, a_table_of, batch_folder, connect, rows_of, summary
from tests.cluster.servers import gate as gates
from tests.cluster.servers.gate import Gate
from tests.cluster.story import RUN_SECONDS, ClusterStory, a_name

pytestmark = pytest.mark.cluster

NOTICED_SECONDS = 120


@pytest.fixture(scope="module")
def gate(cluster: Cluster, lake: ClusterLake) -> Iterator[Gate]:
    with gates.running(cluster, lake.services) as gate:
        yield gate


@pytest.fixture(scope="module")
def story(cluster: Cluster, lake: ClusterLake, gate: Gate) -> Iterator[ClusterStory]:
    """A Dataset whose runs reach S3 through the gate. The test does not."""
    story = ClusterStory(cluster, connect(lake.services, GATED), a_name("held"), GATED)
    yield story
    gate.release()
    gate.back()
    story.clean()


def of_table(story: ClusterStory, folder: str) -> str:
    """Paths below a folder of the table."""
    return f"/{story.table.split('.')[1]}/{folder}/"


def ledgers(held: list[str]) -> set[tuple[str, str]]:
    """Version and run of the ledgers that held requests write."""
    names = (path.rsplit("/", 1)[1] for path in held if "/_tombstones/" in path)
    return {(version, run) for version, run, _ in (name.split("-", 2) for name in names)}


def noticed(body: Object) -> bool:
    """By the operator, or by the run."""
    failed = any(run["phase"] == "Failed" for run in body["status"]["runs"][:1])
    return failed or condition(body, "Ready").get("reason") == "StorageUnavailable"


def test_the_progress_of_a_run_is_shown_while_it_is_active(story: ClusterStory, gate: Gate) -> None:
    gate.hold(of_table(story, "data"))
    for number in range(3):
        story.put_batch(f"b{number}", rows=20, day=1 + number)
    wider = a_table_of(20, day=4).append_column("note", pa.array(["new"] * 20))
    story.lake.put_batch(batch_folder(story.buffer, "b3"), wider)
    story.expected += rows_of("b3", wider)
    story.apply(story.a_dataset(restatements={"windowSeconds": 0}, schemaEvolution="AddColumns"))
    gate.wait_until(bool, RUN_SECONDS, "a data file")

    body = story.cluster.wait_for(
        story.dataset,
        lambda b: any(r["phase"] == "Writing" and "progress" in r for r in b["status"].get("runs", ())),
        within_seconds=60,
        why="the progress of the run",
    )

    (run,) = body["status"]["runs"]
    assert (run["kind"], run["phase"], run["attempt"]) == ("Consolidation", "Writing", 1)
    assert "finishTime" not in run
    told = re.fullmatch(r"(\d+)/(\d+) tasks", run["progress"])
    assert told is not None
    assert 0 <= int(told[1]) < int(told[2]), "the task whose file is held has not ended"
    assert condition(body, "Ready")["status"] == "True"


def test_s3_goes_away_between_the_data_files_of_a_run_and_its_commit(story: ClusterStory, gate: Gate) -> None:
    gate.hold(of_table(story, "_tombstones"))
    gate.wait_until(bool, RUN_SECONDS, "a file of the ledger")
    location = story.lake.catalog.load_table(story.table).location()
    assert story.lake.keys(f"{location}/data"), "nothing was written before the commit"
    gate.away()
    story.cluster.wait_for(story.dataset, noticed, within_seconds=NOTICED_SECONDS, why="the outage")
    assert story.lake.rows(story.table) == {}
    gate.back()

    story.wait_for_status(batches_promoted=4)

    assert story.lake.rows(story.table) == story.expected
    assert len(story.lake.run_ids(story.table)) == 1


def test_a_batch_may_bring_a_column(story: ClusterStory) -> None:
    """Its run is the one that was interrupted."""
    found = story.lake.catalog.load_table(story.table).scan(selected_fields=("batch_id", "note")).to_arrow().to_pylist()

    assert {(row["batch_id"], row["note"]) for row in found} == {
        ("b0", None),
        ("b1", None),
        ("b2", None),
        ("b3", "new"),
    }


def test_s3_goes_away_during_a_commit_of_the_committer(story: ClusterStory, gate: Gate) -> None:
    gate.hold(of_table(story, "_tombstones"))
    story.apply(story.a_restatement("b0", batchIds=["b0"]))
    gate.wait_until(bool, RUN_SECONDS, "a file of the ledger")
    gate.away()
    story.cluster.wait_for(story.dataset, noticed, within_seconds=NOTICED_SECONDS, why="the outage")
    assert story.lake.rows(story.table) == story.expected
    gate.back()

    done = story.wait_for_success("b0")

    story.forget("b0")
    assert done["status"]["result"]["rowsDeleted"] == 20
    assert story.lake.rows(story.table) == story.expected
    assert [t["id"] for t in story.lake.tombstones(story.table)] == ["b0"]


def test_of_two_restatements_that_race_neither_loses_the_other(story: ClusterStory, gate: Gate) -> None:
    """A Job and the committer have both written the next version of the same ledger when they are let go."""
    story.wait_for_status(tombstones_active=1)
    fixed = a_table_of(7, first_id=5000, day=2)
    story.lake.put_batch(f"{story.restated}/b1.2", fixed)
    replacement = {"batchId": "b1.2", "uri": f"{story.restated}/b1.2/"}
    commits = len(story.lake.run_ids(story.table))
    gate.hold(of_table(story, "_tombstones"))
    story.apply(story.a_restatement("replay", "Replay", batchIds=["b1"], replacement=replacement))
    gate.wait_until(bool, RUN_SECONDS, "the ledger of the Replay")
    story.apply(story.a_restatement("revert", batchIds=["b2"]))
    held = gate.wait_until(lambda paths: len(ledgers(paths)) == 2, 60, "the ledgers of both")
    assert len({version for version, _ in ledgers(held)}) == 1
    gate.release()

    replay, revert = story.wait_for_success("replay"), story.wait_for_success("revert")

    story.forget("b1")
    story.forget("b2")
    story.expected += rows_of("b1.2", fixed)
    assert story.lake.rows(story.table) == story.expected
    assert (replay["status"]["result"]["rowsDeleted"], replay["status"]["result"]["rowsAdded"]) == (20, 7)
    assert revert["status"]["result"]["rowsDeleted"] == 20
    runs = [summary(s)["lethe.run-id"] for s in story.lake.history(story.table)][:-commits]
    assert {run[:12] for run in runs} == {run for _, run in ledgers(held)}
    assert {t["id"] for t in story.lake.tombstones(story.table)} == {"b0", "b1", "b2"}
