"""Values of Lethe's for tests: every builder has a default for everything, a test names what matters to it. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe.base import names
from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject, ListedObject
from lethe.contract.result import AnyRunResult, RequestResult, RunOutcome, RunResult, parse_result, result_model
from lethe.contract.run import (
    BufferRef,
    ColumnRedaction,
    ConditionRef,
    ConsolidationSpec,
    CreateTable,
    DatasetRef,
    Redaction,
    Replacement,
    RestatementGroupSpec,
    RestatementRequest,
    RowsRef,
    RunKind,
    RunSpec,
    SnapshotLimits,
    TableRef,
    VacuumSpec,
)
from lethe.contract.settings import RedactionMethod
from lethe.files.bounds import FileBounds
from lethe.ledger.ledger import (
    BatchEntry,
    BatchState,
    Carrier,
    Delta,
    Interval,
    Ledger,
    RequestEntry,
    counted,
    settled_batch,
    settled_request,
)
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import META_RESTATEMENTS, Tombstone

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FIELD = 7
RUN = "0123456789abcdef0123456789abcdef"


def ago(**delta: float) -> datetime:
    """A moment before NOW."""
    return NOW - timedelta(**delta)


def an_object(
    key: str = "s3://lake/buffer/batch_id=A/part-0.parquet", size: int = 10, etag: str = "e"
) -> BufferedObject:
    return BufferedObject(key, size, etag)


def listed(key: str, size: int = 10, etag: str = "e", modified: datetime = NOW) -> ListedObject:
    return ListedObject(key, size, etag, modified)


def a_tombstone(
    id: str = "A",
    *,
    namespace: int = FIELD,
    added_on: datetime = NOW,
    evict_by: datetime | None = None,
    restatements: Collection[str] = ("ns/r/1",),
    meta: Mapping[str, str] | None = None,
) -> Tombstone:
    held = {META_RESTATEMENTS: "\n".join(restatements)} if restatements else {}
    return Tombstone(id, namespace, added_on, evict_by, {**held, **(meta or {})})


def a_batch(id: str = "A", state: BatchState = BatchState.PROMOTED, **changes: Any) -> BatchEntry:
    wanted: dict[str, Any] = {"run": RUN, "time": NOW, "rows": 3, "bytes": 30}
    if isinstance(text := changes.get("refusal"), str):
        changes["refusal"] = Verdict.parse(text)
    return BatchEntry(id, state, **{**wanted, **changes})


def a_request_entry(key: str, **result: Any) -> RequestEntry:
    whole = RequestResult(key=key, name=key.rpartition("/")[0], succeeded=True, committed_time=NOW, **result)
    return RequestEntry(key, RUN, NOW, whole.model_dump(mode="json", by_alias=True, exclude_none=True))


def a_ledger(*tombstones: Tombstone | str, batches: Collection[BatchEntry] = (), **changes: Any) -> Ledger:
    active = [a_tombstone(t) if isinstance(t, str) else t for t in tombstones]
    requests: Collection[RequestEntry] = changes.pop("requests", ())
    return Ledger(
        tombstones={t.key: t for t in active},
        batches={b.id: b for b in batches},
        requests={r.key: r for r in requests},
        **changes,
    )


class OnFiles(dict[Any, Any]):
    """A part of which each key costs little and a walk over all of it too much."""

    def get_many(self, keys: Iterable[Any]) -> dict[Any, Any]:
        return {k: self[k] for k in keys if k in self}

    def within(self, _: Sequence[Interval]) -> list[Any]:
        raise AssertionError("the whole part was read")

    def apart(self) -> "OnFiles":
        return self

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("the whole part was read")

    items = values = keys = __iter__  # type: ignore[assignment]


def on_files(ledger: Ledger) -> Ledger:
    """The same ledger; who walks over a part of it fails."""
    return replace(
        ledger,
        tombstones=OnFiles(ledger.tombstones),
        batches=OnFiles(ledger.batches),
        requests=OnFiles(ledger.requests),
        recorded=counted(ledger),
    )


def as_delta(ledger: Ledger, run: str = RUN) -> Delta:
    """What makes this ledger of the empty one."""
    return Delta(
        ledger.pending_run or run,
        add_tombstones=tuple(ledger.tombstones.values()),
        set_batches=tuple(ledger.batches.values()),
        set_requests=tuple(ledger.requests.values()),
        set_erasures=ledger.erasures,
    )


def batch_states(ledger: Ledger) -> dict[str, str]:
    return {i: str(b.state) for i, b in ledger.batches.items()}


def settled(ledger: Ledger, snapshot_id: int) -> Ledger:
    """A ledger in memory as it is read once a snapshot carries it."""
    run = ledger.pending_run
    batches = {k: settled_batch(b, snapshot_id) if b.run == run else b for k, b in ledger.batches.items()}
    requests = {k: settled_request(r, snapshot_id) if r.run == run else r for k, r in ledger.requests.items()}
    return replace(ledger, batches=batches, requests=requests)


def a_file(
    lower: str | None = "A",
    upper: str | None = None,
    *,
    path: str = "",
    nulls: int | None = 0,
    records: int = 10,
    size: int = 100,
    deletes: Collection[str] = (),
) -> FileBounds:
    """One bound given: both are equal. Without a path: one made of the bounds."""
    upper = lower if upper is None else upper
    path = path or f"s3://lake/t/data/{lower}-{upper}"
    return FileBounds(path, records, size, lower, upper, nulls, frozenset(deletes))


def a_snapshot(
    id: int,
    parent: int | None = None,
    *,
    ledger: str | None = None,
    at: datetime = NOW,
    sequence: int | None = None,
    **summary: str,
) -> Snapshot:
    keys = {k.replace("__", ".").replace("_", "-"): v for k, v in summary.items()}
    if ledger is not None:
        keys[names.LEDGER] = ledger
    return Snapshot(id, parent, id if sequence is None else sequence, int(at.timestamp() * 1000), keys)


def a_history(*snapshots: Snapshot) -> dict[int, Snapshot]:
    return {s.id: s for s in snapshots}


def a_carrier(id: int, *bare: int, ledger: str = "") -> Carrier:
    return Carrier(id, id, ledger or f"L{id}", bare)


def a_request(name: str = "revert-a", operation: str = "Revert", **changes: Any) -> RestatementRequest:
    batch_ids: tuple[str, ...] = tuple(changes.pop("batch_ids", ("A",)))
    wanted: dict[str, Any] = {"key": f"ns/{name}/0", "name": f"ns/{name}", "creation_time": NOW}
    return RestatementRequest(operation=operation, batch_ids=batch_ids, **{**wanted, **changes})


def a_change(name: str = "change", by: str = "C1", **changes: Any) -> RestatementRequest:
    """A Replay of single rows by their keys."""
    uri = f"s3://lake/restated/{by}/"
    replacement = Replacement(batch_id=by, uri=uri, key_columns=("tailnum", "day"), op_column="op")
    return a_request(name, "Replay", **{"batch_ids": (), "replacement": replacement, **changes})


def a_replay(name: str = "replay-a", by: str = "A2", **changes: Any) -> RestatementRequest:
    """A request to replace batch A (or `batch_ids`) by the batch `by`."""
    uri: str = changes.pop("uri", f"s3://lake/restated/{by}/")
    return a_request(name, "Replay", replacement=Replacement(batch_id=by, uri=uri), **changes)


def an_undo(of: str = "revert-a", name: str = "undo", **changes: Any) -> RestatementRequest:
    return a_request(name, "Undo", batch_ids=(), undoes=f"ns/{of}/0", **changes)


def an_erase_of_rows(name: str = "erase", digest: str = "", **changes: Any) -> RestatementRequest:
    condition = ConditionRef(column="tailnum", values_file=f"/etc/lethe/values/{name}")
    rows = RowsRef(conditions=(condition,), values_digest=digest)
    return a_request(name, "Erase", batch_ids=(), rows=rows, **changes)


def a_redact(*batch_ids: str, name: str = "redact", **changes: Any) -> RestatementRequest:
    """Set a column of batches, or of records if there are none, to null, and hash another one."""
    columns = (
        ColumnRedaction(column="email", method=RedactionMethod.SET_NULL),
        ColumnRedaction(column="owner.name", method=RedactionMethod.KEYED_HASH),
    )
    redact = Redaction(columns=columns, hash_key_file="/etc/lethe/key", secret="erase-hash-2026", secret_key="key")
    condition = ConditionRef(column="tailnum", values_file=f"/etc/lethe/values/{name}")
    rows = None if batch_ids else RowsRef(conditions=(condition,))
    return a_request(name, "Redact", **{"batch_ids": batch_ids, "rows": rows, "redact": redact, **changes})


def a_run_result(kind: RunKind, outcome: str = "Committed", **changes: Any) -> AnyRunResult:
    """The result of a run of this kind; every field must be one of its model."""
    model = result_model(kind)
    assert changes.keys() <= model.model_fields.keys(), (
        f"{model.__name__} has no {changes.keys() - model.model_fields.keys()}"
    )
    known: dict[str, Any] = {"run_id": RUN, "family": kind.family, "finished_time": NOW}
    return model(outcome=RunOutcome(outcome), **{**known, **changes})


def read_result(text: str) -> AnyRunResult:
    """A result without the knowledge of its run: as the kind of its family that has the most fields."""
    by_family = {kind.family: kind for kind in (RunKind.CONSOLIDATION, RunKind.RESTATEMENT, RunKind.VACUUM)}
    return parse_result(text, by_family[RunResult.model_validate_json(text).family])


def a_run(
    kind: RunKind = RunKind.CONSOLIDATION,
    *,
    batch_ids: Collection[str] = (),
    requests: Collection[RestatementRequest] = (),
    limits: SnapshotLimits | None = None,
    **changes: Any,
) -> RunSpec:
    wanted: dict[str, Any] = {
        "run_id": RUN,
        "dataset": DatasetRef(namespace="air", name="flights", uid="d-1"),
        "table": TableRef(
            catalog="lite", name="air.flights", create=CreateTable(table_schema="v bigint, batch_id string")
        ),
        "batch_column": "batch_id",
        "buffer": BufferRef(uri="s3://lake/buffer/flights"),
    }
    match kind:
        case RunKind.CONSOLIDATION | RunKind.REANCHORING:
            wanted["consolidation"] = ConsolidationSpec(batch_ids=tuple(batch_ids))
        case RunKind.RESTATEMENT:
            wanted["restatement"] = RestatementGroupSpec(requests=tuple(requests))
        case RunKind.VACUUM | RunKind.ERASURE_CHECK:
            checks = kind is RunKind.ERASURE_CHECK
            limits = limits or SnapshotLimits()
            wanted["vacuum"] = VacuumSpec(policy="air/nightly", snapshots=limits, erasures_only=checks)
    return RunSpec(family=kind.family, **{**wanted, **changes})
