"""Runs that Kueue admits: a run without quota waits, and its status says so. Also a Job that a user suspends."""

from collections.abc import Callable, Iterator

import pytest

from tests.cluster.kube import Cluster, Object
from tests.cluster.other_operators import kueue
from tests.cluster.story import RUN_SECONDS, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

QUEUE = "one-driver"


@pytest.fixture
def queue(cluster: Cluster) -> Iterator[str]:
    with kueue(cluster, QUEUE):
        yield QUEUE


def a_suspended_run(body: Object) -> Object | None:
    runs = body.get("status", {}).get("runs", ())
    return next((r for r in runs if r.get("reason") == "RunSuspended"), None)


def the_job(story: ClusterStory) -> Object:
    (found,) = story.cluster.list("jobs", f"lethe.dev/dataset={story.name}")
    return found


def test_the_second_run_waits_suspended_until_the_first_has_ended(
    cluster: Cluster, stories: Callable[[str], ClusterStory], queue: str
) -> None:
    first, second = stories("first"), stories("second")
    for story in (first, second):
        story.put_batch("a", rows=50)
    for story in (first, second):
        story.apply(story.a_dataset(runTemplate={"queue": queue}))
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
        waiting["message"] == f"It waits until Kueue admits it to the queue {queue}. Its Workload shows why it waits."
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
