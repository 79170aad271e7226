"""A topic of Kafka in the cluster becomes batches of a Dataset, while the inlet's pod and the broker are killed."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.install import image
from tests.cluster.kube import Cluster, Object, condition
from tests.cluster.lake import a_table_of, rows_of
from tests.cluster.story import WARM, ClusterStory

pytestmark = pytest.mark.cluster

MANIFEST = Path(__file__).parents[2] / "examples/flights/kafka.yaml"
SOON = 120
PRODUCER = """
import sys
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

at = {"bootstrap.servers": "kafka:9092"}
admin, topic = AdminClient(at), sys.argv[1]
if topic not in admin.list_topics(timeout=60).topics:
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
producer = Producer(at)
for line in sys.argv[2].splitlines():
    producer.produce(topic, line)
sys.exit(producer.flush(60))
"""


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> Iterator[Cluster]:
    """A broker that keeps its topics as long as its pod lives."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    for found in documents:
        if found["kind"] == "Deployment":
            found["spec"]["template"]["spec"]["containers"][0]["image"] = image("LETHE_KAFKA_IMAGE")
    cluster.apply(*documents)
    cluster.run("rollout", "status", "deployment/kafka", "--timeout=120s", within_seconds=130)
    yield cluster
    cluster.run("delete", "deployment/kafka", "service/kafka", "configmap/kafka", "--wait=false")


def produce(cluster: Cluster, name: str, topic: str, lines: Iterable[str]) -> None:
    """Send messages by a pod of this name."""
    container = {
        "name": "producer",
        "image": image("LETHE_OPERATOR_IMAGE"),
        "command": ["python", "-c", PRODUCER, topic, "\n".join(lines)],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    cluster.run(
        "wait", f"pods/{name}", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={SOON}s", within_seconds=130
    )
    cluster.run("delete", f"pods/{name}", "--wait=false")


def as_messages(rows: int, first_id: int) -> list[str]:
    table = a_table_of(rows, first_id)
    return [
        json.dumps({k: v.isoformat() if hasattr(v, "isoformat") else v for k, v in row.items()})
        for row in table.to_pylist()
    ]


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    return stories("streamed")


def test_messages_are_rows_although_the_inlet_is_killed(broker: Cluster, story: ClusterStory) -> None:
    kafka = {"cluster": "main", "topics": [story.name], "format": "JSON", "epoch": {"maxSeconds": 2}}
    produce(broker, "streamed-1", story.name, [*as_messages(50, 0), "not a row"])
    story.apply(story.a_dataset(source={"kafka": kafka}, runTemplate=WARM))
    story.wait_for_status(batches_promoted=1)
    story.expected += rows_of(f"{story.name}-0-{0:012d}-{50:012d}", a_table_of(50, 0))

    broker.run("delete", "pods", "-l", "app.kubernetes.io/component=inlet", "--grace-period=0", "--force")
    produce(broker, "streamed-2", story.name, as_messages(50, 100))
    story.wait_for_status(batches_promoted=2)
    story.expected += rows_of(f"{story.name}-0-{51:012d}-{100:012d}", a_table_of(50, 100))

    def reported(body: Object) -> bool:
        """The inlet writes the numbers, and the operator the condition when it has seen them."""
        source = body.get("status", {}).get("source", {})
        read = condition(body, "SourceRead").get("status") == "True"
        return read and source.get("rows") == 100 and source.get("lag") == 0

    body = broker.wait_for(story.dataset, reported, within_seconds=SOON)
    assert body["status"]["source"]["refusedMessages"] == 1
    assert story.lake.rows(story.table) == story.expected


@pytest.mark.long
def test_a_broker_that_is_killed_is_reported(broker: Cluster, story: ClusterStory) -> None:
    """The inlet needs half a minute to be sure."""
    if broker.get(story.dataset) is None:
        kafka = {"cluster": "main", "topics": [story.name], "format": "JSON"}
        produce(broker, "streamed-0", story.name, as_messages(1, 0))
        story.apply(story.a_dataset(source={"kafka": kafka}, runTemplate=WARM))
    broker.wait_for_condition(story.dataset, "SourceRead", within_seconds=SOON)

    broker.run("scale", "deployment/kafka", "--replicas=0")
    broker.run("delete", "pods", "-l", "app=kafka", "--grace-period=0", "--force", "--wait=false")

    broker.wait_for_condition(story.dataset, "SourceRead", status="False", reason="BrokerAway", within_seconds=SOON)
