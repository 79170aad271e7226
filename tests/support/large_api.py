"""As much of a Kubernetes API server as an operator needs to list and watch very many finished Restatements, with faulty watches.

A real API server takes minutes to store as many, and does not stop forwarding events on request.
"""

import json
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lethe.kube import METADATA_ONLY

API = "/apis/lethe.dev/v1alpha1"
COLLECTION = f"{API}/namespaces/ns/restatements"


def _resources(kind: str, singular: str, plural: str, namespaced: bool = True) -> dict[str, Any]:
    verbs = ["get", "list", "watch", "patch"]
    found = {"name": plural, "kind": kind, "singularName": singular, "namespaced": namespaced, "verbs": verbs}
    return {"resources": [found]}


def _group(name: str, version: str) -> dict[str, Any]:
    return {"name": name, "versions": [{"version": version}], "preferredVersion": {"version": version}}


# What kopf asks for before it watches.
DISCOVERY: dict[str, Any] = {
    "/version": {"major": "1", "minor": "36"},
    "/api": {"versions": ["v1"]},
    "/api/v1": _resources("Namespace", "namespace", "namespaces", namespaced=False),
    "/apis": {"groups": [_group("lethe.dev", "v1alpha1"), _group("apiextensions.k8s.io", "v1")]},
    "/apis/apiextensions.k8s.io/v1": _resources(
        "CustomResourceDefinition", "customresourcedefinition", "customresourcedefinitions", namespaced=False
    ),
    API: _resources("Restatement", "restatement", "restatements"),
}
Json = dict[str, Any]


@dataclass(frozen=True)
class Stored:
    version: int
    batch: str  # what the Restatement reverts


@dataclass
class LargeApi:
    """Restatements `r00000`, `r00001`, … of one namespace."""

    port: int = 0
    objects: dict[str, Stored] = field(default_factory=dict)
    changes: list[tuple[int, str, str, Stored]] = field(default_factory=list)
    version: int = 100
    oldest: int = 100  # watches from an earlier version get 410
    requests: list[str] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    _watches: int = 0
    _stalled: int = 0  # watches up to this number forward nothing
    _cut: int = 0  # and these have ended

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(self, name: str, batch: str, is_reported: bool = True) -> None:
        """Create or change a Restatement.

        Args:
            is_reported: False: no watch ever tells of it.
        """
        with self.news:
            self.version += 1
            type = "MODIFIED" if name in self.objects else "ADDED"
            self.objects[name] = Stored(self.version, batch)
            if is_reported:
                self.changes.append((self.version, type, name, self.objects[name]))
            self.news.notify_all()

    def delete(self, name: str, is_reported: bool = True) -> None:
        with self.news:
            self.version += 1
            gone = self.objects.pop(name)
            if is_reported:
                self.changes.append((self.version, "DELETED", name, Stored(self.version, gone.batch)))
            self.news.notify_all()

    def stall(self) -> None:
        """Let the open watches forward nothing more, and stay open."""
        with self.news:
            self._stalled = self._watches

    def forget(self) -> None:
        """End the open watches, and forget all changes up to now."""
        with self.news:
            self._cut, self.oldest, self.changes = self._watches, self.version, []
            self.news.notify_all()

    def count(self, what: str) -> int:
        """How many requests there were: "list", "metadata", "get" or "watch"."""
        with self.news:
            return self.requests.count(what)


def body(name: str, stored: Stored) -> Json:
    """A finished Restatement as the API server returns it, with what nobody needs."""
    ended = "2026-03-01T12:00:00Z"
    fields = {f"f:{n}": {f"f:{m}": {} for m in range(8)} for n in range(6)}
    condition = {"status": "True", "reason": "Succeeded", "message": "3 rows deleted.", "lastTransitionTime": ended}
    return {
        "apiVersion": "lethe.dev/v1alpha1",
        "kind": "Restatement",
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"00000000-0000-4000-8000-0000000{name}",
            "generation": 1,
            "resourceVersion": str(stored.version),
            "creationTimestamp": ended,
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x" * 300},
            "managedFields": [{"manager": "kubectl", "operation": "Apply", "time": ended, "fieldsV1": fields}],
        },
        "spec": {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": [stored.batch]},
        "status": {
            "observedGeneration": 1,
            "phase": "Succeeded",
            "conditions": [{"type": "Succeeded", "observedGeneration": 1, **condition}],
            "result": {"snapshotId": 7423456789012345678, "rowsDeleted": 3},
        },
    }


def metadata_of(name: str, stored: Stored) -> Json:
    return {"metadata": body(name, stored)["metadata"]}


@contextmanager
def large_api(count: int) -> Iterator[LargeApi]:
    """A server on the loopback."""
    server = LargeApi(objects={f"r{n:05}": Stored(n + 1, "b") for n in range(count)})
    server.version = server.oldest = count + 100
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(server))
    http.daemon_threads = True
    server.port = http.server_port
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.forget()
        http.shutdown()
        http.server_close()


def _handler_of(server: LargeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(url.query).items()}
            if url.path in DISCOVERY:
                return self._send(200, DISCOVERY[url.path])
            if url.path == COLLECTION:
                return self._watch(query) if query.get("watch") == "true" else self._list(query)
            self._record("get")
            name = url.path.rpartition("/")[2]
            with server.news:
                found = server.objects.get(name)
            return self._send(200, body(name, found)) if found else self._send(404, {"reason": "NotFound"})

        def _record(self, what: str) -> None:
            with server.news:
                server.requests.append(what)

        def _list(self, query: dict[str, str]) -> None:
            is_metadata = self.headers["Accept"] == METADATA_ONLY
            self._record("metadata" if is_metadata else "list")
            with server.news:
                version, names = server.version, sorted(server.objects)
                start = bisect_right(names, query["continue"]) if "continue" in query else 0
                page = names[start : start + int(query.get("limit") or len(names) + 1)]
                found = [(name, server.objects[name]) for name in page]
            more = {"continue": page[-1]} if start + len(page) < len(names) else {}
            make = metadata_of if is_metadata else body
            items = [make(name, stored) for name, stored in found]
            return self._send(200, {"metadata": {"resourceVersion": str(version), **more}, "items": items})

        def _watch(self, query: dict[str, str]) -> None:
            self._record("watch")
            last = int(query["resourceVersion"])
            with server.news:
                server._watches += 1
                number = server._watches
                is_gone = last < server.oldest
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                if is_gone:
                    self._event("ERROR", {"code": 410, "reason": "Expired"})
                    return self._chunk(b"")
                while True:
                    with server.news:
                        if number <= server._cut:
                            return self._chunk(b"")
                        found = [] if number <= server._stalled else [c for c in server.changes if c[0] > last]
                        if not found:
                            server.news.wait(0.5)
                    for version, type, name, stored in found:
                        self._event(type, body(name, stored))
                        last = version

        def _event(self, type: str, found: Json) -> None:
            self._chunk(json.dumps({"type": type, "object": found}).encode() + b"\n")

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

        def _send(self, status: int, document: Json) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    return Handler
