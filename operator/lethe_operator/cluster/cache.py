"""The objects that the operator watches, as they were last seen. I/O: listings and watches that find what was missed.

An object never becomes older: a version that is not newer than the known one changes nothing, whether it comes from a watch, a
listing or an answer, and an object that was deleted does not return. Only the parts of an object that the operator needs stay in
memory. Threads may share a store.

A watch reports each change. `KindListing` compares names and versions, page by page, and finds what a watch has lost, so that
tens of thousands of objects cost little memory. A new leader that has watched so far reads what has changed since the newest
version that it knows, because a list of 60,000 objects takes the API server half a minute.
"""

import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from lethe.kube import (
    CONFIG_MAPS,
    JOBS,
    LEASES,
    PODS,
    SPARK_APPLICATIONS,
    Document,
    Kube,
    KubeError,
    ListPage,
    NotFound,
    ResourceKind,
)

from lethe_operator.resources.common import is_newer

Body = Mapping[str, Any]

# Written by the API server and by kubectl. Together they are larger than the rest of many objects.
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The parts of pods and of objects with pod templates that repeat what the operator itself has built.
_POD_PARTS: Final = frozenset(
    {
        *("containers", "initContainers", "ephemeralContainers", "volumes", "template"),
        *("driver", "executor", "arguments"),  # of a SparkApplication
    }
)


def trimmed(body: Body) -> dict[str, Any]:
    """An object without managedFields, without kubectl's annotation, and without containers and volumes of pods."""
    document = {"metadata": _metadata(body["metadata"])}
    for key, value in body.items():
        if key == "spec" and isinstance(value, Mapping):
            document[key] = {k: shared_strings(v) for k, v in value.items() if k not in _POD_PARTS}
        elif key == "data":
            document[key] = dict(value or {})
        elif key not in ("metadata", "apiVersion", "kind", "binaryData"):
            document[key] = shared_strings(value)
    return document


def trimmed_resource(body: Body) -> dict[str, Any]:
    """One of Lethe's resources, with its whole spec."""
    return {
        "metadata": _metadata(body["metadata"]),
        "spec": shared_strings(body.get("spec") or {}),
        "status": shared_strings(body.get("status") or {}),
    }


def shared_strings(value: Any) -> Any:
    """The same value with interned strings: thousands of objects have the same keys, labels and messages."""
    if isinstance(value, Mapping):
        return {sys.intern(key): shared_strings(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shared_strings(inner) for inner in value]
    return sys.intern(value) if isinstance(value, str) else value


def _metadata(metadata: Body) -> dict[str, Any]:
    metadata_kept = {key: shared_strings(value) for key, value in metadata.items() if key != "managedFields"}
    if _LAST_APPLIED in (metadata_kept.get("annotations") or {}):
        metadata_kept["annotations"] = {k: v for k, v in metadata_kept["annotations"].items() if k != _LAST_APPLIED}
    return metadata_kept


_MANAGED: Final = ("app.kubernetes.io/managed-by", "lethe")
# Also on the committer's mailbox, which the chart creates.
_NAME: Final = ("app.kubernetes.io/name", "lethe")
_LABELS: Final[Mapping[ResourceKind, tuple[str, str]]] = {
    JOBS: _MANAGED,
    SPARK_APPLICATIONS: _MANAGED,
    PODS: _MANAGED,
    CONFIG_MAPS: _NAME,
}
# The label selectors of kinds that are not Lethe's own.
SELECTORS: Final[Mapping[ResourceKind, str]] = {kind: f"{key}={value}" for kind, (key, value) in _LABELS.items()}


def is_watched(kind: ResourceKind, body: Body, committer: str) -> bool:
    """Whether the operator watches this object.

    Args:
        committer: Name of the committer's Lease; "": there is none.
    """
    metadata = body["metadata"]
    if kind is LEASES:
        return bool(committer) and metadata.get("name") == committer
    if kind not in _LABELS:
        return True
    key, value = _LABELS[kind]
    return bool((metadata.get("labels") or {}).get(key) == value)


V = TypeVar("V")

# UIDs of deleted objects. Late news about an object comes within minutes of its deletion.
REMEMBERED_AT_MOST: Final = 20_000


@dataclass(frozen=True, slots=True)
class SeenVersion:
    """The last known version of an object."""

    name: str
    version: str
    """ResourceVersion."""


class Deletions:
    """UIDs of objects that were deleted, so that late news does not bring them back."""

    def __init__(self, at_most: int = REMEMBERED_AT_MOST) -> None:
        self._at_most = at_most
        self._versions: OrderedDict[str, str] = OrderedDict()

    def record(self, uid: str, version: str = "") -> None:
        """Record a deletion.

        Args:
            version: The resourceVersion of the deletion; "": every version of the object is older.
        """
        if self._versions.get(uid) == "":
            return
        self._versions[uid] = version
        self._versions.move_to_end(uid)
        while len(self._versions) > self._at_most:
            self._versions.popitem(last=False)

    def precede(self, uid: str, version: str) -> bool:
        """Whether this version of an object is newer than its deletion.

        A watch with a selector also reports an object as deleted if it no longer matches; such an object may return.
        """
        deleted = self._versions.get(uid)
        return deleted is None or (deleted != "" and is_newer(version, deleted))


@dataclass(frozen=True, slots=True)
class _Held(Generic[V]):
    uid: str
    version: str
    by_others: int
    """Digest of what only others write, see `_by_others`."""
    value: V
    keys: tuple[str, ...]
    """Of the index."""


@dataclass(frozen=True, slots=True)
class Put:
    """What an object added to a store."""

    is_news: bool = False
    """It is newer than what was known."""
    by_others: bool = (
        False  # it shows a change of the spec, the labels or the annotations, or the start of its deletion
    )
    is_skipped: bool = False
    """It is older than what is known: another change came between."""


def compare(uid: str, version: str, known_uid: str, known_version: str) -> Put:
    """Compare a version of an object with the known object of its name.

    Args:
        known_uid: "": none is known.
    """
    if not known_uid or is_newer(version, known_version):
        return Put(is_news=True)
    if known_uid != uid and not version.isdigit():  # such versions are equal by chance
        return Put(is_news=True)
    return Put(is_skipped=version != known_version)


class ObjectCache(Generic[V]):
    """The objects of one kind.

    Args:
        value_of: What is kept of an object. It is called once for each version.
        keys_of: The keys under which `find` finds a value.
    """

    def __init__(self, value_of: Callable[[Body], V], keys_of: Callable[[V], Iterable[str]] = lambda _: ()) -> None:
        self._value_of = value_of
        self._keys_of = keys_of
        self._lock = threading.RLock()
        self._objects: dict[str, dict[str, _Held[V]]] = {}  # by namespace and name
        self._index: dict[tuple[str, str], set[str]] = {}  # names, by namespace and key
        self._all: dict[str, tuple[V, ...]] = {}  # what `all` returned, by namespace, until something changes
        self._deletions = Deletions()

    def put(self, body: Body) -> Put:
        """Record an object, unless a newer version of it is known or it was deleted."""
        metadata = body["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        version = str(metadata.get("resourceVersion", ""))
        with self._lock:
            if not self._deletions.precede(uid, version):
                return Put()
            held = self._objects.get(namespace, {}).get(name)
            order = compare(uid, version, held.uid if held else "", held.version if held else "")
            if not order.is_news:
                return order
            value = self._value_of(body)
            new = _Held(uid, version, _by_others(metadata), value, tuple(dict.fromkeys(self._keys_of(value))))
            self._remove(namespace, name)
            self._objects.setdefault(namespace, {})[name] = new
            self._all.pop(namespace, None)
            for key in new.keys:
                self._index.setdefault((namespace, key), set()).add(name)
            return Put(True, by_others=held is None or held.uid != uid or held.by_others != new.by_others)

    def drop(self, namespace: str, name: str, uid: str, version: str = "") -> bool:
        """Record that an object was deleted. Return whether it was known.

        Args:
            version: The resourceVersion of the deletion; "": every version of the object is older.
        """
        with self._lock:
            self._deletions.record(uid, version)
            held = self._objects.get(namespace, {}).get(name)
            if held is None or held.uid != uid or (version and is_newer(held.version, version)):
                return False
            self._remove(namespace, name)
            return True

    def drop_if_unchanged(self, namespace: str, uid: str, seen: SeenVersion) -> Body | None:
        """Drop an object that a listing did not contain, unless something newer was recorded since the listing began.

        Return the object, or only its name; None: it was not dropped.
        """
        with self._lock:
            held = self._objects.get(namespace, {}).get(seen.name)
            if held is None or held.uid != uid or held.version != seen.version:
                return None
            self.drop(namespace, seen.name, uid, seen.version)
            if isinstance(held.value, Mapping):
                return held.value
            return {"metadata": {"namespace": namespace, "name": seen.name}}

    def get(self, namespace: str, name: str) -> V | None:
        """What `value_of` made of the newest known version of an object; None: it is unknown or was deleted."""
        with self._lock:
            held = self._objects.get(namespace, {}).get(name)
            return None if held is None else held.value

    def uid(self, namespace: str, name: str) -> str:
        """The UID of the object of this name; "": none is known."""
        with self._lock:
            held = self._objects.get(namespace, {}).get(name)
            return "" if held is None else held.uid

    def all(self, namespace: str) -> tuple[V, ...]:
        """The objects of a namespace, by name."""
        with self._lock:
            if namespace not in self._all:
                objects = self._objects.get(namespace, {})
                self._all[namespace] = tuple(objects[name].value for name in sorted(objects))
            return self._all[namespace]

    def names(self, namespace: str) -> tuple[str, ...]:
        """The names of the known objects of a namespace, in no particular order."""
        with self._lock:
            return tuple(self._objects.get(namespace, {}))

    def find(self, namespace: str, *keys: str) -> tuple[V, ...]:
        """The objects with at least one of the keys, by name."""
        with self._lock:
            names = set().union(*(self._index.get((namespace, key), ()) for key in keys))
            objects = self._objects.get(namespace, {})
            return tuple(objects[name].value for name in sorted(names))

    def versions(self, namespace: str) -> dict[str, SeenVersion]:
        """What is known of a namespace, by UID."""
        with self._lock:
            return {h.uid: SeenVersion(name, h.version) for name, h in self._objects.get(namespace, {}).items()}

    def _remove(self, namespace: str, name: str) -> None:
        held = self._objects.get(namespace, {}).pop(name, None)
        if held is None:
            return
        self._all.pop(namespace, None)
        for key in held.keys:
            names = self._index[namespace, key]
            names.discard(name)
            if not names:
                del self._index[namespace, key]
        if not self._objects[namespace]:
            del self._objects[namespace]


def _by_others(metadata: Body) -> int:
    """The generation counts changes of a spec. The operator writes only statuses of Lethe's resources."""
    marks = (frozenset((metadata.get(field) or {}).items()) for field in ("labels", "annotations"))
    return hash((metadata.get("generation"), "deletionTimestamp" in metadata, *marks))


# If more objects of a page differ, one request reads the whole page.
READ_ONE_BY_ONE: Final = 10
# A listing that nobody waits for pauses after each page, so many times as long as the page took: a page of many objects costs the
# API server much.
PAUSES: Final = 4.0
LONGEST_PAUSE_SECONDS: Final = 2.0
# The API server forgets the state of a listing after five minutes.
PAUSES_WITHIN_SECONDS: Final = 200.0


class RelistedStore(Protocol):
    """The known objects of one kind."""

    def put(self, body: Body) -> Put:
        """Record an object that a listing contains, unless a newer version of it is known or it was deleted."""

    def drop_if_unchanged(self, namespace: str, uid: str, seen: SeenVersion) -> Body | None:
        """Drop an object that a listing lacks, and return it; None: it was not dropped, as something newer is known."""

    def versions(self, namespace: str) -> dict[str, SeenVersion]:
        """The names and versions of the known objects of a namespace, by UID."""


class Finds(Protocol):
    """Records what a listing found and what watches have reported."""

    def found(self, uid: str, version: str) -> None:
        """No watch has reported this version of an object yet."""

    def watched(self, uid: str, version: str) -> None:
        """This version of an object was reported."""


@dataclass(frozen=True)
class KindListing:
    """The objects of a kind in a namespace."""

    kube: Kube
    kind: ResourceKind
    namespace: str
    labels: str = ""
    """Selector of the objects that are watched; "": all."""
    # True: nobody waits for the result.
    unhurried: bool = False
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic

    def read(self, store: RelistedStore) -> None:
        """Read all objects whole: half of the requests of `compare` if most objects are not known yet."""
        known = store.versions(self.namespace)
        for page in self._pages(metadata_only=False):
            for body in page.items:
                known.pop(body["metadata"]["uid"], None)
                store.put(body)
        for _ in self._drop(store, known):
            pass

    def compare(self, store: RelistedStore, finds: Finds) -> Iterator[Body]:
        """Read the objects that the store does not have in this version, and drop those that no longer exist; return both.

        At the end, the store is at least as new as the API server was at the beginning.

        Raises:
            RequestRefused: Rights, quota, admission or validation forbid the request.
            Away: No answer, or one that asks to retry later.
        """
        known = store.versions(self.namespace)
        unseen = dict(known)
        after = ""
        for page in self._pages(metadata_only=True):
            differing: dict[str, Body] = {}
            for item in page.items:
                metadata = item["metadata"]
                unseen.pop(metadata["uid"], None)
                if _differs(metadata, known):
                    differing[metadata["name"]] = metadata
            yield from self._replace(store, finds, differing, after)
            after = page.after
        yield from self._drop(store, unseen)

    def _replace(self, store: RelistedStore, finds: Finds, differing: Mapping[str, Body], after: str) -> Iterator[Body]:
        for metadata in differing.values():
            finds.found(metadata["uid"], str(metadata["resourceVersion"]))
        news = set()
        for body in self._whole(differing, after):
            if store.put(body).is_news:
                news.add(body["metadata"]["uid"])
                yield body
        for metadata in differing.values():
            if metadata["uid"] not in news:  # the watch was faster
                finds.watched(metadata["uid"], str(metadata["resourceVersion"]))

    def _whole(self, names: Collection[str], after: str) -> Iterator[Document]:
        """The whole objects with these names, which are on the page that begins with `after`."""
        if len(names) > READ_ONE_BY_ONE:
            yield from self.kube.page(self.kind, self.namespace, self.labels, after).items
            return
        for name in names:
            with suppress(NotFound):
                yield self.kube.get(self.kind, self.namespace, name)

    def _pages(self, metadata_only: bool) -> Iterator[ListPage]:
        after, ends = "", self.clock() + PAUSES_WITHIN_SECONDS
        while True:
            began = self.clock()
            page = self.kube.page(self.kind, self.namespace, self.labels, after, metadata_only)
            yield page
            after = page.after
            if not after:
                return
            now = self.clock()
            if self.unhurried and now < ends:
                self.sleep(min(PAUSES * (now - began), LONGEST_PAUSE_SECONDS))

    def _drop(self, store: RelistedStore, unseen: Mapping[str, SeenVersion]) -> Iterator[Body]:
        for uid, seen in unseen.items():
            dropped = store.drop_if_unchanged(self.namespace, uid, seen)
            if dropped is not None:
                yield dropped


def _differs(metadata: Body, known: Mapping[str, SeenVersion]) -> bool:
    seen = known.get(metadata["uid"])
    return seen is None or is_newer(str(metadata["resourceVersion"]), seen.version)


# A watch sends what has happened before at once. This is the time that the API server has for it.
WATCH_SECONDS: Final = 1
_ERROR, _BOOKMARK = "ERROR", "BOOKMARK"
_GONE: Final = 410  # the status of an answer, if the version is too old
Event = tuple[str, Document]


def newest(known: Mapping[str, SeenVersion]) -> str:
    """The highest version of known objects; "": it is unknown."""
    versions = [seen.version for seen in known.values()]
    return max(versions, key=int) if versions and all(v.isdigit() for v in versions) else ""


def changes_since(kube: Kube, kind: ResourceKind, namespace: str, labels: str, version: str) -> Sequence[Event] | None:
    """The changes of objects after a version: type (ADDED, MODIFIED, DELETED) and object.

    Returns:
        None, if the API server does not know them any more, or the version is "".

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    if not version:
        return None
    events: list[Event] = []
    try:
        for event in kube.watch(kind, namespace, version, labels=labels, seconds=WATCH_SECONDS):
            if event["type"] == _ERROR:
                return None
            if event["type"] != _BOOKMARK:
                events.append((event["type"], event["object"]))
    except KubeError as e:
        if e.status != _GONE:
            raise
        return None
    return events
