"""As much of a Kubernetes API server as runs talk to: ConfigMaps, Leases and Secrets of one namespace, over TLS and with a token.

Get, list and watch by a field selector, create, merge patches. Versions only ever grow, a patch that changes nothing makes none,
and answers 410 to a watch from a version that it has forgotten.
"""

import json
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lethe.kube import MERGE_PATCH
from lethe_spark.run.kube import PodApi

TOKEN = "the-token"
NAMESPACE = "air"
COLLECTIONS = {
    f"/api/v1/namespaces/{NAMESPACE}/configmaps": "ConfigMap",
    f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases": "Lease",
}
CONFIG_MAPS, LEASES = COLLECTIONS
Json = dict[str, Any]


@dataclass
class Change:
    version: int
    type: str
    path: str
    object: Json


@dataclass
class ApiServer:
    """What is there, and what happened to it.

    Args:
        account: The folder of the ServiceAccount that may ask.
        refusals: What requests are answered with instead, one after the other: (method, end of the path, status); 0 cuts the
            connection.
        gone_as_event: Whether 410 is told inside a watch rather than in its place.
    """

    account: Path
    port: int = 0
    gone_as_event: bool = False
    objects: dict[str, Json] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    version: int = 100
    oldest: int = 100
    refusals: list[tuple[str, str, int]] = field(default_factory=list)
    lost_answers: list[tuple[str, str]] = field(default_factory=list)  # requests that are carried out and not answered
    requests: list[tuple[str, str]] = field(default_factory=list)
    watches: int = 0
    news: threading.Condition = field(default_factory=threading.Condition)
    _cuts: int = 0

    @property
    def api(self) -> PodApi:
        found = PodApi.from_environment(self.environment, "tests")
        assert found is not None
        return found

    @property
    def environment(self) -> dict[str, str]:
        """What a pod would find."""
        return {
            "KUBERNETES_SERVICE_HOST": "localhost",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "POD_NAMESPACE": NAMESPACE,
            "LETHE_SERVICE_ACCOUNT": str(self.account),
        }

    # --- what a test does, or another client ------------------------------------------------------------------------------

    def create(self, name: str, collection: str = CONFIG_MAPS, **fields: Any) -> None:
        with self.news:
            self._store("ADDED", f"{collection}/{name}", {"metadata": {"name": name}, **fields})

    def put(self, name: str, **data: str | None) -> None:
        """Set keys of a ConfigMap, or remove them."""
        with self.news:
            self.patch(f"{CONFIG_MAPS}/{name}", {"data": data})

    def delete(self, name: str) -> None:
        with self.news:
            path = f"{CONFIG_MAPS}/{name}"
            self._store("DELETED", path, self.objects[path])

    def data(self, name: str) -> dict[str, str]:
        with self.news:
            return dict(self.objects[f"{CONFIG_MAPS}/{name}"].get("data") or {})

    def lease(self, name: str) -> Json:
        with self.news:
            return dict(self.objects[f"{LEASES}/{name}"].get("spec") or {})

    def forget(self) -> None:
        """Forget all changes up to now."""
        with self.news:
            self.oldest, self.changes = self.version, []

    def cut_watches(self) -> None:
        with self.news:
            self._cuts += 1
            self.news.notify_all()

    def wait_for(self, holds: Callable[[], bool], within_seconds: float, what: str = "") -> None:
        """Until something holds that requests can bring about."""
        until = time.monotonic() + within_seconds
        with self.news:
            while not holds():
                assert time.monotonic() < until, f"not within {within_seconds} s: {what or holds}"
                self.news.wait(0.5)

    def patch(self, path: str, patch: Mapping[str, Any]) -> None:
        """Raises: KeyError, if there is no such object."""
        before = self.objects[path]
        after = merged(before, patch)
        if after != before:
            self._store("MODIFIED", path, after)

    def _store(self, type: str, path: str, found: Json) -> None:
        self.version += 1
        stored = {**found, "metadata": {**found["metadata"], "resourceVersion": str(self.version)}}
        if type == "DELETED":
            del self.objects[path]
        else:
            self.objects[path] = stored
        self.changes.append(Change(self.version, type, path, stored))
        self.news.notify_all()


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """A server on the loopback; `folder` becomes the ServiceAccount of those who may ask it."""
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", "key.pem", "-out", "ca.crt"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "token").write_text(f"{TOKEN}\n")
    server = ApiServer(folder)
    http = ThreadingHTTPServer(("localhost", 0), _handler_of(server))
    http.daemon_threads = True
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    # The handshake belongs to the thread of the connection: one that never comes must not hold up the others.
    http.socket = tls.wrap_socket(http.socket, server_side=True, do_handshake_on_connect=False)
    server.port = http.server_port
    threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.cut_watches()
        http.shutdown()
        http.server_close()


def _handler_of(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = {k: v[0] for k, v in parse_qs(url.query).items()}
            if self._is_refused(url.path):
                return None
            if url.path not in COLLECTIONS:
                with server.news:
                    found = server.objects.get(url.path)
                return self._send(200 if found else 404, found or {"code": 404})
            assert query["fieldSelector"].startswith("metadata.name="), "nothing else is allowed to it"
            name = query["fieldSelector"].removeprefix("metadata.name=")
            if query.get("watch") == "true":
                return self._watch(f"{url.path}/{name}", query)
            with server.news:
                one = server.objects.get(f"{url.path}/{name}")
                version = {"resourceVersion": str(server.version)}
            return self._send(200, {"metadata": version, "items": [one] if one else []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            url = urlsplit(self.path)
            collection = url.path
            metadata = body["metadata"]
            path = f"{collection}/{metadata.get('name') or metadata['generateName'] + 'x'}"
            if self._is_refused(collection):
                return None
            if parse_qs(url.query).get("dryRun"):
                return self._send(201, body)
            with server.news:
                taken = path in server.objects
                if not taken:
                    server._store("ADDED", path, body)
            if taken:
                return self._send(409, {"code": 409})
            if ("POST", collection) in server.lost_answers:
                server.lost_answers.remove(("POST", collection))
                self.close_connection = True
                return None
            return self._send(201, body)

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = urlsplit(self.path).path
            if self._is_refused(path):
                return None
            if self.headers["Content-Type"] != MERGE_PATCH:
                return self._send(415, {"code": 415})
            with server.news:
                found = path in server.objects
                if found:
                    server.patch(path, body)
                answer = server.objects.get(path)
            return self._send(200 if found else 404, answer or {"code": 404})

        def _is_refused(self, path: str) -> bool:
            with server.news:
                server.requests.append((self.command, path))
                meant = (r for r in server.refusals if r[0] == self.command and path.endswith(r[1]))
                refusal = next(meant, None)
                if refusal is not None:
                    server.refusals.remove(refusal)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                refusal = (self.command, path, 401)
            if refusal is None:
                return False
            if status := refusal[2]:
                self._send(status, {"code": status, "message": f"refused with {status}"})
            self.close_connection = True
            return True

        def _watch(self, path: str, query: Mapping[str, str]) -> None:
            last, until = int(query["resourceVersion"]), time.monotonic() + float(query["timeoutSeconds"])
            with server.news:
                is_gone, cuts = last < server.oldest, server._cuts
                server.watches += 1
                server.news.notify_all()
            if is_gone and not server.gone_as_event:
                return self._send(410, {"code": 410})
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                if is_gone:
                    self._event("ERROR", {"code": 410, "reason": "Expired"})
                    return self._chunk(b"")
                while True:
                    with server.news:
                        found = [c for c in server.changes if c.path == path and c.version > last]
                        going = server._cuts == cuts and last >= server.oldest and time.monotonic() < until
                        if not found and going:
                            server.news.wait(min(0.5, max(0.0, until - time.monotonic())))
                            continue
                        bookmark, is_cut = server.version, server._cuts != cuts or last < server.oldest
                    if is_cut:
                        self.close_connection = True
                        return None
                    for change in found:
                        self._event(change.type, change.object)
                        last = change.version
                    if not found:
                        self._event("BOOKMARK", {"metadata": {"resourceVersion": str(bookmark)}})
                        return self._chunk(b"")
            return None

        def _event(self, type: str, found: Json) -> None:
            self._chunk(json.dumps({"type": type, "object": found}).encode() + b"\n")

        def _chunk(self, content: bytes) -> None:
            self.wfile.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
            self.wfile.flush()

        def _send(self, status: int, document: Json) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    return Handler
