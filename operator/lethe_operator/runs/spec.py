"""Makes the documents of the run contract (`lethe.contract.run`) from resources. Pure.

Completes a launch that was decided: with what the decision saw, where it happens, and what it may use. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lethe.base.ids import run_id
from lethe.buffer.digest import WaitingBatch
from lethe.buffer.notifications import Written
from lethe.contract.run import (
    AcceptedHead,
    BufferRef,
    ConsolidationSpec,
    DatasetRef,
    Replacement,
    RestatementGroupSpec,
    RestatementRequest,
    RowsRef,
    RunKind,
    RunSpec,
    SeenObject,
    SnapshotLimits,
    TableRef,
    VacuumSpec,
)
from lethe.contract.settings import CsvDialect, RunFamily
from lethe.restatement.group import IdList

from lethe_operator.actions import Launch
from lethe_operator.resources.common import ERASE_PATH
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger, Observation, TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.runs.retry import counted
from lethe_operator.settings import Settings


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


def within_boundary(launch: Launch, settings: Settings) -> Launch:
    """With the current boundary, also for an intent that was stored under another one."""
    boundary = settings.boundaries.of(launch.run.dataset.namespace).of_runs
    return replace(launch, run=launch.run.model_copy(update={"boundary": boundary}))


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
    keys = [f"{b.id}\n{b.fingerprint}" for b in chosen]
    spec = ConsolidationSpec(
        mode=dataset.spec.consolidation.mode,
        target_file_size_bytes=dataset.spec.consolidation.target_file_size_bytes,
        batch_ids=tuple(b.id for b in chosen),
        seen_objects=tuple(SeenObject(key=w.key, etag=w.etag, sequencer=w.sequencer) for w in seen),
    )
    return _run(dataset, RunKind.CONSOLIDATION, keys).model_copy(update={"consolidation": spec})


def reanchoring(dataset: Dataset, head_id: int) -> RunSpec:
    """A run without batches that gives this head a ledger of its own."""
    spec = ConsolidationSpec(mode=dataset.spec.consolidation.mode, batch_ids=())
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
    dataset: Dataset, group: Iterable[tuple[Restatement, str]], listed_snapshot_id: int | None = None
) -> RunSpec:
    """A run for a group of Restatements. Its id is derived from their keys, whatever their order.

    Args:
        group: Each with the key of the request that it takes back, or "" if it is not an Undo. All are dry runs or none is.
        listed_snapshot_id: As in `RestatementGroupSpec`.
    """
    members = tuple(group)
    requests = tuple(_request(r, undoes) for r, undoes in members)
    run = _run(dataset, RunKind.RESTATEMENT, [r.key for r in requests])
    dry_run = any(r.spec.dry_run for r, _ in members)
    spec = RestatementGroupSpec(
        requests=requests, dry_run=dry_run, deletes=dataset.spec.deletes, listed_snapshot_id=listed_snapshot_id
    )
    return run.model_copy(update={"restatement": spec})


def _request(restatement: Restatement, undoes: str) -> RestatementRequest:
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
        rows=_rows(restatement),
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


def _rows(restatement: Restatement) -> RowsRef | None:
    rows, values = restatement.spec.rows, restatement.values
    if rows is None or values is None:
        return None
    file = f"{ERASE_PATH}/{values.file}"
    return RowsRef(column=rows.column, values_file=file, secret=values.secret, secret_key=values.key)


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


def limits_of(dataset: Dataset) -> SnapshotLimits:
    """The limits in spec.snapshots."""
    return SnapshotLimits.model_validate(dataset.spec.snapshots.model_dump())
