"""What users get wrong on a cluster: too little memory, and resources that are deleted while the operator is away."""

from collections.abc import Callable

import pytest

from tests.cluster.install import scale_operator
from tests.cluster.kube import Cluster
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60


@pytest.fixture(scope="module")
def begin(stories: Callable[[str], ClusterStory]) -> Callable[[str], ClusterStory]:
    return stories


def test_a_driver_over_its_memory_limit_is_reported(cluster: Cluster, begin: Callable[[str], ClusterStory]) -> None:
    """With the reason that Kubernetes gives, and the field to change."""
    story = begin("bad-memory")
    story.put_batch("a")
    # Far too little: at nearly enough a driver may crawl, dropping its own pages, instead of being killed.
    story.apply(story.a_dataset(runTemplate={"driver": {**A_JOB["driver"], "memory": "150Mi"}}))

    body = cluster.wait_for_condition(
        story.dataset, "Ready", status="False", reason="OOMKilled", within_seconds=RUN_SECONDS
    )

    assert any(run.get("reason") == "OOMKilled" for run in body["status"]["runs"])


def test_deleting_never_waits_for_the_operator(cluster: Cluster, begin: Callable[[str], ClusterStory]) -> None:
    """No finalizers: with the operator away each kind of resource goes at once."""
    story = begin("gone")
    story.apply(
        story.a_dataset(consolidation={"suspend": True}),
        story.a_restatement("waiting", batchIds=["a"]),
        story.a_policy(triggers={"activeTombstones": 1}),
    )
    cluster.wait_for_condition(story.dataset, "Ready", within_seconds=SOON)
    scale_operator(cluster, 0)
    try:
        for ref in (story.restatement("waiting"), f"vacuumpolicies.lethe.dev/{story.name}", story.dataset):
            cluster.delete(ref, within_seconds=10)
            assert cluster.get(ref) is None
    finally:
        scale_operator(cluster, 1)
