"""Observes the runs of a Dataset, and reads again what could show an end before its result. I/O.

Jobs, pods, mailboxes and the Dataset's ConfigMap have separate watches, so the end of a run may be known before its
result. A run that has ended, and that `status.runs` does not show as ended, is therefore decided on its ConfigMap and pods as the
API server has them after the end was seen. The table is read after all of these.

The vacuums of a namespace, which concern all its Datasets. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, assert_never

from lethe.contract.run import MailboxEntry
from lethe.contract.settings import RunFamily, RunKind
from lethe.contract.status import ENDED_RUNS_OF_A_KIND, RunEntry
from lethe.kube import Kube
from pydantic import ValidationError

from lethe_operator.cluster.time_limit import unavailable
from lethe_operator.dataset.objects import WatchedObjects
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
    Engine,
    ObservedRun,
    Unavailable,
    VacuumJob,
    WorkerView,
    kind_of,
)
from lethe_operator.runs import names
from lethe_operator.runs.observe import Documents, of_job, runs_of, time_of
from lethe_operator.runs.retry import ENDED_PHASES, started
from lethe_operator.settings import Settings


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
