"""The Kubeflow Spark operator and Kueue on the tests' cluster, by their own charts. I/O only."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.api import Refused
from tests.cluster.install import NAMESPACE, helm
from tests.cluster.kube import Cluster, kubectl_path
from tests.support.clock import wait_until

# Helm's name of the release is that of its namespace.
SPARK_OPERATOR, KUEUE = "spark-operator", "kueue-system"
# Kueue admits only what a queue counts, and a driver requests all of these.
Quota = Mapping[str, str]
QUOTA_OF_ONE_DRIVER: Quota = {"cpu": "300m", "memory": "2Gi", "ephemeral-storage": "10Gi"}
QUOTA_OF_A_DRIVER_AND_ONE_EXECUTOR: Quota = {"cpu": "300m", "memory": "3Gi", "ephemeral-storage": "10Gi"}


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
def kueue(cluster: Cluster, queues: Mapping[str, Quota]) -> Iterator[None]:
    """Kueue for Jobs and plain pods, with a LocalQueue for each quota. While it is installed, its webhook admits all Jobs."""
    registry, repository, tag = _image("LETHE_KUEUE_IMAGE")
    configuration = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": ":8081"},
        "metrics": {"bindAddress": ":8443"},
        "webhook": {"port": 9443},
        "leaderElection": {"leaderElect": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
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
        made = [one for name, quota in queues.items() for one in a_queue(name, quota)]

        def applied() -> bool:
            with suppress(Refused):  # the webhook of a pod that is ready may not be reachable yet
                cluster.apply(*made)
                return True
            return False

        wait_until(applied, within_seconds=60)
        try:
            yield
        finally:
            for one in reversed(made):
                cluster.delete(f"{one['kind'].lower()}s.kueue.x-k8s.io/{one['metadata']['name']}")


def a_queue(name: str, quota: Quota) -> list[dict[str, Any]]:
    """A LocalQueue with a ClusterQueue of its own."""
    resources = [{"name": key, "nominalQuota": most} for key, most in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}

    def a(kind: str, **fields: Any) -> dict[str, Any]:
        return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind, "metadata": {"name": name}, **fields}

    return [
        a("ResourceFlavor"),
        a("ClusterQueue", spec={"namespaceSelector": {}, "resourceGroups": [group]}),
        {**a("LocalQueue", spec={"clusterQueue": name}), "metadata": {"name": name, "namespace": NAMESPACE}},
    ]
