"""Lethe on the tests' cluster, by Helm, with short pauses so that tests need not wait for them. I/O only."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.cluster.kube import Cluster, kubectl_path
from tests.cluster.lake import CATALOG, Services

CHART = Path(__file__).parents[2] / "helm/lethe"
RELEASE, SYSTEM, NAMESPACE = "lethe", "lethe-system", "lethe-tests"
OPERATOR = "deployment/lethe-operator"
OPERATOR_PODS = "app.kubernetes.io/component=operator"


def image(name: str) -> str:
    reference = os.environ.get(name)
    assert reference, f"{name} is not set; `make test-cluster` builds the images and sets it"
    return reference


def install(cluster: Cluster, services: Services) -> None:
    """Install or upgrade the chart; runs live in a namespace that enforces the Pod Security level `restricted`."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    values = {
        "image": {"operator": image("LETHE_OPERATOR_IMAGE"), "spark": image("LETHE_SPARK_IMAGE")},
        "watchNamespaces": [NAMESPACE],
        "catalogs": {CATALOG: services.catalog_properties(inside=True)},
        "runTemplate": {"driver": {"cpu": "200m", "memory": "1536Mi"}, "executors": {"cpu": "200m", "memory": "1Gi"}},
        "runLimits": {"cpuFactor": 10},
        "podTemplate": {"allowedSecrets": ["allowed"]},
        "erase": {"signing": {"enabled": True}},
        "resyncSeconds": 3,
        "retry": {"baseSeconds": 1, "maxSeconds": 10},
        "infrastructureRetry": {"baseSeconds": 1, "maxSeconds": 10},
    }
    if '"status":"pending' in helm(cluster, "status", RELEASE, "-n", SYSTEM, "-o", "json").stdout:
        helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait")  # an interrupted session left it half done
    where = ["-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "3m"]
    done = helm(cluster, "upgrade", "--install", RELEASE, str(CHART), *where, "-f", "-", stdin=json.dumps(values))
    if done.returncode != 0:
        system = cluster.in_namespace(SYSTEM)
        log = system.run("logs", OPERATOR, "--tail=60", "--all-containers", "--ignore-errors")
        raise AssertionError(f"helm: {done.stderr}\n{system.run('get', 'pods,events')}\n{log}")


def change(cluster: Cluster, *values: str) -> None:
    """Set values of the installed release, such as `a.b=c`, and wait until the operator that has them is there."""
    sets = [word for value in values for word in ("--set", value)]
    where = ["-n", SYSTEM, "--wait", "--timeout", "3m"]
    done = helm(cluster, "upgrade", RELEASE, str(CHART), *where, "--reuse-values", *sets)
    assert done.returncode == 0, done.stderr


def helm(cluster: Cluster, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    own = Path(kubectl_path()).parent / "helm"
    path = str(own) if own.exists() else shutil.which("helm")
    assert path, "helm is not there; `make tools` builds it"
    return subprocess.run(
        [path, *arguments], input=stdin, capture_output=True, text=True, env=cluster.environment, timeout=300
    )


def scale_operator(cluster: Cluster, replicas: int) -> None:
    """Take the operator away, or bring it back, and wait until that is so."""
    system = cluster.in_namespace(SYSTEM)
    system.run("scale", OPERATOR, f"--replicas={replicas}")
    if replicas:
        system.run("rollout", "status", OPERATOR, "--timeout=120s", within_seconds=130)
    else:
        system.run("wait", "--for=delete", "pod", "-l", OPERATOR_PODS, "--timeout=60s")
