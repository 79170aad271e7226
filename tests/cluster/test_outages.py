"""PostgreSQL or S3 is away for a while: said so meanwhile, nothing lost, and it recovers by itself."""

import json
from collections.abc import Iterator

import pytest

from tests.cluster.kube import Cluster, condition
from tests.cluster.lake import RELAYED, RELAYS, ClusterLake, connect
from tests.cluster.servers.outage import away, relays
from tests.cluster.story import ClusterStory, a_name

pytestmark = pytest.mark.cluster

NOTICED_SECONDS, BACK_SECONDS = 120, 120


@pytest.fixture(scope="module")
def story(cluster: Cluster, lake: ClusterLake) -> Iterator[ClusterStory]:
    """A Dataset that is ready and has nothing to do: no run is needed to notice an outage. The other tests have none."""
    with relays(cluster):
        story = ClusterStory(cluster, connect(lake.services), a_name("outage"), RELAYED)
        story.apply(story.a_dataset(consolidation={"suspend": True}))
        cluster.wait_for_condition(story.dataset, "Ready", within_seconds=60)
        yield story
        story.clean()


@pytest.mark.parametrize(
    ("service", "reason"), [("postgres", "CatalogUnavailable"), ("s3", "StorageUnavailable")], ids=["PostgreSQL", "S3"]
)
def test_an_outage_is_shown_and_survived(cluster: Cluster, story: ClusterStory, service: str, reason: str) -> None:
    with away(cluster, RELAYS[service][0]):
        body = cluster.wait_for_condition(
            story.dataset, "Ready", status="False", reason=reason, within_seconds=NOTICED_SECONDS
        )

    assert condition(body, "Stalled")["status"] == "False", "it passes by itself, so nobody has to act"
    told = json.dumps(body["status"])
    assert not [
        name for name, secret in story.lake.services.secret.items() if name != "POSTGRES_USER" and secret in told
    ]
    cluster.wait_for_condition(story.dataset, "Ready", within_seconds=BACK_SECONDS)
