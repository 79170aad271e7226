"""A cache of the Restatements of the watched namespaces, which the watch updates. I/O only when a namespace is listed.

There may be tens of thousands of Restatements, most of them finished. Listing them in each reconcile would cost more than
everything else that the operator does. The cache may be slightly outdated, but never older than the operator's own writes.
This is safe: the ledger records what was done, and a request that runs twice has its effect once.
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
    """The Restatements that a decision about one Dataset needs."""

    # Those that have not succeeded, those that one of these names, and expired ones, as many as are deleted at once.
    restatements: tuple[Restatement, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    # When the ttlSecondsAfterFinished of the next other one passes; None: of none.
    next_expiry: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Done:
    """A Restatement that has succeeded, in compressed form."""

    uid: str
    version: str
    expires: datetime | None  # when it is deleted; None: it is not
    packed: bytes
    key: str
    erasure: str  # digest of the open erasure that its status shows; "": none

    @property
    def restatement(self) -> Restatement:
        return parse_restatement(json.loads(zlib.decompress(self.packed)))


_Held = Restatement | Invalid | _Done


@dataclass
class _Dataset:
    """The Restatements of one Dataset, by name."""

    done: dict[str, _Done] = field(default_factory=dict)  # have succeeded
    with_erasure: set[str] = field(default_factory=set)  # names of those that have succeeded and have an open erasure
    open: dict[str, Restatement | Invalid] = field(default_factory=dict)  # have not succeeded


class RestatementCache:
    """One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._listed: set[str] = set()  # namespaces that were listed completely
        self._datasets: dict[tuple[str, str], _Dataset] = {}  # by namespace and name
        self._of: dict[
            tuple[str, str], str
        ] = {}  # the Dataset that a Restatement names, by the latter's namespace and name
        self._gone: set[str] | None = None  # UIDs deleted while a namespace is being listed; None: none is

    def record_event(self, deleted: bool, body: Body) -> bool:
        """Record a watch event. Return whether it shows a change that the operator did not write itself."""
        with self._lock:
            if not deleted:
                return self._put(body)
            if self._gone is not None:
                self._gone.add(body["metadata"]["uid"])
            return self._drop(body["metadata"]["namespace"], body["metadata"]["name"], body["metadata"]["uid"])

    def record_write(self, body: Body) -> None:
        """Record the answer to a write, unless the Restatement was deleted meanwhile."""
        metadata = body["metadata"]
        with self._lock:
            held = self._held(metadata["namespace"], metadata["name"])
            if held is not None and _uid(held) == metadata["uid"]:
                self._put(body)

    def list(self, kube: Kube, namespace: str) -> dict[str, str]:
        """List all of a namespace, and drop those that no longer exist. Return their versions by UID. Raises: KubeError."""
        with self._listing:
            return self._list(kube, namespace)

    def of(self, kube: Kube, namespace: str, dataset: str, now: datetime) -> RestatementsOfDataset:
        """Those that a decision about a Dataset needs. The first call lists the namespace. Raises: KubeError."""
        if namespace not in self._listed:
            with self._listing:
                if namespace not in self._listed:  # otherwise another thread has just listed it
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

    def with_outdated_erasure(
        self, namespace: str, dataset: str, current: Mapping[str, str]
    ) -> tuple[Restatement, ...]:
        """Those of a Dataset that have succeeded and whose status does not show the current state of their erasure.

        Args:
            current: Digests of the open erasures, by key.
        """
        with self._lock:
            known = self._datasets.get((namespace, dataset), _Dataset())
            found = [known.done[name] for name in sorted(known.with_erasure)]
        return tuple(d.restatement for d in found if current.get(d.key) != d.erasure)

    def datasets(self, namespace: str) -> frozenset[str]:
        """Names of the Datasets that Restatements of a namespace refer to, whether or not they exist."""
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
        new = _compact(body)
        if isinstance(new, _Done):
            known.done[name] = new
            if new.erasure:
                known.with_erasure.add(name)
        else:
            known.open[name] = new
        return True

    def _drop(self, namespace: str, name: str, uid: str = "") -> bool:
        """Remove a Restatement; with a UID, only that one. Return whether it was there."""
        held = self._held(namespace, name)
        if held is None or (uid and _uid(held) != uid):
            return False
        dataset = self._of.pop((namespace, name))
        known = self._datasets[namespace, dataset]
        known.open.pop(name, None)
        known.done.pop(name, None)
        known.with_erasure.discard(name)
        if not known.open and not known.done:
            del self._datasets[namespace, dataset]
        return True


def _compact(body: Body) -> _Held:
    # Annotations may contain the whole object again, and no decision reads them.
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
    """The same value with interned strings: thousands of waiting Restatements have the same messages."""
    if isinstance(value, Mapping):
        return {sys.intern(key): _shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shared(inner) for inner in value]
    return sys.intern(value) if isinstance(value, str) else value


def _is_done(restatement: Restatement) -> bool:
    """Whether its status is final, unless the table is rolled back or the Restatement is undone."""
    status, meta = restatement.status, restatement.meta
    shown = find(status, SUCCEEDED).get("status") == TRUE and status.get("observedGeneration") == meta.generation
    return shown and not meta.deleting


def _pairs(known: _Dataset) -> Iterable[tuple[str, _Held]]:
    yield from known.open.items()
    yield from known.done.items()


def _uid(held: _Held) -> str:
    return held.uid if isinstance(held, _Done) else held.meta.uid


def _version(held: _Held) -> str:
    return held.version if isinstance(held, _Done) else held.meta.resource_version
