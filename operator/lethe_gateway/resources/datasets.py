"""What the API says of a Dataset, its runs, the plans of its vacuums, and the policies that start them. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from lethe.contract.dataset import BatchTrackingSpec, BufferSpec, DatasetSpec, TableSpec
from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import (
    BatchCounts,
    BufferStatus,
    ConsolidationStatus,
    DatasetStatus,
    ErasureCounts,
    HoldStatus,
    LastVacuum,
    RefusedBatch,
    RequestedVacuum,
    RetentionStatus,
    RunEntry,
    TableStatus,
    Time,
    TombstoneCounts,
    VacuumPlan,
    VacuumPolicyStatus,
    VacuumStatus,
    parse_status,
)
from lethe.contract.vacuum_policy import Retention, VacuumPolicySpec, Window
from pydantic import Field

from lethe_gateway.freshness import SnapshotIdText
from lethe_gateway.resources.views import ConditionView, conditions_of, part, without


@without("run", "state")
class VacuumPlanView(VacuumPlan, SnapshotIdText):
    """What the next vacuum would do, planned from metadata."""


@without("run_id", "left", "idle_runs", "state")
class LastVacuumView(LastVacuum):
    """The last vacuum that succeeded."""


@without("name", "run_id")
class RequestedVacuumView(RequestedVacuum):
    """The vacuum that was last requested by the annotation lethe.dev/vacuum-now."""


@without("rule", "snapshot_id")
class RetentionView(RetentionStatus):
    """What the last vacuum found about rows that are too old."""


@without("measured")
class VacuumView(VacuumStatus):
    """The next vacuum of a Dataset."""

    plan: VacuumPlanView | None = None
    last_run: LastVacuumView | None = None
    requested: RequestedVacuumView | None = None
    retention: RetentionView | None = None


class DatasetVacuum(VacuumView):
    """The next vacuum, in a list."""

    dataset: str
    """The Dataset."""


class VacuumPolicyView(ApiModel):
    """When vacuums run."""

    name: str
    """The name of the policy."""
    approval: Annotated[str | None, SameAs(VacuumPolicySpec)] = None
    schedule: Annotated[str | None, SameAs(Window)] = None
    time_zone: Annotated[str | None, SameAs(Window)] = None
    duration_seconds: Annotated[int | None, SameAs(Window)] = None
    datasets_count: Annotated[int | None, SameAs(VacuumPolicyStatus)] = None
    last_run_time: Annotated[Time | None, SameAs(VacuumPolicyStatus)] = None
    next_window_time: Annotated[Time | None, SameAs(VacuumPolicyStatus)] = None
    retention: Annotated[Retention | None, SameAs(VacuumPolicySpec)] = None
    conditions: tuple[ConditionView, ...] = Field(default_factory=tuple)
    """The conditions of the policy."""


def vacuum_of(dataset: Mapping[str, Any]) -> DatasetVacuum:
    """What the status of a Dataset says of its next vacuum. Without a status, only the name of the Dataset is set."""
    status = part(dataset, "status", "vacuum")
    return parse_status(DatasetVacuum, {**status, "dataset": dataset["metadata"]["name"]})


def policy_of(resource: Mapping[str, Any]) -> VacuumPolicyView:
    """A VacuumPolicy, from the window and approval of its spec and from its status."""
    status = part(resource, "status")
    return parse_status(
        VacuumPolicyView,
        {
            **{k: status.get(k) for k in ("datasetsCount", "lastRunTime", "nextWindowTime")},
            **part(resource, "spec", "window"),
            "name": resource["metadata"]["name"],
            "approval": part(resource, "spec").get("approval"),
            "retention": part(resource, "spec").get("retention"),
            "conditions": conditions_of(resource),
        },
    )


_ENDED: Final = frozenset({"Succeeded", "Failed"})


class RunView(RunEntry):
    """One run."""

    dataset: str
    """The Dataset whose table it changes."""


def runs_of(dataset: Mapping[str, Any]) -> list[RunView]:
    """The active runs of a Dataset and the last few of each kind, the newest first."""
    name = part(dataset, "metadata").get("name", "")
    runs = parse_status(DatasetStatus, {"runs": part(dataset, "status").get("runs")}).runs or ()
    return [RunView(dataset=name, **dict(run)) for run in runs]


def is_active(run: RunView) -> bool:
    """Whether the run has not ended."""
    return run.phase not in _ENDED


@without("adopt", "create")
class TableName(TableSpec):
    """The Iceberg table of a Dataset."""


@without("sequence_number", "ledger", "accepted_head")
class TableStatusView(TableStatus, SnapshotIdText):
    """The table as the operator last read it."""


@without("refused_batches", "held_batches")
class BatchCountsView(BatchCounts):
    """The batches in the ledger of the table, counted by state."""


@without("invalid_folders")
class BufferView(BufferStatus):
    """What waits in the buffer, as of its last listing."""


class DatasetSummary(ApiModel):
    """A Dataset in a list."""

    namespace: str
    """The Kubernetes namespace."""
    name: str
    """The name of the Dataset."""
    created_time: datetime | None = None
    """When the Dataset was created."""
    table: TableName | None = None
    ready: ConditionView | None = None
    """Whether the operator can read the table and the buffer."""
    batches: BatchCountsView = Field(default_factory=BatchCountsView)
    buffer: BufferView = Field(default_factory=BufferView)
    tombstones: TombstoneCounts = Field(default_factory=TombstoneCounts)
    erasures: ErasureCounts = Field(default_factory=ErasureCounts)
    consolidation: ConsolidationStatus = Field(default_factory=ConsolidationStatus)
    vacuum: VacuumView = Field(default_factory=VacuumView)
    active_runs: int = 0
    """Runs that have not ended."""


class DatasetView(DatasetSummary):
    """One Dataset."""

    uid: str
    """The UID of the resource."""
    batch_column: Annotated[str | None, SameAs(DatasetSpec)] = None
    buffer_uri: Annotated[str | None, SameAs(BufferSpec, "uri")] = None
    tracks_batches: Annotated[bool, SameAs(BatchTrackingSpec, "enabled")] = True
    table_state: TableStatusView = Field(default_factory=TableStatusView)
    conditions: tuple[ConditionView, ...] = Field(default_factory=tuple)
    """All conditions of the Dataset."""
    refused_batches: Annotated[tuple[RefusedBatch, ...], SameAs(BatchCounts)] = Field(default_factory=tuple)
    held_batches: Annotated[tuple[RefusedBatch, ...], SameAs(BatchCounts)] = Field(default_factory=tuple)
    holds: Annotated[tuple[HoldStatus, ...], SameAs(DatasetStatus)] = Field(default_factory=tuple)
    runs: Annotated[tuple[RunView, ...], SameAs(DatasetStatus)] = Field(default_factory=tuple)


def summary_of(resource: Mapping[str, Any]) -> DatasetSummary:
    """The short form of a Dataset, for lists. What its status does not say is absent."""
    return parse_status(DatasetSummary, _summary(resource, conditions_of(resource), runs_of(resource)))


def dataset_of(resource: Mapping[str, Any]) -> DatasetView:
    """The long form of a Dataset, with conditions, refused batches and runs. What its status does not say is absent."""
    status, conditions, runs = part(resource, "status"), conditions_of(resource), runs_of(resource)
    return parse_status(
        DatasetView,
        {
            **_summary(resource, conditions, runs),
            "uid": part(resource, "metadata").get("uid", ""),
            "batchColumn": part(resource, "spec").get("batchColumn"),
            "bufferUri": part(resource, "spec", "buffer").get("uri"),
            "tracksBatches": part(resource, "spec", "batchTracking").get("enabled", BatchTrackingSpec().enabled),
            "tableState": part(status, "table"),
            "conditions": conditions,
            "refusedBatches": part(status, "batches").get("refusedBatches") or (),
            "heldBatches": part(status, "batches").get("heldBatches") or (),
            "holds": status.get("holds") or (),
            "runs": runs,
        },
    )


def _summary(
    resource: Mapping[str, Any], conditions: Sequence[ConditionView], runs: Sequence[RunView]
) -> dict[str, Any]:
    metadata, status = (part(resource, name) for name in ("metadata", "status"))
    parts = ("batches", "buffer", "tombstones", "erasures", "consolidation", "vacuum")
    return {
        **{name: part(status, name) for name in parts},
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "createdTime": metadata.get("creationTimestamp"),
        "table": part(resource, "spec").get("table"),
        "ready": next((c for c in conditions if c.type == "Ready"), None),
        "activeRuns": sum(is_active(run) for run in runs),
    }
