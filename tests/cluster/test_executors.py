"""Executors that are refused, find no node, or are killed: the run says so and ends with the right rows."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.kube import Cluster, Object
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

EXECUTORS = "spark-role=executor"
WAIT_SECONDS = 30
# No node has as much, and the quota forbids it.
TOO_LARGE = {"min": 1, "max": 2, "memory": "200Gi", "waitSeconds": WAIT_SECONDS}


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return stories("executors")


@pytest.fixture
def quota(cluster: Cluster) -> Iterator[None]:
    limits = {"hard": {"requests.memory": "100Gi"}}
    cluster.apply({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"}, "spec": limits})
    cluster.wait_for(
        "resourcequotas/small", lambda q: q.get("status", {}).get("used"), within_seconds=60, why="the quota's count"
    )
    yield
    cluster.delete("resourcequotas/small")


def a_run(body: Object, **wanted: str) -> Object | None:
    """The newest run of the status that has these values."""
    runs = body.get("status", {}).get("runs", ())
    return next((r for r in runs if all(v in str(r.get(k, "")) for k, v in wanted.items())), None)


def ended_phases(story: ClusterStory) -> set[str]:
    """The phases of all runs in the status, once none is active."""

    def ended(body: Object) -> bool:
        return all("finishTime" in run for run in body["status"]["runs"])

    body = story.cluster.wait_for(story.dataset, ended, within_seconds=60, why="the end of all runs in status.runs")
    return {run["phase"] for run in body["status"]["runs"]}


@pytest.mark.usefixtures("quota")
def test_a_quota_that_refuses_all_executors_is_reported_and_the_driver_works_alone(
    cluster: Cluster, story: ClusterStory
) -> None:
    story.put_batch("first", rows=200)
    story.apply(story.a_dataset(runTemplate={**A_JOB, "executors": TOO_LARGE}))

    cluster.wait_for(
        story.dataset,
        lambda b: a_run(b, reason="ExecutorsMissing", message="exceeded quota: small"),
        within_seconds=RUN_SECONDS,
        why="the quota's refusal in status.runs",
    )
    story.wait_for_status(batches_promoted=1)

    ended = cluster.wait_for(story.dataset, lambda b: a_run(b, phase="Succeeded"), within_seconds=60)
    assert "so the driver works alone" in a_run(ended, phase="Succeeded")["message"]  # type: ignore[index]
    assert len(ended["status"]["runs"]) == 1
    assert story.lake.rows(story.table) == story.expected


def test_executors_that_find_no_node_are_reported_and_the_driver_works_alone(
    cluster: Cluster, story: ClusterStory
) -> None:
    story.put_batch("second", rows=200, day=2)

    cluster.wait_for(
        story.dataset,
        lambda b: a_run(b, reason="ExecutorsMissing", message="executor pods do not start: Unschedulable"),
        within_seconds=RUN_SECONDS,
        why="pods without a node in status.runs",
    )
    story.wait_for_status(batches_promoted=2)

    assert ended_phases(story) == {"Succeeded"}
    assert story.lake.rows(story.table) == story.expected


def test_a_run_survives_the_loss_of_an_executor(cluster: Cluster, story: ClusterStory) -> None:
    """The pod is killed as soon as both run; the run is not repeated."""
    executors = {"min": 2, "max": 2, "memory": "1Gi", "waitSeconds": 300}
    cluster.patch(story.dataset, {"spec": {"runTemplate": {"executors": executors}}})
    before = set(story.jobs())
    for number in range(8):
        story.put_batch(f"third-{number}", rows=2000, day=1 + number)
    running: dict[str, bool] = {}

    def both(pod: Object) -> bool:
        running[pod["metadata"]["name"]] = pod["status"].get("phase") == "Running"
        return sum(running.values()) >= 2

    what = ["pods", "-l", f"{EXECUTORS},lethe.dev/dataset={story.name}"]
    cluster.wait_for(what, both, within_seconds=RUN_SECONDS, why="two running executors")
    cluster.run("delete", "pod", min(n for n, runs in running.items() if runs), "--grace-period=0", "--force")

    story.wait_for_status(batches_promoted=10)

    assert story.lake.rows(story.table) == story.expected
    assert ended_phases(story) == {"Succeeded"}
    assert len(set(story.jobs()) - before) <= 2  # the batches may have been listed in two steps
    usage = cluster.get(story.dataset)["status"]["usage"]
    assert usage["executorCpuSeconds"] > 0, usage  # also of the one that was killed


def test_a_vacuum_plans_first_and_then_starts_executors(
    cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    """In one driver: the JVM stays, and only the session changes."""
    story = stories("planned")
    for batch in ("a", "b"):
        story.put_batch(batch, rows=100)
    story.apply(story.a_dataset())
    story.wait_for_status(batches_promoted=2)
    story.apply(story.a_restatement("take-back", batchIds=["a"]))
    story.wait_for_success("take-back")
    story.forget("a")
    executors = {"min": 1, "max": 1, "memory": "1Gi", "waitSeconds": 300}
    cluster.patch(story.dataset, {"spec": {"runTemplate": {"executors": executors}}})

    told = story.vacuum_now("one")

    assert told["outcome"] == "Succeeded", told["message"]
    assert "so it gets 1 executors" in cluster.run("logs", f"job/{told['name']}")
    assert story.lake.plain_rows(story.table) == story.lake.rows(story.table) == story.expected
