"""The Kubernetes API as plain documents: one request, one answer, every error mapped once. I/O.

It uses documents, not the client's models: a status must keep 64-bit numbers and fields that a client does not know.
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import kubernetes.client
import kubernetes.config
import urllib3
from kubernetes.config.config_exception import ConfigException

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5
READ_SECONDS: Final = 30
PAGE: Final = 500
MERGE_PATCH: Final = "application/merge-patch+json"
# The characters of object names. Others, such as a slash, would make a path of another object.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


class KubeError(Exception):
    """The API server rejected a request, or did not answer (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(KubeError):
    """The object does not exist. A delete treats this as success."""


class AlreadyExists(KubeError):
    """An object of this name exists. Read it: this operator may have created it before a crash."""


class Conflict(KubeError):
    """The object has changed since it was read. Read it again."""


class Refused(KubeError):
    """Rights, quota, admission or validation forbid the request. An immediate retry does not help."""


class Away(KubeError):
    """No answer, or one that asks to retry later."""


@dataclass(frozen=True)
class ResourceKind:
    """A kind and the API paths of its objects."""

    api: str  # "/api/v1" or "/apis/<group>/<version>"
    plural: str
    name: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The path of objects; `namespace` is "" for a kind without namespaces."""
        parts = [self.api, *(("namespaces", namespace) if namespace else ()), self.plural, name, subresource]
        return "/".join(p for p in parts if p)

    def object_path(self, namespace: str, name: str, subresource: str = "") -> str:
        """The path of one object, whose name may come from a user. Raises: NotFound, if no object can have this name."""
        if _NAME.fullmatch(name) is None:
            raise NotFound(404, "NotFound", f"{self.name} {name[:100]!r}: this is not a valid object name.")
        return self.path(namespace, name, subresource)


DATASETS: Final = ResourceKind("/apis/lethe.dev/v1alpha1", "datasets", "Dataset")
RESTATEMENTS: Final = ResourceKind("/apis/lethe.dev/v1alpha1", "restatements", "Restatement")
VACUUM_POLICIES: Final = ResourceKind("/apis/lethe.dev/v1alpha1", "vacuumpolicies", "VacuumPolicy")
JOBS: Final = ResourceKind("/apis/batch/v1", "jobs", "Job")
PODS: Final = ResourceKind("/api/v1", "pods", "Pod")
CONFIG_MAPS: Final = ResourceKind("/api/v1", "configmaps", "ConfigMap")
SERVICE_ACCOUNTS: Final = ResourceKind("/api/v1", "serviceaccounts", "ServiceAccount")
ROLES: Final = ResourceKind("/apis/rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDINGS: Final = ResourceKind("/apis/rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
NAMESPACES: Final = ResourceKind("/api/v1", "namespaces", "Namespace")
LEASES: Final = ResourceKind("/apis/coordination.k8s.io/v1", "leases", "Lease")
EVENTS: Final = ResourceKind("/apis/events.k8s.io/v1", "events", "Event")
BY_NAME: Final = {k.name: k for k in (CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, JOBS)}

Document = dict[str, Any]


class Kube:
    """A synchronous client: call it from a thread. Threads may share it."""

    def __init__(self, configuration: Any) -> None:
        # Called with each request's method, the plural of the kind, and the answer's status (0: no answer).
        self.on_request: Callable[[str, str, int], None] = lambda _method, _plural, _status: None
        self._configuration = configuration
        self._pool = urllib3.PoolManager(
            num_pools=4,
            maxsize=32,
            cert_reqs="CERT_REQUIRED" if configuration.verify_ssl else "CERT_NONE",
            ca_certs=configuration.ssl_ca_cert,
            cert_file=configuration.cert_file,
            key_file=configuration.key_file,
            timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS),
            retries=urllib3.Retry(total=2, connect=2, read=0, status=0, redirect=0, other=0, backoff_factor=0.2),
        )

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Document:
        """Raises: NotFound, Refused, Away."""
        return self._request("GET", kind, kind.object_path(namespace, name))

    def list(self, kind: ResourceKind, namespace: str, labels: str = "") -> list[Document]:
        """All objects of a kind. Raises: Refused, Away."""
        return [item for page in self.pages(kind, namespace, labels) for item in page]

    def pages(self, kind: ResourceKind, namespace: str, labels: str = "") -> Iterator[Sequence[Document]]:
        """All objects of a kind, page by page, when they are too many for the memory. Raises: Refused, Away, at any page."""
        query = {"limit": str(PAGE), **({"labelSelector": labels} if labels else {})}
        while True:
            page = self._request("GET", kind, kind.path(namespace), query)
            yield page.get("items") or ()
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    def create(self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Document:
        """Raises: AlreadyExists, Refused, NotFound (the namespace), Away."""
        return self._request("POST", kind, kind.path(namespace), body=document)

    def patch(
        self, kind: ResourceKind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Document:
        """A merge patch: null removes, lists are replaced. Raises: NotFound, Conflict, Refused, Away."""
        return self._request(
            "PATCH", kind, kind.object_path(namespace, name, subresource), body=patch, content_type=MERGE_PATCH
        )

    def delete(self, kind: ResourceKind, namespace: str, name: str, policy: str = "Background", uid: str = "") -> None:
        """Delete an object; a missing object is no error. With `uid`, delete only that object. Raises: Conflict, Refused,
        Away."""
        options: Document = {"propagationPolicy": policy}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._request("DELETE", kind, kind.object_path(namespace, name), body=options)
        except NotFound:
            return

    def _request(
        self,
        method: str,
        kind: ResourceKind,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> Document:
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = {"Accept": "application/json", "User-Agent": "lethe-operator"}
        token = self._token()
        if token:
            headers["Authorization"] = token
        if body is not None:
            headers["Content-Type"] = content_type
        content = None if body is None else json.dumps(body).encode()
        try:
            response = self._pool.request(method, url, body=content, headers=headers)
        except urllib3.exceptions.HTTPError as e:
            self.on_request(method, kind.plural, 0)
            raise Away(0, "NoAnswer", f"{method} {path}: {type(e).__name__}") from None
        self.on_request(method, kind.plural, response.status)
        if response.status >= 300:
            raise error_of(response.status, response.data, f"{method} {path}")
        return json.loads(response.data) if response.data else {}

    def _token(self) -> str:
        for key in (
            "BearerToken",
            "authorization",
        ):  # the name depends on the client's version; the call refreshes the token
            found = self._configuration.get_api_key_with_prefix(key)
            if found:
                return str(found) if " " in str(found) else f"Bearer {found}"
        return ""


def error_of(status: int, content: bytes, request: str) -> KubeError:
    """The error for an answer with a status of 300 or more."""
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    reason = str(document.get("reason") or status) if isinstance(document, dict) else str(status)
    message = f"{request}: {document.get('message', '') if isinstance(document, dict) else ''}"
    if status == 404:
        return NotFound(status, reason, message)
    if status == 409:
        return (
            AlreadyExists(status, reason, message) if reason == "AlreadyExists" else Conflict(status, reason, message)
        )
    if status in (400, 401, 403, 405, 413, 422):
        return Refused(status, reason, message)
    return Away(status, reason, message)


def connect() -> Kube:
    """Connect with the pod's ServiceAccount, else with the kubeconfig. Raises: ConfigException."""
    try:
        kubernetes.config.load_incluster_config()
    except ConfigException:
        kubernetes.config.load_kube_config()
    return Kube(kubernetes.client.Configuration.get_default_copy())
