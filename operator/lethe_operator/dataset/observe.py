"""Observes everything that the decisions about one Dataset need. I/O.

Objects of Kubernetes come from the operator's store. The order matters: if a run is observed as ended, its result and its commit
must be observed too. So results are read again, and the table is read after the runs.

Jobs, pods, mailboxes and the Dataset's ConfigMap have separate watches, so the end of a run may be known before its
result. A run that has ended, and that `status.runs` does not show as ended, is therefore decided on its ConfigMap and pods as the
API server has them after the end was seen. The table is read after all of these.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, assert_never

from lethe.base.errors import InputError
from lethe.buffer.digest import BufferDigest
from lethe.contract.result import RunOutcome
from lethe.contract.run import MailboxEntry
from lethe.contract.settings import RunFamily, RunKind
from lethe.contract.status import ENDED_RUNS_OF_A_KIND, RunEntry
from lethe.iceberg import catalogs
from lethe.kube import NAMESPACES, Kube, KubeError
from lethe.ledger.lineage import shown_again_since
from lethe.uri import is_local, names_place
from pydantic import ValidationError

from lethe_operator.cluster.time_limit import unavailable
from lethe_operator.dataset.consolidation import CHEAP_OBJECTS, are_few
from lethe_operator.dataset.listing import ListingRequest
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.tables import TableReader, asked_by
from lethe_operator.erasure.decide import digests
from lethe_operator.guards import permissions
from lethe_operator.guards.preconditions import doubts_restatements, named_uris, other_reader, own_places, rolled_back
from lethe_operator.resources.common import (
    ANNOTATION_AWAY_UNTIL,
    ANNOTATION_DATASET,
    ANNOTATION_FOR_UID,
    KEY_PREFIX_LENGTH,
    LABEL_DATASET_UID,
)
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
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
    VacuumJob,
    WorkerView,
    kind_of,
)
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, match
from lethe_operator.restatement.assess import may_start_without_listing, searching, wants_listing
from lethe_operator.restatement.observe import IdLists
from lethe_operator.runs import names
from lethe_operator.runs.observe import Documents, of_job, runs_of, time_of
from lethe_operator.runs.retry import ENDED_PHASES, started
from lethe_operator.settings import Settings

log = logging.getLogger(__name__)


def vacuum_jobs(objects: WatchedObjects, namespace: str) -> tuple[VacuumJob, ...]:
    """The vacuums that purge, whatever launched them. A run that only checks erasures needs no place."""
    jobs = []
    for one in objects.vacuum_jobs(namespace):
        metadata = one.metadata
        annotations = metadata.get("annotations") or {}
        if kind_of(RunFamily.VACUUM, annotations.get(ANNOTATION_FOR_UID, "")) is not RunKind.VACUUM:
            continue
        jobs.append(
            VacuumJob(
                dataset=annotations.get(ANNOTATION_DATASET, ""),
                uid=metadata["labels"].get(LABEL_DATASET_UID, ""),
                active=one.state is AttemptState.ACTIVE,
                finished=time_of(one.ended) if one.ended else None,
            )
        )
    return tuple(jobs)


Workers = Mapping[Engine, WorkerView]


@dataclass(frozen=True)
class RunReader:
    """Observes runs, and the processes that take runs from a mailbox. One per reconcile."""

    kube: Kube
    objects: WatchedObjects
    documents: Documents
    settings: Settings
    now: datetime

    def read(self, dataset: Dataset) -> tuple[tuple[ObservedRun, ...] | Unavailable, Workers]:
        """The runs of a Dataset, and the processes as seen before the results of these runs.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        namespace, name = dataset.meta.namespace, dataset.meta.name
        workers = self._workers(namespace)
        try:
            runs = self._runs(dataset, workers)
            away = _may_lack_news(runs, dataset, workers)
            if away:
                self._read_again(namespace, away)
                workers = self._workers(namespace)
                runs = self._runs(dataset, workers)
            if _undecided(runs, dataset, workers):
                self.objects.fresh_config_map(self.kube, namespace, names.shared(name))
                runs = self._runs(dataset, workers)
                jobs = {(a.job, a.launcher) for a in _undecided(runs, dataset, workers) if a.engine is Engine.JOB}
                for job, launcher in sorted(jobs):
                    self.objects.fresh_pods(self.kube, namespace, job, launcher)
                runs = self._runs(dataset, workers) if jobs else runs
        except UnreadableDocument as e:
            return e.found, workers
        return runs, workers

    def _workers(self, namespace: str) -> Workers:
        workers: dict[Engine, WorkerView] = {}
        committer, warm = self.settings.committer, self.settings.warm_drivers
        if committer.enabled:
            workers[Engine.COMMITTER] = committer_view(self.objects, namespace, committer.name, self.now)
        if warm.enabled:
            for engine in (Engine.WARM_DRIVER, Engine.VALUES_DRIVER):
                workers[engine] = warm_driver_view(self.objects, namespace, warm.name_of(engine), self.now)
        return workers

    def _read_again(self, namespace: str, engines: Iterable[Engine]) -> None:
        """Read what shows whether these processes are alive, and then their mailboxes.

        Raises:
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        for engine in engines:
            match engine:
                case Engine.COMMITTER:
                    self.objects.fresh_lease(self.kube, namespace, self.settings.committer.name)
                    self.objects.fresh_config_map(self.kube, namespace, self.settings.committer.name)
                case Engine.WARM_DRIVER | Engine.VALUES_DRIVER:
                    name = self.settings.warm_drivers.name_of(engine)
                    self.objects.fresh_pods(self.kube, namespace, name)
                    self.objects.fresh_config_map(self.kube, namespace, name)
                case Engine.JOB:
                    raise AssertionError("a Job has no mailbox")
                case _:
                    assert_never(engine)

    def _runs(self, dataset: Dataset, workers: Workers) -> tuple[ObservedRun, ...]:
        namespace, uid = dataset.meta.namespace, dataset.meta.uid
        config_map = self.objects.config_map(namespace, names.shared(dataset.meta.name)) or {}
        # A ConfigMap of a deleted Dataset of the same name has nothing about this one's runs.
        owners = {o.get("uid") for o in (config_map.get("metadata") or {}).get("ownerReferences") or ()}
        data = config_map.get("data") or {} if uid in owners else {}
        launchers, pods = self.objects.launchers_of(namespace, uid), self.objects.pods_of(namespace, uid)
        try:
            return runs_of(launchers, pods, data, self.documents, workers)
        except Exception as e:
            raise UnreadableDocument(unavailable(e, "The document of a run", {}, storage=True)) from e


class UnreadableDocument(Exception):
    """A document of a run beside the table cannot be read."""

    def __init__(self, found: Unavailable) -> None:
        super().__init__(found.message)
        self.found = found


def committer_view(objects: WatchedObjects, namespace: str, name: str, now: datetime) -> WorkerView:
    """The committer of a namespace, from its Lease and its mailbox."""
    lease, mailbox = objects.lease(namespace, name), objects.config_map(namespace, name)
    if lease is None or mailbox is None:
        return WorkerView(alive=False)
    return WorkerView(_is_alive(lease.get("spec") or {}, now), frozenset(mailbox.get("data") or {}))


def warm_driver_view(objects: WatchedObjects, namespace: str, name: str, now: datetime) -> WorkerView:
    """The warm driver of a namespace, from its Job, its pod and its mailbox."""
    mailbox = objects.config_map(namespace, name)
    if mailbox is None:
        return WorkerView(alive=False)
    data = mailbox.get("data") or {}
    job = objects.job(namespace, name)
    starting = (
        job is not None and of_job(job).state is AttemptState.ACTIVE and "deletionTimestamp" not in job["metadata"]
    )
    alive = starting and any(map(_is_running, objects.pods_of_job(namespace, name)))
    cancelled = frozenset(key for key, text in data.items() if _is_cancelled(text))
    return WorkerView(alive, frozenset(data), cancelled, starting, _away_until(mailbox, now))


def _away_until(mailbox: Mapping[str, Any], now: datetime) -> datetime | None:
    """Until when a warm driver makes way for pods of runs; None: it does not."""
    text = (mailbox["metadata"].get("annotations") or {}).get(ANNOTATION_AWAY_UNTIL)
    try:
        until = datetime.fromisoformat(text) if text else None
    except ValueError:  # written by hand
        return None
    return until if until is not None and until.tzinfo is not None and now < until else None


def _is_running(pod: Mapping[str, Any]) -> bool:
    """Whether the container runs, and its pod is not being deleted."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return "deletionTimestamp" not in pod["metadata"] and any("running" in (s.get("state") or {}) for s in statuses)


def _is_cancelled(text: str) -> bool:
    try:
        return bool(MailboxEntry.model_validate_json(text).cancelled)
    except ValidationError:  # the warm driver removes it
        return False


def just_ended(runs: Iterable[ObservedRun], dataset: Dataset) -> list[Attempt]:
    """The attempts that have ended and that the Dataset's status does not show as ended."""
    return [a for a in _attempts(runs, dataset) if a.state is not AttemptState.ACTIVE]


def _attempts(runs: Iterable[ObservedRun], dataset: Dataset) -> list[Attempt]:
    """The attempts that the Dataset's status does not show as ended."""
    shown = [e for e in dataset.status.runs or () if e.phase in ENDED_PHASES]
    return [a for r in runs for a in r.attempts if not _is_shown(a, shown)]


def _is_shown(attempt: Attempt, shown: Iterable[RunEntry]) -> bool:
    """Whether the status shows or showed the end of an attempt: it keeps the last few of a kind."""
    same = [e for e in shown if e.kind == attempt.kind.family.value]
    if any(e.name == attempt.job for e in same):
        return True
    own = (attempt.created.replace(microsecond=0), attempt.job)
    return len(same) >= ENDED_RUNS_OF_A_KIND and own < min(map(started, same))


def _undecided(runs: Iterable[ObservedRun], dataset: Dataset, workers: Workers) -> list[Attempt]:
    """The attempts that look ended although no result is known."""
    return [
        a
        for a in _attempts(runs, dataset)
        if a.result is None
        and (a.state is not AttemptState.ACTIVE or (a.engine is not Engine.JOB and not _waits(a, workers)))
    ]


def _may_lack_news(runs: Iterable[ObservedRun], dataset: Dataset, workers: Workers) -> frozenset[Engine]:
    """The processes that do not seem to be alive although a run of theirs is open."""
    opened = {a.engine for a in _attempts(runs, dataset) if a.engine is not Engine.JOB and a.result is None}
    return frozenset(e for e, view in workers.items() if e in opened and not view.alive)


def _waits(attempt: Attempt, workers: Workers) -> bool:
    """Whether the mailbox of its engine has an entry for the attempt."""
    worker = workers.get(attempt.engine)
    return worker is not None and attempt.run_id[:KEY_PREFIX_LENGTH] in worker.mailbox


def _is_alive(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether a Lease is held and was renewed within its own duration.

    A time further in the future than that is of a clock that is wrong. It says nothing, and would let a dead process look alive.
    """
    renewed, seconds = lease.get("renewTime"), lease.get("leaseDurationSeconds")
    if not lease.get("holderIdentity") or not renewed or not seconds:
        return False
    age, limit = now - datetime.fromisoformat(str(renewed).replace("Z", "+00:00")), timedelta(seconds=int(seconds))
    return -limit < age < limit


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
    objects.ensure(kube, namespace)
    objects.ensure_each(kube, objects.permitted(n for n in settings.watch_namespaces if n != namespace))
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
    takes = dataset.spec.consolidation.max_batches_per_run
    at_once = needs_listing(ended, rest_seconds > 0, known_buffer, table, taken_by(runs, ended), takes)
    waiting = (*restatements, *looked_up_by)
    at_once = at_once or wants_listing(waiting, known_buffer, table)
    new = looks_for_new(ended, rest_seconds > 0, known_buffer)
    waits = not may_start_without_listing(restatements)
    buffer = tables.buffer(dataset, table, ListingRequest(at_once, new, rest_seconds, searching(waiting), waits))
    if isinstance(table, TableView):
        table = tables.known(dataset, table, asked_by(dataset, restatements, runs, buffer))
    if isinstance(buffer, BufferDigest) and isinstance(table, TableView):
        now_waiting = buffer.as_of(table.ledger.batches)
        if now_waiting is not buffer:
            tables.listings.drop_settled(dataset, table.ledger.batches)
        buffer = now_waiting
    tables.lookups.put(LookupView(dataset, table, buffer), looked_up_by)
    limited = _limits_vacuums(dataset, policies)
    world = Observation(
        restatements,
        policies,
        runs,
        table,
        buffer,
        tables.listings.is_listed_now(dataset),
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


def taken_by(runs: Iterable[ObservedRun], ended: Sequence[Attempt]) -> frozenset[str]:
    """The ids of the batches of the consolidations that these attempts have ended."""
    run_ids = {a.run_id for a in ended}
    intents = (r.intent for r in runs if r.intent is not None and r.run_id in run_ids)
    return frozenset(i for intent in intents if intent.consolidation for i in intent.consolidation.batch_ids)


def needs_listing(
    ended: Sequence[Attempt],
    events_come: bool,
    known: BufferDigest | NotListed | Unavailable,
    table: TableView | NoTable | Unavailable,
    taken: Collection[str],
    run_takes: int,
) -> bool:
    """Whether the buffer must be listed at once because runs have just ended. Otherwise the next listing comes after its pause.

    The ledger shows the effect of a run that settled all its batches, and the digest names the batches of the next runs.
    While the last of these works, the listing finds those of the runs after it. If all waiting batches are named,
    notifications report new ones; without them, a buffer that costs little is listed, and a larger one if the run took many
    batches and few are left: the next run should take as many. A buffer that costs little is also listed after a
    Restatement, because the status counts the batches that it concerns; any buffer is after an Undo, because batches that were
    withheld may be promoted now.

    Args:
        known: It may still name batches that these runs have settled.
        taken: Ids of the batches of these runs.
        run_takes: The maximum number of batches of one run.
    """
    if not isinstance(known, BufferDigest) or not isinstance(table, TableView) or not all(map(_did_all, ended)):
        return bool(ended)
    if not ended:
        return False
    if shown_again_since(table.ancestry, table.head_id, known.head_id):
        return True
    if known.is_cut:
        return sum(b.id not in taken for b in known.oldest) < 2 * run_takes
    restated = any(a.kind is RunKind.RESTATEMENT for a in ended)
    if known.objects <= CHEAP_OBJECTS:
        return restated or not events_come
    return not events_come and are_few(known.batches - len(taken), len(taken), known.objects)


def looks_for_new(ended: Sequence[Attempt], events_come: bool, known: BufferDigest | NotListed | Unavailable) -> bool:
    """Whether to look for new batches because a consolidation has just ended, so that the next one follows without a pause.

    Of a buffer that costs much to list, only the names after the known ones are listed: producers often number their batches.
    """
    consolidated = any(a.kind is RunKind.CONSOLIDATION for a in ended)
    costly = isinstance(known, BufferDigest) and known.objects > CHEAP_OBJECTS and not known.is_cut
    return consolidated and costly and not events_come


def _did_all(attempt: Attempt) -> bool:
    """Whether a consolidation settled all its batches: otherwise its result has a message. The ledger shows what others did."""
    result = attempt.result
    committed = result is not None and result.outcome is RunOutcome.COMMITTED and not result.message
    match attempt.kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING:
            return committed
        case RunKind.RESTATEMENT | RunKind.VACUUM | RunKind.ERASURE_CHECK:
            return True
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
