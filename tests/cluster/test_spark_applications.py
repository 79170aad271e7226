"""Runs as SparkApplications of the real Kubeflow operator: the results of Jobs, executors, and what happens when a part fails."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.install import change
from tests.cluster.kube import Cluster, Object
from tests.cluster.lake import a_table_of, rows_of
from tests.cluster.other_operators import SPARK_OPERATOR, spark_operator
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

KIND = "sparkapplications.sparkoperator.k8s.io"
# Of results and statuses, what differs between any two runs.
OF_ONE_RUN = ("attempt", "Time", "Id", "Seconds", "Digest", "digest", "key", "name", "evictBy", "Bytes", "bytes")
Begin = Callable[[str], ClusterStory]


@pytest.fixture(scope="module", autouse=True)
def kubeflow(cluster: Cluster) -> Iterator[Cluster]:
    """Kubeflow's operator; the value is its namespace. Without the committer, Reverts are runs of a launcher, too."""
    with spark_operator(cluster):
        change(cluster, "sparkOperator.enabled=true", "committer.enabled=false")
        yield cluster.in_namespace(SPARK_OPERATOR)
        change(cluster, "sparkOperator.enabled=false", "committer.enabled=true")


def of_launcher(story: ClusterStory, launcher: str, **template: object) -> Object:
    return story.a_dataset(runTemplate={**A_JOB, "launcher": launcher, **template})


def applications(story: ClusterStory) -> dict[str, Object]:
    found = story.cluster.list(KIND, f"lethe.dev/dataset={story.name}")
    return {body["metadata"]["name"]: body for body in found}


def the_driver(story: ClusterStory) -> Object:
    """A driver that runs, and has not started Spark yet."""
    what = ["pods", "-l", f"lethe.dev/dataset={story.name},spark-role=driver"]
    return story.cluster.wait_for(
        what, lambda p: p["status"].get("phase") == "Running", within_seconds=RUN_SECONDS, why="a running driver"
    )


def ended_runs(story: ClusterStory) -> list[Object]:
    """`status.runs`, the oldest first, once none is active. Kubeflow's operator is slower than the run's own result."""

    def ended(body: Object) -> bool:
        return all("finishTime" in run for run in body["status"]["runs"])

    body = story.cluster.wait_for(story.dataset, ended, within_seconds=60, why="the end of all runs in status.runs")
    return list(reversed(body["status"]["runs"]))


def comparable(value: Any) -> Any:
    """A document without what differs between any two runs."""
    if isinstance(value, dict):
        return {k: comparable(v) for k, v in value.items() if not k.endswith(OF_ONE_RUN)}
    return [comparable(v) for v in value] if isinstance(value, list) else value


def results(story: ClusterStory) -> list[Any]:
    """What the runs reported, in a fixed order."""
    config_map = story.cluster.get(f"configmap/{story.name}-runs")
    assert config_map is not None
    found = [comparable(json.loads(v)) for k, v in config_map["data"].items() if k.endswith(".result.json")]
    return sorted(found, key=json.dumps)


def status(story: ClusterStory) -> dict[str, Any]:
    body = story.cluster.get(story.dataset)
    assert body is not None
    found = body["status"]
    return {
        "conditions": {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]},
        "batches": comparable(found["batches"]),
        "tombstones": comparable(found["tombstones"]),
        "runs": [(r["kind"], r["message"]) for r in ended_runs(story) if r["phase"] == "Succeeded"],
    }


def test_runs_have_the_same_results_as_those_of_jobs(stories: Begin) -> None:
    """A consolidation, a Revert, a Replay and a vacuum, once with each launcher."""
    told = {"Job": stories("as-jobs"), "SparkApplication": stories("as-applications")}
    corrected = a_table_of(60, first_id=5000, day=2)
    for launcher, story in told.items():
        for day, batch in enumerate(("a", "b", "c"), start=1):
            story.put_batch(batch, rows=100, day=day)
        story.lake.put_batch(f"{story.restated}/b.2", corrected)
        story.apply(of_launcher(story, launcher))
    for story in told.values():
        story.wait_for_status(batches_promoted=3)
        story.apply(story.a_restatement("revert", batchIds=["a"]))
    for story in told.values():
        story.wait_for_success("revert")
        replacement = {"batchId": "b.2", "uri": f"{story.restated}/b.2/"}
        story.apply(story.a_restatement("replay", "Replay", batchIds=["b"], replacement=replacement))
    for story in told.values():
        story.wait_for_success("replay")
        for batch in ("a", "b"):
            story.forget(batch)
        story.expected += rows_of("b.2", corrected)
        story.annotate(vacuum_now="one")
    for story in told.values():
        assert story.vacuum_now("one")["outcome"] == "Succeeded"

    jobs, apps = told["Job"], told["SparkApplication"]
    assert status(apps) == status(jobs)
    assert results(apps) == results(jobs)
    assert len(status(apps)["runs"]) == 4
    for story in told.values():
        assert story.lake.rows(story.table) == story.lake.plain_rows(story.table) == story.expected
    for name in ("revert", "replay"):
        of_app, of_job = (s.cluster.get(s.restatement(name)) for s in (apps, jobs))
        assert of_app is not None
        assert of_job is not None
        assert comparable(of_app["status"]["result"]) == comparable(of_job["status"]["result"])
    assert len(jobs.jobs()) >= 4
    assert applications(jobs) == {}
    assert apps.jobs() == []
    states = [body["status"]["applicationState"]["state"] for body in applications(apps).values()]
    assert states.count("COMPLETED") == 4


def test_a_run_has_executors_by_dynamic_allocation_and_kubeflow_counts_them(stories: Begin, cluster: Cluster) -> None:
    story = stories("scaled")
    for number in range(8):
        story.put_batch(f"batch-{number}", rows=2000, day=1 + number)
    executors = {"min": 2, "max": 2, "memory": "1Gi", "waitSeconds": 300}
    story.apply(of_launcher(story, "SparkApplication", executors=executors))

    def counts_both(body: Object) -> bool:
        return len(body.get("status", {}).get("executorState", {})) >= 2

    what = [KIND, "-l", f"lethe.dev/dataset={story.name}"]
    application = cluster.wait_for(
        what, counts_both, within_seconds=RUN_SECONDS, why="two executors that Kubeflow counts"
    )
    name = application["metadata"]["name"]
    driver = cluster.get(f"pod/{name}-driver")
    body = story.wait_for_status(batches_promoted=8)

    assert driver is not None
    assert "spark.dynamicAllocation.enabled=true" in driver["spec"]["containers"][0]["args"]
    assert "dynamicAllocation" not in application["spec"]
    assert application["spec"]["executor"]["instances"] == 2
    (run,) = ended_runs(story)
    assert (run["name"], run["phase"], run["attempt"]) == (name, "Succeeded", 1)
    assert body["status"]["batches"]["promoted"] == 8
    assert story.lake.rows(story.table) == story.expected


def test_a_driver_that_is_killed_is_a_failed_attempt_and_the_next_one_does_it_once(
    stories: Begin, cluster: Cluster
) -> None:
    story = stories("killed")
    story.put_batch("a", rows=50)
    story.apply(of_launcher(story, "SparkApplication"))
    driver = the_driver(story)["metadata"]["name"]
    cluster.run("delete", "pod", driver, "--grace-period=0", "--force", "--wait=false")

    story.wait_for_status(batches_promoted=1)

    first, second = ended_runs(story)
    assert (first["attempt"], first["phase"], first["reason"]) == (1, "Failed", "DriverLost")
    assert (second["attempt"], second["phase"]) == (2, "Succeeded")
    assert driver == f"{first['name']}-driver"
    assert {n: b["status"]["applicationState"]["state"] for n, b in applications(story).items()} == {
        first["name"]: "FAILED",
        second["name"]: "COMPLETED",
    }
    assert len(story.lake.run_ids(story.table)) == 1
    assert story.lake.rows(story.table) == story.expected
