"""Makes the documents of the run contract (`lethe.contract.run`), and decides who carries out which run. Pure.

A launch that was decided is completed with what the decision saw, where it happens, and what it may use. The committer and the
warm driver of the namespace carry out some runs, and a Job takes over those that they do not begin.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from lethe.base.names import run_id
from lethe.buffer.digest import BufferDigest, WaitingBatch
from lethe.buffer.notifications import Written
from lethe.buffer.promotion import FILES_AT_MOST, OBJECTS_AT_MOST
from lethe.contract.dataset import HoldSpec, PodSize, RunTemplate
from lethe.contract.result import WARM_DRIVER_LIMIT
from lethe.contract.run import (
    AcceptedHead,
    AllowedOperation,
    BufferRef,
    ColumnRedaction,
    ConditionRef,
    ConsolidationSpec,
    DatasetRef,
    LookupRef,
    Redaction,
    Replacement,
    RestatementGroupSpec,
    RestatementRequest,
    RowsRef,
    RunBoundary,
    RunKind,
    RunSpec,
    SearchLimits,
    SeenObject,
    SnapshotLimits,
    TableRef,
    VacuumSpec,
)
from lethe.contract.settings import ConsolidationMode, CsvDialect, Deletes, Launcher, Lookup, RunFamily, UnknownBatches
from lethe.guards.boundary import outside_operation
from lethe.restatement.group import IdList

from lethe_operator.actions import Launch, earliest
from lethe_operator.resources.common import ERASE_PATH, KEY_PREFIX_LENGTH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
    Engine,
    LostLedger,
    Observation,
    ObservedRun,
    TableView,
    WarmEngine,
    WorkerView,
)
from lethe_operator.resources.restatement import HASH_KEY_FIELD, Restatement, SecretFile, values_field
from lethe_operator.runs.retry import counted
from lethe_operator.settings import Settings, WarmDriverSettings


def seeing(world: Observation, launch: Launch) -> Launch:
    """With the table and the head that this decision is based on.

    The run checks that the table is still the same and was not rolled back.
    """
    view = world.table
    if isinstance(view, LostLedger):
        return replace(launch, run=launch.run.model_copy(update={"seen_table_uuid": view.uuid}))
    if not isinstance(view, TableView):
        return launch
    seen = {
        "seen_table_uuid": view.uuid,
        "seen_snapshot_id": view.head_id,
        "seen_sequence_number": view.head_sequence_number,
    }
    return replace(launch, run=launch.run.model_copy(update=seen))


def in_cluster(launch: Launch, cluster: str) -> Launch:
    """With the id of the cluster, for the claim of the buffer."""
    of = launch.run.dataset.model_copy(update={"cluster": cluster})
    return replace(launch, run=launch.run.model_copy(update={"dataset": of}))


def after_failures(world: Observation, launch: Launch) -> Launch:
    """With the failures of earlier attempts, which the Job records."""
    before = next((r.attempts for r in world.runs if r.run_id == launch.run.run_id), ())
    return replace(launch, failures=counted(before, launch.generation, launch.for_uid))


def may_write_deletes(boundary: RunBoundary | None) -> bool:
    """Whether a boundary allows native deletes. None: there is no boundary."""
    return boundary is None or outside_operation(boundary, "", AllowedOperation.NATIVE_DELETES) is None


def within_boundary(launch: Launch, settings: Settings) -> Launch:
    """With the current boundary, also for an intent that was stored under another one."""
    boundary = settings.boundaries.of(launch.run.dataset.namespace).of_runs
    run = launch.run.model_copy(update={"boundary": boundary})
    for name in ("restatement", "consolidation"):
        part = getattr(run, name)
        if part is not None and part.deletes is Deletes.AUTO and not may_write_deletes(boundary):
            run = run.model_copy(update={name: part.model_copy(update={"deletes": Deletes.LEDGER})})
    return replace(launch, run=run)


def under_holds(launch: Launch, holds: tuple[HoldSpec, ...]) -> Launch:
    """With the current holds, also for an intent that was stored under others, if the run may remove rows from data files."""
    match launch.run.family:
        case RunFamily.RESTATEMENT | RunFamily.VACUUM:
            return replace(launch, run=launch.run.model_copy(update={"holds": holds}))
        case RunFamily.CONSOLIDATION:
            return launch
        case _:
            assert_never(launch.run.family)


def writes_deletes(dataset: Dataset, view: TableView, settings: Settings) -> bool:
    """Whether runs of the Dataset write native deletes to its table."""
    deletes, boundary = dataset.spec.deletes, settings.boundaries.of(dataset.meta.namespace).of_runs
    return deletes.native(view.format_version) is not None and may_write_deletes(boundary)


def consolidation(
    dataset: Dataset, batches: Iterable[WaitingBatch], writes: Mapping[str, Mapping[str, Written]] | None = None
) -> RunSpec:
    """A run that promotes exactly these batches.

    Its id is derived from their ids and objects, so a refused batch whose objects have changed gets a new run.

    Args:
        writes: The writes of their objects that notifications reported, by batch id and key.
    """
    chosen = tuple(batches)
    seen = (w for b in chosen for w in (writes or {}).get(b.id, {}).values())
    # An approval makes another run of a batch that checks have held.
    keys = [f"{b.id}\n{b.fingerprint}" + (f"\n{b.approval}" if b.approval else "") for b in chosen]
    spec = ConsolidationSpec(
        mode=dataset.spec.consolidation.mode,
        target_file_size_bytes=dataset.spec.consolidation.target_file_size_bytes,
        batch_ids=tuple(b.id for b in chosen),
        seen_objects=tuple(SeenObject(key=w.key, etag=w.etag, sequencer=w.sequencer) for w in seen),
        checks=dataset.spec.checks,
    )
    return _run(dataset, RunKind.CONSOLIDATION, keys).model_copy(update={"consolidation": spec})


def again(dataset: Dataset, stored: RunSpec, attempt: int) -> RunSpec:
    """Another attempt of a stored run, with the same id and batches, and otherwise as the Dataset's spec is now.

    What made the attempts before fail may have been corrected since. The caller renews what a vacuum is to do.
    """
    run = _run(dataset, stored.kind, ()).model_copy(update={"run_id": stored.run_id, "attempt": attempt})
    before, now = stored.consolidation, consolidation(dataset, ()).consolidation
    if before is None or now is None:
        return run
    kept = {"batch_ids": before.batch_ids, "seen_objects": before.seen_objects}
    return run.model_copy(update={"consolidation": now.model_copy(update=kept)})


def reanchoring(dataset: Dataset, head_id: int) -> RunSpec:
    """A run without batches that gives this head a ledger of its own, and native deletes to tombstones without them."""
    spec = ConsolidationSpec(
        mode=dataset.spec.consolidation.mode, deletes=dataset.spec.deletes, search_limits=search_limits_of(dataset)
    )
    return _run(dataset, RunKind.REANCHORING, [f"head\n{head_id}"]).model_copy(update={"consolidation": spec})


def accepting(dataset: Dataset, accepts: AcceptedHead) -> RunSpec:
    """A run without batches that gives an accepted head the ledger to continue with."""
    spec = ConsolidationSpec(mode=dataset.spec.consolidation.mode, batch_ids=(), accepts=accepts)
    keys = [f"accept\n{accepts.head_id}\n{accepts.ledger}"]
    return _run(dataset, RunKind.REANCHORING, keys).model_copy(update={"consolidation": spec})


def restatement_run_id(dataset: Dataset, restatement: Restatement) -> str:
    """The id of a run with this Restatement as its only member."""
    return run_id(dataset.meta.uid, RunFamily.RESTATEMENT, [restatement.key])


def restatements(
    dataset: Dataset,
    group: Iterable[tuple[Restatement, str]],
    listed_snapshot_id: int | None = None,
    lookups: Mapping[str, Dataset] | None = None,
) -> RunSpec:
    """A run for a group of Restatements. Its id is derived from their keys, whatever their order.

    Args:
        group: Each with the key of the request that it takes back, or "" if it is not an Undo. All are dry runs or none is.
        listed_snapshot_id: As in `RestatementGroupSpec`.
        lookups: The Datasets in whose tables the Restatements look up values, by name. One that is not there has no table in the
            document, which then only serves to plan.
    """
    members = tuple(group)
    requests = tuple(_request(r, undoes, lookups or {}) for r, undoes in members)
    run = _run(dataset, RunKind.RESTATEMENT, [r.key for r in requests])
    dry_run = any(r.spec.dry_run for r, _ in members)
    spec = RestatementGroupSpec(
        requests=requests,
        dry_run=dry_run,
        deletes=dataset.spec.deletes,
        search_limits=search_limits_of(dataset),
        listed_snapshot_id=listed_snapshot_id,
    )
    return run.model_copy(update={"restatement": spec})


def _request(restatement: Restatement, undoes: str, lookups: Mapping[str, Dataset]) -> RestatementRequest:
    spec = restatement.spec
    return RestatementRequest(
        key=restatement.key,
        name=restatement.meta.full_name,
        operation=spec.operation,
        batch_ids=restatement.batch_ids,
        batch_ids_uri=restatement.list_uri,
        batch_ids_sha256=restatement.listed.sha256
        if isinstance(restatement.listed, IdList)
        else restatement.list_sha256,
        reference=spec.reference,
        unknown_batches=spec.unknown_batches or UnknownBatches.REFUSE,
        rows=_rows(restatement, lookups),
        redact=_redaction(restatement),
        replacement=Replacement(
            batch_id=spec.replacement.batch_id,
            uri=spec.replacement.uri,
            key_columns=spec.replacement.key_columns,
            op_column=spec.replacement.op_column,
        )
        if spec.replacement
        else None,
        undoes=undoes,
        reason=spec.reason,
        creation_time=restatement.created,
        evict_by_seconds=spec.evict_by_seconds,
        provenance=restatement.provenance,
    )


def _rows(restatement: Restatement, lookups: Mapping[str, Dataset]) -> RowsRef | None:
    rows, secrets = restatement.spec.rows, restatement.secrets
    if rows is None:
        return None
    conditions: list[ConditionRef] = []
    for name, condition in rows.by_field.items():
        ref = ConditionRef(field=name, column=condition.column, values_uri=condition.values_from.uri)
        if (secret := secrets.get(values_field(name))) is not None:
            source = {"values_file": f"{ERASE_PATH}/{secret.file}", "secret": secret.secret, "secret_key": secret.key}
            ref = ref.model_copy(update=source)
        if condition.via is not None:
            ref = ref.model_copy(update={"via": _lookup(condition.via, lookups.get(condition.via.dataset))})
        conditions.append(ref)
    plan = restatement.status.plan
    return RowsRef(conditions=tuple(conditions), values_digest=(plan.values_digest if plan is not None else None) or "")


def _lookup(via: Lookup, dataset: Dataset | None) -> LookupRef:
    spec = dataset.spec if dataset is not None else None
    return LookupRef(
        dataset=via.dataset,
        catalog=spec.table.catalog if spec is not None else "",
        table=spec.table.name if spec is not None else "",
        batch_column=spec.batch_column if spec is not None else "",
        from_column=via.from_column,
        to_column=via.to_column,
    )


def _redaction(restatement: Restatement) -> Redaction | None:
    redact, key = restatement.spec.redact, restatement.secrets.get(HASH_KEY_FIELD)
    if redact is None:
        return None
    return Redaction(
        columns=tuple(ColumnRedaction(column=c.column, method=c.method, value=c.value) for c in redact.columns),
        hash_key_file=f"{ERASE_PATH}/{key.file}" if key is not None else "",
        secret=key.secret if key is not None else "",
        secret_key=key.key if key is not None else "",
    )


def vacuum_run_id(dataset: Dataset, key: str) -> str:
    """The id of the vacuum for one cause.

    Args:
        key: Names the cause: there is one vacuum per snapshot, per value of the annotation and per approval.
    """
    return run_id(dataset.meta.uid, RunFamily.VACUUM, [key])


def vacuum(dataset: Dataset, key: str, spec: VacuumSpec) -> RunSpec:
    """A vacuum run. The fields that the Dataset's spec decides are set here."""
    return _run(dataset, RunKind.VACUUM, [key]).model_copy(update={"vacuum": vacuum_of(dataset, spec)})


def vacuum_of(dataset: Dataset, spec: VacuumSpec) -> VacuumSpec:
    """The spec with the fields that the Dataset's spec decides."""
    own = {
        "snapshots": limits_of(dataset),
        "target_file_size_bytes": dataset.spec.consolidation.target_file_size_bytes,
    }
    return spec.model_copy(update=own)


def erasures(dataset: Dataset, policy: str, expire_snapshots: bool, lead_seconds: int, key: str) -> RunSpec:
    """A run that checks erasures, and purges nothing.

    Args:
        policy: `<namespace>/<name>` of the VacuumPolicy, or of the Dataset if it has none.
        lead_seconds: triggers.evictByLeadSeconds.
        key: Identifies the state that the run checks.
    """
    spec = VacuumSpec(
        policy=policy,
        expire_snapshots=expire_snapshots,
        snapshots=limits_of(dataset),
        evict_by_lead_seconds=lead_seconds,
        erasures_only=True,
    )
    return _run(dataset, RunKind.ERASURE_CHECK, [key]).model_copy(update={"vacuum": spec})


def _run(dataset: Dataset, kind: RunKind, keys: Iterable[str]) -> RunSpec:
    spec, meta = dataset.spec, dataset.meta
    return RunSpec(
        family=kind.family,
        run_id=run_id(meta.uid, kind.family, keys),
        dataset=DatasetRef(namespace=meta.namespace, name=meta.name, uid=meta.uid),
        table=TableRef.model_validate(spec.table.model_dump()),
        batch_column=spec.batch_column,
        buffer=BufferRef(
            uri=spec.buffer.uri,
            format=spec.buffer.format,
            layout=spec.buffer.layout,
            csv=spec.buffer.csv and CsvDialect(**dict(spec.buffer.csv)),
            adopt=spec.buffer.adopt,
        ),
        schema_evolution=spec.schema_evolution,
        snapshots=limits_of(dataset),
        batch_tracking=spec.batch_tracking.enabled,
    )


def search_limits_of(dataset: Dataset) -> SearchLimits:
    """How much a commit of the Dataset searches without Spark."""
    return SearchLimits.model_validate(dataset.spec.native_deletes.model_dump())


def limits_of(dataset: Dataset) -> SnapshotLimits:
    """The limits in spec.snapshots."""
    return SnapshotLimits.model_validate(dataset.spec.snapshots.model_dump())


# After the committer has failed at a consolidation, Jobs carry out those of the Dataset for this time: its credentials may not
# allow it to read the buffer.
AGAIN_AFTER: Final = timedelta(minutes=10)


def may_ask(dataset: Dataset, world: Observation) -> bool:
    """Whether the committer is alive and can change this table.

    A run must have claimed and prepared the table before, and the format version must be at least 2.
    """
    committer, view = world.committer, world.table
    if committer is None or not committer.alive or not isinstance(view, TableView):
        return False
    return view.claim == dataset.meta.full_name and view.prepared and view.format_version >= 2


def can_do(restatement: Restatement, run: ObservedRun | None) -> bool:
    """Whether the committer may carry out a Restatement: it writes no rows, and the committer did not fail at it last.

    Args:
        run: The latest run that it was a member of; None: there was none.
    """
    spec = restatement.spec
    if not spec.operation.is_metadata_only:
        return False
    return not (spec.rows or spec.dry_run or restatement.list_uri or committer_failed(run))


def may_register(dataset: Dataset, world: Observation, run: RunSpec, now: datetime) -> bool:
    """Whether the committer may carry out a consolidation.

    It registers few files, from a buffer with few objects, and the committer did not fail at a consolidation of the
    Dataset lately. A Job makes further attempts. A pod template of the Dataset may hold credentials for the buffer,
    which only its own pods have.
    """
    spec, buffer = run.consolidation, world.buffer
    if (
        run.attempt > 1
        or spec is None
        or spec.mode is not ConsolidationMode.REGISTER
        or not isinstance(buffer, BufferDigest)
    ):
        return False
    if not may_ask(dataset, world) or dataset.spec.run_template.pod_template or _failed_since(world, now - AGAIN_AFTER):
        return False
    files = {b.id: b.files for b in buffer.oldest}
    if buffer.objects > OBJECTS_AT_MOST or not files.keys() >= set(spec.batch_ids):
        return False
    return sum(files[i] for i in spec.batch_ids) <= FILES_AT_MOST


def _failed_since(world: Observation, time: datetime) -> bool:
    """Whether the committer failed at a consolidation that it received after this time."""
    asked = (a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER)
    return any(a.kind is RunKind.CONSOLIDATION and a.state is AttemptState.FAILED and a.created >= time for a in asked)


def committer_failed(run: ObservedRun | None) -> bool:
    """Whether the last attempt of the run was by the committer and failed. Then a Job makes the next attempt."""
    last = run.last if run is not None else None
    return last is not None and last.engine is Engine.COMMITTER and last.state is AttemptState.FAILED


def is_asked(world: Observation) -> bool:
    """Whether the committer has an active attempt of a run of the Dataset."""
    return any(True for _ in _in_committer(world))


def forgotten(world: Observation) -> tuple[Attempt, ...]:
    """The active attempts whose entry the mailbox lacks, because the operator crashed before it wrote the entry."""
    committer = world.committer
    if committer is None or not committer.alive:
        return ()
    return tuple(a for a in _in_committer(world) if a.run_id[:KEY_PREFIX_LENGTH] not in committer.mailbox)


def withdrawn(world: Observation) -> tuple[Attempt, ...]:
    """Attempts to remove from the mailbox because the committer is not alive. Another attempt may start only after that."""
    committer = world.committer
    if committer is None or committer.alive:
        return ()
    return tuple(a for a in _in_committer(world) if a.run_id[:KEY_PREFIX_LENGTH] in committer.mailbox)


def _in_committer(world: Observation) -> Iterable[Attempt]:
    return (
        a for r in world.runs for a in r.attempts if a.engine is Engine.COMMITTER and a.state is AttemptState.ACTIVE
    )


# If the warm driver has not started within this time, Jobs take over its runs.
STARTS_WITHIN: Final = timedelta(seconds=90)
# The same if it makes way: none starts, and the last one ends within the grace period of its pod.
ENDS_WITHIN: Final = timedelta(seconds=30)

# How soon a run with values that has not begun is looked at again.
NEXT_DRIVER: Final = timedelta(seconds=10)


@dataclass(frozen=True)
class WarmDriverCare:
    """What to do about the runs that the warm drivers received."""

    start: Mapping[WarmEngine, tuple[SecretFile, ...]] = field(default_factory=dict)
    """Those to start: runs wait, and there is none. With the Secrets that these runs need."""
    remind: tuple[Attempt, ...] = ()
    """Attempts whose entry the mailbox lacks."""
    cancel: tuple[Attempt, ...] = ()
    """Attempts that the warm driver is to stop."""
    withdraw: tuple[Attempt, ...] = ()
    """Attempts whose entry is to be removed: a Job takes over."""
    look_again: datetime | None = None
    """When to decide again; None: when something changes."""


def with_engine(launch: Launch, dataset: Dataset, world: Observation, settings: Settings) -> Launch:
    """The launch, given to the warm driver if that may carry it out."""
    if launch.engine is not Engine.JOB or _is_launched_otherwise(settings.run_template):
        return launch
    if may_carry_out(launch, dataset, world, settings.warm_drivers):
        return replace(launch, engine=_warm_engine(launch))
    return launch


def _warm_engine(launch: Launch) -> WarmEngine:
    """Which of the warm drivers may see what a run sees. Values that a run has read may stay in the session's memory."""
    return Engine.VALUES_DRIVER if launch.secrets or launch.run.erases_by_values else Engine.WARM_DRIVER


def driver_of(world: Observation, engine: WarmEngine) -> WorkerView | None:
    """One of the warm drivers; None: they are not enabled."""
    match engine:
        case Engine.WARM_DRIVER:
            return world.warm_driver
        case Engine.VALUES_DRIVER:
            return world.values_driver
        case _:
            assert_never(engine)


def may_carry_out(launch: Launch, dataset: Dataset, world: Observation, settings: WarmDriverSettings) -> bool:
    """Whether a run is small enough, needs nothing that the warm driver lacks, and has never failed.

    One that failed, whatever the cause, gets a pod of its own: a run that breaks the warm driver does so at most once. After one
    that needed too much, so do the next ones of its family: other runs would wait for them in vain.
    """
    there = driver_of(world, _warm_engine(launch))
    if there is None or there.away_until is not None or len(there.mailbox) >= settings.max_waiting:
        return False
    if launch.place is not None or not _is_standard(dataset.spec.run_template, settings.driver):
        return False
    if launch.run.attempt > 1 or _failed_last(launch.run, world) or _needed_too_much(launch.run, world):
        return False
    size = _reads(launch, world)
    return size is not None and size <= settings.max_bytes_per_run


def care_for_warm_driver(world: Observation, unwanted: Collection[str], now: datetime) -> WarmDriverCare:
    """What to do about the runs that the warm drivers received.

    Args:
        unwanted: Names of attempts that nobody needs any more.
    """
    warm, values = (_care_for(world, e, unwanted, now) for e in (Engine.WARM_DRIVER, Engine.VALUES_DRIVER))
    return WarmDriverCare(
        start={**warm.start, **values.start},
        remind=(*warm.remind, *values.remind),
        cancel=(*warm.cancel, *values.cancel),
        withdraw=(*warm.withdraw, *values.withdraw),
        look_again=earliest(warm.look_again, values.look_again),
    )


def _care_for(world: Observation, engine: WarmEngine, unwanted: Collection[str], now: datetime) -> WarmDriverCare:
    there = driver_of(world, engine)
    attempts = (a for r in world.runs for a in r.attempts)
    mine = tuple(a for a in attempts if a.engine is engine and a.state is AttemptState.ACTIVE)
    if there is None or not mine:
        return WarmDriverCare()
    cancel = tuple(a for a in mine if a.job in unwanted and _key(a) not in there.cancelled)
    if there.alive:
        # A driver that lacks the Secrets of a run ends before it, and another one starts.
        waits = engine is Engine.VALUES_DRIVER and any(a.progress is None for a in mine)
        return WarmDriverCare(
            remind=tuple(a for a in mine if _key(a) not in there.mailbox),
            cancel=cancel,
            look_again=now + NEXT_DRIVER if waits else None,
        )
    within = STARTS_WITHIN if there.away_until is None else ENDS_WITHIN
    late = tuple(a for a in mine if a.created + within <= now)
    waiting = tuple(a for a in mine if a not in late)
    starts = bool(waiting) and not there.starting and there.away_until is None
    secrets = tuple(dict.fromkeys(s for a in waiting for s in a.secrets))
    return WarmDriverCare(
        start={engine: secrets} if starts else {},
        withdraw=late,
        look_again=earliest(*(a.created + within for a in waiting)),
    )


def _key(attempt: Attempt) -> str:
    return attempt.run_id[:KEY_PREFIX_LENGTH]


def _is_launched_otherwise(template: RunTemplate) -> bool:
    """Whether runs wait in a queue, or another operator starts them."""
    return bool(template.queue) or template.launcher not in (None, Launcher.JOB)


def _is_standard(template: RunTemplate, warm: PodSize) -> bool:
    """Whether a Dataset asks for nothing that the warm driver lacks: a pod template, executors, a larger driver, or a queue."""
    if template.pod_template or template.executors.min or _is_launched_otherwise(template):
        return False
    asked = template.driver
    return all(
        wanted is None or (has is not None and wanted <= has)
        for wanted, has in ((asked.cpu, warm.cpu), (asked.memory, warm.memory), (asked.scratch, warm.scratch))
    )


def _failed_last(run: RunSpec, world: Observation) -> bool:
    """Whether the Dataset's last run of this family failed for a reason that another attempt might not meet.

    Its members or its batches may be in this run again.
    """
    attempts = (a for a in _attempts_like(run, world) if a.engine is not Engine.COMMITTER)
    ended = [a for a in attempts if a.state is not AttemptState.ACTIVE]
    last = max(ended, key=lambda a: a.finished or a.created, default=None)
    if last is None or last.state is not AttemptState.FAILED:
        return False
    return last.result is None or not last.result.permanent


def _needed_too_much(run: RunSpec, world: Observation) -> bool:
    """Whether the warm driver stopped one of the Dataset's last runs of this family, of which a few are known."""
    attempts = _attempts_like(run, world)
    return any(a.result is not None and a.result.reason == WARM_DRIVER_LIMIT for a in attempts)


def _attempts_like(run: RunSpec, world: Observation) -> Iterator[Attempt]:
    """The known attempts of the Dataset's runs of the same family."""
    return (a for r in world.runs if r.kind.family is run.family for a in r.attempts)


def _reads(launch: Launch, world: Observation) -> int | None:
    """How many bytes a run reads at most; None: unknown."""
    view, run = world.table, launch.run
    whole = view.total_bytes if isinstance(view, TableView) else 0
    match run.kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING:
            return launch.bytes
        case RunKind.RESTATEMENT:
            group = run.restatement
            assert group is not None
            # Searches and native deletes read data files of the table.
            searches = group.deletes is not Deletes.LEDGER or any(r.searches for r in group.requests)
            return max(launch.bytes, whole) if searches or group.dry_run else launch.bytes
        case RunKind.VACUUM:
            # The search of the storage reads old data files of about the size of the table.
            return max(launch.bytes, whole) if world.open_erasures else launch.bytes
        case RunKind.ERASURE_CHECK:
            return whole
        case _:
            assert_never(run.kind)
