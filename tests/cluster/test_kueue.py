"""Runs and executors that Kueue admits: what has no quota waits, and the status says so. Also a Job that a user suspends."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.install import change
from tests.cluster.kube import Cluster, Object
from tests.cluster.other_operators import QUOTA_OF_A_DRIVER_AND_ONE_EXECUTOR, QUOTA_OF_ONE_DRIVER, kueue
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

QUEUE = "one-driver"
WITH_EXECUTOR = "one-executor"
WORKLOADS = "workloads.kueue.x-k8s.io"


@pytest.fixture(scope="module")
def queues(cluster: Cluster) -> Iterator[None]:
    with kueue(cluster, {QUEUE: QUOTA_OF_ONE_DRIVER, WITH_EXECUTOR: QUOTA_OF_A_DRIVER_AND_ONE_EXECUTOR}):
        change(cluster, "kueue.pods=true")
        yield
        change(cluster, "kueue.pods=false")


def a_suspended_run(body: Object) -> Object | None:
    runs = body.get("status", {}).get("runs", ())
    return next((r for r in runs if r.get("reason") == "RunSuspended"), None)


def the_job(story: ClusterStory) -> Object:
    (found,) = story.cluster.list("jobs", f"lethe.dev/dataset={story.name}")
    return found


@pytest.mark.usefixtures("queues")
def test_the_second_run_waits_suspended_until_the_first_has_ended(
    cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    first, second = stories("first"), stories("second")
    for story in (first, second):
        story.put_batch("a", rows=50)
    for story in (first, second):
        story.apply(story.a_dataset(runTemplate={"queue": QUEUE}))
        # The first Job has the quota before the second one exists.
        cluster.wait_for(
            ["jobs", "-l", f"lethe.dev/dataset={story.name}"],
            lambda job, of=story: of is second or not job["spec"].get("suspend"),
            within_seconds=RUN_SECONDS,
            why="a Job",
        )

    body = cluster.wait_for(second.dataset, a_suspended_run, within_seconds=60, why="a run that waits for quota")

    waiting = a_suspended_run(body)
    assert waiting is not None
    assert waiting["phase"] == "Pending"
    assert (
        waiting["message"] == f"It waits until Kueue admits it to the queue {QUEUE}. Its Workload shows why it waits."
    )
    assert body["status"]["consolidation"]["reason"] == "RunSuspended"
    assert the_job(second)["spec"]["suspend"] is True
    assert cluster.list("pods", f"lethe.dev/dataset={second.name}") == []
    for story in (first, second):
        story.wait_for_status(batches_promoted=1)
        assert story.lake.rows(story.table) == story.expected
    jobs = [the_job(story) for story in (first, second)]
    assert jobs[0]["status"]["completionTime"] <= jobs[1]["status"]["startTime"]
    assert all(job["metadata"]["labels"]["lethe.dev/attempt"] == "1" for job in jobs)


def is_admitted(workload: Object) -> bool:
    conditions = workload.get("status", {}).get("conditions", ())
    return any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions)


@pytest.mark.usefixtures("queues")
def test_executors_of_a_job_are_admitted_one_by_one_and_those_without_quota_are_reported(
    cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    story = stories("queued-executors")
    story.put_batch("a", rows=200)
    executors = {"min": 2, "max": 2, "cpu": "100m", "memory": "1Gi", "waitSeconds": 300}
    story.apply(story.a_dataset(runTemplate={**A_JOB, "queue": WITH_EXECUTOR, "executors": executors}))

    body = cluster.wait_for(
        story.dataset,
        lambda b: [r for r in b.get("status", {}).get("runs", ()) if r.get("reason") == "ExecutorsMissing"],
        within_seconds=RUN_SECONDS,
        why="an executor without quota",
    )
    pods = cluster.list("pods", f"lethe.dev/dataset={story.name},lethe.dev/role=executor")
    owners = {p["metadata"]["name"]: bool(p["spec"].get("schedulingGates")) for p in pods}
    workloads = [
        w
        for w in cluster.list(WORKLOADS, "")
        if any(o["kind"] == "Pod" and o["name"] in owners for o in w["metadata"].get("ownerReferences", ()))
    ]
    (run,) = body["status"]["runs"]
    assert sorted(owners.values()) == [False, True], (
        "Kueue holds back the executor that exceeds the quota, and no other"
    )
    assert sorted(map(is_admitted, workloads)) == [False, True]
    assert f"Kueue has not admitted it to the queue {WITH_EXECUTOR}." in run["message"]
    story.wait_for_status(batches_promoted=1)
    assert story.lake.rows(story.table) == story.expected
    selector = f"lethe.dev/dataset={story.name},lethe.dev/role=executor"
    cluster.run("wait", "--for=delete", "pod", "-l", selector, "--timeout=90s", within_seconds=100)


def test_a_job_that_is_suspended_while_it_runs_continues_as_the_same_attempt(
    cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    """As Kueue does when it needs the quota for others. No Kueue is needed for it."""
    story = stories("suspended")
    story.put_batch("a", rows=50)
    story.apply(story.a_dataset())
    story.wait_for_a_driver()
    name = the_job(story)["metadata"]["name"]
    cluster.patch(f"job/{name}", {"spec": {"suspend": True}})

    body = cluster.wait_for(story.dataset, a_suspended_run, within_seconds=60, why="a suspended run")
    cluster.run("wait", "--for=delete", "pod", "-l", f"job-name={name}", "--timeout=90s")
    assert body["status"]["batches"]["promoted"] == 0, "the Job was suspended too late to show anything"
    cluster.patch(f"job/{name}", {"spec": {"suspend": False}})
    body = story.wait_for_status(batches_promoted=1)

    ended = cluster.wait_for(
        story.dataset, lambda b: [r["phase"] for r in b["status"]["runs"]] == ["Succeeded"], within_seconds=60
    )
    assert [(r["name"], r["attempt"]) for r in ended["status"]["runs"]] == [(name, 1)]
    assert story.lake.rows(story.table) == story.expected
