"""Small runs in the warm driver of the namespace, on a real cluster."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine, text

from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import a_table_of, batch_folder, rows_of
from tests.cluster.story import RUN_SECONDS, WARM, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

PODS = "app.kubernetes.io/component=warm-driver"
# Between two commits of Lethe other writers get a turn, and Restatements are collected.
BETWEEN_SECONDS = 6.0
REPLAYS = 20


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset with a batch that a run in the warm driver promoted; if there was none, the run started it."""
    story = stories("warm")
    story.put_batch("b0", rows=50)
    snapshots = {"maxAgeSeconds": 86400, "minToKeep": 5}
    story.apply(story.a_dataset(runTemplate=WARM, restatements={"windowSeconds": 0}, snapshots=snapshots))
    began = time.time()
    story.wait_for_status(batches_promoted=1)
    print(f"the first batch, with a cold start: {time.time() - began:.1f} s")
    assert story.jobs() == []
    return story


def replay(story: ClusterStory, number: int) -> Object:
    """Replace batch `number` by the next one."""
    old, new = f"b{number}", f"b{number + 1}"
    folder = f"{batch_folder(story.restated, new)}"
    table = a_table_of(50, first_id=1000 * (number + 1))
    story.lake.put_batch(folder, table)
    story.forget(old)
    story.expected += rows_of(new, table)
    replacement = {"batchId": new, "uri": folder}
    return story.a_restatement(f"r{number}", "Replay", batchIds=[old], replacement=replacement)


def carried_out(story: ClusterStory, number: int) -> float:
    """Seconds from `kubectl apply` to the commit."""
    wanted = replay(story, number)
    began = time.time()
    story.apply(wanted)
    applied = time.time()
    story.wait_for_success(f"r{number}")
    committed = story.lake.head(story.table).timestamp_ms / 1000
    print(f"replay {number}: apply {applied - began:.2f} s, committed after {committed - began:.2f} s")
    return committed - began


def test_two_replays_in_a_row_need_no_job(story: ClusterStory) -> None:
    for number in range(2):
        carried_out(story, number)
        time.sleep(BETWEEN_SECONDS)

    assert story.jobs() == []
    assert story.lake.rows(story.table) == story.expected


@contextmanager
def without_commits(story: ClusterStory) -> Iterator[None]:
    """Commits to the table wait for the end of the block, because another client of the database holds its row. Reads do not."""
    namespace, _, name = story.table.partition(".")
    engine = create_engine(story.lake.services.catalog_properties(inside=False)["uri"])
    row = "SELECT 1 FROM iceberg_tables WHERE table_namespace = :namespace AND table_name = :name FOR UPDATE"
    with engine.connect() as connection:
        assert connection.execute(text(row), {"namespace": namespace, "name": name}).first() is not None
        try:
            yield
        finally:
            connection.rollback()


def test_a_run_whose_pod_is_killed_is_retried_as_a_job_and_others_go_on(
    story: ClusterStory, cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    """It is killed when all files are written and its commit is on the way."""
    number = 2
    with without_commits(story):
        story.apply(replay(story, number))
        cluster.wait_for(
            story.dataset,
            lambda d: any(r["kind"] == "Restatement" and r["phase"] == "Committing" for r in d["status"]["runs"]),
            within_seconds=RUN_SECONDS,
            why="the run commits",
        )
        cluster.run("delete", "pod", "-l", PODS, "--grace-period=0", "--force", "--wait=false")
        other = stories("beside")
        other.put_batch("x", rows=20)
        other.apply(other.a_dataset(runTemplate=WARM))
        other.wait_for_status(batches_promoted=1)

    done = story.wait_for_success(f"r{number}")

    assert len(story.jobs()) == 1
    assert done["status"]["result"]["rowsAdded"] == 50
    assert story.lake.rows(story.table) == story.expected
    assert other.lake.rows(other.table) == other.expected
    time.sleep(BETWEEN_SECONDS)
    carried_out(story, number + 1)
    assert len(story.jobs()) == 1


def test_a_small_replay_is_committed_within_seconds(story: ClusterStory, capsys: pytest.CaptureFixture[str]) -> None:
    """The goal on an idle machine is a median of 3 s. A busy one takes longer."""
    seconds = []
    for number in range(10, 10 + REPLAYS + 1):
        if number == 10:
            story.put_batch("b10", rows=50, first_id=1000 * 10)
            story.wait_for_status(batches_promoted=2)
        time.sleep(BETWEEN_SECONDS)
        seconds.append(carried_out(story, number))
    ordered = sorted(seconds[1:])
    with capsys.disabled():
        print(f"median {statistics.median(ordered):.2f} s, fastest {ordered[0]:.2f} s, slowest {ordered[-1]:.2f} s")

    assert story.lake.rows(story.table) == story.expected
    assert statistics.median(ordered) < 15
