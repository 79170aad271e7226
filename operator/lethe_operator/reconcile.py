"""observe -> decide -> apply, for one key. I/O, in the queue's threads."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from lethe.buffer.batch_rows import Totals
from lethe.buffer.digest import BufferDigest

from lethe_operator.apply import events, status
from lethe_operator.apply.carry_out import Effects, carry_out, delete_restatement, to_delete, write_statuses
from lethe_operator.apply.launch import delete_shared
from lethe_operator.apply.offers import Offers
from lethe_operator.apply.places import Places
from lethe_operator.apply.share import start_gathered
from lethe_operator.decide import conditions
from lethe_operator.decide.actions import Event, earliest
from lethe_operator.decide.dataset import decide, without_dataset
from lethe_operator.decide.policy_match import selects
from lethe_operator.decide.runs import history as run_history
from lethe_operator.decide.runs.driver_sharing import forgotten
from lethe_operator.decide.vacuum import policy_status
from lethe_operator.kube import (
    DATASETS,
    RESTATEMENTS,
    VACUUM_POLICIES,
    Kube,
    NotFound,
    ResourceKind,
)
from lethe_operator.metrics import Metrics, numbers_of
from lethe_operator.observe.id_lists import IdLists
from lethe_operator.observe.jobs import shared_jobs, vacuum_jobs
from lethe_operator.observe.restatements import RestatementCache
from lethe_operator.observe.tables import TableReader
from lethe_operator.observe.world import Observed, Sources, observe
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import InvalidSpec, parse_meta
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Invalid, NoTable, TableView, Unavailable
from lethe_operator.resources.vacuum_policy import parse_vacuum_policy
from lethe_operator.settings import Settings
from lethe_operator.work_queue import SHARED_RUNS, Key

log = logging.getLogger(__name__)

_KINDS: dict[str, ResourceKind] = {k.name: k for k in (DATASETS, RESTATEMENTS, VACUUM_POLICIES)}


def always(_namespace: str) -> bool:
    """An operator without Leases acts in every namespace."""
    return True


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Reconciler:
    """Reconciles one key after another. It keeps only caches between calls, so a restart loses nothing."""

    kube: Kube
    tables: TableReader
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    offers: Offers = field(default_factory=Offers)
    restatements: RestatementCache = field(default_factory=RestatementCache)
    lists: IdLists = field(default_factory=IdLists)
    places: Places = field(default_factory=lambda: Places(vacuum_jobs))
    clock: Callable[[], datetime] = utc_now
    acts_in: Callable[[str], bool] = always  # whether this operator, and no other one, may act in a namespace

    def __call__(self, key: Key) -> datetime | None:
        """Reconcile a key.

        Returns: When to reconcile it again; None: when something changes.
        Raises: KubeError and others; the queue then repeats the key after a pause.
        """
        if not self.acts_in(key.namespace):
            self._leave(key)
            return None
        with self.metrics.reconcile(key.kind):
            if key.kind == "VacuumPolicy":
                return self.policy(key)
            if key.kind == SHARED_RUNS:
                return self.shared_runs(key)
            with self.offers.reconciling(key.namespace, key.name):
                return self.dataset(key)

    def _leave(self, key: Key) -> None:
        """Another operator acts in the namespace: stop reading the Dataset's queue and buffer, and remove its metrics."""
        if key.kind == "Dataset":
            self.offers.withdraw(key.namespace, key.name)
            self.tables.forget(f"{key.namespace}/{key.name}")
            self.lists.forget(key.namespace, key.name)
            self.metrics.forget(key.namespace, key.name)

    def shared_runs(self, key: Key) -> datetime | None:
        """Start the offered runs of a namespace, and delete shared Jobs that no Dataset needs."""
        jobs = shared_jobs(self.kube, key.namespace)
        if any(j.over for j in jobs):
            uids = {d["metadata"]["uid"] for d in self.kube.list(DATASETS, key.namespace)}
            for name in forgotten(jobs, uids):
                delete_shared(self.kube, key.namespace, name)
        return start_gathered(self.kube, key.namespace, self.offers, jobs, self.clock(), self.settings)

    def dataset(self, key: Key) -> datetime | None:
        """Reconcile a Dataset and its Restatements; the caller holds it, see `Offers.reconciling`."""
        sources = Sources(self.kube, self.tables, self.restatements, self.lists, self.settings)
        found = observe(sources, key.namespace, key.name, self.clock())
        now = self.clock()
        for invalid in found.invalid:
            self._report_invalid(key.namespace, invalid, now)
        if found.dataset is None:
            return self._without_dataset(key, found, now)
        actions = decide(found.dataset, found.world, now, self.settings)
        status_now = actions.dataset_status or {}
        buffer = found.world.buffer
        oldest = buffer.oldest[0].oldest_time if isinstance(buffer, BufferDigest) and buffer.oldest else None
        listing = self.tables.listings.last_duration(found.dataset.meta.full_name)
        batches, behind = self._batches(found.dataset, found.world.table)
        numbers = numbers_of(status_now, oldest, listing, found.world.events, now, behind)
        self.metrics.show(key.namespace, key.name, status_now, numbers, batches)
        effects = Effects(self.kube, self.settings, self.offers, self.places, self.restatements.record_write)
        again = carry_out(effects, found.dataset, found.world, actions, now)
        for kind, outcome in run_history.ended(found.dataset.status.get("runs") or (), status_now.get("runs") or ()):
            self.metrics.run_ended(key.namespace, key.name, kind, outcome)
        return earliest(actions.look_again, again)

    def _batches(self, dataset: Dataset, table: TableView | NoTable | Unavailable) -> tuple[Totals | None, int | None]:
        """The totals of the table of batches, and how many commits it is behind; None: unknown, or there is no such table."""
        if not isinstance(table, TableView) or not dataset.spec.batch_tracking.enabled:
            return None, None
        if table.claim != dataset.claim:
            return None, None  # another Dataset reports them
        shown = self.tables.batches(dataset, table)
        if shown is None or shown.table_uuid != table.uuid:
            return None, table.ledger.version
        return shown.totals, max(0, table.ledger.version - shown.version)

    def policy(self, key: Key) -> datetime | None:
        """Write the conditions of a VacuumPolicy and when its window opens next, and remove the entries of Datasets that do not
        exist or are no longer selected."""
        try:
            body = self.kube.get(VACUUM_POLICIES, key.namespace, key.name)
            policy = parse_vacuum_policy(body)
        except NotFound:
            return None
        except InvalidSpec as e:
            invalid = Invalid("VacuumPolicy", parse_meta(body), body.get("status") or {}, str(e))
            self._report_invalid(key.namespace, invalid, self.clock())
            return None
        datasets = map(parse_meta, self.kube.list(DATASETS, key.namespace))
        selected = {d.name for d in datasets if selects(policy.spec.dataset_selector, d.labels)}
        now = self.clock()

        def transaction(old: Mapping[str, Any]) -> Mapping[str, Any]:
            return policy_status.own(policy, policy_status.without_others(old, selected), now)

        opens = policy_status.next_window(policy, now)
        if not status.change(self.kube, VACUUM_POLICIES, key.namespace, key.name, transaction):
            return opens
        was = conditions.find(policy.status, conditions.READY)
        ready = policy_status.policy_conditions(policy, now)[0]
        if (was.get("status"), was.get("reason")) != (ready.status, ready.reason):
            event = Event("VacuumPolicy", key.name, ready.reason, ready.message, ready.status != conditions.TRUE)
            events.post(self.kube, key.namespace, (event,), {("VacuumPolicy", key.name): policy.meta.uid})
        return opens

    def _without_dataset(self, key: Key, found: Observed, now: datetime) -> datetime | None:
        self.offers.withdraw(key.namespace, key.name)
        self.tables.forget(f"{key.namespace}/{key.name}")
        self.lists.forget(key.namespace, key.name)
        self.metrics.forget(key.namespace, key.name)
        actions = without_dataset(key.name, found.restatements, now)
        failed = write_statuses(self.kube, key.namespace, found.restatements, actions, self.restatements.record_write)
        if failed is not None:
            raise failed
        for restatement in to_delete(found.restatements, actions):
            delete_restatement(self.kube, restatement)
        uids = {("Restatement", r.meta.name): r.meta.uid for r in found.restatements}
        events.post(self.kube, key.namespace, actions.events, uids)
        return actions.look_again

    def _report_invalid(self, namespace: str, invalid: Invalid, now: datetime) -> None:
        generation = invalid.meta.generation
        stalled = conditions.stalled(Reason.INVALID_SPEC, invalid.message)
        document = {
            **invalid.status,
            "observedGeneration": generation,
            "conditions": conditions.as_status(invalid.status.get("conditions") or (), stalled, generation, now),
        }
        kind = _KINDS[invalid.kind]
        body = status.write(self.kube, kind, namespace, invalid.meta.name, invalid.status, document)
        if body is not None and kind is RESTATEMENTS:
            self.restatements.record_write(body)
