"""A gateway as a process of its own, and a client that speaks to it with a caller's token. I/O."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import kubernetes.client
import yaml
from lethe.kube import Kube, ResourceKind, TimeLimits
from lethe_operator.cluster.client import of_configuration

from tests.support.servers.kubernetes import ApiServerProcess
from tests.support.servers.postgres import free_port

SECONDS = 60
REVIEWS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "lethe-gateway"},
    "rules": [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ],
}


def role(name: str, namespace: str, *rules: tuple[str, str]) -> dict[str, Any]:
    """A Role on resources of lethe.dev.

    Args:
        rules: Resources, and verbs divided by commas.
    """
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [{"apiGroups": ["lethe.dev"], "resources": [r], "verbs": verbs.split(",")} for r, verbs in rules],
    }


def binding(role_document: Mapping[str, Any], account: str, account_namespace: str = "default") -> dict[str, Any]:
    """Gives a ServiceAccount what a Role or ClusterRole allows."""
    kind = role_document["kind"]
    metadata = {k: v for k, v in role_document["metadata"].items() if k == "namespace"}
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": f"{role_document['metadata']['name']}-{account}", **metadata},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role_document["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": account_namespace}],
    }


def token_of(kube: Kube, account: str, namespace: str = "default", **spec: Any) -> str:
    """A new token of a ServiceAccount, as `kubectl create token` makes it."""
    kind = ResourceKind("/api/v1", f"serviceaccounts/{account}/token", "TokenRequest")
    document = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {}, "spec": spec}
    return str(kube.create(kind, namespace, document)["status"]["token"])


def kubeconfig_of(server: ApiServerProcess, file: Path, token: str) -> Path:
    """The kubeconfig of a ServiceAccount."""
    document = yaml.safe_load(server.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    file.write_text(yaml.safe_dump(document))
    return file


@dataclass
class GatewayProcess:
    """A running gateway."""

    port: int
    process: "subprocess.Popen[str]"
    log: Path
    certificate: Path | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.certificate else 'http'}://127.0.0.1:{self.port}"

    def client(self, token: str = "", **headers: str) -> httpx.Client:
        """A client of a caller; "": without a token."""
        given = {"Authorization": f"Bearer {token}"} if token else {}
        verify: Any = ssl.create_default_context(cafile=self.certificate) if self.certificate else True
        return httpx.Client(base_url=self.url, headers={**given, **headers}, timeout=SECONDS, verify=verify)

    def memory_mib(self, what: str = "VmHWM") -> float:
        """The largest (VmHWM) or the present (VmRSS) resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what)) / 1024

    def access(self) -> list[dict[str, Any]]:
        """The lines of the access log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith('{"time"')]


@contextmanager
def running(folder: Path, **environ: str) -> Iterator[GatewayProcess]:
    """A gateway for as long as the block lasts.

    Args:
        environ: Its settings. Without a port it listens on a free one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "log"
    settings = {
        "LETHE_GATEWAY_HOST": "127.0.0.1",
        "LETHE_GATEWAY_PORT": str(port),
        "LETHE_GATEWAY_INDEX_FOLDER": str(folder / "index"),
        **environ,
    }
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lethe_gateway"],
            env={**os.environ, **settings},
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
    certificate = settings.get("LETHE_GATEWAY_TLS_CERTIFICATE")
    found = GatewayProcess(port, process, log, Path(certificate) if certificate else None)
    try:
        _wait(found)
        yield found
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _wait(gateway: GatewayProcess) -> None:
    until = time.monotonic() + SECONDS
    with gateway.client() as client:
        while True:
            assert gateway.process.poll() is None, f"the gateway ended:\n{gateway.log.read_text()[-3000:]}"
            try:
                client.get("/healthz")
                return
            except httpx.TransportError:
                assert time.monotonic() < until, f"the gateway does not answer:\n{gateway.log.read_text()[-3000:]}"
                time.sleep(0.05)


def kube_of(server: ApiServerProcess, token: str) -> Kube:
    """A client of the API server with a token."""
    document = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    configuration = kubernetes.client.Configuration()
    configuration.host, configuration.ssl_ca_cert = document["server"], document["certificate-authority"]
    return Kube(of_configuration(configuration), TimeLimits()).with_token(token)
