"""A real API server with etcd, without nodes and without controllers: what runs in pods is played by tests. I/O."""

import os
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.client
import yaml
from lethe.kube import Kube
from lethe_operator.cluster.client import of_configuration

from tests.support.servers.postgres import free_port
from tests.support.servers.process import running

CACHE = Path(os.environ.get("LETHE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "lethe")
TOKEN = "the-token-of-the-tests"
TOKEN_WITHOUT_RIGHTS = "the-token-of-a-guest"


def tool(name: str) -> str:
    """The path of a program. Raises: AssertionError: it is not there."""
    found = shutil.which(name, path=f"{CACHE / 'bin'}:{os.environ.get('PATH', '')}")
    assert found is not None, f"{name} is not there: run dev/tools.sh kubernetes spark-operator kueue"
    return found


@dataclass(frozen=True)
class ApiServerProcess:
    port: int
    kubeconfig: Path
    kube: Kube

    @property
    def environment(self) -> dict[str, str]:
        """For processes that take themselves to be in the cluster, or read a kubeconfig."""
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
        }


@contextmanager
def api_server(folder: Path) -> Iterator[ApiServerProcess]:
    """An API server that lets one user do everything, and another one nothing."""
    store, peer, port = free_port(), free_port(), free_port()
    for sub in ("etcd", "api"):
        (folder / sub).mkdir(parents=True)
    here = folder / "api"
    subprocess.run(["openssl", "genrsa", "-out", "sa.key", "2048"], cwd=here, check=True, capture_output=True)
    subprocess.run(
        ["openssl", "rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub"], cwd=here, check=True, capture_output=True
    )
    (here / "tokens.csv").write_text(f"{TOKEN},tests,tests,system:masters\n{TOKEN_WITHOUT_RIGHTS},guest,guest\n")
    etcd = [tool("etcd"), "--data-dir=data", "--unsafe-no-fsync", f"--listen-peer-urls=http://127.0.0.1:{peer}"]
    etcd += [f"--{kind}-client-urls=http://127.0.0.1:{store}" for kind in ("listen", "advertise")]
    command = [
        tool("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{store}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--cert-dir=certs",
        "--service-cluster-ip-range=10.201.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-account-key-file=sa.pub",
        "--service-account-signing-key-file=sa.key",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
    ]
    authority = here / "certs/apiserver.crt"  # the server makes it

    def ask(url: str) -> object:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {TOKEN}"})
        tls = ssl.create_default_context(cafile=authority) if url.startswith("https") else None
        return urllib.request.urlopen(request, timeout=2, context=tls).read()

    with (
        running("etcd", etcd, folder / "etcd", lambda: ask(f"http://127.0.0.1:{store}/health")),
        running("kube-apiserver", command, here, lambda: ask(f"https://127.0.0.1:{port}/readyz")),
    ):
        yield ApiServerProcess(port, _kubeconfig(folder / "kubeconfig", port, authority), _client(port, authority))


def apply_definitions(server: ApiServerProcess, documents: list[dict[str, Any]]) -> None:
    """Create CustomResourceDefinitions, and wait until they are served."""
    file = server.kubeconfig.parent / "definitions.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    kubectl = [tool("kubectl"), "--kubeconfig", str(server.kubeconfig)]
    for words in (
        ["create", "-f", str(file)],
        ["wait", "--for=condition=Established", "-f", str(file), "--timeout=60s"],
    ):
        subprocess.run([*kubectl, *words], check=True, capture_output=True, text=True, timeout=120)


def kubectl(server: ApiServerProcess, verb: str, *documents: dict[str, Any]) -> str:
    """Run `kubectl <verb> -f`. What it prints. Fails with its message."""
    command = [tool("kubectl"), "--kubeconfig", str(server.kubeconfig), verb, "-f", "-"]
    ended = subprocess.run(
        command, input=yaml.safe_dump_all(documents), capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _kubeconfig(file: Path, port: int, authority: Path) -> Path:
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(authority)}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "clusters": [{"name": "tests", "cluster": cluster}],
        "users": [{"name": "tests", "user": {"token": TOKEN}}],
        "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": "default"}}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


def _client(port: int, authority: Path) -> Kube:
    configuration = kubernetes.client.Configuration()
    configuration.host = f"https://127.0.0.1:{port}"
    configuration.ssl_ca_cert = str(authority)
    configuration.api_key = {"authorization": TOKEN, "BearerToken": TOKEN}
    configuration.api_key_prefix = {"authorization": "Bearer", "BearerToken": "Bearer"}
    return Kube(of_configuration(configuration))
