"""The gateway as the chart installs it: a producer with a token and nothing else brings a batch in, and sees its state."""

from collections.abc import Callable, Iterator
from pathlib import Path

import lethe
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError

from tests.cluster.install import NAMESPACE, SYSTEM, change
from tests.cluster.kube import Cluster
from tests.cluster.lake import CATALOG, ClusterLake, a_table_of, rows_of
from tests.cluster.story import WARM, ClusterStory
from tests.support.clock import wait_until

pytestmark = pytest.mark.cluster

PODS = "app.kubernetes.io/component=gateway"
RULES = [
    {"apiGroups": ["lethe.dev"], "resources": ["datasets"], "verbs": ["get", "list"]},
    {"apiGroups": ["lethe.dev"], "resources": ["datasets/batches"], "verbs": ["get", "create"]},
]
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "producer"},
    "rules": RULES,
}
BINDING = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "RoleBinding",
    "metadata": {"name": "producer"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "producer"},
    "subjects": [{"kind": "ServiceAccount", "name": "producer", "namespace": NAMESPACE}],
}
ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "producer"}}


@pytest.fixture(scope="module")
def gateway(cluster: Cluster, lake: ClusterLake) -> Iterator[lethe.GatewayClient]:
    node = lake.services.node
    endpoint = f"gateway.uploads.endpoints.{CATALOG}=http://{node}:30070"
    change(cluster, "gateway.enabled=true", "gateway.replicas=2", "gateway.service.type=NodePort", endpoint)
    cluster.apply(ACCOUNT, ROLE, BINDING)
    service = cluster.in_namespace(SYSTEM).get("service/lethe-gateway")
    assert service is not None
    url = f"http://{node}:{service['spec']['ports'][0]['nodePort']}"
    with lethe.GatewayClient(url, cluster.run("create", "token", "producer").strip(), NAMESPACE) as client:
        yield client
    for kind in ("rolebinding", "role", "serviceaccount"):
        cluster.delete(f"{kind}/producer")
    change(cluster, "gateway.enabled=false")


@pytest.fixture(scope="module")
def story(stories: Callable[[str], ClusterStory], gateway: lethe.GatewayClient) -> ClusterStory:  # noqa: ARG001
    story = stories("gateway")
    story.put_batch("a", rows=10)
    story.apply(story.a_dataset(runTemplate=WARM))
    story.wait_for_status(batches_promoted=1)
    return story


def test_a_producer_with_a_token_brings_a_batch_in(
    story: ClusterStory, gateway: lethe.GatewayClient, tmp_path: Path
) -> None:
    rows = a_table_of(100, first_id=1000)
    pq.write_table(rows, tmp_path / "part-0.parquet")
    done = gateway.put(story.name, "through/the gateway", tmp_path)
    story.expected.update(rows_of("through/the gateway", rows))

    assert done.checked
    story.wait_for_status(batches_promoted=2)
    assert story.lake.rows(story.table) == story.expected
    wait_until(lambda: [b["state"] for b in gateway.batches(story.name, id_prefix="through/")] == ["promoted"], 60)
    assert [e["type"] for e in gateway.batch(story.name, "through/the gateway")["history"]] == ["Promoted"]


def test_it_learns_at_once_what_a_consolidation_would_refuse(
    story: ClusterStory, gateway: lethe.GatewayClient, tmp_path: Path
) -> None:
    misfit = a_table_of(5).set_column(2, "value", [["much"] * 5])
    pq.write_table(misfit, tmp_path / "part-0.parquet")
    with pytest.raises(InputError, match=r"SchemaMismatch: .*part-0.parquet: column value is string"):
        gateway.put(story.name, "misfit", tmp_path)
    gateway.abandon(story.name, "misfit")

    assert "misfit" not in str(story.lake.keys(story.buffer))


def test_replicas_that_go_away_do_not_matter(
    story: ClusterStory, gateway: lethe.GatewayClient, cluster: Cluster, tmp_path: Path
) -> None:
    """Between opening and completing, every pod is replaced."""
    system = cluster.in_namespace(SYSTEM)
    for n in range(3):
        pq.write_table(a_table_of(10, first_id=2000 + 10 * n), tmp_path / f"part-{n}.parquet")
        story.expected.update(rows_of("long", a_table_of(10, first_id=2000 + 10 * n)))
    replaced: list[str] = []

    def replace(_: int) -> None:
        if not replaced:
            replaced.extend(p["metadata"]["name"] for p in system.list("pods", PODS))
            system.run("rollout", "restart", "deployment/lethe-gateway")
            system.run("rollout", "status", "deployment/lethe-gateway", "--timeout=120s", within_seconds=130)

    assert gateway.put(story.name, "long", tmp_path, replace).files == 3

    wait_until(lambda: not set(replaced) & {p["metadata"]["name"] for p in system.list("pods", PODS)}, 60)
    story.wait_for_status(batches_promoted=3)
    assert story.lake.rows(story.table) == story.expected


def test_it_has_no_rights_on_resources(cluster: Cluster, gateway: lethe.GatewayClient) -> None:  # noqa: ARG001
    system = cluster.in_namespace(SYSTEM)

    assert system.may("lethe-gateway", "create", "tokenreviews.authentication.k8s.io")
    for verb, what in (("get", "datasets.lethe.dev"), ("list", "secrets"), ("create", "pods"), ("get", "configmaps")):
        assert not system.may("lethe-gateway", verb, what)
