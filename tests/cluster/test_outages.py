"""PostgreSQL or S3 is away for a while: said so meanwhile, nothing lost, and it recovers by itself."""

import json
from collections.abc import Callable

import pytest

from tests.cluster.kube import Cluster, condition
from tests.cluster.servers.outage import away
from tests.cluster.story import ClusterStory

pytestmark = pytest.mark.cluster

NOTICED_SECONDS, BACK_SECONDS = 120, 120


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
