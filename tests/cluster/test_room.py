"""A user's first acts on a node that is full: an idle warm driver makes way for the runs, and comes back.

A pod that does nothing fills the node, so that a run's pod fits only in the place of the warm driver.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from kubernetes.utils import parse_quantity

from tests.cluster.install import image
from tests.cluster.kube import Cluster, Object, condition
from tests.cluster.lake import Rows, a_table_of, rows_of
from tests.cluster.story import A_JOB, RUN_SECONDS, WARM, ClusterStory
from tests.support.clock import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.long]

WARM_DRIVER = "lethe-warm-driver"
AWAY_UNTIL = "lethe.dev/away-until"
FIRST_ID = 9_200_400_000
ERASED = FIRST_ID + 1
# CPUs. A run of A_JOB needs more, and less than this with what the warm driver requests.
LEFT = 0.1
STARTS_SECONDS = 120


@pytest.fixture(scope="module")
def warm(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset with small runs, the first of which has started the warm driver."""
    story = stories("small")
    story.put_batch("b0", rows=20)
    story.apply(story.a_dataset(runTemplate=WARM))
    story.wait_for_status(batches_promoted=1)
    assert story.jobs() == []
    return story


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory]) -> ClusterStory:
    """A Dataset of whose batches one has a row that somebody wants gone. Its runs are Jobs."""
    story = stories("acts")
    for number, batch in enumerate(["a", "b", "c", "people"]):
        story.put_batch(batch, rows=10, day=1 + number, first_id=FIRST_ID if batch == "people" else 100 * number)
    story.apply(story.a_dataset(runTemplate=A_JOB))
    story.wait_for_status(batches_promoted=4)
    return story


@pytest.fixture(scope="module")
def full(cluster: Cluster, warm: ClusterStory, story: ClusterStory) -> Iterator[None]:
    """The warm driver is idle, all pods of runs have ended, and the node has room for less than a run."""
    wait_for_idle(cluster, warm)
    wait_until(lambda: not active(cluster.list("pods", f"lethe.dev/dataset={story.name}")), 90)
    with filled(cluster):
        yield


def wait_for_idle(cluster: Cluster, warm: ClusterStory) -> None:
    cluster.wait_for(
        f"configmap/{WARM_DRIVER}",
        lambda mailbox: not mailbox.get("data"),
        within_seconds=RUN_SECONDS,
        why=f"an empty mailbox of the warm driver, after the runs of {warm.name}",
    )
    job = cluster.get(f"job/{WARM_DRIVER}")
    assert job is not None
    assert "completionTime" not in job.get("status", {})


def free_cpu(cluster: Cluster) -> float:
    """CPUs of the only node that no pod has requested."""
    (node,) = cluster.list("nodes")
    pods = json.loads(cluster.run("get", "pods", "--all-namespaces", "-o", "json"))["items"]
    return float(parse_quantity(node["status"]["allocatable"]["cpu"])) - sum(map(requested_cpu, active(pods)))


def active(pods: Sequence[Object]) -> list[Object]:
    return [pod for pod in pods if pod["status"].get("phase") not in ("Succeeded", "Failed")]


def requested_cpu(pod: Object) -> float:
    containers = pod["spec"]["containers"]
    return sum(float(parse_quantity(c.get("resources", {}).get("requests", {}).get("cpu", "0"))) for c in containers)


@contextmanager
def filled(cluster: Cluster) -> Iterator[None]:
    """A pod that does nothing requests all CPUs of the node but LEFT."""
    millis = round((free_cpu(cluster) - LEFT) * 1000)
    assert millis > 0, "the node is full already"
    container = {
        "name": "nothing",
        "image": image("LETHE_OPERATOR_IMAGE"),
        "command": ["python", "-c", "import signal; signal.pause()"],
        "resources": {"requests": {"cpu": f"{millis}m"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "containers": [container],
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fills-the-node"}, "spec": spec})
    try:
        cluster.wait_for(
            "pod/fills-the-node",
            lambda pod: condition(pod, "Ready").get("status") == "True",
            within_seconds=STARTS_SECONDS,
            why="the pod that fills the node",
        )
        yield
    finally:
        cluster.delete("pod/fills-the-node")


@pytest.fixture
def secret(cluster: Cluster, story: ClusterStory) -> Iterator[str]:
    """The name of a Secret with the value to erase."""
    name = f"erase-{story.name}"
    values = {"values": f"{ERASED}\n"}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": values})
    yield name
    cluster.delete(f"secret/{name}")


@pytest.mark.usefixtures("full")
def test_an_erase_by_records_gets_the_room_of_the_idle_warm_driver(
    cluster: Cluster, story: ClusterStory, secret: str
) -> None:
    rows = {"column": "id", "valuesFrom": {"secretKeyRef": {"name": secret, "key": "values"}}}
    story.apply(story.a_restatement("erase-records", "Erase", rows=rows))

    done = story.wait_for_success("erase-records")

    story.expected -= Rows({("people", ERASED): 1})
    assert done["status"]["result"]["rowsErased"] == 1
    assert story.lake.rows(story.table) == story.expected
    events = [e for e in cluster.list("events") if e["reason"] == "WarmDriverMadeWay"]
    notes = [e["message"] for e in events if e["involvedObject"]["name"] == story.name]
    assert any("Insufficient cpu" in note and f"{WARM_DRIVER}-values" in note for note in notes)
    assert cluster.get(f"job/{WARM_DRIVER}") is None


@pytest.mark.usefixtures("full")
def test_each_other_operation_and_a_vacuum_have_room_too(story: ClusterStory) -> None:
    corrected = a_table_of(12, first_id=5000, day=2)
    story.lake.put_batch(f"{story.restated}/b.2", corrected)
    replacement = {"batchId": "b.2", "uri": f"{story.restated}/b.2/"}
    story.apply(story.a_restatement("revert", batchIds=["a"]))
    story.wait_for_success("revert")
    story.apply(story.a_restatement("undo", "Undo", undoes={"name": f"{story.name}-revert"}))
    story.wait_for_success("undo")
    story.apply(
        story.a_restatement("replay", "Replay", batchIds=["b"], replacement=replacement),
        story.a_restatement("erase-batch", "Erase", batchIds=["c"]),
    )
    for name in ("replay", "erase-batch"):
        story.wait_for_success(name)
    for batch in ("b", "c"):
        story.forget(batch)
    story.expected += rows_of("b.2", corrected)
    assert story.lake.rows(story.table) == story.expected

    requested = story.vacuum_now("1")

    assert requested["outcome"] == "Succeeded"
    story.wait_for_status(tombstones_active=0)
    assert story.lake.rows(story.table) == story.expected
    assert story.lake.plain_rows(story.table) == story.expected


@pytest.mark.usefixtures("full")
def test_meanwhile_small_runs_are_jobs(warm: ClusterStory) -> None:
    warm.put_batch("b1", rows=20, first_id=1000)
    warm.wait_for_status(batches_promoted=2)

    assert len(warm.jobs()) == 1
    assert warm.lake.rows(warm.table) == warm.expected


def test_when_it_may_come_back_it_carries_out_small_runs_again(cluster: Cluster, warm: ClusterStory) -> None:
    """Its place is free, because all runs have ended. The time for which it stays away is cut short."""
    mailbox = cluster.get(f"configmap/{WARM_DRIVER}") or {}
    assert AWAY_UNTIL in mailbox["metadata"]["annotations"]
    cluster.annotate(f"configmap/{WARM_DRIVER}", away_until=None)
    before = warm.jobs()
    warm.put_batch("b2", rows=20, first_id=2000)

    warm.wait_for_status(batches_promoted=3)

    assert warm.jobs() == before
    assert cluster.get(f"job/{WARM_DRIVER}") is not None
    assert warm.lake.rows(warm.table) == warm.expected
