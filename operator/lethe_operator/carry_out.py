"""Carries out the actions that were decided for a Dataset. I/O. If one fails, the others are still carried out."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from lethe import tracing
from lethe.base.errors import Verdict
from lethe.base.short_cache import ShortCache
from lethe.buffer.digest import BufferDigest, pieces
from lethe.buffer.layout import BufferedBatch
from lethe.buffer.promotion import sweep_of
from lethe.contract.result import span_attributes
from lethe.contract.run import DatasetRef
from lethe.contract.status import PolicyDataset
from lethe.guards.claim import Holder, Owner, holder_of, rejected
from lethe.iceberg import catalogs
from lethe.ingest.shared_folders import Adopted, BufferClaims, open_buffer, take_claim
from lethe.kube import CONFIG_MAPS, DATASETS, JOBS, RESTATEMENTS, VACUUM_POLICIES, Kube, KubeError, NotFound
from lethe.ledger.ledger import BatchEntry, get_many

from lethe_operator.actions import Actions, Event, Launch
from lethe_operator.cluster import status
from lethe_operator.cluster.client import KIND_OF
from lethe_operator.cluster.time_limit import Threads
from lethe_operator.erasure.signatures import sign
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, Engine, Observation, VacuumJob, WarmEngine
from lethe_operator.resources.restatement import Restatement, SecretFile
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.runs import names
from lethe_operator.runs.launch import (
    DatasetObjects,
    NameTaken,
    NoPlaceForRun,
    VacuumPlaces,
    cancel,
    launch,
    remind,
    start_warm_driver,
    withdraw,
)
from lethe_operator.runs.spec import driver_of
from lethe_operator.settings import Settings
from lethe_operator.vacuum import status as vacuum_status

log = logging.getLogger(__name__)

# After another Dataset took the last place; by then its Job is visible.
SOON = timedelta(seconds=1)
# Kubernetes keeps events for an hour, so that of a failure that lasts is always there.
WARNED_AGAIN_SECONDS: Final = 1800.0


# Buffers from which objects are deleted at the same time.
SWEEPS_AT_ONCE: Final = 8
# A sweep ends then: its ledger may have been rolled back meanwhile. The next listing finds what is left.
SWEEP_SECONDS: Final = 60.0


@dataclass(frozen=True)
class BufferSweep:
    """Deletes the objects of batches from a buffer whose retention has passed."""

    dataset: Dataset
    batches: int
    """How many there were at the last listing. It ends when it has found so many."""
    entries: Mapping[str, BatchEntry]
    """The batches of the ledger. Only the sweep uses them."""
    owner: Owner
    adopted: Adopted
    now: datetime

    def run(self) -> None:
        """List the buffer again, piece by piece, and delete what has expired of one piece before the next is listed.

        Never raises. Nothing is deleted from a buffer that the Dataset has not claimed.
        """
        name, spec = self.dataset.meta.full_name, self.dataset.spec
        try:
            properties = catalogs.properties(spec.table.catalog)
            claim = take_claim(spec.buffer.uri, properties, self.owner, spec.buffer.layout, self.adopted)
            if holder_of(claim, self.owner) is not Holder.OURS:
                log.warning("%s: %s", name, rejected(claim, spec.buffer.uri))
                return
            batches, objects = self._delete_from(
                open_buffer(spec.buffer.uri, spec.batch_column, properties, spec.buffer.layout)
            )
            log.info("%s: deleted %d batches, of %d objects, from the buffer", name, batches, objects)
        except Exception as e:
            log.warning("%s: cleaning up the buffer failed: %s", name, type(e).__name__)

    def _delete_from(self, buffer: BufferClaims) -> tuple[int, int]:
        """Delete. Returns: how many batches were found, and how many of their objects no longer exist."""
        until, retention = time.monotonic() + SWEEP_SECONDS, self.dataset.spec.buffer.retention_seconds
        found = gone = 0
        for piece in pieces(buffer.folders(lambda: None)):
            if found >= self.batches or time.monotonic() > until:
                break
            batches = [b for b in piece if isinstance(b, BufferedBatch)]
            known = get_many(self.entries, [b.id for b in batches])
            sweeps = [sweep_of(b, known[b.id], retention, self.now) for b in batches if b.id in known]
            found += sum(bool(s.delete) for s in sweeps)
            gone += buffer.delete(o for s in sweeps for o in s.delete)
        return found, gone


class Sweeps:
    """Sweeps buffers in threads, one for each Dataset. No reconcile waits for them, so runs and Restatements do not.

    `start` calls a function, in a thread of its own unless it says otherwise.
    """

    def __init__(self, start: Callable[[Callable[[], None]], None] | None = None) -> None:
        self._start = start or Threads("sweep").start
        self._lock = threading.Lock()
        self._sweeping: set[str] = set()

    @property
    def under_way(self) -> int:
        """Buffers from which objects are being deleted."""
        with self._lock:
            return len(self._sweeping)

    def begin(self, sweep: BufferSweep) -> bool:
        """Start a sweep.

        Returns:
            False, if the Dataset's buffer is still being swept, or those of many others. The next listing finds what is left.
        """
        name = sweep.dataset.meta.full_name
        with self._lock:
            if name in self._sweeping or len(self._sweeping) >= SWEEPS_AT_ONCE:
                return False
            self._sweeping.add(name)

        def ended() -> None:
            with self._lock:
                self._sweeping.discard(name)

        def run() -> None:
            try:
                sweep.run()
            finally:
                ended()

        try:
            self._start(run)
        except BaseException:
            ended()  # no thread could be started
            raise
        return True


@dataclass(frozen=True)
class Effects:
    """The means to carry out actions. One per operator."""

    kube: Kube
    settings: Settings
    places: VacuumPlaces
    """Where a vacuum reserves its place."""
    vacuum_jobs: Callable[[str], Iterable[VacuumJob]]
    """Returns the current vacuum Jobs of a namespace."""
    dataset_objects: DatasetObjects
    """Where it is remembered which rights of runs exist."""
    sweeps: Sweeps
    entries: Callable[[str], Mapping[str, BatchEntry]]
    """Returns the batches in the ledger of a Dataset, as `namespace/name`, for another thread."""
    warned: ShortCache[tuple[str, Event], bool]
    """The warnings about failures that were posted lately, with the UID of the Dataset."""


@dataclass
class _Started:
    """The outcome of starting runs."""

    events: list[Event] = field(default_factory=list)
    failures: list[Exception] = field(default_factory=list)
    again: datetime | None = None
    """When to decide again, because another Dataset was faster; None: it was not."""


def carry_out(
    effects: Effects, dataset: Dataset, world: Observation, actions: Actions, now: datetime
) -> datetime | None:
    """Carry out everything that was decided for a Dataset.

    Runs start before the statuses of Restatements are written, because there may be thousands. A Job is deleted only after its
    outcome is shown.

    Returns:
        When to decide again, because another Dataset was faster; None: when something changes.

    Raises:
        Exception: The first KubeError, after everything else was tried, so that the reconcile is repeated after a pause.
    """
    kube, settings = effects.kube, effects.settings
    unshown: list[Exception] = []
    namespace, name = dataset.meta.namespace, dataset.meta.name
    uids = {("Dataset", name): dataset.meta.uid}
    uids |= {("Restatement", r.meta.name): r.meta.uid for r in world.restatements}

    def attempt(act: Callable[[], Any], failures: list[Exception]) -> None:
        try:
            act()
        except KubeError as e:
            log.warning("%s/%s: %s", namespace, name, e)
            failures.append(e)

    new = actions.dataset_status
    if new is not None:
        attempt(lambda: status.write(kube, DATASETS, dataset.meta, dataset.stored, new), unshown)
    for policy, entry in actions.policy_entries.items():
        known = next((p for p in world.policies if p.meta.name == policy), None)
        if known is not None:
            attempt(lambda p=known, e=entry: _set_entry(kube, p, e), unshown)  # type: ignore[misc]
    attempt(lambda: withdraw(kube, namespace, actions.withdraw, settings), unshown)
    started = _start(effects, dataset, world, actions.launches, now)
    failures = started.failures
    ref = DatasetRef(namespace=namespace, name=name, uid=dataset.meta.uid)
    attempt(lambda: remind(kube, ref, actions.remind, settings), failures)
    attempt(lambda: cancel(kube, ref, actions.cancel, settings), failures)
    for engine, secrets in actions.start_warm_drivers.items():
        attempt(lambda e=engine, s=secrets: _start_warm_driver(kube, ref, settings, e, s, started, now), failures)  # type: ignore[misc]
    signed = sign(dataset, world, actions, settings)
    actions, failures = signed.actions, [*failures, *signed.failures]
    failed = write_statuses(kube, world.restatements, actions)
    if failed is not None:
        log.warning("%s/%s: %s", namespace, name, failed)
        unshown.append(failed)
    about_failures = _news(effects, dataset, (*started.events, *signed.events), now)
    status.post(kube, namespace, (*actions.events, *about_failures), uids)
    if actions.sweep and actions.owner is not None:
        entries = effects.entries(dataset.meta.full_name)
        effects.sweeps.begin(BufferSweep(dataset, actions.sweep, entries, actions.owner, _adopted(world), now))
    if not unshown:
        attempt(lambda: _drop_keys(kube, dataset, actions.drop_keys), failures)
        attempts = {a.job: a for r in world.runs for a in r.attempts}
        for job in actions.delete_jobs:
            attempt(lambda j=job: _delete_run(kube, dataset, j, attempts.get(j)), failures)  # type: ignore[misc]
        for restatement in to_delete(world.restatements, actions):
            attempt(lambda r=restatement: delete_restatement(kube, r), failures)  # type: ignore[misc]
    for failure in (*unshown, *failures):
        raise failure
    return started.again


def _news(effects: Effects, dataset: Dataset, events: Iterable[Event], now: datetime) -> Iterator[Event]:
    """All events but warnings that were posted lately: what fails is tried again every minute."""
    for event in events:
        if event.warning:
            key, seconds = (dataset.meta.uid, event), now.timestamp()
            if effects.warned.get(key, seconds):
                continue
            effects.warned.put(key, True, seconds + WARNED_AGAIN_SECONDS)
        yield event


def changes_anything(dataset: Dataset, world: Observation, actions: Actions) -> bool:
    """Whether `carry_out` would change anything: a status, a run, an object. Pure."""
    acts = (
        actions.launches,
        actions.remind,
        actions.withdraw,
        actions.sweep,
        actions.delete_jobs,
        actions.drop_keys,
        actions.delete_restatements,
        actions.events,
    )
    if any(acts):
        return True
    if actions.dataset_status is not None and status.patch_of(dataset.stored, actions.dataset_status):
        return True
    old = {r.meta.name: r.stored for r in world.restatements}
    if any(status.patch_of(old[name], new) for name, new in actions.restatement_statuses.items()):
        return True
    policies = {p.meta.name: p.stored for p in world.policies}
    return any(
        status.patch_of(policies[name], vacuum_status.with_entry(policies[name].parsed, entry))
        for name, entry in actions.policy_entries.items()
    )


def _start(
    effects: Effects, dataset: Dataset, world: Observation, launches: Iterable[Launch], now: datetime
) -> _Started:
    namespace, name = dataset.meta.namespace, dataset.meta.name
    outcome = _Started()
    for wanted in launches:
        try:
            with tracing.span(f"start {wanted.run.family}", span_attributes(wanted.run)):
                earlier = next((r for r in world.runs if r.run_id == wanted.run.run_id), None)
                known = {
                    "traceparent": tracing.traceparent(),
                    "ended_attempts": earlier.ended_attempts if earlier is not None else (),
                }
                run = wanted.run.model_copy(update=known)
                _start_one(effects, dataset, world, replace(wanted, run=run), now, outcome)
        except (NameTaken, NoPlaceForRun) as e:
            outcome.events.append(
                Event("Dataset", name, Verdict(getattr(e, "reason", Reason.LAUNCH_FAILED), str(e)), warning=True)
            )
            outcome.failures.append(e)
        except KubeError as e:
            effects.dataset_objects.forget(namespace, name)  # one may be missing
            outcome.events.append(Event("Dataset", name, Verdict(Reason.LAUNCH_FAILED, str(e)), warning=True))
            outcome.failures.append(e)
        except Exception as e:  # for example of the storage: the other runs still start
            outcome.failures.append(e)
    return outcome


def _start_one(
    effects: Effects, dataset: Dataset, world: Observation, wanted: Launch, now: datetime, outcome: _Started
) -> None:
    kube, settings = effects.kube, effects.settings
    namespace, name = dataset.meta.namespace, dataset.meta.name
    place = wanted.place if wanted.engine is Engine.JOB else None
    with effects.places.taking(effects.vacuum_jobs, namespace, place, dataset.meta.uid) as free:
        if not free:
            outcome.again = now + SOON
            return
        launched = launch(kube, dataset, wanted, world.table, now, settings, effects.dataset_objects)
    if launched.created:
        text = f"{wanted.run.family} {launched.job} started: {wanted.why}."
        outcome.events.append(Event("Dataset", name, Verdict(Reason.RUN_STARTED, text)))
    if not _start_for(kube, namespace, wanted, world, settings):
        outcome.again = now + SOON


def _start_for(kube: Kube, namespace: str, wanted: Launch, world: Observation, settings: Settings) -> bool:
    """Start the warm driver that was just given a run.

    Returns:
        False: the next reconcile must start it.
    """
    engine = wanted.engine
    if engine is not Engine.WARM_DRIVER and engine is not Engine.VALUES_DRIVER:
        return True
    there = driver_of(world, engine)
    if there is None or there.alive or there.starting:
        return True
    return start_warm_driver(kube, namespace, settings, engine, wanted.secrets, wanted.run.dataset)


def _start_warm_driver(
    kube: Kube,
    dataset: DatasetRef,
    settings: Settings,
    engine: WarmEngine,
    secrets: tuple[SecretFile, ...],
    started: _Started,
    now: datetime,
) -> None:
    if not start_warm_driver(kube, dataset.namespace, settings, engine, secrets, dataset):
        started.again = now + SOON


def write_statuses(kube: Kube, restatements: Iterable[Restatement], actions: Actions) -> KubeError | None:
    """Write the statuses of Restatements.

    Returns:
        The first error, after all others were tried; None: there was none.
    """
    old = {r.meta.name: r for r in restatements}
    writes = [
        partial(status.write, kube, RESTATEMENTS, old[name].meta, old[name].stored, new)
        for name, new in actions.restatement_statuses.items()
    ]
    return status.write_all(writes)


def to_delete(restatements: Iterable[Restatement], actions: Actions) -> tuple[Restatement, ...]:
    """The Restatements whose ttlSecondsAfterFinished has passed."""
    wanted = set(actions.delete_restatements)
    return tuple(r for r in restatements if r.meta.name in wanted)


def delete_restatement(kube: Kube, restatement: Restatement) -> None:
    """Delete by UID: a Restatement of the same name that was created meanwhile is another request."""
    meta = restatement.meta
    kube.delete(RESTATEMENTS, meta.namespace, meta.name, uid=meta.uid)


def _set_entry(kube: Kube, policy: VacuumPolicy, entry: PolicyDataset) -> None:
    known = status.KnownStatus(policy.meta.resource_version, policy.stored)
    namespace, name = policy.meta.namespace, policy.meta.name
    status.change(kube, VACUUM_POLICIES, namespace, name, known, lambda s: vacuum_status.with_entry(s, entry))


def _delete_run(kube: Kube, dataset: Dataset, job: str, attempt: Attempt | None) -> None:
    """Delete the object that launched a run."""
    kind = KIND_OF[attempt.launcher] if attempt is not None else JOBS
    # In the foreground: the object stays visible until its driver has terminated.
    kube.delete(kind, dataset.meta.namespace, job, policy="Foreground")


def _drop_keys(kube: Kube, dataset: Dataset, keys: tuple[str, ...]) -> None:
    if not keys:
        return
    name = names.shared(dataset.meta.name)
    try:
        kube.patch(CONFIG_MAPS, dataset.meta.namespace, name, {"data": dict.fromkeys(keys)})
    except NotFound:
        return


def _adopted(world: Observation) -> Adopted:
    """The objects in the buffer that are not batches. If they forbid a claim, the buffer is never swept."""
    buffer = world.buffer
    return Adopted(buffer.unrelated, buffer.unrelated_names) if isinstance(buffer, BufferDigest) else Adopted()
