"""Pods that are resized in place, as a VerticalPodAutoscaler with the mode InPlaceOrRecreate does it: nothing starts again."""

import json
from collections.abc import Callable

import pytest

from tests.cluster.kube import Cluster, Object
from tests.cluster.story import A_JOB, RUN_SECONDS, WARM, ClusterStory

pytestmark = [pytest.mark.cluster, pytest.mark.long]

COMMITTER = "app.kubernetes.io/component=committer"


def resize(cluster: Cluster, pod: Object, **requests: str) -> None:
    """Change the requests of a pod's container, and wait until the kubelet has carried it out."""
    name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]["name"]
    wanted = {"spec": {"containers": [{"name": container, "resources": {"requests": requests}}]}}
    cluster.run("patch", f"pod/{name}", "--subresource=resize", "-p", json.dumps(wanted))

    def is_done(found: Object) -> bool:
        (status,) = found["status"]["containerStatuses"]
        now = status.get("resources", {}).get("requests", {})
        return requests.items() <= now.items()

    cluster.wait_for(f"pods/{name}", is_done, within_seconds=60, why="the resize by the kubelet")


def starts(cluster: Cluster, pod: Object) -> tuple[str, int]:
    """The UID of the pod of this name, and how often its container was restarted."""
    name = pod["metadata"]["name"]
    found = cluster.get(f"pods/{name}")
    assert found is not None
    return found["metadata"]["uid"], found["status"]["containerStatuses"][0]["restartCount"]


def test_the_committer_goes_on_with_more_and_with_less(
    cluster: Cluster, stories: Callable[[str], ClusterStory]
) -> None:
    story = stories("resized")
    for number in range(2):
        story.put_batch(f"b{number}", rows=3, first_id=10 * number)
    story.apply(story.a_dataset(runTemplate=WARM))
    story.wait_for_status(batches_promoted=2)
    (pod,) = cluster.list("pods", COMMITTER)
    before = starts(cluster, pod)

    for number, cpu in enumerate(("250m", "120m")):
        resize(cluster, pod, cpu=cpu)
        story.apply(story.a_restatement(f"b{number}", batchIds=[f"b{number}"]))
        story.forget(f"b{number}")
        story.wait_for_success(f"b{number}")

    assert starts(cluster, pod) == before
    assert story.lake.rows(story.table) == story.expected


def test_a_driver_goes_on_and_its_run_is_not_repeated(cluster: Cluster, stories: Callable[[str], ClusterStory]) -> None:
    story = stories("resized-driver")
    story.put_batch("a", rows=50)
    story.apply(story.a_dataset(runTemplate=A_JOB))
    story.wait_for_a_driver()
    (pod,) = cluster.list("pods", f"lethe.dev/dataset={story.name},lethe.dev/role=driver")

    resize(cluster, pod, cpu="300m")

    story.wait_for_status(batches_promoted=1)
    ended = cluster.wait_for(
        story.dataset,
        lambda b: [r["phase"] for r in b["status"]["runs"]] == ["Succeeded"],
        within_seconds=RUN_SECONDS,
        why="the end of the run",
    )
    assert [r["attempt"] for r in ended["status"]["runs"]] == [1]
    assert story.lake.rows(story.table) == story.expected
