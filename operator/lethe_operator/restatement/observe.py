"""A cache of Restatements, and the lists of batch ids that they keep in ConfigMaps. I/O: these lists.

The cache is fed by the watch, listings and the operator's own writes. There may be tens of thousands of Restatements, most of
them finished: listing them in each reconcile would cost more than everything else that the operator does. The cache may be
slightly outdated, but never older than the operator's own writes. This is safe: the ledger records what was done, and a request
that runs twice has its effect once.

A list is read when its Restatement is first observed, and again periodically to notice changes. A run carries out the list as it
was first read, or nothing: its SHA-256 is in the status from then on.
"""

import base64
import binascii
import json
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from heapq import nsmallest
from typing import Any, Final

from lethe.base.errors import InputError
from lethe.contract.restatement import ConfigMapKey
from lethe.contract.status import RestatementStatus, stored_status
from lethe.kube import CONFIG_MAPS, Document, Kube, NotFound
from lethe.restatement.group import IdList, parse_ids

from lethe_operator.cluster.cache import (
    Body,
    Deletions,
    ObjectCache,
    Put,
    SeenVersion,
    compare,
    shared_strings,
    trimmed_resource,
)
from lethe_operator.conditions import SUCCEEDED
from lethe_operator.erasure.decide import digest_of, is_awaited
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import LABEL_BATCH_IDS, InvalidSpec, is_newer, parse_meta
from lethe_operator.resources.observed import Invalid
from lethe_operator.resources.restatement import (
    Restatement,
    Unmet,
    dataset_name_of,
    is_subject_request,
    owner_of,
    parse_restatement,
    provenance_of,
)
from lethe_operator.restatement.outcome import finished_before
from lethe_operator.restatement.status import DELETED_AT_ONCE

READ_AGAIN_AFTER: Final = timedelta(seconds=60)
MISSING_AGAIN_AFTER: Final = timedelta(seconds=15)
# ConfigMaps per reconcile of a Dataset. An API server answers within milliseconds.
READS_AT_ONCE: Final = 100
# Ids of one Dataset in memory, apart from the oldest list. Later lists are read when the Restatements of these have ended.
IDS_HELD_AT_MOST: Final = 200_000


@dataclass(frozen=True)
class _Read:
    at: datetime
    found: IdList | Unmet


class IdLists:
    """One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str], dict[ConfigMapKey, _Read]] = {}

    def attached(
        self, kube: Kube, namespace: str, dataset: str, restatements: Iterable[Restatement], now: datetime
    ) -> tuple[Restatement, ...]:
        """The Restatements of a Dataset; those that have not ended get the list that they refer to.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        every = tuple(restatements)
        listed_ones = [(r, key) for r in every if (key := _key(r)) is not None and finished_before(r) is None]
        wanted = sorted(listed_ones, key=lambda pair: (pair[0].created, pair[0].meta.name))
        with self._lock:
            before = dict(self._kept.get((namespace, dataset), {}))
        kept: dict[ConfigMapKey, _Read] = {}
        maps: dict[str, Document | None] = {}
        held = 0
        for _, key in wanted:
            if key in kept:
                continue
            if held >= IDS_HELD_AT_MOST:
                break
            known = before.get(key)
            if known is None or now - known.at >= _rest(known.found):
                if key.name not in maps and len(maps) < READS_AT_ONCE:
                    maps[key.name] = _get(kube, namespace, key.name)
                if key.name in maps:
                    known = _Read(now, listed(maps[key.name], key))
            if known is not None:
                kept[key] = known
                held += len(known.found.ids) if isinstance(known.found, IdList) else 0
        with self._lock:
            if kept:
                self._kept[namespace, dataset] = kept
            else:
                self._kept.pop((namespace, dataset), None)
        outcomes = {r.meta.name: kept[key].found if key in kept else _NOT_YET for r, key in wanted}
        return tuple(replace(r, listed=outcomes[r.meta.name]) if r.meta.name in outcomes else r for r in every)

    def forget(self, namespace: str, dataset: str) -> None:
        """Drop the lists of a deleted Dataset."""
        with self._lock:
            self._kept.pop((namespace, dataset), None)


_NOT_YET: Final = Unmet(
    Reason.QUEUED,
    "The operator reads its list of batch ids after the lists of older Restatements.",
    again_seconds=5,
    transient=True,
)


def listed(config_map: Document | None, key: ConfigMapKey) -> IdList | Unmet:
    """The list in a key of a ConfigMap, as text or as bytes. Pure.

    Args:
        config_map: None: it does not exist.
    """
    where = f"The list of batch ids in ConfigMap {key.name}, key {key.key}"
    if config_map is None:
        missing = f"{where}: this namespace has no ConfigMap of that name. Create it. The operator checks again."
        return Unmet(Reason.LIST_NOT_FOUND, missing, transient=True)
    labels = (config_map.get("metadata") or {}).get("labels") or {}
    if labels.get(LABEL_BATCH_IDS) != "true":
        # The operator may read ConfigMaps that the author of the Restatement may not.
        return Unmet(
            Reason.LIST_NOT_ALLOWED,
            f'{where}: the ConfigMap has no label {LABEL_BATCH_IDS}: "true", so Restatements may not read batch ids '
            "from it. Set the label, or name another ConfigMap. The operator checks again.",
            transient=True,
        )
    text: str | None = (config_map.get("data") or {}).get(key.key)
    encoded: str | None = (config_map.get("binaryData") or {}).get(key.key)
    if text is None and encoded is None:
        return Unmet(
            Reason.LIST_NOT_FOUND,
            f"{where}: the ConfigMap has no such key. Add it. The operator checks again.",
            transient=True,
        )
    try:
        return parse_ids(text.encode() if text is not None else base64.b64decode(encoded or ""), where)
    except InputError as e:
        return Unmet(e.reason, e.message, final=True)
    except binascii.Error:  # the API server accepts only base64
        return Unmet(Reason.INVALID_ID_LIST, f"{where}: the value is not base64.", final=True)


def _get(kube: Kube, namespace: str, name: str) -> Document | None:
    try:
        return kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return None


def _key(restatement: Restatement) -> ConfigMapKey | None:
    source = restatement.spec.batch_ids_from
    return source.config_map_key_ref if source is not None else None


def _rest(id_list: IdList | Unmet) -> timedelta:
    return READ_AGAIN_AFTER if isinstance(id_list, IdList) or id_list.final else MISSING_AGAIN_AFTER


@dataclass(frozen=True)
class RestatementsOfDataset:
    """The Restatements that a decision about one Dataset needs."""

    # Those that have not succeeded, those that one of these names, and expired ones, as many as are deleted at once.
    restatements: tuple[Restatement, ...] = ()
    invalid: tuple[Invalid, ...] = ()
    next_expiry: datetime | None = None
    """When the ttlSecondsAfterFinished of the next other one passes; None: of none."""


@dataclass(frozen=True, slots=True)
class _Done:
    """A Restatement that has succeeded, in compressed form."""

    uid: str
    version: str
    generation: int
    expires: datetime | None
    """When it is deleted; None: it is not."""
    packed: bytes
    erasure: str
    """Digest of the open erasure that its status shows; "": none."""
    key: str
    """Empty if `erasure` is empty, and then it is not needed."""

    @property
    def unpacked(self) -> Restatement | Invalid:
        return _parsed(json.loads(zlib.decompress(self.packed)))


_Held = Restatement | Invalid | _Done


@dataclass
class _Dataset:
    """The Restatements of one Dataset, by name."""

    done: dict[str, _Done] = field(default_factory=dict)
    """Have succeeded."""
    with_erasure: set[str] = field(default_factory=set)
    """Names of those that have succeeded and have an open erasure."""
    open: dict[str, Restatement | Invalid] = field(default_factory=dict)
    """Have not succeeded."""


class RestatementCache:
    """One per operator, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._datasets: dict[tuple[str, str], _Dataset] = {}  # by namespace and name
        self._of: dict[
            str, dict[str, str]
        ] = {}  # the Dataset that a Restatement names, by the latter's namespace and name
        self._requests: ObjectCache[Restatement | Invalid] = ObjectCache(_request)
        self._makers: dict[tuple[str, str], str] = {}  # UID of the subject request that made one, by namespace and name
        self._made_by: dict[tuple[str, str], set[str]] = {}  # names, by namespace and UID of the subject request
        self._lookups: dict[tuple[str, str], set[str]] = {}
        """Names of the unfinished Restatements that look up in a Dataset, by the latter's namespace and name."""
        self._deletions = Deletions()

    def of(self, namespace: str, dataset: str, now: datetime) -> RestatementsOfDataset:
        """Those that a decision about a Dataset needs."""
        with self._lock:
            known = self._datasets.get((namespace, dataset), _Dataset())
            restatements = [r for r in known.open.values() if isinstance(r, Restatement)]
            invalid = tuple(i for i in known.open.values() if isinstance(i, Invalid))
            named = {r.spec.undoes.name for r in restatements if r.spec.undoes is not None}
            times = {name: d.expires for name, d in known.done.items() if d.expires is not None}
            over = nsmallest(DELETED_AT_ONCE, ((at, name) for name, at in times.items() if at <= now))
            named |= {name for _, name in over}
            done = [known.done[name] for name in sorted(named) if name in known.done]
        unpacked = [d.unpacked for d in done]
        return RestatementsOfDataset(
            (*restatements, *(r for r in unpacked if isinstance(r, Restatement))),
            (*invalid, *(i for i in unpacked if isinstance(i, Invalid))),
            min((at for at in times.values() if at > now), default=None),
        )

    def looking_up_in(self, namespace: str, dataset: str) -> tuple[Restatement, ...]:
        """Those of other Datasets that have not succeeded and look up values in the table of this one."""
        with self._lock:
            names = sorted(self._lookups.get((namespace, dataset), ()))
            restatements = [r for name in names if isinstance(r := self._held(namespace, name), Restatement)]
        return tuple(r for r in restatements if r.spec.dataset != dataset)

    def done(self, namespace: str, dataset: str) -> tuple[Restatement, ...]:
        """Those of a Dataset that have succeeded."""
        with self._lock:
            known = list(self._datasets.get((namespace, dataset), _Dataset()).done.values())
        return tuple(r for d in known if isinstance(r := d.unpacked, Restatement))

    def with_outdated_erasure(
        self, namespace: str, dataset: str, current: Mapping[str, str]
    ) -> tuple[Restatement, ...]:
        """Those of a Dataset that have succeeded and whose status does not show the current state of their erasure.

        Args:
            current: Digests of the open erasures, by key.
        """
        with self._lock:
            known = self._datasets.get((namespace, dataset), _Dataset())
            restatements = [known.done[name] for name in sorted(known.with_erasure)]
        outdated = (d.unpacked for d in restatements if current.get(d.key) != d.erasure)
        return tuple(r for r in outdated if isinstance(r, Restatement))

    def datasets(self, namespace: str) -> frozenset[str]:
        """Names of the Datasets that Restatements of a namespace refer to, whether or not they exist."""
        with self._lock:
            return frozenset(name for n, name in self._datasets if n == namespace)

    def unfinished(self, namespace: str) -> tuple[tuple[str, Restatement | Invalid], ...]:
        """Those that have not succeeded, each with the name of its Dataset."""
        with self._lock:
            return tuple(
                (d, r) for (n, d), known in self._datasets.items() if n == namespace for r in known.open.values()
            )

    def unfinished_of(self, namespace: str) -> frozenset[str]:
        """Names of the Datasets with Restatements that have not succeeded."""
        with self._lock:
            return frozenset(name for (n, name), known in self._datasets.items() if n == namespace and known.open)

    def request(self, namespace: str, name: str) -> Restatement | Invalid | None:
        """A subject request; None: there is none of this name."""
        return self._requests.get(namespace, name)

    def requests(self, namespace: str) -> tuple[Restatement | Invalid, ...]:
        """The subject requests of a namespace, by name."""
        return self._requests.all(namespace)

    def children(self, namespace: str, request_uid: str) -> tuple[Restatement | Invalid, ...]:
        """The Restatements that a subject request has made, by name."""
        with self._lock:
            found = [self._held(namespace, n) for n in sorted(self._made_by.get((namespace, request_uid), ()))]
        return tuple(h.unpacked if isinstance(h, _Done) else h for h in found if h is not None)

    def names(self, namespace: str) -> frozenset[str]:
        """The names of the Restatements of a namespace, without those of subject requests."""
        with self._lock:
            return frozenset(self._of.get(namespace, ()))

    def put(self, body: Body) -> Put:
        """Record a Restatement, unless a newer version of it is known or it was deleted."""
        if is_subject_request(body):
            return self._requests.put(body)
        metadata = body["metadata"]
        namespace, name, uid = metadata["namespace"], metadata["name"], metadata["uid"]
        version = str(metadata.get("resourceVersion", ""))
        with self._lock:
            if not self._deletions.precede(uid, version):
                return Put()
            held = self._held(namespace, name)
            order = compare(uid, version, _uid(held) if held else "", _version(held) if held else "")
            if not order.is_news:
                return order
            by_others = held is None or _uid(held) != uid or _generation(held) != metadata.get("generation", 0)
            self._remove(namespace, name)
            if dataset := dataset_name_of(body):
                self._keep(namespace, name, dataset, _compact(body))
                if maker := owner_of(body)[1]:
                    self._makers[namespace, name] = maker
                    self._made_by.setdefault((namespace, maker), set()).add(name)
            return Put(True, by_others or "deletionTimestamp" in metadata)

    def drop(self, namespace: str, name: str, uid: str, version: str = "") -> bool:
        """Record that a Restatement was deleted. Return whether it was known.

        Args:
            version: The resourceVersion of the deletion; "": every version of the Restatement is older.
        """
        if self._requests.drop(namespace, name, uid, version):
            return True
        with self._lock:
            self._deletions.record(uid, version)
            held = self._held(namespace, name)
            if held is None or _uid(held) != uid or (version and is_newer(_version(held), version)):
                return False
            self._remove(namespace, name)
            return True

    def drop_if_unchanged(self, namespace: str, uid: str, seen: SeenVersion) -> Body | None:
        """Drop a Restatement that a listing did not contain, unless something newer was recorded since the listing began.

        Return its metadata and its reference to a Dataset; None: it was not dropped.
        """
        if (request := self._requests.drop_if_unchanged(namespace, uid, seen)) is not None:
            return request
        with self._lock:
            held = self._held(namespace, seen.name)
            if held is None or _uid(held) != uid or _version(held) != seen.version:
                return None
            dataset = self._of[namespace][seen.name]
            self.drop(namespace, seen.name, uid, seen.version)
            return {"metadata": {"namespace": namespace, "name": seen.name}, "spec": {"datasetRef": {"name": dataset}}}

    def uid(self, namespace: str, name: str) -> str:
        """The UID of the Restatement of this name; "": none is known."""
        with self._lock:
            held = self._held(namespace, name)
            return self._requests.uid(namespace, name) if held is None else _uid(held)

    def versions(self, namespace: str) -> dict[str, SeenVersion]:
        """What is known of a namespace, by UID."""
        with self._lock:
            names = self._of.get(namespace, {})
            known = ((name, held) for name in names if (held := self._held(namespace, name)) is not None)
            ordinary = {_uid(held): SeenVersion(name, _version(held)) for name, held in known}
        return {**self._requests.versions(namespace), **ordinary}

    def _held(self, namespace: str, name: str) -> _Held | None:
        known = self._datasets.get((namespace, self._of.get(namespace, {}).get(name, "")))
        return None if known is None else known.open.get(name) or known.done.get(name)

    def _keep(self, namespace: str, name: str, dataset: str, new: _Held) -> None:
        known = self._datasets.setdefault((namespace, dataset), _Dataset())
        self._of.setdefault(namespace, {})[name] = dataset
        if isinstance(new, _Done):
            known.done[name] = new
            if new.erasure:
                known.with_erasure.add(name)
        else:
            known.open[name] = new
            for lookup in new.lookups if isinstance(new, Restatement) else ():
                self._lookups.setdefault((namespace, lookup), set()).add(name)

    def _remove(self, namespace: str, name: str) -> None:
        dataset = self._of.get(namespace, {}).pop(name, None)
        if dataset is None:
            return
        known = self._datasets[namespace, dataset]
        before = known.open.pop(name, None)
        for lookup in before.lookups if isinstance(before, Restatement) else ():
            names = self._lookups[namespace, lookup]
            names.discard(name)
            if not names:
                del self._lookups[namespace, lookup]
        known.done.pop(name, None)
        known.with_erasure.discard(name)
        if maker := self._makers.pop((namespace, name), ""):
            siblings = self._made_by[namespace, maker]
            siblings.discard(name)
            if not siblings:
                del self._made_by[namespace, maker]
        if not known.open and not known.done:
            del self._datasets[namespace, dataset]


def _request(body: Body) -> Restatement | Invalid:
    lean = trimmed_resource(body)
    request = _parsed(lean)
    if isinstance(request, Invalid):
        return request
    return replace(request, provenance=provenance_of(body, request.spec))


def _compact(body: Body) -> _Held:
    # Annotations may contain the whole object again, and no decision reads them.
    metadata = {k: v for k, v in body["metadata"].items() if k not in ("annotations", "labels", "managedFields")}
    spec, document = dict(body.get("spec") or {}), body.get("status") or {}
    stored = stored_status(RestatementStatus, body)
    status = stored.parts("observedGeneration", "conditions")
    if not _is_done(metadata, status):
        restatement = _parsed({"metadata": metadata, "spec": spec, "status": shared_strings(document)})
        if isinstance(restatement, Invalid):
            return restatement
        return replace(restatement, provenance=provenance_of(body, restatement.spec))
    # Not parsed until a decision needs it: at the start there may be tens of thousands.
    lean = {"metadata": metadata, "spec": spec, "status": dict(document)}
    ended = status.condition(SUCCEEDED)
    ttl, at = spec.get("ttlSecondsAfterFinished"), ended.last_transition_time if ended is not None else None
    owing = digest_of(stored.parsed) if is_awaited(status) else ""
    parsed = _parsed(lean) if owing else None
    return _Done(
        uid=metadata["uid"],
        version=str(metadata.get("resourceVersion", "")),
        generation=metadata.get("generation", 0),
        expires=at + timedelta(seconds=ttl) if ttl is not None and at is not None and not owing else None,
        packed=zlib.compress(json.dumps(lean, separators=(",", ":")).encode(), 1),
        erasure=owing,
        key=parsed.key if isinstance(parsed, Restatement) else "",
    )


def _parsed(lean: dict[str, Any]) -> Restatement | Invalid:
    try:
        return parse_restatement(lean)
    except InvalidSpec as e:
        return Invalid("Restatement", parse_meta(lean), stored_status(RestatementStatus, lean), str(e))


def _is_done(metadata: Body, status: RestatementStatus) -> bool:
    """Whether its status is final, unless the table is rolled back or the Restatement is undone."""
    return (
        status.is_true(SUCCEEDED)
        and status.observed_generation == metadata.get("generation", 0)
        and "deletionTimestamp" not in metadata
    )


def _uid(held: _Held) -> str:
    return held.uid if isinstance(held, _Done) else held.meta.uid


def _version(held: _Held) -> str:
    return held.version if isinstance(held, _Done) else held.meta.resource_version


def _generation(held: _Held) -> int:
    return held.generation if isinstance(held, _Done) else held.meta.generation
