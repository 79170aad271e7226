"""The API server of `lethe local`, which fails when a test says so: requests, answers, watches and what it remembers."""

import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import kubernetes.client
import kubernetes.config
from lethe.kube import CONFIG_MAPS, LEASES, METADATA_ONLY, ApiEndpoint
from lethe_local.api import server as local
from lethe_local.api.objects import ApiKind, LocalObjects, StatusError, expired
from lethe_local.api.patches import merged
from lethe_local.api.store import ChangeType, Json, LocalApiStore
from lethe_local.folder import Folder
from lethe_operator.cluster.client import Kube, ResourceKind, of_configuration
from lethe_spark.run.kube import PodApi

from tests.support.clock import SLOWER

NAMESPACE = "air"


class _Store(LocalApiStore):
    """A store that loses changes."""

    @property
    def news(self) -> threading.Condition:
        """While it is held, nothing changes. Notified after each change."""
        return self._changed

    def forget(self, only: int | None = None) -> None:
        """Forget all changes up to now, or only one."""
        with self._changed:
            self._connection.execute("DELETE FROM changes WHERE version = ? OR ? IS NULL", (only, only))

    def has_forgotten(self, version: int) -> bool:
        with self._changed:
            return self._is_too_old(version)


class ApiServer:
    """What is there, and what happened to it."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.store = _Store(folder.state)
        self.news = self.store.news
        self.gone_as_event = True
        """Whether 410 is told inside a watch rather than in its place."""
        self.refusals: list[tuple[str, str, int]] = []
        """What requests are answered with instead, one after the other: method, end of the path, status. 0 cuts the
        connection."""
        self.lost_answers: list[tuple[str, str]] = []
        """Requests that are carried out and not answered: method, path."""
        self.before: dict[tuple[str, str], Callable[[], object]] = {}
        """What happens before requests: by method and path."""
        self.logs: dict[str, bytes] = {}
        """What pods have written, by the path of the request."""
        self.checks_tokens = True
        self.requests: list[tuple[str, str]] = []
        """Method and path of each."""
        self.queries: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.counted: Counter[str] = Counter()
        """Reads of objects by their way: "list", "metadata", "get" or "watch"."""
        self.watches: list[_Handler] = []
        objects = LocalObjects(self.store)
        self._server = local.ApiServer(objects, folder.token, folder.certificate)
        inner: Any = self._server._server
        inner.RequestHandlerClass = type(
            "Handler", (_Handler,), {"objects": objects, "token": folder.token, "faulty": self}
        )
        self.port = self._server.port
        folder.write_kubeconfig(self.port)
        self._server.start()

    def stop(self) -> None:
        self.store.close()
        self._server.stop()

    @property
    def account(self) -> Path:
        """The folder of the ServiceAccount that may ask."""
        return self.folder.account

    @property
    def api(self) -> PodApi:
        """The client of a run."""
        found = PodApi.from_environment(self.environment, "tests")
        assert found is not None
        return found

    @property
    def kube(self) -> Kube:
        """The client of an operator."""
        return Kube(endpoint(self.folder.kubeconfig))

    @property
    def environment(self) -> dict[str, str]:
        """What a pod would find."""
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "POD_NAMESPACE": NAMESPACE,
            "LETHE_SERVICE_ACCOUNT": str(self.account),
        }

    # --- what a test does, or another client: nothing is validated --------------------------------------------------------

    def create(self, name: str, kind: ResourceKind = CONFIG_MAPS, **fields: Any) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{name}"}
        of_kind = {"apiVersion": ApiKind(kind).api_version, "kind": kind.name}
        self.create_all(kind, [{**of_kind, "metadata": metadata, **fields}])

    def create_all(self, kind: ResourceKind, bodies: list[Json]) -> None:
        with self.store.transaction() as t:
            for body in bodies:
                t.put(ApiKind(kind).key, body, ChangeType.ADDED)

    def patch(self, name: str, kind: ResourceKind, patch: Mapping[str, Any], is_reported: bool = True) -> None:
        """Merge a patch. One that changes nothing makes no version.

        Args:
            is_reported: False: no watch ever tells of it.
        """
        with self.news:
            before = self.get(name, kind)
            after = merged(before, patch)
            if after == before:
                return
            with self.store.transaction() as t:
                t.put(ApiKind(kind).key, after, ChangeType.MODIFIED)
            if not is_reported:
                self.store.forget(self.store.version())

    def put(self, name: str, **data: str | None) -> None:
        """Set keys of a ConfigMap, or remove them."""
        self.patch(name, CONFIG_MAPS, {"data": data})

    def delete(self, name: str, kind: ResourceKind = CONFIG_MAPS, is_reported: bool = True) -> None:
        with self.news:
            found = self.get(name, kind)
            with self.store.transaction() as t:
                t.remove(ApiKind(kind).key, found)
            if not is_reported:
                self.store.forget(self.store.version())

    def all_of(self, kind: ResourceKind) -> list[Json]:
        with self.store.transaction() as t:
            return list(t.list(ApiKind(kind).key, ""))

    def find(self, name: str, kind: ResourceKind = CONFIG_MAPS) -> Json | None:
        with self.store.transaction() as t:
            return t.get(ApiKind(kind).key, NAMESPACE, name)

    def get(self, name: str, kind: ResourceKind = CONFIG_MAPS) -> Json:
        found = self.find(name, kind)
        assert found is not None, f"there is no {kind.name} {name}"
        return found

    def data(self, name: str) -> dict[str, str]:
        return dict(self.get(name).get("data") or {})

    def lease(self, name: str) -> Json:
        return dict(self.get(name, LEASES).get("spec") or {})

    def history(self, kind: ResourceKind = CONFIG_MAPS) -> list[Json]:
        """What became of the objects of a kind, change by change."""
        changes = self.store.changes(ApiKind(kind).key, 0, 0)
        assert changes is not None, "changes were forgotten"
        return [json.loads(c.body) for c in changes[0]]

    def forget(self) -> None:
        """End the open watches, and forget all changes up to now."""
        with self.news:
            self.store.forget()
            self.cut_watches()

    def stall(self) -> None:
        """Let the open watches forward nothing more, and stay open."""
        with self.news:
            for watch in self.watches:
                watch.is_stalled = True

    def cut_watches(self) -> None:
        with self.news:
            for watch in self.watches:
                with suppress(OSError):  # it has ended
                    watch.connection.shutdown(socket.SHUT_RDWR)

    def wait_for(self, holds: Callable[[], bool], within_seconds: float, what: str = "") -> None:
        """Until something holds that requests can bring about."""
        limit = SLOWER * within_seconds
        until = time.monotonic() + limit
        with self.news:
            while not holds():
                assert time.monotonic() < until, f"not within {limit} s: {what or holds}"
                self.news.wait(0.5)


class _Handler(local._Handler):
    faulty: ApiServer
    is_stalled = False
    _is_unanswered = False

    def authorize(self) -> None:
        self.faulty.tokens.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
        if self.faulty.checks_tokens:
            super().authorize()

    def answer(self, body: bytes) -> None:
        url = urlsplit(self.path)
        asked = (self.command, url.path)
        faulty = self.faulty
        with faulty.news:
            faulty.requests.append(asked)
            faulty.queries.append(dict(parse_qsl(url.query)))
            faulty.news.notify_all()
            refusal = next((r for r in faulty.refusals if r[0] == asked[0] and url.path.endswith(r[1])), None)
            if refusal is not None:
                faulty.refusals.remove(refusal)
            elif asked in faulty.lost_answers:
                faulty.lost_answers.remove(asked)
                self._is_unanswered = True
        if refusal is None:
            faulty.before.get(asked, lambda: None)()
            if url.path in faulty.logs:
                self.send(200, "text/plain", faulty.logs[url.path])
            else:
                super().answer(body)
            return
        self.close_connection = True
        if status := refusal[2]:
            self._send(status, StatusError(status, "Refused", f"refused with {status}").document)

    def _done(self, target: local.PathTarget, query: Mapping[str, str], body: Any) -> Any:
        if self.command == "GET":
            is_metadata = self.headers["Accept"] == METADATA_ONLY
            self._count("get" if target.name else "metadata" if is_metadata else "list", target, query)
        return super()._done(target, query, body)

    def _watch(self, target: local.PathTarget, query: Mapping[str, str]) -> None:
        faulty, version = self.faulty, int(query["resourceVersion"])
        with faulty.news:
            self._count("watch", target, query)
            faulty.watches.append(self)
            faulty.news.notify_all()
        if not faulty.gone_as_event and faulty.store.has_forgotten(version):
            self._send(410, expired(version).document)
        else:
            super()._watch(target, query)

    def _events(self, target: local.PathTarget, query: Mapping[str, str]) -> Iterator[Mapping[str, Any]]:
        self.is_stalled = False
        return (e for e in super()._events(target, query) if not self.is_stalled)

    def _count(self, what: str, target: local.PathTarget, query: Mapping[str, str]) -> None:
        is_of_runs = target.kind.resource in (CONFIG_MAPS, LEASES) and target.namespace == NAMESPACE
        assert target.name or not is_of_runs or "fieldSelector" in query, "runs may only list objects by name"
        self.faulty.counted[what] += target.kind.definition is not None

    def _send(self, status: int, document: Any) -> None:
        if self._is_unanswered:
            self.close_connection = True
        else:
            super()._send(status, document)


def endpoint(kubeconfig: Path) -> ApiEndpoint:
    """How clients reach a server."""
    configuration = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    return of_configuration(configuration)


@contextmanager
def running(folder: Path) -> Iterator[ApiServer]:
    """A server on the loopback, with its files in `folder`."""
    files = Folder(folder)
    files.prepare()
    server = ApiServer(files)
    try:
        yield server
    finally:
        server.stop()
