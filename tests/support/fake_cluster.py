"""A Kubernetes API server of a few lines: it stores documents and merges patches, and knows nothing of what they mean."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from lethe.kube import WATCHED, AlreadyExists, Conflict, Document, ListPage, NotFound
from lethe_local.api.objects import matches
from lethe_local.api.patches import merged
from lethe_operator.carry_out import Sweeps
from lethe_operator.cluster.client import SPARK_APPLICATIONS, ResourceKind
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.tables import TableReader
from lethe_operator.reconcile import Reconciler
from lethe_operator.settings import Settings

from tests.support.builders import NOW


class FakeCluster:
    """Speaks as lethe.kube.Kube does. A watch reports each change at once, unless it is held back."""

    def __init__(self, *objects: tuple[ResourceKind, Document]) -> None:
        self.objects: dict[tuple[str, str, str], Document] = {}
        self.watchers: list[WatchedObjects] = []
        self.held_back: set[ResourceKind | str] = set()  # kinds, or names of objects, of which watches report nothing
        self._unreported: list[tuple[ResourceKind, str, Document]] = []
        self.version = 1  # that of the builders' objects
        for kind, document in objects:
            self.create(kind, document["metadata"]["namespace"], document)

    def get(self, kind: ResourceKind, namespace: str, name: str) -> Document:
        try:
            return _copy(self.objects[kind.name, namespace, name])
        except KeyError:
            raise NotFound(404, "NotFound", f"{kind.name} {namespace}/{name}") from None

    def list(self, kind: ResourceKind, namespace: str, labels: str = "") -> list[Document]:
        found = [o for (k, n, _), o in self.objects.items() if (k, n) == (kind.name, namespace)]
        return [_copy(o) for o in found if matches(labels, o["metadata"].get("labels") or {})]

    def pages(self, kind: ResourceKind, namespace: str, labels: str = "") -> Iterator[Sequence[Document]]:
        found = self.list(kind, namespace, labels)
        yield from (found[n : n + 500] for n in range(0, len(found), 500))

    def page(
        self, kind: ResourceKind, namespace: str, labels: str = "", after: str = "", metadata_only: bool = False
    ) -> ListPage:
        assert not after, "everything is on the first page"
        found = self.list(kind, namespace, labels)
        return ListPage([{"metadata": o["metadata"]} for o in found] if metadata_only else found, "")

    def release(self, what: ResourceKind | str) -> None:
        """Report what was held back of a kind or of an object."""
        self.held_back.discard(what)
        waiting, self._unreported = self._unreported, []
        for of, type, body in waiting:
            self._report(of, type, body)

    def _report(self, kind: ResourceKind, type: str, body: Document) -> None:
        if kind in self.held_back or body["metadata"]["name"] in self.held_back:
            self._unreported.append((kind, type, _copy(body)))
            return
        for watcher in self.watchers if kind in (*WATCHED, SPARK_APPLICATIONS) else ():
            watcher.record_event(kind, type, _copy(body))

    def create(self, kind: ResourceKind, namespace: str, document: Mapping[str, Any]) -> Document:
        key = (kind.name, namespace, document["metadata"]["name"])
        if key in self.objects:
            raise AlreadyExists(409, "AlreadyExists", str(key))
        created = (NOW + timedelta(seconds=len(self.objects))).isoformat()
        defaults = {
            "namespace": namespace,
            "uid": f"uid-{key[2]}",
            "creationTimestamp": created,
            "resourceVersion": self._version(),
        }
        self.objects[key] = _copy({**document, "metadata": {**defaults, **document["metadata"]}})
        self._report(kind, "ADDED", self.objects[key])
        return _copy(self.objects[key])

    def patch(
        self, kind: ResourceKind, namespace: str, name: str, patch: Mapping[str, Any], subresource: str = ""
    ) -> Document:
        assert subresource in ("", "status")
        old = self.get(kind, namespace, name)
        version = (patch.get("metadata") or {}).get("resourceVersion")
        if version not in (None, old["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", f"{kind.name} {namespace}/{name}")
        new = _copy(merged(old, patch))
        new["metadata"]["resourceVersion"] = self._version()
        self.objects[kind.name, namespace, name] = new
        self._report(kind, "MODIFIED", new)
        return self.get(kind, namespace, name)

    def delete(self, kind: ResourceKind, namespace: str, name: str, policy: str = "Background", uid: str = "") -> None:
        assert policy in ("Background", "Foreground")
        assert not uid or self.get(kind, namespace, name)["metadata"]["uid"] == uid
        gone = self.objects.pop((kind.name, namespace, name), None)
        if gone is not None:
            gone["metadata"]["resourceVersion"] = self._version()
            self._report(kind, "DELETED", gone)

    def _version(self) -> str:
        self.version += 1
        return str(self.version)


@dataclass
class Client:
    """The same server as one operator has it. `requests` are its own, such as "create Job"; `before` the n-th of them,
    counted from 0, or `after` it, something happens."""

    server: FakeCluster
    before: Mapping[int, Callable[[], object]] = field(default_factory=dict)
    after: Mapping[int, Callable[[], object]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    # As that of lethe.kube.Kube: entered for each write, with the namespace.
    writing: Callable[[str], AbstractContextManager[None]] = lambda _namespace: nullcontext()

    def get(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._ask("get", kind, *args, **kwargs)

    def list(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._ask("list", kind, *args, **kwargs)

    def pages(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return iter([self._ask("list", kind, *args, **kwargs)])

    def page(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._ask("page", kind, *args, **kwargs)

    def create(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._write("create", kind, *args, **kwargs)

    def patch(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._write("patch", kind, *args, **kwargs)

    def delete(self, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        return self._write("delete", kind, *args, **kwargs)

    def _write(self, verb: str, kind: ResourceKind, namespace: str, *args: Any, **kwargs: Any) -> Any:
        with self.writing(namespace):
            return self._ask(verb, kind, namespace, *args, **kwargs)

    def _ask(self, verb: str, kind: ResourceKind, *args: Any, **kwargs: Any) -> Any:
        number = len(self.requests)
        self.requests.append(f"{verb} {kind.name}")
        self.before.get(number, lambda: None)()
        try:
            return getattr(self.server, verb)(kind, *args, **kwargs)
        finally:
            self.after.get(number, lambda: None)()


def watched(cluster: FakeCluster) -> WatchedObjects:
    """The store of an operator that has watched the server from its start."""
    objects = WatchedObjects("lethe-committer")
    for namespace in {namespace for _, namespace, _ in cluster.objects} | {"ns"}:
        objects.ensure(cluster, namespace)  # type: ignore[arg-type]
    cluster.watchers.append(objects)
    return objects


def an_operator(
    client: "FakeCluster | Client", tables: TableReader | None = None, settings: Settings | None = None, **more: Any
) -> Reconciler:
    """One that has just been started: it remembers nothing, and has listed everything. It deletes objects before it goes on."""
    server = client.server if isinstance(client, Client) else client
    more.setdefault("sweeps", Sweeps(start=lambda sweep: sweep()))
    return Reconciler(client, watched(server), tables or TableReader(), settings or Settings(), **more)  # type: ignore[arg-type]


def _copy(document: Any) -> Any:
    return json.loads(json.dumps(document))
