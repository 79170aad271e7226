"""What users get wrong: always a condition that names the field or the thing, nothing lost, the rest goes on."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.install import scale_operator
from tests.cluster.kube import Cluster, condition
from tests.cluster.story import A_JOB, RUN_SECONDS, ClusterStory

pytestmark = pytest.mark.cluster

SOON = 60


@pytest.fixture(scope="module")
def begin(stories: Callable[[str], ClusterStory]) -> Callable[[str], ClusterStory]:
    return stories


# By name: the fields of the Dataset, the condition, its reason, and what the message names.
NAMED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "catalog": ({"table": {"catalog": "nowhere", "name": "tests.any"}}, "Stalled", "UnknownCatalog", "nowhere"),
    "bucket": (
        {"buffer": {"uri": "s3://no-such-bucket/buffer"}},
        "Ready",
        "StorageUnavailable",
        "s3://no-such-bucket/buffer",
    ),
    # Otherwise a user who may write a Dataset could read any Secret of the namespace.
    "secret": (
        {
            "runTemplate": {
                "podTemplate": {"spec": {"volumes": [{"name": "x", "secret": {"secretName": "lethe-catalogs"}}]}}
            }
        },
        "Stalled",
        "PodTemplateNotAllowed",
        "lethe-catalogs",
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_what_a_dataset_may_not_have_or_what_is_not_there_is_named(
    cluster: Cluster, begin: Callable[[str], ClusterStory], what: str
) -> None:
    spec, kind, reason, name = NAMED[what]
    story = begin(f"bad-{what}")
    story.apply(story.a_dataset(**spec))

    status = "False" if kind == "Ready" else "True"
    body = cluster.wait_for_condition(story.dataset, kind, status=status, reason=reason, within_seconds=SOON)

    assert name in condition(body, "Ready")["message"]
    assert condition(body, "Ready")["status"] == "False"


def test_a_window_that_cannot_be_stalls_its_policy_by_name_until_it_is_changed(
    cluster: Cluster, begin: Callable[[str], ClusterStory]
) -> None:
    """Also a time zone is only known if the operator's image knows it."""
    story = begin("bad-window")
    ref = f"vacuumpolicies.lethe.dev/{story.name}"
    refused = {
        "WindowNeverOpens": {"schedule": "0 1 31 2 *", "timeZone": "Europe/Berlin"},
        "InvalidWindow": {"schedule": "0 1 * * *", "timeZone": "Europe/Atlantis"},
    }
    named = {"WindowNeverOpens": "spec.window.schedule '0 1 31 2 *'", "InvalidWindow": "spec.window.timeZone"}
    for reason, window in refused.items():
        policy = story.a_policy(triggers={"activeTombstones": 1}, window={**window, "durationSeconds": 3600})
        story.apply(policy)
        body = cluster.wait_for_condition(ref, "Stalled", reason=reason, within_seconds=SOON)

        assert named[reason] in condition(body, "Ready")["message"]
        assert "nextWindowTime" not in body["status"]

    cluster.patch(ref, {"spec": {"window": {"timeZone": "Europe/Berlin"}}})
    body = cluster.wait_for_condition(ref, "Ready", reason="InForce", within_seconds=SOON)
    assert body["status"]["nextWindowTime"].endswith(("T23:00:00Z", "T00:00:00Z"))  # in summer and winter


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
