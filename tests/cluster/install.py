"""Lethe on the tests' cluster, by Helm, with short pauses so that tests need not wait for them. I/O only.

Each process of tests (`pytest -n`) has a release of its own, which watches a namespace of its own.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.kube import Cluster, condition, kubectl_path
from tests.cluster.lake import Services
from tests.cluster.story import WARM

CHART = Path(__file__).parents[2] / "helm/lethe"
FIRST = "gw0"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", FIRST)
OWN = "" if WORKER == FIRST else f"-{WORKER}"
RELEASE, SYSTEM, NAMESPACE = "lethe", f"lethe-system{OWN}", f"lethe-tests{OWN}"
OPERATOR = "deployment/lethe-operator"
OPERATOR_PODS = "app.kubernetes.io/component=operator"


def image(name: str) -> str:
    reference = os.environ.get(name)
    assert reference, f"{name} is not set; `make test-cluster` builds the images and sets it"
    return reference


def apply_definitions(cluster: Cluster, crds: Path = CHART.parents[1] / "crds") -> None:
    """The definitions of this checkout, or of another one, marked so that the first release of the chart takes them over."""
    mark = {
        "labels": {"app.kubernetes.io/managed-by": "Helm"},
        "annotations": {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": "lethe-system"},
    }
    definitions = [yaml.safe_load(path.read_text()) for path in sorted(crds.glob("*.yaml"))]
    for definition in definitions:
        definition["metadata"] |= mark
    cluster.apply(*definitions)
    for definition in definitions:
        ref = f"customresourcedefinition/{definition['metadata']['name']}"
        cluster.wait_for(ref, lambda d: condition(d, "Established").get("status") == "True", within_seconds=30)


def values_of(services: Services) -> dict[str, Any]:
    """The values of the chart for the tests."""
    return {
        "image": {"operator": image("LETHE_OPERATOR_IMAGE"), "spark": image("LETHE_SPARK_IMAGE")},
        "replicas": 1,  # a second pod would start with each change of a value
        "watchNamespaces": [NAMESPACE],
        "crds": {"install": WORKER == FIRST},
        "catalogs": services.catalogs(),
        # Requests of so little that the pods of several releases fit on a node with two CPUs; they may use both.
        "runTemplate": {"driver": {"cpu": "100m", "memory": "1536Mi"}, "executors": {"cpu": "100m", "memory": "1Gi"}},
        "runLimits": {"cpuFactor": 20},
        "resources": {"requests": {"cpu": "20m"}},
        "committer": {"resources": {"requests": {"cpu": "20m"}}},
        "gateway": {"resources": {"requests": {"cpu": "20m"}}},
        "warmDrivers": {"enabled": True, "driver": {**WARM["driver"], "memory": "1536Mi"}},
        "podTemplate": {"allowedSecrets": ["allowed"]},
        "erase": {"signing": {"enabled": True}},
        "inlet": {
            "enabled": True,
            "clusters": {"main": {"properties": {"bootstrap.servers": "kafka:9092"}}},
            "resources": {"requests": {"cpu": "20m", "memory": "192Mi"}},
        },
        "resyncSeconds": 3,
        "resyncMaxSeconds": 6,
        "retry": {"baseSeconds": 1, "maxSeconds": 10},
        "infrastructureRetry": {"baseSeconds": 1, "maxSeconds": 10},
    }


def install(cluster: Cluster, services: Services) -> None:
    """Install or upgrade the chart; runs live in a namespace that enforces the Pod Security level `restricted`."""
    apply_definitions(cluster)  # whichever process of tests is the first
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    if '"status":"pending' in helm(cluster, "status", RELEASE, "-n", SYSTEM, "-o", "json").stdout:
        helm(cluster, "uninstall", RELEASE, "-n", SYSTEM, "--wait")  # an interrupted session left it half done
    install_chart(cluster, CHART, values_of(services))


def install_chart(cluster: Cluster, chart: Path, values: Mapping[str, Any]) -> None:
    """Install a chart of Lethe, or upgrade the release to it."""
    # Another test applies the definitions with kubectl, which then owns fields that a later version of the chart changes.
    where = ["-n", SYSTEM, "--create-namespace", "--wait", "--timeout", "3m", "--force-conflicts"]
    done = helm(cluster, "upgrade", "--install", RELEASE, str(chart), *where, "-f", "-", stdin=json.dumps(values))
    if done.returncode != 0:
        system = cluster.in_namespace(SYSTEM)
        log = system.run("logs", OPERATOR, "--tail=60", "--all-containers", "--ignore-errors")
        raise AssertionError(f"helm: {done.stderr}\n{system.run('get', 'pods,events')}\n{log}")


def change(cluster: Cluster, *values: str) -> None:
    """Set values of the installed release, such as `a.b=c`, and wait until the operator that has them is there."""
    sets = [word for value in values for word in ("--set", value)]
    where = ["-n", SYSTEM, "--wait", "--timeout", "3m", "--force-conflicts"]
    done = helm(cluster, "upgrade", RELEASE, str(CHART), *where, "--reuse-values", *sets)
    assert done.returncode == 0, done.stderr
    wait_for_one_version(cluster)


def wait_for_one_version(cluster: Cluster) -> None:
    """Wait until all pods of the operator that an upgrade replaced are gone: the last one may act until it ends."""
    system = cluster.in_namespace(SYSTEM)
    system.run("rollout", "status", OPERATOR, "--timeout=120s", within_seconds=130)
    ending = [p["metadata"]["name"] for p in system.list("pods", OPERATOR_PODS) if "deletionTimestamp" in p["metadata"]]
    for name in ending:
        system.run("wait", "--for=delete", f"pod/{name}", "--timeout=60s")


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
