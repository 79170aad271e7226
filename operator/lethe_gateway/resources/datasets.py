"""What the API says of a Dataset, from its spec and status. Pure.

Runs, from the status of their Datasets. Pure.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from lethe.contract.dataset import BufferSpec, DatasetSpec, TableSpec
from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import (
    BatchCounts,
    BufferStatus,
    ConsolidationStatus,
    DatasetStatus,
    ErasureCounts,
    HoldStatus,
    RefusedBatch,
    RunEntry,
    TableStatus,
    TombstoneCounts,
    parse_status,
)
from pydantic import Field

from lethe_gateway.ids import SnapshotIdText
from lethe_gateway.resources.vacuums import VacuumView
from lethe_gateway.resources.views import ConditionView, conditions_of, part, without

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
