"""Observes everything that the decisions about one Dataset need. I/O.

The order matters: Jobs and the committer's mailbox are read before the ConfigMap, and all of these before the table. So if a run
is observed as ended, its result and its commit are observed too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, assert_never

from lethe.buffer.digest import BufferDigest
from lethe.contract.result import RunOutcome
from lethe.contract.run import RunKind

from lethe_operator.build import names
from lethe_operator.decide.erasure.status import digests
from lethe_operator.decide.guards import boundaries
from lethe_operator.decide.guards.preconditions import other_reader
from lethe_operator.decide.guards.rollback import rolled_back
from lethe_operator.decide.guards.table_identity import doubts_restatements
from lethe_operator.decide.policy_match import match
from lethe_operator.decide.restatement.row_search_gate import searching, wants_listing
from lethe_operator.kube import (
    CONFIG_MAPS,
    DATASETS,
    JOBS,
    LEASES,
    PODS,
    VACUUM_POLICIES,
    Kube,
    NotFound,
)
from lethe_operator.observe.failures import unavailable
from lethe_operator.observe.id_lists import IdLists
from lethe_operator.observe.jobs import vacuum_jobs
from lethe_operator.observe.ledgers import asked_by
from lethe_operator.observe.listing import ListingRequest
from lethe_operator.observe.neighbourhood import catalog_places, parsed
from lethe_operator.observe.restatements import RestatementCache
from lethe_operator.observe.runs import runs_of
from lethe_operator.observe.tables import TableReader
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import LABEL_DATASET_UID, InvalidSpec, Meta, parse_meta
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.members import member_label
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
    CommitterView,
    Invalid,
    NoTable,
    NotListed,
    ObservedRun,
    TableView,
    Unavailable,
    VacuumJob,
    World,
)
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, parse_vacuum_policy
from lethe_operator.settings import Settings


@dataclass(frozen=True)
class Observed:
    # None: the Dataset does not exist, or it is among the invalid resources.
    dataset: Dataset | None
    world: World = field(default_factory=World)
    invalid: tuple[Invalid, ...] = ()
    # Of a Dataset that does not exist; otherwise they are in `world`.
    restatements: tuple[Restatement, ...] = ()


@dataclass(frozen=True)
class Sources:
    """What the operator observes with. One per operator."""

    kube: Kube
    tables: TableReader
    restatements: RestatementCache
    lists: IdLists
    settings: Settings


def observe(sources: Sources, namespace: str, name: str, now: datetime) -> Observed:
    """Observe one Dataset. If it is outside its namespace's boundary, its table, buffer and queue are not read.

    Raises: KubeError, if the API server does not answer.
    """
    kube, tables, store, settings = sources.kube, sources.tables, sources.restatements, sources.settings
    known = store.of(kube, namespace, name, now)
    restatements, invalid = known.restatements, list(known.invalid)
    try:
        body = kube.get(DATASETS, namespace, name)
    except NotFound:
        return Observed(None, invalid=tuple(invalid), restatements=restatements)
    try:
        dataset = parse_dataset(body)
    except InvalidSpec as e:
        invalid.append(Invalid("Dataset", parse_meta(body), body.get("status") or {}, str(e)))
        return Observed(None, invalid=tuple(invalid), restatements=())
    restatements = sources.lists.attached(kube, namespace, name, restatements, now)
    outside = boundaries.of_dataset(dataset, settings.boundaries.of(namespace))
    policies, unreadable = _policies(kube, namespace)
    mailbox = committer(kube, namespace, settings.committer.name, now) if settings.committer.enabled else None
    found = _runs(kube, tables, dataset, mailbox)
    if isinstance(found, Unavailable):
        table: Any = found
        runs: tuple[ObservedRun, ...] = ()
        world = World(restatements, policies, runs, table, committer=mailbox, next_expiry=known.next_expiry)
        return Observed(dataset, world, tuple(invalid))
    runs = found
    if outside:
        tables.forget(dataset.meta.full_name)  # an earlier generation may still be listed
        unseen = Unavailable(Reason.OUTSIDE_BOUNDARY, outside, transient=False)
        world = World(
            restatements, policies, runs, unseen, NotListed(), committer=mailbox, next_expiry=known.next_expiry
        )
        return Observed(dataset, world, (*invalid, *unreadable))
    table = tables.view(dataset)
    if _doubts_what_succeeded(dataset, table):
        there = {r.meta.name for r in restatements}
        restatements = (*restatements, *(r for r in store.done(namespace, name) if r.meta.name not in there))
    if isinstance(table, TableView):
        there = {r.meta.name for r in restatements}
        outdated = store.with_outdated_erasure(namespace, name, digests(table.ledger, now))
        restatements = (*restatements, *(r for r in outdated if r.meta.name not in there))
    neighbours = _neighbours(kube, dataset.meta)
    other = other_reader(dataset, neighbours)
    events = tables.notifications(dataset, table, other.meta.name if other else "")
    wanted = dataset.spec.buffer.events
    rest_seconds = wanted.resync_seconds if wanted and events and events.is_read else 0
    ended = [
        a for r in runs for a in r.attempts if a.state is not AttemptState.ACTIVE and not _mirrored(dataset, a.job)
    ]
    known_buffer = tables.listings.last(dataset)
    at_once = needs_listing(ended, rest_seconds > 0, known_buffer) or wants_listing(restatements, known_buffer, table)
    buffer = tables.buffer(dataset, table, ListingRequest(at_once, rest_seconds, searching(restatements)))
    if isinstance(table, TableView):
        table = tables.known(dataset, table, asked_by(restatements, runs, buffer))
    if isinstance(buffer, BufferDigest) and isinstance(table, TableView):
        buffer = buffer.as_of(table.ledger.batches)
        if rest_seconds:
            tables.listings.drop_settled(dataset, table.ledger.batches)
    world = World(
        restatements,
        policies,
        runs,
        table,
        buffer,
        neighbours,
        events,
        mailbox,
        known.next_expiry,
        elsewhere=tables.neighbourhood.elsewhere(kube, settings.watch_namespaces, namespace),
        catalogs=catalog_places(),
        vacuums=_vacuums(kube, dataset, policies),
    )
    return Observed(dataset, world, (*invalid, *unreadable))


def _doubts_what_succeeded(dataset: Dataset, table: TableView | NoTable | Unavailable) -> bool:
    """Whether this table may not contain what Restatements committed."""
    if isinstance(table, TableView) and rolled_back(dataset, table):
        return True
    return doubts_restatements(dataset, table)


def needs_listing(ended: Sequence[Attempt], events_come: bool, known: BufferDigest | NotListed | Unavailable) -> bool:
    """Whether the buffer must be listed because runs have just ended. With notifications, and if each waiting batch is known, the
    ledger shows the effect of a run that settled all its batches."""
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


def _mirrored(dataset: Dataset, job: str) -> bool:
    return any(e.get("name") == job and e.get("finishTime") for e in dataset.status.get("runs") or ())


def _vacuums(kube: Kube, dataset: Dataset, policies: tuple[VacuumPolicy, ...]) -> tuple[VacuumJob, ...]:
    """The vacuums of all Datasets, if the policy limits their number."""
    policy = match(policies, dataset.meta.labels).decides
    limited = policy is not None and policy.spec.limits.concurrent_runs is not None
    return vacuum_jobs(kube, dataset.meta.namespace) if limited else ()


def _neighbours(kube: Kube, of: Meta) -> tuple[Dataset, ...]:
    return tuple(d for d in parsed(kube, of.namespace) if d.meta.name != of.name and not d.meta.deleting)


def _policies(kube: Kube, namespace: str) -> tuple[tuple[VacuumPolicy, ...], list[Invalid]]:
    found: list[VacuumPolicy] = []
    invalid: list[Invalid] = []
    for body in kube.list(VACUUM_POLICIES, namespace):
        try:
            found.append(parse_vacuum_policy(body))
        except InvalidSpec as e:
            invalid.append(Invalid("VacuumPolicy", parse_meta(body), body.get("status") or {}, str(e)))
    return tuple(found), invalid


def _runs(
    kube: Kube, tables: TableReader, dataset: Dataset, quick: CommitterView | None
) -> tuple[ObservedRun, ...] | Unavailable:
    namespace, uid = dataset.meta.namespace, dataset.meta.uid
    selectors = (f"{LABEL_DATASET_UID}={uid}", member_label(uid))  # its own Jobs and those that it shares
    jobs = [job for s in selectors for job in kube.list(JOBS, namespace, s)]
    pods = [pod for s in selectors for pod in kube.list(PODS, namespace, s)]
    try:
        config_map = kube.get(CONFIG_MAPS, namespace, names.shared(dataset.meta.name))
    except NotFound:
        config_map = {}
    # A ConfigMap of a deleted Dataset of the same name has nothing about this one's runs.
    owners = {o.get("uid") for o in (config_map.get("metadata") or {}).get("ownerReferences") or ()}
    data = config_map.get("data") or {} if uid in owners else {}
    try:
        return runs_of(uid, jobs, pods, data, tables.documents, quick)
    except Exception as e:
        return unavailable(e, "The document of a run", {}, storage=True)


def committer(kube: Kube, namespace: str, name: str, now: datetime) -> CommitterView:
    """Read its Lease, then its mailbox. A Dataset's ConfigMap that is read afterwards contains the result of each run that is no
    longer in the mailbox. Raises: KubeError."""
    try:
        lease = kube.get(LEASES, namespace, name)
        mailbox = kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return CommitterView(alive=False)
    return CommitterView(_is_alive(lease.get("spec") or {}, now), frozenset(mailbox.get("data") or {}))


def _is_alive(lease: Mapping[str, Any], now: datetime) -> bool:
    """Whether a Lease is held and was renewed within its own duration."""
    renewed, seconds = lease.get("renewTime"), lease.get("leaseDurationSeconds")
    if not lease.get("holderIdentity") or not renewed or not seconds:
        return False
    return now < datetime.fromisoformat(str(renewed).replace("Z", "+00:00")) + timedelta(seconds=int(seconds))
