"""The Dataset resource as a frozen value. Pure.

The defaults repeat those of the CRD, for objects that are older than a default.

Where a Dataset's batches come from, if Lethe itself reads them: `spec.source`. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lethe.contract.settings import BufferLayout, ConsolidationMode, CsvDialect, Deletes, FileFormat, SchemaEvolution
from pydantic import ConfigDict, Field

from lethe_operator.resources.common import Bytes, Cpus, Launcher, Meta, Spec, parse_meta, parse_spec


class MessageFormat(StrEnum):
    """What a message holds."""

    JSON = "JSON"
    """One object."""
    AVRO = "Avro"
    """One record, in Avro's binary encoding."""


class Framing(StrEnum):
    """What comes before the message's value."""

    NONE = "None"
    SCHEMA_REGISTRY = "SchemaRegistry"
    """A zero byte and the id of the schema, in four bytes."""


class UnknownFields(StrEnum):
    """What happens to a message with a field that the table does not have."""

    REFUSE = "Refuse"
    """By spec.schemaEvolution, as for files."""
    IGNORE = "Ignore"
    """The field is left out."""


class StartingOffsets(StrEnum):
    """Where the first epoch begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class LostOffsets(StrEnum):
    """What happens when offsets have expired in Kafka before they were read."""

    STOP = "Stop"
    """Nothing is read until a person decides."""
    SKIP = "Skip"
    """Reading goes on behind them, and the status counts them."""


class EpochSpec(Spec):
    # An epoch ends when one of these is reached.
    max_seconds: int = 60  # from its first message
    max_bytes: Bytes = 64 * 1024 * 1024
    """Of keys and values."""


class KafkaSource(Spec):
    cluster: str
    """Name of a cluster of the chart's value inlet.clusters."""
    topics: tuple[str, ...]
    format: MessageFormat
    framing: Framing = Framing.NONE
    avro_schema: str = Field(default="", alias="schema")
    """JSON, of Avro messages without framing."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    starting_offsets: StartingOffsets = StartingOffsets.EARLIEST
    lost_offsets: LostOffsets = LostOffsets.STOP
    epoch: EpochSpec = EpochSpec()
    suspend: bool = False
    """Read nothing."""


class SourceSpec(Spec):
    kafka: KafkaSource | None = None


MIB = 1024 * 1024
GIB = 1024 * MIB


class CreateSpec(Spec):
    table_schema: str = Field(alias="schema")
    """Columns as in CREATE TABLE of Spark SQL."""
    partition_by: tuple[str, ...] = ()
    """Such as "days(time)"."""
    format_version: int = 2
    properties: Mapping[str, str] = Field(default_factory=dict)


class TableSpec(Spec):
    catalog: str
    name: str
    """`namespace.table`."""
    adopt: bool = False
    """The first run may set the sort order and the metrics mode of an existing table."""
    create: CreateSpec | None = None
    """None: the table must exist."""


class EventsSpec(Spec):
    queue_url: str
    window_seconds: int = 5
    """Messages are collected this long, from the first one."""
    max_messages: int = 1000
    """A window ends early when it has this many messages."""
    visibility_seconds: int = 3600
    """The queue delivers a message again this long after it was received."""
    max_in_flight: int = 10_000
    """Messages that are received and not yet deleted."""
    resync_seconds: int = 900
    """Time between two listings of the whole buffer."""


class CsvSpec(CsvDialect):
    """Ignores unknown fields, as `Spec` does."""

    model_config = ConfigDict(extra="ignore")


class BufferSpec(Spec):
    uri: str
    format: FileFormat = FileFormat.PARQUET
    layout: BufferLayout = BufferLayout.DIRECTORY
    csv: CsvSpec | None = None
    """How the files of the format CSV are written; None: as RFC 4180 says."""
    adopt: bool = False
    """Claim the buffer although it contains objects that are not batches."""
    retention_seconds: int = 86_400
    """How long the objects of a batch stay after its promotion."""
    events: EventsSpec | None = None
    """None: the operator lists the buffer."""


class RestatementsSpec(Spec):
    window_seconds: int = 5
    """Restatements are collected this long after a commit."""
    max_per_commit: int = 5000


class ConsolidationSettings(Spec):
    mode: ConsolidationMode = ConsolidationMode.REWRITE
    # A run starts when one of these three is reached.
    min_bytes: Bytes = 128 * MIB
    min_batches: int = 100
    max_age_seconds: int = 600
    max_bytes_per_run: Bytes = 50 * GIB
    max_batches_per_run: int = 50_000
    target_file_size_bytes: Bytes = 512 * MIB
    suspend: bool = False
    """Do not start consolidations."""


class BatchTrackingSpec(Spec):
    enabled: bool = True


class SnapshotsSpec(Spec):
    max_age_seconds: int = 432_000
    """Older snapshots expire."""
    min_to_keep: int = 5
    """The newest snapshots, kept at any age."""
    max_count: int = 500
    """Snapshots that are kept at most, at any age."""


class PodSize(Spec):
    """Resources of one pod. None in any field: the chart's value applies, then the operator's default."""

    cpu: Cpus | None = None
    """Cores."""
    memory: Bytes | None = None
    """Bytes, for the Java heap and Python together."""
    scratch: Bytes | None = None
    """Size limit of the scratch volume, in bytes."""


class ExecutorsSpec(PodSize):
    min: int | None = None
    max: int | None = None  # 0: the driver always works without executors
    wait_seconds: int | None = None  # how long a driver waits for its first executor; then it works alone


class RunTemplate(Spec):
    launcher: Launcher | None = None
    """None: the chart's value applies, then Job."""
    queue: str | None = None
    """Name of a LocalQueue of Kueue, in the Dataset's namespace; None: the runs start at once."""
    driver: PodSize = PodSize()
    executors: ExecutorsSpec = ExecutorsSpec()
    pod_template: Mapping[str, Any] = Field(default_factory=dict)


class DatasetSpec(Spec):
    table: TableSpec
    batch_column: str
    """Name of the column with the batch id."""
    buffer: BufferSpec
    source: SourceSpec = SourceSpec()
    """What the inlet reads into the buffer."""
    schema_evolution: SchemaEvolution = SchemaEvolution.REFUSE
    restatements: RestatementsSpec = RestatementsSpec()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    batch_tracking: BatchTrackingSpec = BatchTrackingSpec()
    deletes: Deletes = Deletes.LEDGER
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
    """Parse a Dataset.

    Raises:
        InvalidSpec: A spec that the schema of the CRD should have rejected; the message names the first invalid field.
    """
    return Dataset(parse_meta(body), parse_spec(DatasetSpec, "Dataset", body), body.get("status") or {})
