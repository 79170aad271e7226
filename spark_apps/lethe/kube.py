"""The Kubernetes API as plain documents: one request, one answer, every error mapped once. I/O.

It uses documents, not the models of a client library: a status must keep 64-bit numbers and fields that a client does not know.
Runs use it too, so it needs no package but urllib3.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import urllib3

PAGE: Final = 500
MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"
METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
"""Lists of names, labels and versions, without specs, statuses and data."""
STRICT: Final = {"fieldValidation": "Strict"}
"""A query of writes: a field that the API server does not know is an error."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")
"""The characters of object names. Others, such as a slash, would make a path of another object."""

Document = dict[str, Any]


class KubeError(Exception):
    """The API server rejected a request, or did not answer (`status` 0)."""

    def __init__(self, status: int, reason: str, message: str, explanation: str = "") -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.explanation = explanation
        """What the API server says, without the request."""


class NotFound(KubeError):
    """The object does not exist. A delete treats this as success."""


class AlreadyExists(KubeError):
    """An object of this name exists. Read it: this operator may have created it before a crash."""


class Conflict(KubeError):
    """The object has changed since it was read. Read it again."""


class RequestRefused(KubeError):
    """Rights, quota, admission or validation forbid the request. An immediate retry does not help."""


class Away(KubeError):
    """No answer, or one that asks to retry later."""


def error_of(status: int, content: bytes, request: str) -> KubeError:
    """The error for an answer with a status of 300 or more."""
    try:
        document = json.loads(content)
    except ValueError:
        document = {}
    if not isinstance(document, dict):
        document = {}
    reason, explanation = str(document.get("reason") or status), str(document.get("message", ""))
    kind: type[KubeError] = Away
    if status == 404:
        kind = NotFound
    elif status == 409:
        kind = AlreadyExists if reason == "AlreadyExists" else Conflict
    elif status in (400, 401, 403, 405, 413, 422):
        kind = RequestRefused
    return kind(status, reason, f"{request}: {explanation}", explanation)


@dataclass(frozen=True)
class TimeLimits:
    """Time limits of requests, in seconds."""

    connect_seconds: float = 5
    # Less than the time from the moment when a leader stops acting until another one may start: a write is sent soon after it was
    # allowed, or never. So it is not repeated either.
    connect_to_write_seconds: float = 1
    read_seconds: float = 30
    retries: int = 2
    """How often a read connects again."""


USUAL: Final = TimeLimits()


class NotLeading(Exception):
    """This process may not act in a namespace any more, so it sent no request. The process that may act there does the work."""

    def __init__(self, namespace: str) -> None:
        super().__init__(f"namespace {namespace}: this process does not act here any more, so it wrote nothing")
        self.namespace = namespace


@dataclass(frozen=True)
class ResourceKind:
    """A kind and the API paths of its objects."""

    api: str
    """`/api/v1` or "/apis/<group>/<version>"."""
    plural: str
    name: str

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The path of objects; `namespace` is "" for a kind without namespaces."""
        parts = [self.api, *(("namespaces", namespace) if namespace else ()), self.plural, name, subresource]
        return "/".join(p for p in parts if p)

    def object_path(self, namespace: str, name: str, subresource: str = "") -> str:
        """The path of one object, whose name may come from a user.

        Raises:
            NotFound: No object can have this name.
        """
        if _NAME.fullmatch(name) is None:
            raise NotFound(404, "NotFound", f"{self.name} {name[:100]!r}: this is not a valid object name.")
        return self.path(namespace, name, subresource)


DATASETS: Final = ResourceKind("/apis/lethe.dev/v1beta1", "datasets", "Dataset")
RESTATEMENTS: Final = ResourceKind("/apis/lethe.dev/v1beta1", "restatements", "Restatement")
VACUUM_POLICIES: Final = ResourceKind("/apis/lethe.dev/v1beta1", "vacuumpolicies", "VacuumPolicy")
JOBS: Final = ResourceKind("/apis/batch/v1", "jobs", "Job")
SPARK_APPLICATIONS: Final = ResourceKind("/apis/sparkoperator.k8s.io/v1beta2", "sparkapplications", "SparkApplication")
PODS: Final = ResourceKind("/api/v1", "pods", "Pod")
CONFIG_MAPS: Final = ResourceKind("/api/v1", "configmaps", "ConfigMap")
SECRETS: Final = ResourceKind("/api/v1", "secrets", "Secret")
SERVICE_ACCOUNTS: Final = ResourceKind("/api/v1", "serviceaccounts", "ServiceAccount")
ROLES: Final = ResourceKind("/apis/rbac.authorization.k8s.io/v1", "roles", "Role")
ROLE_BINDINGS: Final = ResourceKind("/apis/rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")
NAMESPACES: Final = ResourceKind("/api/v1", "namespaces", "Namespace")
LEASES: Final = ResourceKind("/apis/coordination.k8s.io/v1", "leases", "Lease")
TOKEN_REVIEWS: Final = ResourceKind("/apis/authentication.k8s.io/v1", "tokenreviews", "TokenReview")
ACCESS_REVIEWS: Final = ResourceKind("/apis/authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview")
SELF_REVIEWS: Final = ResourceKind("/apis/authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview")
LOCAL_ACCESS_REVIEWS: Final = ResourceKind(
    "/apis/authorization.k8s.io/v1", "localsubjectaccessreviews", "LocalSubjectAccessReview"
)
EVENTS: Final = ResourceKind("/apis/events.k8s.io/v1", "events", "Event")
WATCHED: Final = (DATASETS, RESTATEMENTS, VACUUM_POLICIES, JOBS, PODS, CONFIG_MAPS, LEASES)
"""The kinds that the operator watches. Where Kubeflow's operator is installed, it watches SparkApplications too."""
BY_NAME: Final = {k.name: k for k in (CONFIG_MAPS, SERVICE_ACCOUNTS, ROLES, ROLE_BINDINGS, JOBS, SPARK_APPLICATIONS)}


def is_allowed(status: Mapping[str, Any]) -> bool:
    """Whether the status of an access review grants the right."""
    return status.get("allowed") is True and status.get("denied") is not True


@dataclass(frozen=True)
class ListPage:
    """A part of a list."""

    items: Sequence[Document]
    after: str
    """Where the next page begins; "": there is none."""
    version: str = ""
    """The resourceVersion of the list."""


class Answers(Protocol):
    """Receives the answers to writes."""

    def written(self, kind: ResourceKind, body: Document) -> None:
        """An object as the API server returned it for a write."""

    def deleted(self, kind: ResourceKind, namespace: str, name: str, answer: Document) -> None:
        """The answer to a deletion: the object, if it still exists, or a Status."""

    def unanswered(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """A write got no answer, so it is unknown whether it was carried out."""


@dataclass(frozen=True)
class ApiEndpoint:
    """Where the API server is, and how this process identifies itself."""

    url: str
    """The URL of the server, such as https://10.96.0.1:443."""
    ca_file: str | None = None
    """The certificate of its authority; None: one that the system trusts."""
    verify: bool = True
    cert_file: str | None = None
    """A client certificate."""
    key_file: str | None = None
    authorization: Callable[[], str] = lambda: ""
    """The header Authorization, asked for each request; "": none. Raises: OSError."""


class Kube:
    """A synchronous client: call it from a thread. Threads may share it."""

    def __init__(self, server: ApiEndpoint, limits: TimeLimits = USUAL) -> None:
        # Entered for each write, with the namespace. Raises: NotLeading, if this process may not write there.
        self.writing: Callable[[str], AbstractContextManager[None]] = lambda _namespace: nullcontext()
        # Receives the answers to writes; None: nothing does.
        self.answers: Answers | None = None
        # Called with each request's method, the plural of the kind, and the answer's status (0: no answer).
        self.on_request: Callable[[str, str, int], None] = lambda _method, _plural, _status: None
        # Added to the query of each create and patch.
        self.write_query: Mapping[str, str] = {}
        self.server = server
        self._pool = urllib3.PoolManager(
            num_pools=4,
            maxsize=32,
            cert_reqs="CERT_REQUIRED" if server.verify else "CERT_NONE",
            ca_certs=server.ca_file,
            cert_file=server.cert_file,
            key_file=server.key_file,
        )
        self._read_time_out = urllib3.Timeout(connect=limits.connect_seconds, read=limits.read_seconds)
        self._write_time_out = urllib3.Timeout(connect=limits.connect_to_write_seconds, read=limits.read_seconds)
        again = limits.retries
        self._read_retries = urllib3.Retry(
            total=again, connect=again, read=0, status=0, redirect=0, other=0, backoff_factor=0.2
        )
        self._write_retries = urllib3.Retry(total=0)

    def with_token(self, token: str) -> "Kube":
        """A client with the rights of a bearer token, on the same connections.

        Use it only on a client without credentials of its own: a client certificate would take the place of the token.
        """
        client = copy.copy(self)
        client.server = replace(self.server, authorization=lambda: f"Bearer {token}")
        return client

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Document:
        """Read one object.

        Raises:
            NotFound: The object does not exist.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        return self._request("GET", kind, kind.object_path(namespace, name))

    def list(self, kind: ResourceKind, namespace: str, labels: str = "") -> list[Document]:
        """All objects of a kind.

        Raises:
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        return [item for page in self.pages(kind, namespace, labels) for item in page]

    def pages(self, kind: ResourceKind, namespace: str, labels: str = "") -> Iterator[Sequence[Document]]:
        """All objects of a kind in pages, so that only one page is in memory.

        Raises:
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        after = ""
        while True:
            page = self.page(kind, namespace, labels, after)
            yield page.items
            after = page.after
            if not after:
                return

    def page(
        self,
        kind: ResourceKind,
        namespace: str,
        labels: str = "",
        after: str = "",
        metadata_only: bool = False,
        limit: int = 0,
        name: str = "",
    ) -> ListPage:
        """One page of a list. All pages show one moment, after the request for the first page.

        Raises:
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.

        Args:
            after: `after` of the page before; "": the first page.
            metadata_only: Of each object, return only its metadata.
            limit: How many objects at most; 0: the usual number.
            name: Only this object; "": all.
        """
        query = {"limit": str(limit or PAGE)}
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        if labels:
            query["labelSelector"] = labels
        if after:
            query["continue"] = after
        accept = METADATA_ONLY if metadata_only else JSON
        document = self._request("GET", kind, kind.path(namespace), query, accept=accept)
        about = document.get("metadata") or {}
        return ListPage(
            document.get("items") or (), about.get("continue") or "", str(about.get("resourceVersion") or "")
        )

    def watch(
        self,
        kind: ResourceKind,
        namespace: str,
        version: str,
        name: str = "",
        labels: str = "",
        seconds: int = 20,
        on_open: Callable[[Callable[[], None]], None] = lambda _end: None,
    ) -> Iterator[Document]:
        """The events of a watch after a version, with bookmarks. It ends after so many seconds, or with an event of type ERROR.

        Raises:
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.

        Args:
            name: Only this object; "": all.
            on_open: Called with a function that ends the watch, from any thread.
        """
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        if name:
            query["fieldSelector"] = f"metadata.name={name}"
        if labels:
            query["labelSelector"] = labels
        time_out = urllib3.Timeout(connect=self._read_time_out.connect_timeout, read=seconds + 10)
        for line in self._lines(kind.path(namespace), query, time_out, JSON, on_open):
            yield json.loads(line)

    def create(
        self, kind: ResourceKind, namespace: str, document: Mapping[str, Any], dry_run: bool = False
    ) -> Document:
        """Create an object, which must not exist.

        Args:
            dry_run: Only check whether the API server would create it.

        Raises:
            AlreadyExists: An object of this name exists.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            NotFound: The namespace.
            Away: No answer, or one that asks to retry later.
            NotLeading: This process may not act in a namespace any more, so it sent no request.
        """
        path = kind.path(namespace)
        if dry_run:
            return self._request("POST", kind, path, {**self.write_query, "dryRun": "All"}, body=document)
        name = str(document["metadata"].get("name", ""))
        with self.writing(namespace), self._doubted(kind, namespace, name):
            return self._written(kind, self._request("POST", kind, path, self.write_query, body=document))

    def patch(
        self,
        kind: ResourceKind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        subresource: str = "",
        dry_run: bool = False,
    ) -> Document:
        """A merge patch: null removes, lists are replaced.

        Args:
            dry_run: Change nothing, and return what the API server would make of the object.

        Raises:
            NotFound: The object does not exist.
            Conflict: The object has changed since it was read.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
            NotLeading: This process may not act in a namespace any more, so it sent no request.
        """
        path = kind.object_path(namespace, name, subresource)
        if dry_run:
            return self._request("PATCH", kind, path, {**self.write_query, "dryRun": "All"}, body=patch)
        with self.writing(namespace), self._doubted(kind, namespace, name):
            return self._written(kind, self._request("PATCH", kind, path, self.write_query, body=patch))

    def delete(self, kind: ResourceKind, namespace: str, name: str, policy: str = "Background", uid: str = "") -> None:
        """Delete an object; a missing object is no error. With `uid`, delete only that object.

        Raises:
            Conflict: The object has changed since it was read.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
            NotLeading: This process may not act in a namespace any more, so it sent no request.
        """
        options: Document = {"propagationPolicy": policy}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            path = kind.object_path(namespace, name)
            with self.writing(namespace), self._doubted(kind, namespace, name):
                answer = self._request("DELETE", kind, path, body=options)
        except NotFound:
            return
        if self.answers is not None:
            self.answers.deleted(kind, namespace, name, answer)

    def review(self, kind: ResourceKind, namespace: str, spec: Mapping[str, Any]) -> Document:
        """The status of a review, such as a TokenReview. It is not stored, so every process may ask, also one that does not lead.

        Args:
            namespace: "", unless the kind has namespaces.

        Raises:
            RequestRefused: This process may not ask.
            Away: No answer, or one that asks to retry later.
        """
        metadata = {"namespace": namespace} if namespace else {}
        body = {"apiVersion": kind.api.removeprefix("/apis/"), "kind": kind.name, "metadata": metadata, "spec": spec}
        return dict(self._request("POST", kind, kind.path(namespace), body=body).get("status") or {})

    def version(self) -> Document:
        """The version of the API server.

        Raises:
            RequestRefused: No right.
            Away: No answer, or one that asks to retry later.
        """
        return self._request("GET", ResourceKind("", "version", "Version"), "/version")

    def log(self, namespace: str, pod: str, container: str, last: int = 0, follow: bool = False) -> Iterator[str]:
        """The lines of a container's log.

        Raises:
            NotFound: The pod.
            RequestRefused: It has not started, or no right.
            Away: No answer, or one that asks to retry later.

        Args:
            last: Only so many lines at the end; 0: all.
            follow: Go on until the container has ended.
        """
        query = {
            "container": container,
            **({"tailLines": str(last)} if last else {}),
            **({"follow": "true"} if follow else {}),
        }
        path = PODS.object_path(namespace, pod, "log")
        time_out = urllib3.Timeout(connect=self._read_time_out.connect_timeout, read=None) if follow else None
        return (line.decode(errors="replace") for line in self._lines(path, query, time_out, "*/*"))

    def proxied(self, namespace: str, pod: str, port: int, path: str) -> Iterator[str]:
        """The lines that a pod answers to an HTTP request, which the API server passes on.

        Raises:
            NotFound: The pod, or the path.
            RequestRefused: No right.
            Away: No answer, or one that asks to retry later.
        """
        place = f"{PODS.object_path(namespace, pod)}:{port}/proxy/{path}"
        return (line.decode(errors="replace") for line in self._lines(place, {}, None, "*/*"))

    def _lines(
        self,
        path: str,
        query: Mapping[str, str],
        time_out: Any,
        accept: str,
        on_open: Callable[[Callable[[], None]], None] = lambda _end: None,
    ) -> Iterator[bytes]:
        """The lines of an answer, as they come.

        Raises:
            NotFound: The object does not exist.
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        try:
            response = self._pool.request(
                "GET", f"{self.server.url}{path}?{urlencode(query)}", headers=self._headers(accept),
                timeout=time_out or self._read_time_out, retries=self._read_retries, preload_content=False,
            )  # fmt: skip
            try:
                if response.status >= 300:
                    raise error_of(response.status, response.data, f"GET {path}")
                on_open(response.shutdown)
                incomplete = b""
                for part in response.stream():
                    *whole, incomplete = (incomplete + part).split(b"\n")
                    yield from whole
                if incomplete:
                    yield incomplete
            finally:
                response.close()  # a caller that stops earlier leaves the rest of the answer on the connection
        except urllib3.exceptions.HTTPError as e:
            raise Away(0, "NoAnswer", f"GET {path}: {type(e).__name__}") from None

    def _written(self, kind: ResourceKind, body: Document) -> Document:
        if self.answers is not None:
            self.answers.written(kind, body)
        return body

    @contextmanager
    def _doubted(self, kind: ResourceKind, namespace: str, name: str) -> Iterator[None]:
        """Report a write that got no answer, or the answer of a server that may have carried it out."""
        try:
            yield
        except Away:
            if self.answers is not None:
                self.answers.unanswered(kind, namespace, name)
            raise

    def _request(
        self,
        method: str,
        kind: ResourceKind,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
    ) -> Document:
        url = self.server.url + path + (f"?{urlencode(query)}" if query else "")
        headers = self._headers(accept)
        if body is not None:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else JSON
        content = None if body is None else json.dumps(body).encode()
        try:
            response = self._pool.request(
                method,
                url,
                body=content,
                headers=headers,
                timeout=self._read_time_out if method == "GET" else self._write_time_out,
                retries=self._read_retries if method == "GET" else self._write_retries,
            )
        except urllib3.exceptions.HTTPError as e:
            self.on_request(method, kind.plural, 0)
            raise Away(0, "NoAnswer", f"{method} {path}: {type(e).__name__}") from None
        self.on_request(method, kind.plural, response.status)
        if response.status >= 300:
            raise error_of(response.status, response.data, f"{method} {path}")
        return json.loads(response.data) if response.data else {}

    def _headers(self, accept: str) -> dict[str, str]:
        """The headers of a request.

        Raises:
            Away: The token cannot be read now.
        """
        try:
            authorization = self.server.authorization()
        except OSError as e:
            raise Away(0, "NoToken", f"the token for the API server cannot be read: {e}") from None
        return {"Accept": accept, "User-Agent": "lethe", **({"Authorization": authorization} if authorization else {})}
