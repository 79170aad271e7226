"""The Kubernetes API as far as runs need it, with the pod's own ServiceAccount. I/O; no client package in the Spark image."""

import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS: Final = 5
CONTENT_TYPES: Final = {"PATCH": "application/merge-patch+json", "POST": "application/json"}


class ApiError(OSError):
    """The API server said no; `status` is HTTP's."""

    def __init__(self, what: str, status: int, reason: str) -> None:
        super().__init__(f"{what}: HTTP {status} {reason}")
        self.status = status


@dataclass(frozen=True)
class Api:
    """The API server, as a pod of `namespace` reaches it."""

    host: str
    port: int
    namespace: str
    account: Path = ACCOUNT

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Api | None":
        """None outside of a pod."""
        host = environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            return None
        port = int(environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443")
        return cls(host, port, environ["POD_NAMESPACE"], Path(environ.get("LETHE_SERVICE_ACCOUNT", ACCOUNT)))

    def config_maps(self, name: str = "") -> str:
        """The path of a ConfigMap of the namespace, or of all."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps" + (f"/{name}" if name else "")

    def secrets(self) -> str:
        """The path of the namespace's Secrets."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    def get(self, path: str, **query: str) -> Any:
        """What lies there. Raises: ApiError (404 for nothing), OSError, HTTPException."""
        with self._asked("GET", path, query, None, TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def merge(self, path: str, patch: Mapping[str, Any], manager: str) -> None:
        """Patch what lies there; fields that are None go. Needs no resourceVersion.

        Raises: ApiError (404 for nothing), OSError, HTTPException.
        """
        query = {"fieldManager": manager}
        with self._asked("PATCH", path, query, json.dumps(patch), TIMEOUT_SECONDS) as response:
            response.read()

    def create(self, path: str, document: Mapping[str, Any], manager: str) -> None:
        """Make an object in the collection `path`. Raises: ApiError (409 if its name is taken), OSError, HTTPException."""
        query = {"fieldManager": manager}
        with self._asked("POST", path, query, json.dumps(document), TIMEOUT_SECONDS) as response:
            response.read()

    @contextmanager
    def watch(self, path: str, seconds: int, **query: str) -> Iterator[Iterator[Any]]:
        """The events from now on, as they come; they end after some seconds, when the server closes.

        Raises: ApiError (410: the version is too old), OSError, HTTPException, ValueError, also between two events.
        """
        wanted = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        # A connection that died unnoticed says nothing: who waits longer than the server wants to stay is cut off.
        with self._asked("GET", path, wanted, None, seconds + TIMEOUT_SECONDS) as response:
            yield (json.loads(line) for line in response if line.strip())

    @contextmanager
    def _asked(
        self, method: str, path: str, query: Mapping[str, str], body: str | None, timeout: float
    ) -> Iterator[HTTPResponse]:
        # Read each time: a projected token is replaced every hour.
        token = (self.account / "token").read_text().strip()
        tls = ssl.create_default_context(cafile=os.fspath(self.account / "ca.crt"))
        connection = HTTPSConnection(self.host, self.port, timeout=timeout, context=tls)
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        try:
            connection.request(
                method,
                f"{path}?{urlencode(query)}" if query else path,
                body=body,
                headers=headers | ({"Content-Type": CONTENT_TYPES[method]} if body is not None else {}),
            )
            response = connection.getresponse()
            if response.status >= 300:
                response.read()
                raise ApiError(f"{method} {path}", response.status, response.reason)
            yield response
        finally:
            connection.close()


@dataclass(frozen=True)
class StatusConfigMap:
    """The Dataset's ConfigMap, in which a run has keys that start with `prefix`."""

    api: Api
    name: str
    prefix: str

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "StatusConfigMap | None":
        """None when the run was not launched into a pod by the operator."""
        name, api = environ.get("LETHE_STATUS_CONFIGMAP"), Api.from_environment(environ)
        if not name or api is None:
            return None
        return cls(api, name, environ["LETHE_STATUS_PREFIX"])

    def documents(self) -> dict[str, str]:
        """What lies under the run's keys, by their suffixes. Raises: as `Api.get`."""
        data: Mapping[str, str] = self.api.get(self.api.config_maps(self.name)).get("data") or {}
        start = f"{self.prefix}."
        return {key.removeprefix(start): text for key, text in data.items() if key.startswith(start)}

    def put(self, suffix: str, document: str) -> None:
        """Set the key `<prefix>.<suffix>`; touches no other key. Raises: as `Api.merge`."""
        self.put_all({suffix: document})

    def put_all(self, documents: Mapping[str, str]) -> None:
        """Set several in one request. Raises: as `Api.merge`."""
        data = {f"{self.prefix}.{suffix}": document for suffix, document in documents.items()}
        self.api.merge(self.api.config_maps(self.name), {"data": data}, "lethe-driver")
