"""The real Kueue admits Lethe's Jobs, on a real API server. No pod runs: the test says how a Job ends."""

import base64
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.contract.dataset import RunTemplate
from lethe.contract.run import RunSpec
from lethe.kube import JOBS, ResourceKind
from lethe_operator.actions import Launch
from lethe_operator.resources.observed import Attempt, AttemptState
from lethe_operator.runs.job import run_object
from lethe_operator.runs.observe import Documents, of_job, runs_of
from lethe_operator.runs.pod import size
from lethe_operator.settings import Settings

from tests.support.resources import a_buffered, a_consolidation
from tests.support.servers.kubernetes import CACHE, ApiServerProcess, api_server, apply_definitions, tool
from tests.support.servers.postgres import free_port
from tests.support.servers.process import running

pytestmark = pytest.mark.long

NAMESPACE, QUEUE = "default", "one-driver"
GROUP = "/apis/kueue.x-k8s.io/v1beta1"
FLAVORS = ResourceKind(GROUP, "resourceflavors", "ResourceFlavor")
CLUSTER_QUEUES = ResourceKind(GROUP, "clusterqueues", "ClusterQueue")
LOCAL_QUEUES = ResourceKind(GROUP, "localqueues", "LocalQueue")
WORKLOADS = ResourceKind(GROUP, "workloads", "Workload")
ADMITTED_SECONDS = 120
# Without its own certificates, the manager reads those of its metrics in a fixed folder of /etc. It gets its own view of /etc.
WITH_CERTIFICATES = """
folder=$1; shift
mkdir $folder/etc
mount -t tmpfs tmpfs $folder/etc
mkdir $folder/etc/upper $folder/etc/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=$folder/etc/upper,workdir=$folder/etc/work /etc
mkdir -p /etc/kueue/metrics/certs
cp $folder/certs/* /etc/kueue/metrics/certs/
exec "$@"
"""
TEMPLATE = RunTemplate.model_validate({"queue": QUEUE, "driver": {"cpu": "500m", "memory": "2Gi"}})
# Of one driver, and not of two.
QUOTA = {"cpu": "600m", "memory": "3Gi", "ephemeral-storage": "10Gi"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServerProcess]:
    """An API server with Kueue's manager and its webhooks, for Jobs."""
    manager, folder = tool("kueue"), tmp_path_factory.mktemp("kueue")
    if os.geteuid() != 0:
        pytest.skip("only root may give the manager its own view of /etc")
    certificate(folder)
    webhooks, health, metrics = free_port(), free_port(), free_port()
    with api_server(folder) as found:
        documents = chart(folder, webhooks)
        apply_definitions(found, [d for d in documents if d["kind"] == "CustomResourceDefinition"])
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
            "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
            "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(folder / "certs")},
            "internalCertManagement": {"enable": False},
            "leaderElection": {"leaderElect": False},
            "integrations": {"frameworks": ["batch/job"]},
        }
        (folder / "configuration.yaml").write_text(json.dumps(configuration))
        options = [f"--config={folder}/configuration.yaml", "--feature-gates=VisibilityOnDemand=false"]
        command = ["unshare", "--mount", "sh", "-euc", WITH_CERTIFICATES, "sh", str(folder), manager, *options]
        (folder / "manager").mkdir()

        def ask() -> object:
            return urllib.request.urlopen(f"http://127.0.0.1:{health}/readyz", timeout=2).read()

        with running("kueue", command, folder / "manager", ask, found.environment):
            for document in documents:
                if document["kind"].endswith("WebhookConfiguration"):
                    kind = document["kind"].lower() + "s"
                    of = ResourceKind("/apis/admissionregistration.k8s.io/v1", kind, document["kind"])
                    found.kube.create(of, "", document)
            queue(found)
            yield found


def certificate(folder: Path) -> None:
    """Kueue's own, for the address of this machine. The chart's certificates come from Kueue, for a Service."""
    (folder / "certs").mkdir()
    names = "subjectAltName=IP:127.0.0.1"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=kueue",
        "-addext",
        names,
    ]
    words += ["-keyout", "certs/tls.key", "-out", "certs/tls.crt"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


def chart(folder: Path, port: int) -> list[dict[str, Any]]:
    """The objects of Kueue's chart, whose webhooks are reached at this port."""
    helm = [tool("helm"), "template", "kueue", str(CACHE / "bin/kueue-chart"), "--namespace", "kueue-system"]
    text = subprocess.run(helm, check=True, capture_output=True, text=True).stdout
    found = [d for d in yaml.load_all(text, yaml.CSafeLoader) if d]
    bundle = base64.b64encode((folder / "certs/tls.crt").read_bytes()).decode()

    def reached(client: dict[str, Any]) -> dict[str, Any]:
        return {"url": f"https://127.0.0.1:{port}{client['service']['path']}", "caBundle": bundle}

    for document in found:
        for webhook in document.get("webhooks", ()):
            webhook["clientConfig"] = reached(webhook["clientConfig"])
        if conversion := (document.get("spec") or {}).get("conversion"):
            conversion["webhook"]["clientConfig"] = reached(conversion["webhook"]["clientConfig"])
    return found


def queue(server: ApiServerProcess) -> None:
    resources = [{"name": key, "nominalQuota": most} for key, most in QUOTA.items()]
    group = {"coveredResources": list(QUOTA), "flavors": [{"name": QUEUE, "resources": resources}]}

    def make(kind: ResourceKind, namespace: str = "", **fields: Any) -> None:
        document = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": kind.name, "metadata": {"name": QUEUE}, **fields}
        server.kube.create(kind, namespace, document)

    make(FLAVORS, spec={})
    make(CLUSTER_QUEUES, spec={"namespaceSelector": {}, "resourceGroups": [group]})
    make(LOCAL_QUEUES, NAMESPACE, spec={"clusterQueue": QUEUE})


def launched(server: ApiServerProcess, batch: str) -> RunSpec:
    run = a_consolidation(a_buffered(batch))
    run = run.model_copy(
        update={"dataset": run.dataset.model_copy(update={"namespace": NAMESPACE, "uid": f"uid-{batch}"})}
    )
    server.kube.create(
        JOBS, NAMESPACE, run_object(Launch(run, 0, 1, "a test"), size(10**13, TEMPLATE), TEMPLATE, Settings())
    )
    return run


def the_job(server: ApiServerProcess, run: RunSpec) -> dict[str, Any]:
    (found,) = server.kube.list(JOBS, NAMESPACE, f"lethe.dev/dataset-uid={run.dataset.uid}")
    return found


def attempt(server: ApiServerProcess, run: RunSpec) -> Attempt:
    (found,) = runs_of([of_job(the_job(server, run))], [], {}, Documents(lambda _: b""))
    assert found.last is not None
    return found.last


def wait_for(holds: Callable[[], Any], what: Callable[[], object]) -> Any:
    until = time.monotonic() + ADMITTED_SECONDS
    while True:
        if found := holds():
            return found
        assert time.monotonic() < until, what()
        time.sleep(0.2)


def end(server: ApiServerProcess, run: RunSpec) -> None:
    """Say of the Job what its controller would."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = [
        {
            "type": type,
            "status": "True",
            "reason": "CompletionsReached",
            "lastProbeTime": now,
            "lastTransitionTime": now,
        }
        for type in ("SuccessCriteriaMet", "Complete")
    ]
    name = the_job(server, run)["metadata"]["name"]
    server.kube.patch(JOBS, NAMESPACE, name, {"status": {"startTime": now}}, "status")
    status = {"completionTime": now, "succeeded": 1, "uncountedTerminatedPods": {}, "conditions": conditions}
    server.kube.patch(JOBS, NAMESPACE, name, {"status": status}, "status")


def test_the_second_run_waits_until_the_first_has_ended(server: ApiServerProcess) -> None:
    """Also a run of a large table: it has no executors that the quota does not cover."""

    def workloads() -> object:
        return [(w["metadata"]["name"], w.get("status")) for w in server.kube.list(WORKLOADS, NAMESPACE)]

    first = launched(server, "a")
    wait_for(lambda: not attempt(server, first).suspended, workloads)
    second = launched(server, "b")
    name = the_job(server, second)["metadata"]["name"]

    def refused() -> Any:
        mine = [w for w in server.kube.list(WORKLOADS, NAMESPACE) if name in w["metadata"]["name"]]
        conditions = [c for w in mine for c in w.get("status", {}).get("conditions", ())]
        return next((c for c in conditions if c["type"] == "QuotaReserved" and c["status"] == "False"), None)

    why = wait_for(refused, workloads)
    waiting = attempt(server, second)

    assert "insufficient unused quota" in why["message"]
    assert waiting.state is AttemptState.ACTIVE
    assert waiting.suspended == f"It waits until Kueue admits it to the queue {QUEUE}. Its Workload shows why it waits."
    assert (waiting.waiting, waiting.started) == ("", None)

    end(server, first)
    wait_for(lambda: not attempt(server, second).suspended, workloads)

    assert attempt(server, first).state is AttemptState.SUCCEEDED
    assert attempt(server, second).state is AttemptState.ACTIVE
