"""Starts runs: by an object of their own, or by the namespace's committer or warm driver. Each step may be repeated. I/O.

The order: the objects that all runs of a Dataset need (its ConfigMap, ServiceAccounts and rights), the intent, the document of
the run, the Job. The first are a dozen requests and seldom change, so the operator remembers for a while that they are as
wanted.

Two Datasets may be reconciled at the same moment and both see the last place among the concurrent vacuums of a VacuumPolicy
free. So one thread at a time looks at the Jobs again right before it creates one.

Runs that report another version of Lethe than this operator are reported.
"""

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, assert_never

from lethe.contract.result import log_fields
from lethe.contract.run import INLINE_BYTES_AT_MOST, DatasetRef, MailboxEntry, RunPointer, RunSpec
from lethe.iceberg import run_documents
from lethe.kube import BY_NAME, CONFIG_MAPS, JOBS, SERVICE_ACCOUNTS, AlreadyExists, Document, Kube, NotFound
from lethe.logs import about
from lethe.version import version

from lethe_operator.actions import Launch
from lethe_operator.cluster import status
from lethe_operator.metrics import Metrics
from lethe_operator.reasons import Reason
from lethe_operator.resources.common import (
    ANNOTATION_AWAY_UNTIL,
    DISPATCH_KEY,
    EXECUTOR_KEY,
    PROGRESS_KEY,
    RESULT_KEY,
    RUN_KEY,
    Meta,
)
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    Engine,
    NoTable,
    TableView,
    Unavailable,
    VacuumJob,
    VacuumLimit,
    WarmEngine,
)
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.runs import job, names, pod
from lethe_operator.runs.job import run_object
from lethe_operator.runs.pod import merged, size, within
from lethe_operator.runs.retry import skew_event
from lethe_operator.runs.rights import dataset_objects, marks_to_set
from lethe_operator.settings import Settings

# How long the objects of a Dataset are not looked at again. Somebody else's change of them lasts at most this long.
AGAIN_SECONDS: Final = 600.0


class NameTaken(Exception):
    """An object with the needed name exists and is not this Dataset's."""

    reason = Reason.NAME_TAKEN


@dataclass(frozen=True)
class _KnownObjects:
    uid: str
    """Of the Dataset."""
    until: Mapping[str, float]
    """By the digest of the objects: until when they are not looked at, by the clock."""


class DatasetObjects:
    """The objects of all Datasets. One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], _KnownObjects] = {}

    def ensure(
        self, kube: Kube, dataset: DatasetRef, settings: Settings, with_executors: bool = False, certainly: bool = False
    ) -> None:
        """Create the ConfigMap, ServiceAccounts, Roles and RoleBindings of a Dataset, or correct them if they were changed.

        Args:
            certainly: Look at them also if they were as wanted a short time ago.

        Raises:
            NameTaken: An object with the needed name exists and is not this Dataset's.
            KubeError: The API server rejected a request, or did not answer (`status` 0).
        """
        marks = settings.boundaries.of(dataset.namespace).service_accounts
        documents = dataset_objects(dataset, settings.reporters, with_executors, marks)
        digest = hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()
        key, now = (dataset.namespace, dataset.name), self._clock()
        with self._lock:
            known = self._known.get(key)
            until = known.until if known is not None and known.uid == dataset.uid else {}
        if until.get(digest, now) > now and not certainly:
            return
        self.forget(*key)
        _ensure(kube, documents, dataset)
        valid = {d: t for d, t in until.items() if t > now and not certainly}
        with self._lock:
            self._known[key] = _KnownObjects(dataset.uid, {**valid, digest: now + AGAIN_SECONDS})

    def forget(self, namespace: str, name: str) -> None:
        """Look at the objects of a Dataset the next time."""
        with self._lock:
            self._known.pop((namespace, name), None)

    def forget_all(self, namespaces: Collection[str]) -> None:
        """The same for all Datasets of some namespaces: another process may have changed them."""
        with self._lock:
            self._known = {key: known for key, known in self._known.items() if key[0] not in namespaces}


def _ensure(kube: Kube, documents: Iterable[Mapping[str, Any]], dataset: DatasetRef) -> None:
    """Create the objects of a Dataset, or correct them if they were changed.

    Raises:
        NameTaken: An object with the needed name exists and is not this Dataset's.
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    for document in documents:
        kind, name = BY_NAME[document["kind"]], document["metadata"]["name"]
        namespace = document["metadata"]["namespace"]
        try:
            kube.create(kind, namespace, document)
            continue
        except AlreadyExists:
            existing = kube.get(kind, namespace, name)
        require_owner(existing, dataset)
        for part in ("rules", "subjects", "automountServiceAccountToken"):
            if part in document and not _same(existing.get(part), document[part]):
                kube.patch(kind, namespace, name, {part: document[part]})
        marks = marks_to_set(existing, document) if kind is SERVICE_ACCOUNTS else {}
        if marks:
            kube.patch(kind, namespace, name, {"metadata": marks})


def require_owner(existing: Mapping[str, Any], dataset: DatasetRef) -> None:
    """Require that an object belongs to the Dataset.

    Raises:
        NameTaken: Unless the object belongs to this Dataset.
    """
    metadata = existing["metadata"]
    owners = [o.get("uid") for o in metadata.get("ownerReferences") or ()]
    if dataset.uid not in owners:
        raise NameTaken(
            f"{existing.get('kind', 'Object')} {metadata['name']}: Dataset {dataset.claim} needs this name, but the object has "
            "another owner, or belongs to a deleted Dataset of the same name that Kubernetes is still cleaning up. Delete or "
            "rename the object."
        )


def _same(existing: Any, wanted: Any) -> bool:
    """Whether both say the same, apart from defaults that the API server added, such as the apiGroup of a subject."""
    if isinstance(wanted, list):
        return isinstance(existing, list) and len(existing) == len(wanted) and all(map(_same, existing, wanted))
    if isinstance(wanted, dict):
        return isinstance(existing, dict) and all(_same(existing.get(k), v) for k, v in wanted.items())
    return bool(existing == wanted)


class NoPlaceForRun(Exception):
    """A large run.json must be stored beside the table, and no location for it is known."""


def intent_document(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """The run.json for the ConfigMap. If it is too large, it is written beside the table, and a pointer is returned.

    Raises:
        NoPlaceForRun: A large run.json must be stored beside the table, and no location for it is known.
        Exception: Whatever the store raises.
    """
    text = run.to_json()
    if len(text.encode()) <= INLINE_BYTES_AT_MOST:
        return text
    uri, catalog = place(run, table), run.table.catalog
    return RunPointer(catalog=catalog, uri=uri, sha256=run_documents.write(catalog, uri, text)).to_json()


def place(run: RunSpec, table: TableView | NoTable | Unavailable) -> str:
    """`<table location>/_runs/<run id>.json`, or a folder of the warehouse while the table does not exist."""
    match table:
        case TableView(location=location):
            return f"{run_documents.folder(location)}/{run.run_id}.json"
        case NoTable(warehouse=warehouse) if warehouse:
            return f"{run_documents.folder(warehouse)}/{run.dataset.uid}/{run.run_id}.json"
    raise NoPlaceForRun(
        f"The run of Dataset {run.dataset.claim} is larger than {INLINE_BYTES_AT_MOST} bytes, and the catalog "
        f"{run.table.catalog} has no property `warehouse` to store it in. Reduce spec.consolidation.maxBatchesPerRun."
    )


@dataclass
class VacuumPlaces:
    """One per operator."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _of: dict[str, threading.Lock] = field(default_factory=dict)

    @contextmanager
    def taking(
        self, jobs: Callable[[str], Iterable[VacuumJob]], namespace: str, place: VacuumLimit | None, uid: str
    ) -> Iterator[bool]:
        """Whether the Dataset with this UID may start its vacuum.

        Until the context ends, no other Dataset of the namespace starts a vacuum that needs a place.

        Args:
            jobs: Returns the current vacuum Jobs of a namespace, including each that this operator has created.
        """
        if place is None:
            yield True
            return
        with self._lock:
            mine = self._of.setdefault(namespace, threading.Lock())
        with mine:
            yield len(place.taken(jobs(namespace), uid)) < place.at_most


log = logging.getLogger(__name__)


def start_warm_driver(
    kube: Kube,
    namespace: str,
    settings: Settings,
    engine: WarmEngine = Engine.WARM_DRIVER,
    secrets: Sequence[SecretFile] = (),
    dataset: DatasetRef | None = None,
) -> bool:
    """Make its Job, unless it is active. A Job that has ended is removed first.

    Args:
        secrets: Mounted into its pod.
        dataset: As of `job.warm_driver_job`.

    Returns:
        False: a Job of this name is being deleted, so start it again later.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    name = settings.warm_drivers.name_of(engine)
    try:
        mailbox = kube.get(CONFIG_MAPS, namespace, name)
    except NotFound:
        return True  # without a mailbox there are no runs for it
    document = job.warm_driver_job(namespace, str(mailbox["metadata"]["uid"]), settings, engine, secrets, dataset)
    try:
        kube.create(JOBS, namespace, document)
    except AlreadyExists:
        return _make_room(kube, namespace, name)
    log.info("%s: started %s", namespace, name)
    return True


def replace_outdated(
    kube: Kube, existing: Document | None, settings: Settings, engine: WarmEngine = Engine.WARM_DRIVER
) -> None:
    """Delete the Job if it was made with other settings or another image.

    Its run may finish within the grace period; the runs that wait start the next one.

    Args:
        existing: The Job of a namespace; None: there is none.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    if existing is None:
        return
    metadata = existing["metadata"]
    namespace, name = metadata["namespace"], metadata["name"]
    wanted = job.warm_driver_job(namespace, "", settings, engine)["metadata"]["annotations"][job.ANNOTATION_DIGEST]
    has = (metadata.get("annotations") or {}).get(job.ANNOTATION_DIGEST)
    if "deletionTimestamp" not in metadata and has != wanted:
        log.info("%s: %s has other settings and is replaced", namespace, name)
        kube.delete(JOBS, namespace, name, policy="Foreground", uid=str(metadata["uid"]))


def keep_away(kube: Kube, namespace: str, until: datetime, settings: Settings) -> Document:
    """Let the warm driver of a namespace take no runs until then.

    Returns:
        Its mailbox.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    marks = {"annotations": {ANNOTATION_AWAY_UNTIL: until.isoformat(timespec="seconds")}}
    return kube.patch(CONFIG_MAPS, namespace, settings.warm_drivers.name, {"metadata": marks})


def end_idle(kube: Kube, existing: Document | None, mailbox: Document) -> bool:
    """Delete the Job of a warm driver that stays away, unless it has received a run.

    A run that arrives at this moment may finish within the grace period, or a Job carries it out.

    Args:
        existing: The Job; None: there is none.
        mailbox: As it is after the warm driver was told to stay away.

    Returns:
        Whether it was deleted.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    if existing is None or mailbox.get("data"):
        return False
    metadata = existing["metadata"]
    kube.delete(JOBS, metadata["namespace"], metadata["name"], policy="Foreground", uid=str(metadata["uid"]))
    return True


def _make_room(kube: Kube, namespace: str, name: str) -> bool:
    try:
        job = kube.get(JOBS, namespace, name)
    except NotFound:
        return False
    if "deletionTimestamp" in job["metadata"]:
        return False
    conditions = (job.get("status") or {}).get("conditions") or ()
    if not any(c.get("type") in ("Complete", "Failed") and c.get("status") == "True" for c in conditions):
        return True
    kube.delete(JOBS, namespace, name, uid=str(job["metadata"]["uid"]))
    return False


@dataclass
class RunVersions:
    """One per operator, shared by its threads."""

    metrics: Metrics
    # The image of runs.
    image: str
    own: str = field(default_factory=version)
    _reported: set[tuple[str, str]] = field(default_factory=set)
    """Namespaces and versions that were reported: once per process is enough."""

    def report(self, kube: Kube, dataset: Meta, versions: Iterable[str]) -> None:
        """Show in a metric whether the runs that have just ended had this operator's version.

        Of another version, post an event, which the log contains, too.

        Args:
            versions: That the runs reported; "": none.
        """
        for reported in sorted(versions):
            differs = reported != self.own
            self.metrics.version_skew(dataset.namespace, differs)
            key = (dataset.namespace, reported)
            if differs and key not in self._reported:
                self._reported.add(key)
                uids = {("Dataset", dataset.name): dataset.uid}
                status.post(kube, dataset.namespace, [skew_event(dataset.name, reported, self.own, self.image)], uids)


@dataclass(frozen=True)
class Launched:
    """The attempt that a launch has started, or that an earlier launch had."""

    job: str
    """Its name."""
    created: bool
    """False: it existed already."""


def launch(
    kube: Kube,
    dataset: Dataset,
    wanted: Launch,
    table: TableView | NoTable | Unavailable,
    now: datetime,
    settings: Settings,
    objects: DatasetObjects | None = None,
) -> Launched:
    """Create the rights and the intent of a run, and let its engine carry it out, once; safe to repeat after any crash.

    Args:
        objects: Remembers which rights exist; None: nothing does.

    Raises:
        NameTaken: An object with the needed name exists and is not this Dataset's.
        NoPlaceForRun: A large run.json must be stored beside the table, and no location for it is known.
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    run = wanted.run
    objects = objects or DatasetObjects()
    certainly = run.attempt > 1  # their absence may be why the last attempt failed
    if wanted.engine is not Engine.JOB:
        objects.ensure(kube, run.dataset, settings, certainly=certainly)
        return _hand_over(kube, wanted, intent_document(run, table), now, settings)
    asked = merged(settings.run_template, dataset.spec.run_template)
    template = within(asked, settings.boundaries.of(dataset.meta.namespace))
    chosen = size(wanted.bytes, template, settings.kueue_pods)
    objects.ensure(kube, run.dataset, settings, chosen.executors > 0, certainly)
    executor = pod.executor(run, chosen, template, settings)
    _store(kube, run, {RUN_KEY: intent_document(run, table), EXECUTOR_KEY: json.dumps(executor)})
    launched = _create(kube, run_object(wanted, chosen, template, settings), run)
    if launched.created:
        with about(**log_fields(run)):
            log.info("%s: %s with %s executors: %s", run.dataset.claim, launched.job, chosen.executors, wanted.why)
    return launched


def _create(kube: Kube, document: Mapping[str, Any], run: RunSpec) -> Launched:
    name, namespace = document["metadata"]["name"], document["metadata"]["namespace"]
    kind = BY_NAME[document["kind"]]
    try:
        kube.create(kind, namespace, document)
    except AlreadyExists:
        require_owner(kube.get(kind, namespace, name), run.dataset)
        return Launched(name, created=False)
    return Launched(name, created=True)


def _hand_over(kube: Kube, wanted: Launch, run_json: str, now: datetime, settings: Settings) -> Launched:
    """Store the run and the note which process has it, then write the mailbox. After a crash in between, `remind` writes it."""
    run, asked = wanted.run, job.dispatch(wanted, now)
    _store(kube, run, {RUN_KEY: run_json, DISPATCH_KEY: asked.model_dump_json(by_alias=True)})
    files = tuple(s.file for s in wanted.secrets)
    entry = job.entry(run.dataset, run.run_id, run.family, run.attempt, now, files=files)
    _write_mailbox(kube, run.dataset.namespace, wanted.engine, {entry.prefix: entry}, settings)
    with about(**log_fields(run)):
        log.info("%s: %s by the %s: %s", run.dataset.claim, asked.name, wanted.engine, wanted.why)
    return Launched(asked.name, created=True)


def _store(kube: Kube, run: RunSpec, documents: Mapping[str, str]) -> None:
    """Store documents of a run, and remove what its last attempt reported."""
    prefix = names.key_prefix(run.run_id)
    data = {f"{prefix}{key}": text for key, text in {PROGRESS_KEY: None, RESULT_KEY: None, **documents}.items()}
    kube.patch(CONFIG_MAPS, run.dataset.namespace, names.shared(run.dataset.name), {"data": data})


def remind(kube: Kube, dataset: DatasetRef, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Write mailbox entries again that a crash may have prevented.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    for engine, mine in _by_engine(attempts):
        entries = (_entry(dataset, a) for a in mine)
        _write_mailbox(kube, dataset.namespace, engine, {e.prefix: e for e in entries}, settings)


def cancel(kube: Kube, dataset: DatasetRef, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Ask for the end of attempts. The process delivers a result for each, also if it had not begun.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    for engine, mine in _by_engine(attempts):
        entries = (_entry(dataset, a, cancelled=True) for a in mine)
        _write_mailbox(kube, dataset.namespace, engine, {e.prefix: e for e in entries}, settings)


def _entry(dataset: DatasetRef, attempt: Attempt, cancelled: bool = False) -> MailboxEntry:
    files = tuple(s.file for s in attempt.secrets)
    family, number = attempt.kind.family, attempt.number
    return job.entry(dataset, attempt.run_id, family, number, attempt.created, cancelled, files)


def withdraw(kube: Kube, namespace: str, attempts: Iterable[Attempt], settings: Settings) -> None:
    """Remove mailbox entries that no process will carry out.

    Raises:
        KubeError: The API server rejected a request, or did not answer (`status` 0).
    """
    for engine, mine in _by_engine(attempts):
        keys = [names.key_prefix(a.run_id) for a in mine]
        _write_mailbox(kube, namespace, engine, dict.fromkeys(keys), settings)


def _by_engine(attempts: Iterable[Attempt]) -> Iterable[tuple[Engine, list[Attempt]]]:
    by_engine: dict[Engine, list[Attempt]] = {}
    for attempt in attempts:
        by_engine.setdefault(attempt.engine, []).append(attempt)
    return by_engine.items()


def _write_mailbox(
    kube: Kube, namespace: str, engine: Engine, entries: Mapping[str, MailboxEntry | None], settings: Settings
) -> None:
    if entries:
        data = {key: None if entry is None else entry.to_json() for key, entry in entries.items()}
        kube.patch(CONFIG_MAPS, namespace, _mailbox_of(engine, settings), {"data": data})


def _mailbox_of(engine: Engine, settings: Settings) -> str:
    match engine:
        case Engine.COMMITTER:
            return settings.committer.name
        case Engine.WARM_DRIVER | Engine.VALUES_DRIVER:
            return settings.warm_drivers.name_of(engine)
        case Engine.JOB:
            raise AssertionError("a Job has no mailbox")
        case _:
            assert_never(engine)
