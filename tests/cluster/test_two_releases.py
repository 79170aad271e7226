"""Two releases that watch one namespace, on the real API server: one Lease, one holder."""

import threading
import uuid
from collections.abc import Iterator

import kubernetes.client
import kubernetes.config
import pytest
from lethe.kube import LEASES, Kube
from lethe_operator.cluster.client import of_configuration
from lethe_operator.cluster.leader import Claims
from lethe_operator.cluster.leadership import CLAIM, CLAIM_LEASE

from tests.cluster.kube import Cluster
from tests.support.clock import ManualClock

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def kube(bare_cluster: Cluster) -> Kube:
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(bare_cluster.kubeconfig), client_configuration=configuration)
    return Kube(of_configuration(configuration))


@pytest.fixture
def namespace(bare_cluster: Cluster) -> Iterator[str]:
    name = f"releases-{uuid.uuid4().hex[:6]}"
    bare_cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield name
    bare_cluster.begin_to_delete(f"namespace/{name}")


def at_once(operators: list[Claims]) -> None:
    start = threading.Barrier(len(operators))

    def renew(operator: Claims) -> None:
        start.wait()
        operator.renew(all_now=True)

    threads = [threading.Thread(target=renew, args=(o,)) for o in operators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_of_operators_that_race_for_a_namespace_one_acts(kube: Kube, namespace: str) -> None:
    clock = ManualClock()
    operators = [Claims(kube, [namespace], f"release-{n}", clock) for n in range(8)]

    for _ in range(5):  # all at once; then the holder is gone, and the others race again
        at_once(operators)
        (acting,) = (o for o in operators if o.acts_in(namespace))
        assert kube.get(LEASES, namespace, CLAIM_LEASE)["spec"]["holderIdentity"] == acting.own
        at_once([o for o in operators if o is not acting])
        assert [o for o in operators if o.acts_in(namespace)] == [acting]
        operators = [o for o in operators if o is not acting]
        clock.now += CLAIM.lease_seconds
