"""Observes everything that the decisions about one Dataset need. I/O.

Objects of Kubernetes come from the operator's store. The order matters: if a run is observed as ended, its result and its commit
must be observed too. So `settled_runs` reads results again, and the table is read after the runs.

Observes the locations of the operator's catalogs. I/O.

The id of the cluster, for the claim of a buffer. I/O.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, assert_never

from lethe.base.errors import InputError
from lethe.buffer.digest import BufferDigest
from lethe.contract.result import RunOutcome
from lethe.contract.run import RunKind
from lethe.iceberg import catalogs
from lethe.kube import NAMESPACES, Kube, KubeError
from lethe.uri import is_local, names_place

from lethe_operator.dataset.listing import ListingRequest
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.settled_runs import RunReader, just_ended, vacuum_jobs
from lethe_operator.dataset.tables import TableReader, asked_by
from lethe_operator.erasure.decide import digests
from lethe_operator.guards import permissions
from lethe_operator.guards.preconditions import doubts_restatements, named_uris, other_reader, own_places, rolled_back
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    CatalogPlace,
    Engine,
    Invalid,
    LookupView,
    NoTable,
    NotListed,
    Observation,
    ObservedRun,
    TableView,
    Unavailable,
)
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, match
from lethe_operator.restatement.assess import searching, wants_listing
from lethe_operator.restatement.observe import IdLists
from lethe_operator.settings import Settings


def catalog_places(path: Path | None = None) -> Mapping[str, CatalogPlace]:
    """The store and the folder of tables of each catalog of PyIceberg's configuration.

    Args:
        path: Its file; None: where PyIceberg looks for it.
    """
    try:
        known = catalogs.every(path)
    except (InputError, OSError, ValueError):
        return {}
    return {
        name: CatalogPlace(p.get("s3.endpoint", ""), _folder(p.get("warehouse", "")), catalogs.is_local(p))
        for name, p in known.items()
    }


def _folder(warehouse: str) -> str:
    """The URI of a warehouse; "": only the catalog's service knows its location."""
    is_place = names_place(warehouse) or "://" in warehouse
    return warehouse if is_place and (not is_local(warehouse) or len(warehouse) > 1) else ""


log = logging.getLogger(__name__)

# The certificate of the cluster's certificate authority, which Kubernetes mounts into every pod.
AUTHORITY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt")


def cluster_id(kube: Kube, authority: Path = AUTHORITY) -> str:
    """The UID of the namespace kube-system, which exists as long as the cluster.

    If the operator may not read it, a digest of the cluster's certificate authority; "": neither is available.
    """
    try:
        return str(kube.get(NAMESPACES, "", "kube-system")["metadata"]["uid"])
    except KubeError as e:
        log.info("cannot read the UID of the namespace kube-system: %s", e)
    try:
        return f"ca-{hashlib.sha256(authority.read_bytes()).hexdigest()[:32]}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Observed:
    """A Dataset and the world around it; without a usable Dataset, the Restatements that name it."""

    # None: the Dataset does not exist, or it is among the invalid resources.
    dataset: Dataset | None
    world: Observation = field(default_factory=Observation)
    invalid: tuple[Invalid, ...] = ()
    restatements: tuple[Restatement, ...] = ()
    """Of a Dataset that does not exist; otherwise they are in `world`."""


@dataclass(frozen=True)
class Sources:
    """What the operator observes with. One per operator."""

    kube: Kube
    objects: WatchedObjects
    tables: TableReader
    lists: IdLists
    settings: Settings


def observe(sources: Sources, namespace: str, name: str, now: datetime, fresh_table: bool = False) -> Observed:
    """Observe one Dataset. If it is outside its namespace's boundary, its table, buffer and queue are not read.

    Args:
        fresh_table: True: the table as it is now; False: as of its last polled pointer. See `TableReader.is_current`.

    Raises:
        KubeError: The API server does not answer.
    """
    kube, objects, tables, settings = sources.kube, sources.objects, sources.tables, sources.settings
    for watched in {namespace, *settings.watch_namespaces}:
        objects.ensure(kube, watched)
    store = objects.restatements
    known, looked_up_by = store.of(namespace, name, now), store.looking_up_in(namespace, name)
    restatements, invalid = known.restatements, list(known.invalid)
    dataset = objects.dataset(namespace, name)
    if dataset is None:
        return Observed(None, invalid=tuple(invalid), restatements=restatements)
    if isinstance(dataset, Invalid):
        return Observed(None, invalid=(*invalid, dataset), restatements=())
    dataset = replace(dataset, stored=dataset.stored.recent())
    restatements = sources.lists.attached(kube, namespace, name, restatements, now)
    outside = permissions.of_dataset(dataset, settings.boundaries.of(namespace))
    policies, unreadable = _policies(objects, namespace)
    read_runs, workers = RunReader(kube, objects, tables.documents, settings, now).read(dataset)
    committer, warm = workers.get(Engine.COMMITTER), workers.get(Engine.WARM_DRIVER)
    values = workers.get(Engine.VALUES_DRIVER)
    if isinstance(read_runs, Unavailable):
        table: Any = read_runs
        runs: tuple[ObservedRun, ...] = ()
        world = Observation(
            restatements,
            policies,
            runs,
            table,
            committer=committer,
            warm_driver=warm,
            values_driver=values,
            next_expiry=known.next_expiry,
        )
        return Observed(dataset, world, tuple(invalid))
    runs = read_runs
    if outside:
        tables.forget(dataset.meta.full_name)  # an earlier generation may still be listed
        unseen = Unavailable(outside.reason, outside.message, transient=False)
        world = Observation(
            restatements,
            policies,
            runs,
            unseen,
            NotListed(),
            committer=committer,
            warm_driver=warm,
            values_driver=values,
            next_expiry=known.next_expiry,
        )
        return Observed(dataset, world, (*invalid, *unreadable))
    ended = just_ended(runs, dataset)
    table = tables.view(dataset, fresh_table or bool(ended))
    if _doubts_what_succeeded(dataset, table):
        there = {r.meta.name for r in restatements}
        restatements = (*restatements, *(r for r in store.done(namespace, name) if r.meta.name not in there))
    if isinstance(table, TableView):
        there = {r.meta.name for r in restatements}
        outdated = store.with_outdated_erasure(namespace, name, digests(table.ledger, now))
        restatements = (*restatements, *(r for r in outdated if r.meta.name not in there))
    near = _Near(dataset, table, restatements)
    overlapping_datasets = near.of(objects, namespace)
    other = other_reader(dataset, overlapping_datasets)
    events = tables.notifications(dataset, table, other.meta.name if other else "")
    wanted = dataset.spec.buffer.events
    rest_seconds = wanted.resync_seconds if wanted and events and events.is_read else 0
    known_buffer = tables.listings.last(dataset)
    at_once = needs_listing(ended, rest_seconds > 0, known_buffer)
    waiting = (*restatements, *looked_up_by)
    at_once = at_once or wants_listing(waiting, known_buffer, table)
    buffer = tables.buffer(dataset, table, ListingRequest(at_once, rest_seconds, searching(waiting)))
    if isinstance(table, TableView):
        table = tables.known(dataset, table, asked_by(dataset, restatements, runs, buffer))
    if isinstance(buffer, BufferDigest) and isinstance(table, TableView):
        buffer = buffer.as_of(table.ledger.batches)
        if rest_seconds:
            tables.listings.drop_settled(dataset, table.ledger.batches)
    tables.lookups.put(LookupView(dataset, table, buffer), looked_up_by)
    limited = _limits_vacuums(dataset, policies)
    world = Observation(
        restatements,
        policies,
        runs,
        table,
        buffer,
        overlapping_datasets,
        events,
        committer,
        warm,
        values,
        known.next_expiry,
        other_namespaces=tuple(d for n in settings.watch_namespaces if n != namespace for d in near.of(objects, n)),
        catalogs=catalog_places(),
        vacuums=vacuum_jobs(objects, namespace) if limited else (),
        peers_in_namespace=objects.datasets(namespace) if limited else (),
        lookups=_lookups(objects, tables, dataset, restatements),
        looked_up_by=looked_up_by,
    )
    return Observed(dataset, world, (*invalid, *unreadable))


def _lookups(
    objects: WatchedObjects, tables: TableReader, dataset: Dataset, restatements: Sequence[Restatement]
) -> dict[str, LookupView]:
    """The Datasets in whose tables the Restatements look up values."""
    names = frozenset[str]().union(*(r.lookups for r in restatements))
    found = ((name, objects.dataset(dataset.meta.namespace, name)) for name in sorted(names))
    return {name: tables.lookups.of(d) for name, d in found if isinstance(d, Dataset)}


def _doubts_what_succeeded(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether this table may not contain what Restatements committed."""
    if isinstance(table, TableView) and rolled_back(dataset, table):
        return True
    return doubts_restatements(dataset, table)


def needs_listing(ended: Sequence[Attempt], events_come: bool, known: BufferDigest | NotListed | Unavailable) -> bool:
    """Whether the buffer must be listed because runs have just ended.

    With notifications, and if each waiting batch is known, the ledger shows the effect of a run that settled all its batches.
    """
    if not events_come or not isinstance(known, BufferDigest) or known.is_cut:
        return bool(ended)
    return not all(map(_did_all, ended))


def _did_all(attempt: Attempt) -> bool:
    """Whether a consolidation settled all its batches: otherwise its result has a message."""
    result = attempt.result
    committed = result is not None and result.outcome is RunOutcome.COMMITTED and not result.message
    match attempt.kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING:
            return committed
        case RunKind.RESTATEMENT | RunKind.VACUUM | RunKind.ERASURE_CHECK:
            return False
        case _:
            assert_never(attempt.kind)


def _limits_vacuums(dataset: Dataset, policies: tuple[VacuumPolicy, ...]) -> bool:
    """Whether the Dataset's policy limits the number of vacuums at a time."""
    policy = match(policies, dataset.meta.labels).decides
    return policy is not None and policy.spec.limits.concurrent_runs is not None


@dataclass(frozen=True)
class _Near:
    """Finds the other Datasets that use what this one uses."""

    dataset: Dataset
    table: TableView | NoTable | Unavailable
    restatements: Sequence[Restatement]

    def of(self, objects: WatchedObjects, namespace: str) -> tuple[Dataset, ...]:
        """Those of a namespace."""
        buffer = self.dataset.spec.buffer
        named = (uri for r in self.restatements for uri in named_uris(r).values())
        uris = (buffer.uri, *own_places(self.dataset, self.table), *named)
        queue = buffer.events.queue_url if buffer.events else ""
        datasets = objects.datasets_near(namespace, uris, queue)
        return tuple(d for d in datasets if d.meta.full_name != self.dataset.meta.full_name)


def _policies(objects: WatchedObjects, namespace: str) -> tuple[tuple[VacuumPolicy, ...], list[Invalid]]:
    policies = objects.policies(namespace)
    return (
        tuple(p for p in policies if isinstance(p, VacuumPolicy)),
        [p for p in policies if isinstance(p, Invalid)],
    )
