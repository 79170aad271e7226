"""What every cluster test starts from. The only cluster they ever touch is the one that LETHE_TEST_KUBECONFIG names."""

import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.dump import dump
from tests.cluster.install import NAMESPACE, install
from tests.cluster.kube import Cluster
from tests.cluster.lake import ClusterLake, connect, find_services
from tests.cluster.story import ClusterStory, telling

KUBECONFIG = "LETHE_TEST_KUBECONFIG"


@pytest.fixture(scope="session")
def bare_cluster() -> Cluster:
    """The cluster for tests, without Lethe in it. KUBECONFIG and ~/.kube/config are never looked at."""
    path = os.environ.get(KUBECONFIG)
    if not path:
        pytest.fail(
            f"{KUBECONFIG} is not set; `make test-cluster` makes a cluster for these tests and sets it", pytrace=False
        )
    return Cluster(Path(path))


@pytest.fixture(scope="session")
def lake(bare_cluster: Cluster) -> ClusterLake:
    """The services that `make test-up` installs, reached from this machine."""
    return connect(find_services(bare_cluster))


@pytest.fixture(scope="session")
def cluster(bare_cluster: Cluster, lake: ClusterLake) -> Cluster:
    """Lethe installed by its chart, once for all tests, watching their namespace."""
    install(bare_cluster, lake.services)
    return bare_cluster.in_namespace(NAMESPACE)


@pytest.fixture(scope="module")
def stories(cluster: Cluster, lake: ClusterLake) -> Iterator[Callable[[str], ClusterStory]]:
    """Make Datasets that several tests of a module tell on; all are removed at its end."""
    with telling(cluster, lake) as begin:
        yield begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure carries the cluster's state of that moment, before anything is removed."""
    report = yield
    of_this_folder = Path(__file__).parent in item.path.parents
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and of_this_folder and isinstance(cluster, Cluster) and call.when != "teardown":
        report.sections.append(("the cluster", dump(cluster)))
    return report
