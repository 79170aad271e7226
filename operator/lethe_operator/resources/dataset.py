"""The Dataset resource as a frozen value. Pure; defaults repeat those of the CRD for objects older than a default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lethe.contract.run import ConsolidationMode, Deletes, FileFormat, SchemaEvolution
from pydantic import Field

from lethe_operator.resources.common import Meta, Spec, parse_meta, parse_spec
from lethe_operator.resources.quantity import Bytes, Cpus

MIB = 1024 * 1024
GIB = 1024 * MIB


class CreateSpec(Spec):
    table_schema: str = Field(alias="schema")
    partition_by: tuple[str, ...] = ()
    format_version: int = 2
    properties: Mapping[str, str] = Field(default_factory=dict)


class TableSpec(Spec):
    catalog: str
    name: str
    adopt: bool = False
    create: CreateSpec | None = None


class EventsSpec(Spec):
    queue_url: str
    window_seconds: int = 5
    max_messages: int = 1000
    visibility_seconds: int = 3600
    max_in_flight: int = 10_000
    resync_seconds: int = 900


class BufferSpec(Spec):
    uri: str
    format: FileFormat = "parquet"
    layout: str = "Directory"
    adopt: bool = False  # claim the buffer although it holds objects that are no batches
    retention_seconds: int = 86_400
    events: EventsSpec | None = None


class RestatementsSpec(Spec):
    window_seconds: int = 10
    max_per_commit: int = 5000


class ConsolidationSettings(Spec):
    mode: ConsolidationMode = ConsolidationMode.REWRITE
    min_bytes: Bytes = 128 * MIB
    min_batches: int = 100
    max_age_seconds: int = 600
    max_bytes_per_run: Bytes = 50 * GIB
    max_batches_per_run: int = 20_000
    target_file_size_bytes: Bytes = 512 * MIB
    suspend: bool = False


class BatchTrackingSpec(Spec):
    enabled: bool = True


class SnapshotsSpec(Spec):
    max_age_seconds: int = 432_000
    min_to_keep: int = 5
    max_count: int = 1000


class PodSize(Spec):
    """Resources of one pod; None: whatever stands below (the chart's value, then ours)."""

    cpu: Cpus | None = None
    memory: Bytes | None = None
    scratch: Bytes | None = None


class ExecutorsSpec(PodSize):
    min: int | None = None
    max: int | None = None


class RunTemplate(Spec):
    driver: PodSize = PodSize()
    executors: ExecutorsSpec = ExecutorsSpec()
    pod_template: Mapping[str, Any] = Field(default_factory=dict)


class DatasetSpec(Spec):
    table: TableSpec
    batch_column: str
    buffer: BufferSpec
    schema_evolution: SchemaEvolution = "Refuse"
    restatements: RestatementsSpec = RestatementsSpec()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    batch_tracking: BatchTrackingSpec = BatchTrackingSpec()
    deletes: Deletes = "Ledger"
    snapshots: SnapshotsSpec = SnapshotsSpec()
    run_template: RunTemplate = RunTemplate()


@dataclass(frozen=True)
class Dataset:
    meta: Meta
    spec: DatasetSpec
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def claim(self) -> str:
        """The value of the table property by which this Dataset claims its table."""
        return self.meta.full_name

    @property
    def paused(self) -> bool:
        return self.meta.is_set("lethe.dev/paused")


def parse_dataset(body: Mapping[str, Any]) -> Dataset:
    """Raises: InvalidSpec."""
    return Dataset(parse_meta(body), parse_spec(DatasetSpec, "Dataset", body), body.get("status") or {})
