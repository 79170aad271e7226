"""The Kubeflow Spark operator and Kueue on the tests' cluster, by their own charts. I/O only."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.install import NAMESPACE, helm
from tests.cluster.kube import Cluster, kubectl_path

# Helm's name of the release is that of its namespace.
SPARK_OPERATOR, KUEUE = "spark-operator", "kueue-system"
# Kueue admits only what a queue counts, and a driver requests all of these.
QUOTA_OF_ONE_DRIVER = {"cpu": "300m", "memory": "2Gi", "ephemeral-storage": "10Gi"}


def _image(variable: str) -> tuple[str, str, str]:
    """Registry, repository and tag."""
    reference = os.environ.get(variable)
    if not reference:
        pytest.fail(
            f'{variable} is not set: eval "$(make -s test-launchers)" builds and loads the image', pytrace=False
        )
    name, _, tag = reference.rpartition(":")
    registry, _, repository = name.partition("/")
    return registry, repository, tag


def _chart(name: str) -> str:
    return str(Path(kubectl_path()).parent / f"{name}-chart")


@contextmanager
def _installed(cluster: Cluster, release: str, chart: str, values: dict[str, Any]) -> Iterator[None]:
    where = ["-n", release, "--create-namespace", "--wait", "--timeout", "4m"]
    done = helm(cluster, "upgrade", "--install", release, _chart(chart), *where, "-f", "-", stdin=json.dumps(values))
    if done.returncode != 0:
        there = cluster.in_namespace(release)
        raise AssertionError(f"helm: {done.stderr}\n{there.run('get', 'pods,events')}")
    try:
        yield
    finally:
        helm(cluster, "uninstall", release, "-n", release, "--wait")


@contextmanager
def spark_operator(cluster: Cluster) -> Iterator[None]:
    """Kubeflow's operator for the tests' namespace, without its webhook."""
    registry, repository, tag = _image("LETHE_SPARK_OPERATOR_IMAGE")
    values = {
        "image": {"registry": registry, "repository": repository, "tag": tag},
        "controller": {"leaderElection": {"enable": False}, "workers": 2},
        "webhook": {"enable": False},
        "spark": {
            "jobNamespaces": [NAMESPACE],
            "serviceAccount": {"create": False},
            "rbac": {"create": False},
        },
    }
    with _installed(cluster, SPARK_OPERATOR, "spark-operator", values):
        yield


@contextmanager
def kueue(cluster: Cluster, queue: str) -> Iterator[None]:
    """Kueue for Jobs, with a LocalQueue whose quota is that of one driver. While it is installed, its webhook admits all Jobs."""
    registry, repository, tag = _image("LETHE_KUEUE_IMAGE")
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    manager = {
        "image": {"repository": f"{registry}/{repository}", "tag": tag, "pullPolicy": "IfNotPresent"},
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    }
    values = {
        "controllerManager": {"manager": manager},
        "managerConfig": {"controllerManagerConfigYaml": json.dumps(configuration)},
    }
    with _installed(cluster, KUEUE, "kueue", values):
        made = queue_of_one_driver(queue)
        cluster.apply(*made)
        try:
            yield
        finally:
            for one in reversed(made):
                cluster.delete(f"{one['kind'].lower()}s.kueue.x-k8s.io/{one['metadata']['name']}")


def queue_of_one_driver(name: str) -> list[dict[str, Any]]:
    """A queue that admits one run of the tests at a time."""
    resources = [{"name": key, "nominalQuota": most} for key, most in QUOTA_OF_ONE_DRIVER.items()]
    group = {"coveredResources": list(QUOTA_OF_ONE_DRIVER), "flavors": [{"name": name, "resources": resources}]}

    def a(kind: str, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, **fields}

    return [
        a("ResourceFlavor"),
        a("ClusterQueue", spec={"namespaceSelector": {}, "resourceGroups": [group]}),
        {**a("LocalQueue", spec={"clusterQueue": name}), "metadata": {"name": name, "namespace": NAMESPACE}},
    ]
