"""A small client for the Kubernetes API, with the pod's ServiceAccount. I/O. The Spark image contains no client package."""

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
    """The API server refused a request. `status` is the HTTP status code, `message` the explanation of the server."""

    def __init__(self, what: str, status: int, reason: str, message: str = "") -> None:
        super().__init__(f"{what}: HTTP {status} {reason}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Api:
    """A client for the API server."""

    host: str
    port: int
    namespace: str
    """Of the pod."""
    account: Path = ACCOUNT
    """The folder with the ServiceAccount's token and the CA certificate."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "Api | None":
        """The client for this pod; None: the process is not in a pod."""
        host = environ.get("KUBERNETES_SERVICE_HOST")
        if not host:
            return None
        port = int(environ.get("KUBERNETES_SERVICE_PORT_HTTPS") or environ.get("KUBERNETES_SERVICE_PORT") or "443")
        return cls(host, port, environ["POD_NAMESPACE"], Path(environ.get("LETHE_SERVICE_ACCOUNT", ACCOUNT)))

    def config_maps(self, name: str = "") -> str:
        """The path of a ConfigMap of the namespace; of all, if `name` is empty."""
        return f"/api/v1/namespaces/{self.namespace}/configmaps" + (f"/{name}" if name else "")

    def secrets(self) -> str:
        """The path of the namespace's Secrets."""
        return f"/api/v1/namespaces/{self.namespace}/secrets"

    def get(self, path: str, **query: str) -> Any:
        """Read an object or a list.

        Raises:
            ApiError: 404: it does not exist.
            OSError: The system refused it.
            HTTPException: The answer is not HTTP.
        """
        with self._asked("GET", path, query, None, TIMEOUT_SECONDS) as response:
            return json.loads(response.read())

    def merge(self, path: str, patch: Mapping[str, Any], manager: str) -> None:
        """Apply a merge patch to an object: fields that are None are removed. Needs no resourceVersion.

        Args:
            manager: The name of the field manager.

        Raises:
            ApiError: 404: it does not exist.
            OSError: The system refused it.
            HTTPException: The answer is not HTTP.
        """
        query = {"fieldManager": manager}
        with self._asked("PATCH", path, query, json.dumps(patch), TIMEOUT_SECONDS) as response:
            response.read()

    def pods(self) -> str:
        """The path of the namespace's pods."""
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def create(self, path: str, document: Mapping[str, Any], manager: str, dry_run: bool = False) -> None:
        """Create an object in the collection `path`.

        Args:
            dry_run: Only check whether the API server would create it.

        Raises:
            ApiError: 409: its name is taken.
            OSError: The system refused it.
            HTTPException: The answer is not HTTP.
        """
        query = {"fieldManager": manager, **({"dryRun": "All"} if dry_run else {})}
        with self._asked("POST", path, query, json.dumps(document), TIMEOUT_SECONDS) as response:
            response.read()

    @contextmanager
    def watch(self, path: str, seconds: int, **query: str) -> Iterator[Iterator[Any]]:
        """Watch events from now on.

        Args:
            seconds: The server ends the watch after this time.

        Raises:
            ApiError: 410: the resourceVersion is too old.
            OSError: Also between two events.
            HTTPException: Also between two events.
            ValueError: Also between two events.
        """
        wanted = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        # The timeout ends a connection that broke without an error: it is longer than the server keeps the watch open.
        with self._asked("GET", path, wanted, None, seconds + TIMEOUT_SECONDS) as response:
            yield (json.loads(line) for line in response if line.strip())

    @contextmanager
    def _asked(
        self, method: str, path: str, query: Mapping[str, str], body: str | None, timeout: float
    ) -> Iterator[HTTPResponse]:
        # Read for each request: Kubernetes replaces a projected token about every hour.
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
                raise ApiError(f"{method} {path}", response.status, response.reason, _message(response.read()))
            yield response
        finally:
            connection.close()


def _message(content: bytes) -> str:
    """The explanation in the answer to a refused request; "": it has none."""
    try:
        document = json.loads(content)
    except ValueError:
        return ""
    return str(document.get("message", "")) if isinstance(document, dict) else ""


@dataclass(frozen=True)
class StatusConfigMap:
    """The Dataset's ConfigMap for progress and results of runs."""

    api: Api
    name: str
    prefix: str
    """Of the run's keys."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> "StatusConfigMap | None":
        """The run's ConfigMap; None: the operator did not launch the run."""
        name, api = environ.get("LETHE_STATUS_CONFIGMAP"), Api.from_environment(environ)
        if not name or api is None:
            return None
        return cls(api, name, environ["LETHE_STATUS_PREFIX"])

    def documents(self) -> dict[str, str]:
        """The documents of the run, by the suffixes of their keys.

        Raises:
            Exception: As `Api.get`.
        """
        data: Mapping[str, str] = self.api.get(self.api.config_maps(self.name)).get("data") or {}
        start = f"{self.prefix}."
        return {key.removeprefix(start): text for key, text in data.items() if key.startswith(start)}

    def put(self, suffix: str, document: str) -> None:
        """Set the key `<prefix>.<suffix>` and change no other key.

        Raises:
            Exception: As `Api.merge`.
        """
        self.put_all({suffix: document})

    def put_all(self, documents: Mapping[str, str]) -> None:
        """Set several keys in one request.

        Raises:
            Exception: As `Api.merge`.
        """
        data = {f"{self.prefix}.{suffix}": document for suffix, document in documents.items()}
        self.api.merge(self.api.config_maps(self.name), {"data": data}, "lethe-driver")
