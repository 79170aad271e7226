"""A watched namespace in which the operator may not read does not stop it in the other ones."""

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lethe.kube import VACUUM_POLICIES

from tests.support.clock import wait_until
from tests.support.commands import definitions
from tests.support.documents import Document, resource
from tests.support.servers.kubernetes import (
    TOKEN,
    TOKEN_WITHOUT_RIGHTS,
    ApiServerProcess,
    api_server,
    apply_definitions,
    kubectl,
)
from tests.support.servers.postgres import free_port
from tests.support.servers.process import running

LIMIT_SECONDS = 120
RBAC = "rbac.authorization.k8s.io"
ALL = {
    "apiVersion": f"{RBAC}/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "all"},
    "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
}


def namespace(name: str) -> Document:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def binding(namespace: str) -> Document:
    """Lets the operator do everything in a namespace."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator", "namespace": namespace},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "all"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "guest"}],
    }


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServerProcess]:
    with api_server(tmp_path) as server:
        apply_definitions(server, definitions())
        kubectl(server, "apply", *map(namespace, ("system", "ours", "theirs")), ALL)
        yield server


@contextmanager
def operator(server: ApiServerProcess, folder: Path) -> Iterator[None]:
    guest, port = folder / "guest", free_port()
    guest.write_text(server.kubeconfig.read_text().replace(TOKEN, TOKEN_WITHOUT_RIGHTS))
    environment = {
        **{k: v for k, v in server.environment.items() if not k.startswith("KUBERNETES_SERVICE")},
        "KUBECONFIG": str(guest),
        "LETHE_WATCH_NAMESPACES": "ours,theirs",
        "LETHE_LEADER_LEASE": "system/leader",
        "LETHE_OPERATOR": "system/lethe",
        "LETHE_PROBES_PORT": str(port),
        "LETHE_METRICS_PORT": str(free_port()),
    }

    def ready() -> None:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2)

    with running("the operator", [sys.executable, "-m", "lethe_operator"], folder, ready, environment):
        yield


def test_it_acts_where_it_may_and_elsewhere_as_soon_as_it_may(server: ApiServerProcess, tmp_path: Path) -> None:
    kubectl(server, "apply", binding("system"), binding("ours"))
    spec = {"datasetSelector": {}, "triggers": {"activeTombstones": 1}}
    for name in ("ours", "theirs"):
        server.kube.create(VACUUM_POLICIES, name, resource("VacuumPolicy", "policy", spec))

    def seen(name: str) -> bool:
        return bool(server.kube.get(VACUUM_POLICIES, name, "policy")["status"]["observedGeneration"] == 1)

    with operator(server, tmp_path):
        wait_until(lambda: seen("ours"), LIMIT_SECONDS)
        assert not seen("theirs")

        kubectl(server, "apply", binding("theirs"))
        wait_until(lambda: seen("theirs"), LIMIT_SECONDS)
