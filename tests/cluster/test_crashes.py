"""Pods die while runs are under way: the right rows are there, once. Also a run with executors, for the first of them."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.cluster.install import OPERATOR, OPERATOR_PODS, SYSTEM
from tests.cluster.kube import Cluster, Object
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

EXECUTORS = "spark-role=executor"


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return stories("crash")


def kill(cluster: Cluster, *what: str) -> None:
    cluster.run("delete", "pod", *what, "--grace-period=0", "--force", "--wait=false")


def two_executors_run(cluster: Cluster, story: ClusterStory) -> None:
    """Wait until two executor pods of the Dataset run at the same time."""
    running: dict[str, bool] = {}

    def both(pod: Object) -> bool:
        running[pod["metadata"]["name"]] = pod["status"].get("phase") == "Running"
        return sum(running.values()) >= 2

    what = ["pods", "-l", f"{EXECUTORS},lethe.dev/dataset={story.name}"]
    cluster.wait_for(what, both, within_seconds=RUN_SECONDS, why="two running executors")


def test_the_operator_is_killed_while_a_run_with_two_executors_is_under_way(
    cluster: Cluster, story: ClusterStory
) -> None:
    """The table is the truth: the next operator adopts the run, repeats nothing, and reports its commit."""
    for number in range(6):
        story.put_batch(f"first-{number}", rows=200, day=1 + number)
    story.apply(story.a_dataset(runTemplate={**A_JOB, "executors": {"min": 2, "max": 2}}))
    two_executors_run(cluster, story)
    kill(cluster.in_namespace(SYSTEM), "-l", OPERATOR_PODS)

    story.wait_for_status(batches_promoted=6)

    assert story.lake.rows(story.table) == story.expected
    assert len(story.jobs()) == 1
    assert len(story.lake.run_ids(story.table)) == 1
    cluster.in_namespace(SYSTEM).run("rollout", "status", OPERATOR, "--timeout=120s")


def test_the_driver_is_killed_before_its_commit(cluster: Cluster, story: ClusterStory) -> None:
    """A second attempt of the same run does it, and the rows are not there twice."""
    before = frozenset(story.jobs())
    cluster.patch(story.dataset, {"spec": {"runTemplate": {"executors": {"min": 0, "max": 0}}}})
    ended = frozenset(pod["metadata"]["name"] for pod in cluster.list("pods", f"lethe.dev/dataset={story.name}"))
    for number in range(3):
        story.put_batch(f"second-{number}", rows=50, day=1 + number, first_id=1000)
    story.put_batch("second-last", rows=1)
    driver = story.wait_for_a_driver(but_not=ended)
    commits = len(story.lake.run_ids(story.table))
    kill(cluster, driver)

    body = story.wait_for_status(batches_promoted=10)

    assert commits == 1, "the driver was killed too late to show anything"
    assert story.lake.rows(story.table) == story.expected
    attempts = [run for run in body["status"]["runs"] if run["name"] not in before]
    assert any(run.get("phase") == "Failed" for run in attempts)
    assert len(story.lake.run_ids(story.table)) == len(set(story.lake.run_ids(story.table)))


def test_the_log_of_a_run_comes_from_its_pod(cluster: Cluster, story: ClusterStory) -> None:
    """By the name of the run and by the name of its Dataset; following ends because the run has ended."""
    newest = (cluster.get(story.dataset) or {})["status"]["runs"][0]["name"]

    by_run, by_dataset, last = (
        lethe(cluster, "logs", *arguments) for arguments in ((newest, "-f"), (story.name,), (newest, "--tail", "1"))
    )

    assert "lethe_spark" in by_run
    assert by_run == by_dataset
    assert last == by_run.splitlines()[-1] + "\n"


def lethe(cluster: Cluster, *arguments: str) -> str:
    """The output of a command on resources."""
    command = [sys.executable, "-m", "lethe.cli", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(
        [*command, "-n", cluster.namespace], capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_a_driver_has_the_rights_of_its_run(cluster: Cluster, story: ClusterStory) -> None:
    """Only one with executors may start pods, and neither may read what it was not given."""
    alone, scaled = f"{story.name}-runs", f"{story.name}-scaled-runs"
    its_own = f"configmap/{story.name}-runs"
    others = [("get", "secrets"), ("patch", "configmap/other"), ("create", "jobs.batch"), ("create", "pods", "exec")]
    others += [("patch", "datasets.lethe.dev"), ("create", "serviceaccounts", "token"), ("get", "pods", "log")]

    assert [cluster.may(account, "patch", its_own) for account in (alone, scaled)] == [True, True]
    assert [cluster.may(account, "create", "pods") for account in (alone, scaled)] == [False, True]
    assert [(a, *what) for a in (alone, scaled, "default") for what in others if cluster.may(a, *what)] == []
