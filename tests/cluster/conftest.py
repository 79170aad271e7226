"""What every cluster test starts from. The only cluster they ever touch is the one that LETHE_TEST_KUBECONFIG names."""

import os
from pathlib import Path

import pytest

from tests.cluster.kube import Cluster

KUBECONFIG = "LETHE_TEST_KUBECONFIG"


@pytest.fixture(scope="session")
def bare_cluster() -> Cluster:
    """The cluster for tests, without Lethe in it. KUBECONFIG and ~/.kube/config are never looked at."""
    path = os.environ.get(KUBECONFIG)
    if not path:
        pytest.skip(f"{KUBECONFIG} is not set; `make test` makes a cluster of its own for these tests and sets it")
    return Cluster(Path(path))
