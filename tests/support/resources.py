"""Resources and observations for tests: defaults for everything, a test names what matters to it. Pure."""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from lethe.base.objects import BufferedObject
from lethe.buffer.digest import BufferDigest, digest
from lethe.buffer.layout import BufferedBatch
from lethe.contract.result import AnyRunResult, RequestResult
from lethe.contract.run import RunSpec, VacuumSpec
from lethe.ledger.ledger import Ledger
from lethe.ledger.lineage import Snapshot
from lethe_operator.resources.dataset import Dataset, parse_dataset
from lethe_operator.resources.observed import Attempt, AttemptState, Observation, ObservedRun, TableView
from lethe_operator.resources.restatement import Restatement, parse_restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, parse_vacuum_policy
from lethe_operator.runs import names
from lethe_operator.runs import spec as run_specs
from lethe_operator.settings import Settings

from tests.support.builders import NOW, a_ledger, a_run_result, ago
from tests.support.documents import dataset_spec
from tests.support.statuses import document

SETTINGS = Settings()
MIB = 1024 * 1024


def _metadata(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": ago(hours=1).isoformat(),
        **metadata,
    }


def a_dataset_body(name: str = "flights", status: Any = None, meta: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": _metadata(name, **(meta or {})),
        "spec": dataset_spec(**spec),
        "status": document(status),
    }


def a_dataset(name: str = "flights", **changes: Any) -> Dataset:
    return parse_dataset(a_dataset_body(name, **changes))


def a_restatement_body(name: str = "revert-a", status: Any = None, meta: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": _metadata(name, **(meta or {})),
        "spec": {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["A"], **spec},
        "status": document(status),
    }


def a_restatement(name: str = "revert-a", **changes: Any) -> Restatement:
    return parse_restatement(a_restatement_body(name, **changes))


def a_replay(old: str, new: str, name: str = "", **changes: Any) -> Restatement:
    replacement = {"batchId": new, "uri": f"s3://lake/restated/{new}/"}
    name = name or f"{old}-to-{new}".lower()
    return a_restatement(name, operation="Replay", batchIds=[old], replacement=replacement, **changes)


def a_policy(name: str = "air", **changes: Any) -> VacuumPolicy:
    return parse_vacuum_policy(a_policy_body(name, **changes))


def a_policy_body(name: str = "air", status: Any = None, meta: Any = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": _metadata(name, **(meta or {})),
        "spec": {
            "datasetSelector": {},
            # The CRD sets the second one on every policy.
            "triggers": {"activeTombstones": 4, "evictByLeadSeconds": 86400},
            "approval": "Automatic",
            "expireSnapshots": True,
            **spec,
        },
        "status": document(status),
    }


def a_buffered(
    id: str = "A", *, size: int = 10, age_seconds: float = 60, complete: bool = True, etag: str = "e"
) -> BufferedBatch:
    folder = f"s3://lake/buffer/flights/batch_id={id}"
    objects = [BufferedObject(f"{folder}/part-0.parquet", size, etag)]
    if complete:
        objects.append(BufferedObject(f"{folder}/_SUCCESS", 0, "s"))
    return BufferedBatch(id, folder, tuple(objects), complete, size, NOW - timedelta(seconds=age_seconds))


def a_table(ledger: Ledger | None = None, **changes: Any) -> TableView:
    defaults: dict[str, Any] = {
        "uuid": "table-uuid",
        "location": "s3://lake/warehouse/air/flights",
        "format_version": 2,
        "head_id": 7423456789012345678,
        "head_time": ago(minutes=5),
        "claim": "ns/flights",
        "batch_field_id": 7,
        "prepared": True,
        "ledger": ledger if ledger is not None else a_ledger(),
    }
    wanted = {**defaults, **changes}
    head, number = wanted["head_id"], wanted.setdefault("head_sequence_number", 9)
    if head is not None:
        wanted.setdefault("ancestry", {head: Snapshot(head, None, number, 0)})
    return TableView(**wanted)


def a_buffer(*buffered: BufferedBatch, ledger: Ledger | None = None, **changes: Any) -> BufferDigest:
    """What is said of these batches beside a ledger."""
    known = {} if ledger is None else ledger.batches
    wanted = {"names": 50_000, "retention_seconds": 86_400, **changes}
    return digest(buffered, lambda ids: {i: known[i] for i in ids if i in known}, now=NOW, **wanted)


def a_world(*buffered: BufferedBatch, **changes: Any) -> Observation:
    table = changes.setdefault("table", a_table())
    ledger = table.ledger if isinstance(table, TableView) else None
    world = Observation(**{"buffer": a_buffer(*buffered, ledger=ledger), **changes})
    if not isinstance(world.buffer, BufferDigest) or world.buffer.horizons:
        return world
    # What was there when a Restatement was created is known, as if all clocks were one.
    horizons = {r.meta.uid: r.created for r in world.restatements}
    return replace(world, buffer=replace(world.buffer, horizons=horizons))


def an_attempt(
    run: RunSpec,
    state: AttemptState = AttemptState.ACTIVE,
    *,
    number: int = 1,
    ago_seconds: float = 60,
    finished_seconds: float | None = None,
    **changes: Any,
) -> Attempt:
    """Finished ones ended 30 seconds ago unless it says otherwise."""
    ended: datetime | None = None
    if state is not AttemptState.ACTIVE:
        ended = ago(seconds=30 if finished_seconds is None else finished_seconds)
    defaults: dict[str, Any] = {
        "job": run.model_copy(update={"attempt": number}).attempt_name,
        "run_id": run.run_id,
        "kind": run.kind,
        "number": number,
        "state": state,
        "created": ago(seconds=ago_seconds),
        "finished": ended,
        "generation": 1,
    }
    return Attempt(**{**defaults, **changes})


def a_run(spec: RunSpec, *attempts: Attempt, intent: bool = True) -> ObservedRun:
    return ObservedRun(
        spec.run_id, spec.kind, spec if intent else None, attempts, (f"{names.key_prefix(spec.run_id)}.run.json",)
    )


def a_consolidation(*batches: BufferedBatch, dataset: Dataset | None = None) -> RunSpec:
    return run_specs.consolidation(dataset or a_dataset(), a_buffer(*(batches or (a_buffered(),))).oldest)


def a_restatement_run(restatement: Restatement, dataset: Dataset | None = None) -> RunSpec:
    return run_specs.restatements(dataset or a_dataset(), [(restatement, "")])


def a_group(*restatements: Restatement) -> RunSpec:
    """The run of several."""
    return run_specs.restatements(a_dataset(), [(r, "") for r in restatements])


def a_vacuum(key: str = "7423456789012345678", policy: str = "ns/air", **spec: Any) -> RunSpec:
    return run_specs.vacuum(a_dataset(), key, VacuumSpec(policy=policy, **spec))


def a_result(
    spec: RunSpec, outcome: str = "Committed", requests: Collection[RequestResult] = (), **changes: Any
) -> AnyRunResult:
    if requests:
        changes["requests"] = tuple(requests)
    known = {"run_id": spec.run_id, "finished_time": ago(seconds=30)}
    return a_run_result(spec.kind, outcome, **{**known, **changes})


def condition(status: Any, type: str) -> tuple[str, str]:
    """Status and reason of one condition."""
    found = next(c for c in document(status)["conditions"] if c["type"] == type)
    return found["status"], found["reason"]


def message(status: Any, type: str) -> str:
    return str(next(c for c in document(status)["conditions"] if c["type"] == type)["message"])
