"""observe -> decide -> apply, for one key. I/O, in the queue's threads."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from lethe import tracing
from lethe.base.errors import Verdict
from lethe.base.short_cache import ShortCache
from lethe.buffer.batch_rows import Totals
from lethe.buffer.digest import BufferDigest
from lethe.contract.status import DatasetStatus, VacuumPolicyStatus
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES, Kube, NotLeading, ResourceKind

from lethe_operator import conditions
from lethe_operator.actions import Actions, Event, earliest
from lethe_operator.carry_out import (
    Effects,
    Sweeps,
    carry_out,
    changes_anything,
    delete_restatement,
    to_delete,
    write_statuses,
)
from lethe_operator.cluster import status
from lethe_operator.cluster.queue import WARM_DRIVER
from lethe_operator.cluster.schedule import Key, Next
from lethe_operator.dataset.decide import decide, is_idle, without_dataset
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.observe import Observed, Sources, observe, vacuum_jobs, warm_driver_view
from lethe_operator.dataset.tables import TableReader
from lethe_operator.metrics import Metrics, numbers_of
from lethe_operator.publish.publisher import Publishers
from lethe_operator.reasons import Reason
from lethe_operator.request.reconcile import EraseRights, RequestReconciler, everyone_may
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Engine, Invalid, NoTable, TableView, Unavailable
from lethe_operator.resources.vacuum_policy import selects
from lethe_operator.restatement.observe import IdLists
from lethe_operator.runs import retry
from lethe_operator.runs.launch import (
    DatasetObjects,
    RunVersions,
    VacuumPlaces,
    end_idle,
    keep_away,
    replace_outdated,
)
from lethe_operator.runs.retry import ended_versions
from lethe_operator.runs.room import MakingWay, make_way
from lethe_operator.settings import Settings
from lethe_operator.vacuum import status as vacuum_status

log = logging.getLogger(__name__)

# The longest interval of a VacuumPolicy, in seconds: its status loses the entries of deleted Datasets then.
POLICY_SECONDS: Final = 60.0
_KINDS: dict[str, ResourceKind] = {k.name: k for k in (DATASETS, RESTATEMENTS, VACUUM_POLICIES)}


def always(_namespace: str) -> bool:
    """A process without Leases acts in every namespace."""
    return True


def utc_now() -> datetime:
    """The current time as an aware value, by the clock of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Reconciler:
    """Reconciles one key after another. It keeps only caches between calls, so a restart loses nothing."""

    kube: Kube
    objects: WatchedObjects
    tables: TableReader
    settings: Settings
    metrics: Metrics = field(default_factory=Metrics)
    lists: IdLists = field(default_factory=IdLists)
    places: VacuumPlaces = field(default_factory=VacuumPlaces)
    sweeps: Sweeps = field(default_factory=Sweeps)
    warned: ShortCache[tuple[str, Event], bool] = field(default_factory=ShortCache)
    dataset_objects: DatasetObjects = field(default_factory=DatasetObjects)
    versions: RunVersions | None = None
    """None: versions of runs are not compared."""
    clock: Callable[[], datetime] = utc_now
    acts_in: Callable[[str], bool] = always
    """Whether this process, and no other one, may act in a namespace."""
    publishers: Publishers | None = None
    """None: status events are not enabled."""
    rights: EraseRights | None = None
    """None: who requests an erasure of a subject is not known, and not asked."""

    def __call__(self, key: Key) -> Next | None:
        """Reconcile a key.

        Returns:
            When to reconcile it again; None: nothing of this key exists.

        Raises:
            KubeError: And others. The queue then repeats the key after a pause.
        """
        if not self.acts_in(key.namespace):
            return self._leave(key)
        about = {"k8s.namespace.name": key.namespace, "lethe.object": key.name}
        with self.metrics.reconcile(key.kind), tracing.draft(f"reconcile {key.kind}", about):
            try:
                return self._reconcile(key)
            except NotLeading as e:
                log.info("%s: %s", key, e)
        return self._leave(key)

    def _reconcile(self, key: Key) -> Next | None:
        if key.kind == "VacuumPolicy":
            return self.policy(key)
        if key.kind == "Restatement":
            return self.request(key)
        if key.kind == WARM_DRIVER:
            return self.warm_driver(key)
        return self.dataset(key)

    def _leave(self, key: Key) -> Next:
        """Another process acts in the namespace: stop reading the Dataset's queue and buffer, and remove its metrics.

        When this process may act again, `Leadership.on_change` says so.
        """
        if key.kind == "Dataset":
            self._forget(key)
        return Next(idle=True)

    def _forget(self, key: Key) -> None:
        """Drop everything about a Dataset."""
        self.tables.forget(f"{key.namespace}/{key.name}")
        self.lists.forget(key.namespace, key.name)
        self.dataset_objects.forget(key.namespace, key.name)
        self.metrics.forget(key.namespace, key.name)
        if self.publishers is not None:
            self.publishers.forget(f"{key.namespace}/{key.name}")

    def warm_driver(self, key: Key) -> Next:
        """Replace the warm driver of a namespace if it has other settings or another image.

        If no node has room for a pod of a run of the namespace, an idle warm driver ends.
        """
        self.objects.ensure(self.kube, key.namespace)
        warm = self.settings.warm_drivers
        if not warm.enabled:
            return Next(idle=True)
        for engine in (Engine.WARM_DRIVER, Engine.VALUES_DRIVER):
            existing = self.objects.job(key.namespace, warm.name_of(engine))
            replace_outdated(self.kube, existing, self.settings, engine)
        pods = self.objects.unplaced_pods(key.namespace)
        if not pods:
            return Next(idle=True)
        now = self.clock()
        acting = [n for n in self.settings.watch_namespaces if self.acts_in(n)]
        drivers = [(n, warm_driver_view(self.objects, n, warm.name, now)) for n in acting]
        decided = make_way(pods, drivers, timedelta(seconds=warm.yield_after_seconds), now)
        self._make_way(decided)
        return Next(decided.look_again, idle=True)

    def _make_way(self, decided: MakingWay) -> None:
        pod, ends = decided.pod, decided.ends
        if pod is None or decided.until is None:
            return
        mailboxes = {n: keep_away(self.kube, n, decided.until, self.settings) for n in decided.stay_away}
        if ends is None:
            return
        name = self.settings.warm_drivers.name
        mailbox = mailboxes.get(ends) or self.objects.fresh_config_map(self.kube, ends, name)
        if mailbox is None or not end_idle(self.kube, self.objects.job(ends, name), mailbox):
            return
        log.info("the idle warm driver of namespace %s makes way for pod %s/%s", ends, pod.namespace, pod.name)
        self.metrics.warm_driver_made_way(ends)
        # Who reads the event may not know the other namespaces.
        whose = "The idle warm driver of the namespace" if ends == pod.namespace else "An idle warm driver"
        text = f"{whose} ended, because no node has room for {pod.name}: {pod.message}"
        event = Event("Dataset", pod.dataset, Verdict(Reason.WARM_DRIVER_MADE_WAY, text))
        status.post(self.kube, pod.namespace, (event,), {("Dataset", pod.dataset): pod.dataset_uid})

    def dataset(self, key: Key) -> Next | None:
        """Reconcile a Dataset and its Restatements."""
        found, actions, changes, now = self._decided(key)
        for invalid in found.invalid:
            self._report_invalid(invalid, now)
        if found.dataset is None:
            return self._without_dataset(key, found, now)
        status_now = actions.dataset_status or DatasetStatus()
        buffer = found.world.buffer
        oldest = buffer.oldest[0].oldest_time if isinstance(buffer, BufferDigest) and buffer.oldest else None
        listing = self.tables.listings.last_duration(found.dataset.meta.full_name)
        batches, behind = self._batches(found.dataset, found.world.table)
        numbers = numbers_of(status_now, oldest, listing, found.world.events, now, behind)
        if (pause := self.tables.listings.pause_seconds(found.dataset.meta.full_name)) is not None:
            numbers["lethe_listing_pause_seconds"] = pause
        self.metrics.show(key.namespace, key.name, status_now, numbers, batches)
        jobs = partial(vacuum_jobs, self.objects)
        effects = Effects(
            self.kube,
            self.settings,
            self.places,
            jobs,
            self.dataset_objects,
            self.sweeps,
            self.tables.entries,
            self.warned,
        )
        again = carry_out(effects, found.dataset, found.world, actions, now)
        runs_before, runs_now = found.dataset.status.runs or (), status_now.runs or ()
        for run in retry.ended(runs_before, runs_now):
            self.metrics.run_ended(key.namespace, key.name, run.kind, run.phase or "")
        if self.versions is not None:
            self.versions.report(self.kube, found.dataset.meta, ended_versions(found.world.runs, runs_before, runs_now))
        idle = again is None and not changes and is_idle(found.dataset, found.world, status_now)
        changed = actions.restatement_statuses.keys()
        makers = {r.made_by for r in found.world.restatements if r.made_by and r.meta.name in changed}
        others = tuple(Key("Restatement", key.namespace, name) for name in sorted(makers))
        return Next(earliest(actions.look_again, again), idle, others=others)

    def _decided(self, key: Key) -> tuple[Observed, Actions, bool, datetime]:
        """What is observed and decided, whether it changes anything, and when.

        What changes anything is decided on the current table: if the table was observed by its polled pointer, the catalog is
        asked, and another table is observed and decided again.
        """
        sources = Sources(self.kube, self.objects, self.tables, self.lists, self.settings)
        for fresh in (False, True):
            observed = self._with_publishing(observe(sources, key.namespace, key.name, self.clock(), fresh))
            now = self.clock()
            if observed.dataset is None:
                return observed, Actions(), False, now
            actions = decide(observed.dataset, observed.world, now, self.settings)
            changes = changes_anything(observed.dataset, observed.world, actions)
            if not changes or self.tables.is_current(observed.dataset):
                break
        return observed, actions, changes, now

    def _with_publishing(self, observed: Observed) -> Observed:
        """Report the table to the publishers, and add what they say. Neither waits for anything."""
        if self.publishers is None or observed.dataset is None:
            return observed
        self.publishers.table_seen(observed.dataset, observed.world.table)
        return replace(observed, world=replace(observed.world, publishing=self.publishers.view(observed.dataset)))

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

    def request(self, key: Key) -> Next | None:
        """Reconcile a subject request: its Restatements, its status and its record."""
        self.objects.ensure(self.kube, key.namespace)
        request = self.objects.restatements.request(key.namespace, key.name)
        if request is None or request.meta.deleting:
            return None
        now = self.clock()
        if isinstance(request, Invalid):
            self._report_invalid(request, now)
            return Next()
        denied = everyone_may if self.rights is None else self.rights.denied
        return RequestReconciler(self.kube, self.objects, self.settings, denied)(request, now)

    def policy(self, key: Key) -> Next | None:
        """Write the status of a VacuumPolicy.

        It sets the conditions and the time of the next window, and removes the entries of Datasets that do not exist or
        are no longer selected.
        """
        self.objects.ensure(self.kube, key.namespace)
        policy = self.objects.policy(key.namespace, key.name)
        if policy is None:
            return None
        if isinstance(policy, Invalid):
            self._report_invalid(policy, self.clock())
            return Next()
        datasets = self.objects.dataset_metas(key.namespace)
        selected = {d.name for d in datasets if selects(policy.spec.dataset_selector, d.labels)}
        now = self.clock()

        def transaction(old: VacuumPolicyStatus) -> VacuumPolicyStatus:
            return vacuum_status.own(policy, vacuum_status.without_others(old, selected), now)

        # The first reconcile of each generation is a look at the Datasets, too.
        changed = policy.status.observed_generation != policy.meta.generation
        again = Next(vacuum_status.next_window(policy, now), not changed, POLICY_SECONDS, for_namespace=changed)
        known = status.KnownStatus(policy.meta.resource_version, policy.stored)
        if not status.change(self.kube, VACUUM_POLICIES, key.namespace, key.name, known, transaction):
            return again
        was = policy.status.condition(conditions.READY)
        ready = vacuum_status.policy_conditions(policy, now)[0]
        if was is None or (was.status, was.reason) != (ready.status, ready.reason):
            event = Event("VacuumPolicy", key.name, ready.verdict, ready.status != conditions.TRUE)
            status.post(self.kube, key.namespace, (event,), {("VacuumPolicy", key.name): policy.meta.uid})
        return again

    def _without_dataset(self, key: Key, observed: Observed, now: datetime) -> Next | None:
        self._forget(key)
        actions = without_dataset(key.name, observed.restatements, now)
        failed = write_statuses(self.kube, observed.restatements, actions)
        if failed is not None:
            raise failed
        for restatement in to_delete(observed.restatements, actions):
            delete_restatement(self.kube, restatement)
        uids = {("Restatement", r.meta.name): r.meta.uid for r in observed.restatements}
        status.post(self.kube, key.namespace, actions.events, uids)
        if not observed.restatements and not observed.invalid:
            return None
        return Next(actions.look_again, idle=not actions.restatement_statuses and not actions.delete_restatements)

    def _report_invalid(self, invalid: Invalid, now: datetime) -> None:
        generation, old = invalid.meta.generation, invalid.stored.parsed
        stalled = conditions.stalled(Verdict(Reason.INVALID_SPEC, invalid.message))
        shown = conditions.written(old.conditions, stalled, generation, now)
        new = old.model_copy(update={"observed_generation": generation, "conditions": shown})
        status.write(self.kube, _KINDS[invalid.kind], invalid.meta, invalid.stored, new)
