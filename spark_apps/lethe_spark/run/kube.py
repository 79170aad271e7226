"""The API server as the pod of a run reaches it, and the ConfigMap for progress and results. I/O."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError
from lethe.kube import CONFIG_MAPS, ApiEndpoint, Kube, TimeLimits

DRIVER: Final = "lethe-driver"
"""The field manager of what a run's own driver writes."""
OF_PODS: Final = TimeLimits(connect_to_write_seconds=5, read_seconds=5, retries=0)
"""The time limits of the pods of runs, which repeat what must not be lost."""
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class PodApi:
    """The API server as a pod reaches it, with the pod's ServiceAccount."""

    kube: Kube
    namespace: str
    """The namespace of the pod."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], manager: str) -> "PodApi | None":
        """The API of this pod; None: the process is not in a pod.

        Args:
            environ: The variables that Kubernetes sets, POD_NAMESPACE, and LETHE_SERVICE_ACCOUNT for another folder with the
                token and the certificate.
            manager: The name of the field manager of its writes.
        """
        host = environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            return None
        port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443"
        account = Path(environ.get("LETHE_SERVICE_ACCOUNT", ACCOUNT))
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        # Read for each request: Kubernetes replaces a projected token about every hour.

        def authorization() -> str:
            return f"Bearer {(account / 'token').read_text().strip()}"

        kube = Kube(ApiEndpoint(url, os.fspath(account / "ca.crt"), authorization=authorization), OF_PODS)
        kube.write_query = {"fieldManager": manager}
        return cls(kube, environ["POD_NAMESPACE"])


def require_pod_api(environ: Mapping[str, str], manager: str, process: str) -> PodApi:
    """The API of this pod, for a process that serves the namespace of its pod.

    Args:
        environ: The variables of the process.
        manager: The name of the field manager of its writes.
        process: The name of the process in the message.

    Raises:
        InputError: NotInAPod.
    """
    missing = [name for name in ("KUBERNETES_SERVICE_HOST", "POD_NAMESPACE") if not environ.get(name)]
    api = PodApi.from_environment(environ, manager) if not missing else None
    if api is None:
        raise InputError(
            "NotInAPod", f"{process} serves the namespace of its pod, and {' and '.join(missing)} is not set."
        )
    return api


@dataclass(frozen=True)
class StatusConfigMap:
    """The Dataset's ConfigMap for progress and results of runs."""

    api: PodApi
    name: str
    prefix: str
    """The prefix of the run's keys."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "StatusConfigMap | None":
        """The run's ConfigMap; None: the operator did not launch the run."""
        name, api = environ.get("LETHE_STATUS_CONFIGMAP"), PodApi.from_environment(environ, DRIVER)
        if not name or api is None:
            return None
        return cls(api, name, environ["LETHE_STATUS_PREFIX"])

    def documents(self) -> dict[str, str]:
        """The documents of the run, by the suffixes of their keys.

        Raises:
            NotFound: The ConfigMap does not exist.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        config_map = self.api.kube.get(CONFIG_MAPS, self.api.namespace, self.name)
        data: Mapping[str, str] = config_map.get("data") or {}
        start = f"{self.prefix}."
        return {key.removeprefix(start): text for key, text in data.items() if key.startswith(start)}

    def put(self, suffix: str, document: str) -> None:
        """Set the key `<prefix>.<suffix>` and change no other key.

        Raises:
            NotFound: The ConfigMap does not exist.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        self.put_all({suffix: document})

    def put_all(self, documents: Mapping[str, str]) -> None:
        """Set several keys in one request.

        Raises:
            NotFound: The ConfigMap does not exist.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        data = {f"{self.prefix}.{suffix}": document for suffix, document in documents.items()}
        self.api.kube.patch(CONFIG_MAPS, self.api.namespace, self.name, {"data": data})
