"""One key of one ConfigMap, written with the pod's own ServiceAccount. I/O; no Kubernetes client in the Spark image."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPSConnection
from pathlib import Path
from typing import Final

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS: Final = 5


@dataclass(frozen=True)
class StatusConfigMap:
    """The Dataset's ConfigMap, in which a run has keys that start with `prefix`."""

    host: str
    port: int
    namespace: str
    name: str
    prefix: str
    account: Path = ACCOUNT

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "StatusConfigMap | None":
        """None when the run was not launched into a pod by the operator."""
        name, host = environ.get("LETHE_STATUS_CONFIGMAP"), environ.get("KUBERNETES_SERVICE_HOST")
        if not name or not host:
            return None
        port = int(environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443")
        return cls(host, port, environ["POD_NAMESPACE"], name, environ["LETHE_STATUS_PREFIX"])

    def put(self, suffix: str, document: str) -> None:
        """Set the key `<prefix>.<suffix>`; touches no other key and needs no resourceVersion. Raises OSError."""
        # Read each time: a projected token is replaced every hour.
        token = (self.account / "token").read_text().strip()
        tls = ssl.create_default_context(cafile=str(self.account / "ca.crt"))
        connection = HTTPSConnection(self.host, self.port, timeout=TIMEOUT_SECONDS, context=tls)
        try:
            connection.request(
                "PATCH",
                f"/api/v1/namespaces/{self.namespace}/configmaps/{self.name}?fieldManager=lethe-driver",
                body=json.dumps({"data": {f"{self.prefix}.{suffix}": document}}),
                headers={"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"},
            )
            response = connection.getresponse()
            response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise OSError(f"patching ConfigMap {self.namespace}/{self.name}: HTTP {response.status} {response.reason}")
