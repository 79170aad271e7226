"""Objects of one kind as they were last seen, with indexes. Pure, apart from a lock: threads may share a store.

An object never becomes older: a version that is not newer than the known one changes nothing, whether it comes from a watch, a
listing or an answer, and an object that was deleted does not return.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from lethe_operator.resources.common import is_newer

Body = Mapping[str, Any]
V = TypeVar("V")

# UIDs of deleted objects. Late news about an object comes within minutes of its deletion.
REMEMBERED_AT_MOST: Final = 20_000


@dataclass(frozen=True, slots=True)
class Seen:
    """The last known version of an object."""

    name: str
    version: str  # resourceVersion


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
        """Whether this version of an object is newer than its deletion. A watch with a selector also reports an object as
        deleted if it no longer matches; such an object may return."""
        deleted = self._versions.get(uid)
        return deleted is None or (deleted != "" and is_newer(version, deleted))


@dataclass(frozen=True, slots=True)
class _Held(Generic[V]):
    uid: str
    version: str
    by_others: int  # digest of what only others write, see `_by_others`
    value: V
    keys: tuple[str, ...]  # of the index


@dataclass(frozen=True, slots=True)
class Put:
    """What an object added to a store."""

    is_news: bool = False  # it is newer than what was known
    by_others: bool = (
        False  # it shows a change of the spec, the labels or the annotations, or the start of its deletion
    )
    is_skipped: bool = False  # it is older than what is known: another change came between


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


class ObjectStore(Generic[V]):
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
            found = compare(uid, version, held.uid if held else "", held.version if held else "")
            if not found.is_news:
                return found
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

    def drop_if_unchanged(self, namespace: str, uid: str, seen: Seen) -> Body | None:
        """Drop an object that a listing did not contain, unless something newer was recorded since the listing began. Return the
        object, or only its name; None: it was not dropped."""
        with self._lock:
            held = self._objects.get(namespace, {}).get(seen.name)
            if held is None or held.uid != uid or held.version != seen.version:
                return None
            self.drop(namespace, seen.name, uid, seen.version)
            if isinstance(held.value, Mapping):
                return held.value
            return {"metadata": {"namespace": namespace, "name": seen.name}}

    def get(self, namespace: str, name: str) -> V | None:
        with self._lock:
            held = self._objects.get(namespace, {}).get(name)
            return None if held is None else held.value

    def uid(self, namespace: str, name: str) -> str:
        """ "": no object of this name is known."""
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
        with self._lock:
            return tuple(self._objects.get(namespace, {}))

    def find(self, namespace: str, *keys: str) -> tuple[V, ...]:
        """The objects with at least one of the keys, by name."""
        with self._lock:
            names = set().union(*(self._index.get((namespace, key), ()) for key in keys))
            objects = self._objects.get(namespace, {})
            return tuple(objects[name].value for name in sorted(names))

    def versions(self, namespace: str) -> dict[str, Seen]:
        """What is known of a namespace, by UID."""
        with self._lock:
            return {h.uid: Seen(name, h.version) for name, h in self._objects.get(namespace, {}).items()}

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
