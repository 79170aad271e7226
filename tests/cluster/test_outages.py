"""PostgreSQL or S3 is away for a while: said so meanwhile, nothing lost, and it recovers by itself."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.kube import Cluster, condition
from tests.cluster.lake import SERVICES
from tests.cluster.story import ClusterStory

pytestmark = pytest.mark.cluster

NOTICED_SECONDS, BACK_SECONDS = 120, 120


@contextmanager
def away(cluster: Cluster, app: str) -> Iterator[None]:
    """Stop a service; its data stays on the node."""
    services = cluster.in_namespace(SERVICES)
    services.run("scale", f"deployment/{app}", "--replicas=0")
    services.run("wait", "--for=delete", "pod", "-l", f"app={app}", "--timeout=60s")
    try:
        yield
    finally:
        services.run("scale", f"deployment/{app}", "--replicas=1")
        services.run("rollout", "status", f"deployment/{app}", "--timeout=120s", within_seconds=130)


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory], cluster: Cluster) -> ClusterStory:
    """A Dataset that is ready and has nothing to do: no run is needed to notice an outage."""
    story = stories("outage")
    story.apply(story.a_dataset(consolidation={"suspend": True}))
    cluster.wait_for_condition(story.dataset, "Ready", within_seconds=60)
    return story


@pytest.mark.parametrize(
    ("app", "reason"), [("postgres", "CatalogUnavailable"), ("s3", "StorageUnavailable")], ids=["PostgreSQL", "S3"]
)
def test_an_outage_is_shown_and_survived(cluster: Cluster, story: ClusterStory, app: str, reason: str) -> None:
    with away(cluster, app):
        body = cluster.wait_for_condition(
            story.dataset, "Ready", status="False", reason=reason, within_seconds=NOTICED_SECONDS
        )

    assert condition(body, "Stalled")["status"] == "False", "it passes by itself, so nobody has to act"
    told = json.dumps(body["status"])
    assert not [
        name for name, secret in story.lake.services.secret.items() if name != "POSTGRES_USER" and secret in told
    ]
    cluster.wait_for_condition(story.dataset, "Ready", within_seconds=BACK_SECONDS)
