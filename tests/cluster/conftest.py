"""What every cluster test starts from. The only cluster they ever touch is the one that LETHE_TEST_KUBECONFIG names."""

import fcntl
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
FOLDER = Path(__file__).parent
# They change what all tests share, such as the definitions or the room of the node, or restart S3: no test of another process
# runs meanwhile.
ALONE = {*("chaos", "test_helm_upgrade.py", "test_kueue.py", "test_room.py", "test_spark_applications.py")}
# With `pytest -n`, files that take long begin first, so that all processes end at about the same time.
LONGEST_FIRST = (
    "held_commits",
    "crashes",
    "erasure",
    "lifecycle",
    "loop",
    "vacuum_policy",
    "gateway",
    "inputs",
    "inlet",
    "committer",
    "outages",
    "failover",
    "bad_input",
    "crds",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {f"test_{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    places = [n for n, item in enumerate(items) if FOLDER in item.path.parents]
    ordered = sorted((items[n] for n in places), key=lambda item: rank.get(item.path.name, len(rank)))
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


class Turns:
    """The lock of this process: tests of several processes run side by side, those of ALONE do not. Held for a file."""

    def __init__(self) -> None:
        self._file: int | None = None

    def take(self, item: pytest.Item) -> None:
        kubeconfig = os.environ.get(KUBECONFIG)
        if self._file is None and kubeconfig:
            self._file = os.open(f"{kubeconfig}.tests", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX if ALONE & set(item.path.parts) else fcntl.LOCK_SH)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


turns = Turns()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Waiting for a turn is outside the time limit of a test."""
    turns.take(item)
    done = yield
    if nextitem is None or nextitem.path != item.path:
        turns.release()
    return done


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
    of_this_folder = FOLDER in item.path.parents
    cluster = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and of_this_folder and isinstance(cluster, Cluster) and call.when != "teardown":
        report.sections.append(("the cluster", dump(cluster)))
    return report
