"""The Restatements of the watched namespaces, as the watch told them last. I/O: only when a namespace is listed.

There may be tens of thousands, most of them done with: asking for all of them at each look would cost more than everything else
an operator does. What is known here may be a moment old. That is no harm: the ledger tells what was done, and a request that is
carried out twice is carried out once. It is never older than what the operator itself has written.
"""

import json
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any

from lethe_operator.decide.conditions import SUCCEEDED, TRUE, find, parsed_time
from lethe_operator.decide.erasure.status import digest_of, is_awaited
from lethe_operator.decide.restatement.ttl import DELETED_AT_ONCE
from lethe_operator.kube import RESTATEMENTS, Kube
from lethe_operator.resources.common import InvalidSpec, is_newer, parse_meta
from lethe_operator.resources.observed import Invalid
from lethe_operator.resources.provenance import provenance_of
from lethe_operator.resources.restatement import Restatement, dataset_name_of, parse_restatement

Body = Mapping[str, Any]


@dataclass(frozen=True)
class RestatementsOfDataset:
    """What a decision about one Dataset may look at: those that have not succeeded, those that one of them names, and as many of
    those whose time to live is over as are deleted at once. `next_expiry`: when the time of another one is over."""

    restatements: tuple[Restatement, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    next_expiry: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Done:
    """One that has succeeded, small: its body is unpacked when somebody asks."""

    uid: str
    version: str
    expires: datetime | None
    packed: bytes
    key: str
    erasure: str  # what its status says of an erasure that is still to be watched, "" for none

    @property
    def restatement(self) -> Restatement:
        return parse_restatement(json.loads(zlib.decompress(self.packed)))


_Held = Restatement | Invalid | _Done


@dataclass
class _Dataset:
    """By name. `open`: those that have not succeeded; `owing`: names of those that have and whose erasure is open."""

    done: dict[str, _Done] = field(default_factory=dict)
    owing: set[str] = field(default_factory=set)
    open: dict[str, Restatement | Invalid] = field(default_factory=dict)


class RestatementCache:
    """One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: set[str] = set()  # namespaces of which all are known
        self._datasets: dict[tuple[str, str], _Dataset] = {}
        self._of: dict[tuple[str, str], str] = {}  # by namespace and name: the Dataset that it names
        self._gone: set[str] | None = None  # UIDs that were deleted while a namespace is listed

    def heard(self, deleted: bool, body: Body) -> bool:
        """Take in what the watch tells. Whether that is news: what the operator wrote itself is not."""
        with self._lock:
            if not deleted:
                return self._put(body)
            if self._gone is not None:
                self._gone.add(body["metadata"]["uid"])
            return self._drop(body["metadata"]["namespace"], body["metadata"]["name"], body["metadata"]["uid"])

    def wrote(self, body: Body) -> None:
        """Take in the answer to a write. One that was deleted meanwhile stays so."""
        metadata = body["metadata"]
        with self._lock:
            held = self._held(metadata["namespace"], metadata["name"])
            if held is not None and _uid(held) == metadata["uid"]:
                self._put(body)

    def list(self, kube: Kube, namespace: str) -> dict[str, str]:
        """Look at all of a namespace, and forget those that are gone. Their versions by UID. Raises: KubeError."""
        with self._listing:
            return self._list(kube, namespace)

    def of(self, kube: Kube, namespace: str, dataset: str, now: datetime) -> RestatementsOfDataset:
        """Those of a Dataset that a decision may look at. The first time, all of the namespace are listed. Raises: KubeError."""
        if namespace not in self._listed:
            with self._listing:
                if namespace not in self._listed:  # else somebody has just listed it
                    self._list(kube, namespace)
        with self._lock:
            known = self._datasets.get((namespace, dataset), _Dataset())
            found = [r for r in known.open.values() if isinstance(r, Restatement)]
            invalid = tuple(i for i in known.open.values() if isinstance(i, Invalid))
            named = {r.spec.undoes.name for r in found if r.spec.undoes is not None}
            times = {name: d.expires for name, d in known.done.items() if d.expires is not None}
            over = nsmallest(DELETED_AT_ONCE, ((at, name) for name, at in times.items() if at <= now))
            named |= {name for _, name in over}
            done = [known.done[name] for name in sorted(named) if name in known.done]
        found += [d.restatement for d in done]
        return RestatementsOfDataset(
            tuple(found), invalid, min((at for at in times.values() if at > now), default=None)
        )

    def done(self, namespace: str, dataset: str) -> tuple[Restatement, ...]:
        """Those of a Dataset that have succeeded."""
        with self._lock:
            known = list(self._datasets.get((namespace, dataset), _Dataset()).done.values())
        return tuple(d.restatement for d in known)

    def owing(self, namespace: str, dataset: str, told: Mapping[str, str]) -> tuple[Restatement, ...]:
        """Those of a Dataset that have succeeded and whose status says something else of their erasure than is to be told.

        Args:
            told: By the key of each open erasure, what is to be told.
        """
        with self._lock:
            known = self._datasets.get((namespace, dataset), _Dataset())
            owing = [known.done[name] for name in sorted(known.owing)]
        return tuple(d.restatement for d in owing if told.get(d.key) != d.erasure)

    def datasets(self, namespace: str) -> frozenset[str]:
        """The Datasets that Restatements of a namespace name, there or not."""
        with self._lock:
            return frozenset(name for n, name in self._datasets if n == namespace)

    def _list(self, kube: Kube, namespace: str) -> dict[str, str]:
        with self._lock:
            before = {_uid(h): name for (n, name), h in self._all() if n == namespace}
            self._gone = set()
        versions: dict[str, str] = {}
        try:
            for page in kube.pages(RESTATEMENTS, namespace):
                with self._lock:
                    for body in page:
                        metadata = body["metadata"]
                        versions[metadata["uid"]] = metadata.get("resourceVersion", "")
                        if metadata["uid"] not in self._gone:
                            self._put(body)
            with self._lock:
                for uid, name in before.items():
                    if uid not in versions:
                        self._drop(namespace, name, uid)
                self._listed.add(namespace)
        finally:
            with self._lock:
                self._gone = None
        return versions

    def _all(self) -> Iterator[tuple[tuple[str, str], _Held]]:
        for (namespace, _), known in self._datasets.items():
            for name, held in _pairs(known):
                yield (namespace, name), held

    def _held(self, namespace: str, name: str) -> _Held | None:
        known = self._datasets.get((namespace, self._of.get((namespace, name), "")))
        return None if known is None else known.open.get(name) or known.done.get(name)

    def _put(self, body: Body) -> bool:
        metadata = body["metadata"]
        namespace, name, version = metadata["namespace"], metadata["name"], str(metadata.get("resourceVersion", ""))
        held = self._held(namespace, name)
        if held is not None and _uid(held) == metadata["uid"] and not is_newer(version, _version(held)):
            return False
        self._drop(namespace, name)
        dataset = dataset_name_of(body)
        if not dataset:
            return True
        known = self._datasets.setdefault((namespace, dataset), _Dataset())
        self._of[namespace, name] = dataset
        new = _taken(body)
        if isinstance(new, _Done):
            known.done[name] = new
            if new.erasure:
                known.owing.add(name)
        else:
            known.open[name] = new
        return True

    def _drop(self, namespace: str, name: str, uid: str = "") -> bool:
        """With a UID: unless another one of the name is there by now."""
        held = self._held(namespace, name)
        if held is None or (uid and _uid(held) != uid):
            return False
        dataset = self._of.pop((namespace, name))
        known = self._datasets[namespace, dataset]
        known.open.pop(name, None)
        known.done.pop(name, None)
        known.owing.discard(name)
        if not known.open and not known.done:
            del self._datasets[namespace, dataset]
        return True


def _taken(body: Body) -> _Held:
    # Annotations hold the whole object a second time, and nobody looks at them here.
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("annotations", "labels", "managedFields")}
    status = _shared(body.get("status") or {})
    lean = {"metadata": metadata, "spec": dict(body.get("spec") or {}), "status": status}
    try:
        restatement = parse_restatement(lean)
    except InvalidSpec as e:
        return Invalid("Restatement", parse_meta(lean), lean["status"], str(e))
    if not _is_done(restatement):
        return replace(restatement, provenance=provenance_of(body, restatement.spec))
    ttl, ended = restatement.spec.ttl_seconds_after_finished, find(restatement.status, SUCCEEDED)
    at = parsed_time(ended.get("lastTransitionTime"))
    owing = digest_of(restatement.status) if is_awaited(restatement.status) else ""
    expires = at + timedelta(seconds=ttl) if ttl is not None and at is not None and not owing else None
    packed = zlib.compress(json.dumps(lean, separators=(",", ":")).encode(), 1)
    meta = restatement.meta
    return _Done(meta.uid, meta.resource_version, expires, packed, restatement.key, owing)


def _shared(value: Any) -> Any:
    """The same, of strings that all of them share: thousands that wait say the same in the same words."""
    if isinstance(value, Mapping):
        return {sys.intern(key): _shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shared(inner) for inner in value]
    return sys.intern(value) if isinstance(value, str) else value


def _is_done(restatement: Restatement) -> bool:
    """Whether nothing is left to be said of it, unless the table is rolled back or it is undone."""
    status, meta = restatement.status, restatement.meta
    told = find(status, SUCCEEDED).get("status") == TRUE and status.get("observedGeneration") == meta.generation
    return told and not meta.deleting


def _pairs(known: _Dataset) -> Iterable[tuple[str, _Held]]:
    yield from known.open.items()
    yield from known.done.items()


def _uid(held: _Held) -> str:
    return held.uid if isinstance(held, _Done) else held.meta.uid


def _version(held: _Held) -> str:
    return held.version if isinstance(held, _Done) else held.meta.resource_version
