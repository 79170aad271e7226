"""What the API says of a Dataset, from its spec and status. Pure.

Runs, from the status of their Datasets. Pure.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pydantic import Field

from lethe_gateway.problems import Document
from lethe_gateway.resources.conditions import Condition, conditions_of
from lethe_gateway.resources.vacuums import VacuumState

_ENDED: Final = frozenset({"Succeeded", "Failed"})


class Run(Document):
    """One run."""

    dataset: str = Field(description="The Dataset whose table it changes.")
    name: str = Field(description="The name of its Job or SparkApplication.")
    kind: str = Field(description="Consolidation, Restatement or Vacuum.")
    phase: str | None = Field(default=None, description="The current phase, or Succeeded or Failed.")
    progress: str | None = Field(default=None, description="The progress of the phase, such as 12/40 tasks.")
    executors: str | None = Field(default=None, description="Executors that run, of those planned, such as 2/4.")
    message: str | None = Field(default=None, description="What the run does or did.")
    reason: str | None = Field(default=None, description="Why it failed, as one CamelCase word.")
    attempt: int | None = Field(default=None, description="The number of the attempt, from 1.")
    start_time: datetime | None = Field(default=None, description="When it started.")
    finish_time: datetime | None = Field(default=None, description="When it ended.")


def runs_of(dataset: Mapping[str, Any]) -> list[Run]:
    """The active runs of a Dataset and the last few of each kind, the newest first."""
    name = (dataset.get("metadata") or {}).get("name", "")
    return [Run.model_validate({**run, "dataset": name}) for run in (dataset.get("status") or {}).get("runs") or ()]


def is_active(run: Run) -> bool:
    """Whether the run has not ended."""
    return run.phase not in _ENDED


class TableName(Document):
    """The Iceberg table of a Dataset."""

    catalog: str = Field(description="The name of the catalog in the chart's values.")
    name: str = Field(description="The namespace and the name of the table, such as air.flights.")


class TableState(Document):
    """The table as the operator last read it."""

    uuid: str | None = Field(default=None, description="The UUID of the table.")
    location: str | None = Field(default=None, description="The location of the table.")
    format_version: int | None = Field(default=None, description="The version of the Iceberg table format.")
    snapshot_id: int | None = Field(default=None, description="The id of the head.")
    snapshot_time: datetime | None = Field(default=None, description="When the head was committed.")


class BatchCounts(Document):
    """The batches in the ledger of the table, counted by state."""

    promoted: int | None = Field(default=None, description="Batches that are part of the table.")
    reverted: int | None = Field(default=None, description="Batches that were reverted, replaced or erased.")
    withheld: int | None = Field(
        default=None, description="Batches in the buffer that are not promoted, because they were taken back before."
    )
    refused: int | None = Field(default=None, description="Batches that were set aside because they do not fit.")


class RefusedBatch(Document):
    """A batch that was set aside."""

    batch_id: str = Field(description="The id of the batch.")
    reason: str | None = Field(default=None, description="The reason, as one CamelCase word.")
    message: str | None = Field(default=None, description="Which file, what was expected and found.")


class Buffer(Document):
    """What waits in the buffer, as of its last listing."""

    batches: int | None = Field(default=None, description="Complete batches that wait.")
    bytes: int | None = Field(default=None, description="The size of their files.")
    oldest_batch_time: datetime | None = Field(default=None, description="When the oldest of them was written.")
    waiting: int | None = Field(default=None, description="Folders of batches that are not complete yet.")
    invalid: int | None = Field(default=None, description="Folders that cannot be batches.")


class Tombstones(Document):
    """The active tombstones."""

    active: int | None = Field(default=None, description="How many there are.")
    rows: int | None = Field(default=None, description="Rows of their batches, where known.")
    oldest_time: datetime | None = Field(default=None, description="When the oldest was added.")
    next_evict_by_time: datetime | None = Field(
        default=None, description="The earliest time by which bytes must be gone."
    )


class ErasureCounts(Document):
    """Restatements whose bytes must be gone, and for which this is not verified yet."""

    open: int | None = Field(default=None, description="How many there are.")
    blocked: int | None = Field(default=None, description="Those that a tag, branch, snapshot or object lock blocks.")
    overdue: int | None = Field(default=None, description="Those whose deadline has passed.")
    next_due_time: datetime | None = Field(default=None, description="The earliest deadline.")


class Decision(Document):
    """What the operator decided about the next consolidation."""

    decision: str | None = Field(default=None, description="Due, Later, Running or another decision.")
    reason: str | None = Field(default=None, description="Why, as one CamelCase word.")
    message: str | None = Field(default=None, description="The same in words.")
    next_time: datetime | None = Field(default=None, description="When it is decided again at the latest.")


class DatasetSummary(Document):
    """A Dataset in a list."""

    namespace: str = Field(description="The Kubernetes namespace.")
    name: str = Field(description="The name of the Dataset.")
    created_time: datetime | None = Field(default=None, description="When the Dataset was created.")
    table: TableName | None = Field(default=None, description="The Iceberg table.")
    ready: Condition | None = Field(default=None, description="Whether the operator can read the table and the buffer.")
    batches: BatchCounts = Field(default_factory=BatchCounts, description="The batches, counted by state.")
    buffer: Buffer = Field(default_factory=Buffer, description="What waits in the buffer.")
    tombstones: Tombstones = Field(default_factory=Tombstones, description="The active tombstones.")
    erasures: ErasureCounts = Field(default_factory=ErasureCounts, description="The open erasures.")
    consolidation: Decision = Field(default_factory=Decision, description="The next consolidation.")
    vacuum: VacuumState = Field(default_factory=VacuumState, description="The next vacuum, and its plan.")
    active_runs: int = Field(default=0, description="Runs that have not ended.")


class Dataset(DatasetSummary):
    """One Dataset."""

    uid: str = Field(description="The UID of the resource.")
    batch_column: str | None = Field(default=None, description="The column that holds the id of a row's batch.")
    buffer_uri: str | None = Field(default=None, description="The folder of the batches.")
    table_state: TableState = Field(default_factory=TableState, description="The table, as last read.")
    conditions: list[Condition] = Field(default_factory=list, description="All conditions of the Dataset.")
    refused_batches: list[RefusedBatch] = Field(default_factory=list, description="The latest 20 refused batches.")
    runs: list[Run] = Field(default_factory=list, description="The active runs, and the last few of each kind.")


def summary_of(resource: Mapping[str, Any]) -> DatasetSummary:
    """The short form of a Dataset, for lists. What its status does not say is absent."""
    return DatasetSummary.model_validate(_summary(resource))


def dataset_of(resource: Mapping[str, Any]) -> Dataset:
    """The long form of a Dataset, with conditions, refused batches and runs. What its status does not say is absent."""
    metadata, spec, status = (resource.get(part) or {} for part in ("metadata", "spec", "status"))
    return Dataset.model_validate(
        {
            **_summary(resource),
            "uid": metadata.get("uid", ""),
            "batchColumn": spec.get("batchColumn"),
            "bufferUri": (spec.get("buffer") or {}).get("uri"),
            "tableState": status.get("table") or {},
            "conditions": conditions_of(resource),
            "refusedBatches": (status.get("batches") or {}).get("refusedBatches") or [],
            "runs": runs_of(resource),
        }
    )


def _summary(resource: Mapping[str, Any]) -> dict[str, Any]:
    metadata, spec, status = (resource.get(part) or {} for part in ("metadata", "spec", "status"))
    parts = ("batches", "buffer", "tombstones", "erasures", "consolidation", "vacuum")
    return {
        "namespace": metadata.get("namespace", ""),
        "name": metadata.get("name", ""),
        "createdTime": metadata.get("creationTimestamp"),
        "table": spec.get("table"),
        "ready": next((c for c in conditions_of(resource) if c.type == "Ready"), None),
        "activeRuns": sum(is_active(run) for run in runs_of(resource)),
        **{part: status[part] for part in parts if status.get(part)},
    }
