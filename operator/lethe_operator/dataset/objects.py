"""The Kubernetes objects that decisions are made from.

Watches, listings and the answers to the operator's own writes feed one store for each kind. I/O only in `ensure`,
`catch_up` and the functions whose name begins with `fresh`.

Each kind has its own watch, so one kind may be newer than another. Who depends on an order reads the later kind with a `fresh`
function. The store is never older than the operator's own writes.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from lethe.contract.settings import Launcher, RunFamily
from lethe.contract.status import DatasetStatus, VacuumPolicyStatus, stored_status
from lethe.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    LEASES,
    PODS,
    RESTATEMENTS,
    SPARK_APPLICATIONS,
    VACUUM_POLICIES,
    WATCHED,
    Document,
    Kube,
    NotFound,
    RequestRefused,
    ResourceKind,
)
from lethe.uri import index_keys, overlap_keys

from lethe_operator.cluster.cache import (
    SELECTORS,
    Body,
    Finds,
    KindListing,
    ObjectCache,
    RelistedStore,
    SeenVersion,
    changes_since,
    is_watched,
    newest,
    trimmed,
    trimmed_resource,
)
from lethe_operator.cluster.run_pods import POD_LABELS
from lethe_operator.dataset.decide import is_unsettled
from lethe_operator.resources.common import LABEL_DATASET_UID, LABEL_KIND, InvalidSpec, Meta, parse_meta
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import Invalid, UnplacedPod, unplaced_pod
from lethe_operator.resources.vacuum_policy import VacuumPolicy, parse_vacuum_policy
from lethe_operator.restatement.observe import RestatementCache
from lethe_operator.runs.observe import RunObject, of_job, of_spark_application

log = logging.getLogger(__name__)

_FORBIDDEN: Final = 403
_DELETED: Final = "DELETED"
# A key of the index of pods.
_UNPLACED: Final = "unplaced"
TAKE_OVER_AT_ONCE: Final = 8
# Of kinds with more objects, a new leader reads the changes; fewer are one page of a list.
CHANGES_FROM: Final = 500
# Of these, the operator writes only the status.
_RESOURCES: Final = (DATASETS, RESTATEMENTS, VACUUM_POLICIES)


class KindStore(RelistedStore, Protocol):
    """The objects of one kind."""

    def drop(self, namespace: str, name: str, uid: str, version: str = "") -> bool:
        """Record a deletion, and return whether the object was known. Without `version`, it is the newest change."""

    def uid(self, namespace: str, name: str) -> str:
        """The UID of the known object of this name; empty: none is known."""


class _NoFinds:
    def found(self, uid: str, version: str) -> None: ...

    def watched(self, uid: str, version: str) -> None: ...


class WatchedObjects:
    """One per operator, shared by its threads.

    Args:
        committer: Name of the committer's Lease in each namespace.
        kinds: The kinds that are watched.
    """

    def __init__(self, committer: str = "", kinds: Sequence[ResourceKind] = WATCHED) -> None:
        # Called with an object that others have changed or deleted, if no event will be news: the answer to a write shows the
        # change, or a relist has found it.
        self.on_change: Callable[[ResourceKind, Body], None] = lambda _kind, _body: None
        # Records what a relist found and its watch has not reported; None: nothing does.
        self.finds: Finds | None = None
        self.clock: Callable[[], float] = time.monotonic
        self.restatements = RestatementCache()
        self._datasets: ObjectCache[Dataset | Invalid] = ObjectCache(_dataset, _keys_of_dataset)
        self._policies: ObjectCache[VacuumPolicy | Invalid] = ObjectCache(_policy)
        self._jobs: ObjectCache[Document] = ObjectCache(trimmed, _keys_of_run_object)
        self._applications: ObjectCache[Document] = ObjectCache(trimmed, _keys_of_run_object)
        self._pods: ObjectCache[Document] = ObjectCache(trimmed, _keys_of_run_object)
        self._config_maps: ObjectCache[Document] = ObjectCache(trimmed)
        self._leases: ObjectCache[Document] = ObjectCache(trimmed)
        self._stores: Mapping[ResourceKind, KindStore] = {
            DATASETS: self._datasets,
            RESTATEMENTS: self.restatements,
            VACUUM_POLICIES: self._policies,
            JOBS: self._jobs,
            SPARK_APPLICATIONS: self._applications,
            PODS: self._pods,
            CONFIG_MAPS: self._config_maps,
            LEASES: self._leases,
        }
        self._committer = committer
        self._kinds = tuple(kinds)
        self._lock = threading.Lock()
        self._ensuring: dict[str, threading.Lock] = {}  # by namespace
        self._listed: set[tuple[ResourceKind, str]] = set()  # kinds and namespaces that were listed completely
        # Writes without an answer, by namespace, with a mark of each.
        self._doubtful: dict[str, dict[tuple[ResourceKind, str], object]] = {}
        self._listed_again: dict[tuple[ResourceKind, str], float] = {}  # when a watch last listed, by the clock
        self._forbidden: set[str] = set()

    # --- what feeds the store -----------------------------------------------------------------------------------------

    def record_event(self, kind: ResourceKind, type: str | None, body: Body) -> bool:
        """Record an event of a watch. Return whether it shows a change that the operator has not written or seen.

        Args:
            type: None: kopf has listed the object.
        """
        store, metadata = self._stores[kind], body["metadata"]
        if type == _DELETED:
            version = str(metadata.get("resourceVersion", ""))
            return store.drop(metadata["namespace"], metadata["name"], metadata["uid"], version)
        if type is None and (kind, metadata["namespace"]) in self._listed:
            self._listed_again[kind, metadata["namespace"]] = self.clock()
        put = store.put(body)
        # The operator writes into ConfigMaps and Jobs beside others. A version that one of its answers has skipped may be theirs.
        return put.is_news or (put.is_skipped and kind not in _RESOURCES)

    def written(self, kind: ResourceKind, body: Document) -> None:
        """Record the answer to a write. Objects that no watch reports are left out."""
        if kind not in self._stores or not is_watched(kind, body, self._committer):
            return
        put = self._stores[kind].put(body)
        if put.by_others and kind in _RESOURCES:
            self.on_change(kind, body)

    def deleted(self, kind: ResourceKind, namespace: str, name: str, answer: Document) -> None:
        """Record the answer to a deletion: a Status if the object is gone, otherwise the object."""
        if kind not in self._stores:
            return
        if answer.get("kind") != "Status":
            if (answer.get("metadata") or {}).get("deletionTimestamp"):
                self._stores[kind].put(answer)
            return
        uid = (answer.get("details") or {}).get("uid")
        if uid:
            self._stores[kind].drop(namespace, name, uid)

    def unanswered(self, kind: ResourceKind, namespace: str, name: str) -> None:
        """Record that it is unknown whether a write was carried out: `ensure` reads the object."""
        if kind in self._stores and name:
            with self._lock:
                self._doubtful.setdefault(namespace, {})[kind, name] = object()

    def listed_by_watches(self, before: float) -> list[tuple[ResourceKind, str]]:
        """Kinds and namespaces that a watch has listed again, the last time before `before`, by the clock; each is returned once.

        A watch lists again when it has lost its place, and then does not report what was deleted meanwhile.
        """
        kinds = [of for of, at in list(self._listed_again.items()) if at < before]
        for of in kinds:
            self._listed_again.pop(of, None)
        return kinds

    # --- listings and single reads ------------------------------------------------------------------------------------

    def is_synced(self, namespaces: Sequence[str]) -> bool:
        """Whether all objects of these namespaces have been listed."""
        return all((kind, namespace) in self._listed for namespace in namespaces for kind in self._kinds)

    def permitted(self, namespaces: Iterable[str]) -> list[str]:
        """Those of the namespaces in which the operator was not forbidden to read when it was last asked to."""
        return [n for n in namespaces if n not in self._forbidden]

    def ensure_each(self, kube: Kube, namespaces: Iterable[str]) -> None:
        """Return when the objects of each namespace are known in which the operator may read: see `ensure`.

        A namespace in which it has no rights does not stop it in the others.

        Raises:
            KubeError: The API server rejected a request for another reason, or did not answer (`status` 0).
        """
        for namespace in namespaces:
            self._if_permitted(namespace, partial(self.ensure, kube, namespace))

    def relist(self, kube: Kube, namespaces: Iterable[str]) -> None:
        """Catch up without hurry in each namespace in which the operator may read.

        Raises:
            KubeError: The API server rejected a request for another reason, or did not answer (`status` 0).
        """
        for namespace in namespaces:
            self._if_permitted(namespace, partial(self.catch_up, kube, [namespace], unhurried=True))

    def _if_permitted(self, namespace: str, read: Callable[[], None]) -> None:
        try:
            read()
        except RequestRefused as e:
            if e.status != _FORBIDDEN:
                raise
            self._forbid(namespace, e)
        else:
            self._permit(namespace)

    def _forbid(self, namespace: str, error: RequestRefused) -> None:
        if namespace in self._forbidden:
            return
        self._forbidden.add(namespace)
        text = "namespace %s: the operator may not read here, and does nothing in it until it may: %s"
        log.warning(text, namespace, error)

    def _permit(self, namespace: str) -> None:
        if namespace in self._forbidden:
            self._forbidden.discard(namespace)
            log.info("namespace %s: the operator may read here again", namespace)

    def ensure(self, kube: Kube, namespace: str) -> None:
        """Return when the objects of a namespace are known.

        That includes the effect of each write without an answer. The first call lists them.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        if self.is_synced([namespace]) and not self._doubtful.get(namespace):
            return
        with self._lock:
            one_at_a_time = self._ensuring.setdefault(namespace, threading.Lock())
        with one_at_a_time:  # the others find nothing left to do
            if not self.is_synced([namespace]):
                self.catch_up(kube, [namespace])
            self._look_up_writes(kube, namespace)

    def _look_up_writes(self, kube: Kube, namespace: str) -> None:
        with self._lock:
            doubtful = dict(self._doubtful.get(namespace, {}))
        for (kind, name), mark in doubtful.items():
            self._read(kube, kind, namespace, name)
            with self._lock:
                left = self._doubtful.get(namespace, {})
                if left.get((kind, name)) is mark:  # otherwise there was another such write meanwhile
                    del left[kind, name]

    def catch_up(
        self, kube: Kube, namespaces: Sequence[str], kinds: Sequence[ResourceKind] = (), unhurried: bool = False
    ) -> None:
        """Return when the store is at least as new as the API server was at the call.

        Args:
            kinds: Empty: all that are watched.
            unhurried: Leave the API server time for others.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        kinds = kinds or self._kinds
        for namespace in namespaces:
            for kind in kinds:
                self._catch_up(kube, kind, namespace, unhurried)
                self._listed.add((kind, namespace))

    def take_over(self, kube: Kube, namespaces: Iterable[str]) -> Collection[str]:
        """Catch up within seconds, in a store whose watches run.

        Of a kind with many objects, it reads only what has changed since the newest known object.

        Returns:
            The namespaces in which the operator may not read.

        Raises:
            KubeError: The API server rejected a request for another reason, or did not answer (`status` 0).
        """
        of_kinds = [(kind, namespace) for namespace in namespaces for kind in self._kinds]
        forbidden: dict[str, RequestRefused] = {}

        def read(of: tuple[ResourceKind, str]) -> None:
            try:
                self._take_over(kube, *of)
            except RequestRefused as e:
                if e.status != _FORBIDDEN:
                    raise
                forbidden[of[1]] = e

        with ThreadPoolExecutor(TAKE_OVER_AT_ONCE, thread_name_prefix="take-over") as pool:
            for _ in pool.map(read, of_kinds):
                pass
        for _, namespace in of_kinds:
            if namespace in forbidden:
                self._forbid(namespace, forbidden[namespace])
            else:
                self._permit(namespace)
        return forbidden.keys()

    def _take_over(self, kube: Kube, kind: ResourceKind, namespace: str) -> None:
        store = self._stores[kind]
        known = store.versions(namespace) if (kind, namespace) in self._listed and kind is not LEASES else {}
        events = (
            changes_since(kube, kind, namespace, SELECTORS.get(kind, ""), newest(known))
            if len(known) > CHANGES_FROM
            else None
        )
        if events is None:
            self.catch_up(kube, [namespace], [kind])
            return
        for type, body in events:
            if self.record_event(kind, type, body):
                self.on_change(kind, body)

    def _catch_up(self, kube: Kube, kind: ResourceKind, namespace: str, unhurried: bool) -> None:
        if kind is LEASES:
            if self._committer:
                self._read(kube, kind, namespace, self._committer)
            return
        listing = KindListing(kube, kind, namespace, SELECTORS.get(kind, ""), unhurried)
        if (kind, namespace) in self._listed:
            for body in listing.compare(self._stores[kind], self.finds or _NoFinds()):
                self.on_change(kind, body)
        else:
            listing.read(self._stores[kind])

    def fresh_config_map(self, kube: Kube, namespace: str, name: str) -> Document | None:
        """Read a ConfigMap from the API server.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        self._read(kube, CONFIG_MAPS, namespace, name)
        return self.config_map(namespace, name)

    def fresh_lease(self, kube: Kube, namespace: str, name: str) -> Document | None:
        """Read a Lease from the API server.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        self._read(kube, LEASES, namespace, name)
        return self.lease(namespace, name)

    def fresh_pods(self, kube: Kube, namespace: str, job: str, launcher: Launcher = Launcher.JOB) -> None:
        """Read the pods of a Job or SparkApplication from the API server.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        label = f"{POD_LABELS[launcher]}={job}"
        before = {p["metadata"]["uid"]: p["metadata"] for p in self._pods.find(namespace, label)}
        for body in kube.list(PODS, namespace, label):
            before.pop(body["metadata"]["uid"], None)
            self._pods.put(body)
        for uid, metadata in before.items():
            self._pods.drop_if_unchanged(
                namespace, uid, SeenVersion(metadata["name"], str(metadata["resourceVersion"]))
            )

    def _read(self, kube: Kube, kind: ResourceKind, namespace: str, name: str) -> None:
        store = self._stores[kind]
        uid = store.uid(namespace, name)
        try:
            body = kube.get(kind, namespace, name)
        except NotFound:
            if uid:
                store.drop(namespace, name, uid)
            return
        store.put(body)

    # --- what observers read ------------------------------------------------------------------------------------------

    def dataset(self, namespace: str, name: str) -> Dataset | Invalid | None:
        """The Dataset as last seen; Invalid: its spec does not match the schema; None: it is unknown."""
        return self._datasets.get(namespace, name)

    def datasets(self, namespace: str) -> tuple[Dataset, ...]:
        """The Datasets of a namespace that have a valid spec. The reconcile of another one reports it and starts nothing."""
        return tuple(d for d in self._datasets.all(namespace) if isinstance(d, Dataset))

    def all_datasets(self, namespace: str) -> tuple[Dataset | Invalid, ...]:
        """The Datasets of a namespace, also those with an invalid spec."""
        return self._datasets.all(namespace)

    def datasets_near(self, namespace: str, uris: Iterable[str], queue_url: str = "") -> tuple[Dataset, ...]:
        """The Datasets of a namespace whose buffer or table overlaps one of the URIs, or that read the queue."""
        keys = {key for uri in uris for key in overlap_keys(uri)}
        if queue_url:
            keys.add(_of_queue(queue_url))
        datasets = self._datasets.find(namespace, *keys)
        return tuple(d for d in datasets if isinstance(d, Dataset) and not d.meta.deleting)

    def dataset_metas(self, namespace: str) -> tuple[Meta, ...]:
        """Of all Datasets, also of those with an invalid spec."""
        return tuple(d.meta for d in self._datasets.all(namespace))

    def dataset_names(self, namespace: str) -> frozenset[str]:
        """Of the Datasets of a namespace, and of those that only Restatements name."""
        return frozenset(self._datasets.names(namespace)) | self.restatements.datasets(namespace)

    def unsettled_datasets(self, namespace: str) -> frozenset[str]:
        """Names of Datasets with something to do that does not wait for a time: an edit, an active run, a Restatement."""
        datasets = self._datasets.all(namespace)
        return self.restatements.unfinished_of(namespace) | {
            d.meta.name for d in datasets if is_unsettled(d.meta, d.stored.parts("observedGeneration", "runs"))
        }

    def policy(self, namespace: str, name: str) -> VacuumPolicy | Invalid | None:
        """The VacuumPolicy as last seen; Invalid: its spec does not match the schema; None: it is unknown."""
        return self._policies.get(namespace, name)

    def policies(self, namespace: str) -> tuple[VacuumPolicy | Invalid, ...]:
        """The VacuumPolicies of a namespace, also those with an invalid spec, by name."""
        return self._policies.all(namespace)

    def policy_names(self, namespace: str) -> tuple[str, ...]:
        """The names of all VacuumPolicies of a namespace, also of those with an invalid spec, unsorted."""
        return self._policies.names(namespace)

    def request_names(self, namespace: str) -> tuple[str, ...]:
        """The names of all subject requests of a namespace, also of those with an invalid spec."""
        return tuple(r.meta.name for r in self.restatements.requests(namespace))

    def launchers_of(self, namespace: str, dataset_uid: str) -> tuple[RunObject, ...]:
        """The Jobs of a Dataset and its SparkApplications; each kind by name."""
        return self._launchers(namespace, dataset_uid)

    def pods_of(self, namespace: str, dataset_uid: str) -> tuple[Document, ...]:
        """The pods of these, including executors."""
        return self._pods.find(namespace, dataset_uid)

    def vacuum_jobs(self, namespace: str) -> tuple[RunObject, ...]:
        """The Jobs and SparkApplications of vacuums of all Datasets of a namespace; each kind by name."""
        return self._launchers(namespace, _of_family(RunFamily.VACUUM.value))

    def job(self, namespace: str, name: str) -> Document | None:
        """The Job as last seen; None: the operator knows none of this name."""
        return self._jobs.get(namespace, name)

    def pods_of_job(self, namespace: str, job: str) -> tuple[Document, ...]:
        """The pods with the label that Kubernetes gives to the pods of this Job, by name."""
        return self._pods.find(namespace, f"{POD_LABELS[Launcher.JOB]}={job}")

    def unplaced_pods(self, namespace: str) -> tuple[UnplacedPod, ...]:
        """The pods of runs for which no node has room, by name."""
        return tuple(p for p in map(unplaced_pod, self._pods.find(namespace, _UNPLACED)) if p is not None)

    def _launchers(self, namespace: str, key: str) -> tuple[RunObject, ...]:
        jobs, applications = self._jobs.find(namespace, key), self._applications.find(namespace, key)
        return (*map(of_job, jobs), *map(of_spark_application, applications))

    def config_map(self, namespace: str, name: str) -> Document | None:
        """The ConfigMap as last seen; None: the operator knows none of this name."""
        return self._config_maps.get(namespace, name)

    def lease(self, namespace: str, name: str) -> Document | None:
        """The Lease as last seen; None: the operator knows none of this name."""
        return self._leases.get(namespace, name)


def _dataset(body: Body) -> Dataset | Invalid:
    lean = trimmed_resource(body)
    try:
        return parse_dataset(lean)
    except InvalidSpec as e:
        return Invalid("Dataset", parse_meta(lean), stored_status(DatasetStatus, lean), str(e))


def _policy(body: Body) -> VacuumPolicy | Invalid:
    lean = trimmed_resource(body)
    try:
        return parse_vacuum_policy(lean)
    except InvalidSpec as e:
        return Invalid("VacuumPolicy", parse_meta(lean), stored_status(VacuumPolicyStatus, lean), str(e))


def _keys_of_dataset(dataset: Dataset | Invalid) -> Iterator[str]:
    """Its buffer, its table and its queue."""
    if isinstance(dataset, Invalid):
        return
    buffer, table = dataset.spec.buffer, dataset.stored.parts("table").table
    for uri in (buffer.uri, table.location if table is not None else None):
        if uri:
            yield from index_keys(uri)
    if buffer.events is not None:
        yield _of_queue(buffer.events.queue_url)


def _of_queue(url: str) -> str:
    return f"queue {url}"


def _keys_of_run_object(document: Document) -> Iterator[str]:
    """The UID of its Dataset, the object that launched it, its family, and that no node has room for it."""
    labels: Mapping[str, Any] = document["metadata"].get("labels") or {}
    if unplaced_pod(document) is not None:
        yield _UNPLACED
    for label, value in labels.items():
        if label == LABEL_DATASET_UID:
            yield value
        elif label == LABEL_KIND:
            yield _of_family(value)
        elif label in POD_LABELS.values():
            yield f"{label}={value}"


def _of_family(family: str) -> str:
    return f"{LABEL_KIND}={family}"
