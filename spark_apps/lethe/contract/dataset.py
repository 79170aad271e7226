"""The spec of a Dataset. Pure.

`spec.holds` names rows that must not be purged or erased for now. `lethe.iceberg.holds` applies their filters. A run gets the
active holds in its `run.json`. A filter may name a person: no log, event, status or file name contains it, only the name of its
hold.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, AwareDatetime, ConfigDict, Field

from lethe.contract.checks import CheckSpec
from lethe.contract.kubernetes import GIB, MIB, Bytes, Cpus, Uri, above_zero
from lethe.contract.pod_template import PodTemplate
from lethe.contract.schema import (
    ApiModel,
    Int32,
    Required,
    Rule,
    Shape,
    StoredDefault,
    between,
    entries,
    items,
    keyed_by,
    keywords,
    length,
)
from lethe.contract.settings import (
    PARTITION_FIELD_PATTERN,
    BufferLayout,
    ConsolidationMode,
    CsvDialect,
    Deletes,
    FileFormat,
    Framing,
    Launcher,
    Lookup,
    LostOffsets,
    MessageFormat,
    SchemaEvolution,
    StartingOffsets,
    UnknownFields,
)

_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"
"""RFC 3339: with a time zone, because the API server takes some texts without one."""


_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC, microsecond=0)


def _in_utc(time: datetime) -> datetime:
    """The same time in UTC, in which messages write it. 9999-12-31T23:59:59-05:00, for ever, becomes the last time there is."""
    try:
        return time.astimezone(UTC)
    except OverflowError:
        return _LAST if time.year > 1 else _FIRST


class HoldSpec(ApiModel):
    """Rows that no vacuum purges, and no Erase or Redact changes, until the hold ends or is removed. A Revert hides them."""

    name: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """The name of the hold. Statuses, events and logs show it, so it must not name a person."""
    filter: Annotated[str, length(1, 4096)] = Field(default="", repr=False)
    """A condition on the columns of the table, in the syntax of filters: comparisons of columns with values, IN, IS NULL,
    LIKE 'prefix%', AND, OR, NOT. The hold covers the rows for which it is true. If unset, it covers all rows.
    """
    until: Annotated[AwareDatetime, AfterValidator(_in_utc), length(20, 40, pattern=_TIME)] | None = None
    """When the hold ends by itself, such as 2027-03-31T00:00:00Z. If unset, it lasts until it is removed."""
    reason: Annotated[str, length(maximum=1024)] = ""
    """Why the rows are held, such as the number of a case. It must contain no personal data."""

    def is_active(self, now: datetime) -> bool:
        """Whether the hold has not ended by itself."""
        return self.until is None or self.until > now


def active_holds(holds: Iterable[HoldSpec], now: datetime) -> tuple[HoldSpec, ...]:
    """The holds that have not ended, as runs get them: by name, and without reasons."""
    kept = (h.model_copy(update={"reason": ""}) for h in holds if h.is_active(now))
    return tuple(sorted(kept, key=lambda h: h.name))


def named(holds: Iterable[HoldSpec]) -> str:
    """The names of holds with their ends, for messages: `hold a until 2027-03-31T00:00:00Z, hold b until it is removed`."""
    return ", ".join(f"hold {h.name} {_until(h.until)}" for h in holds)


def _until(until: datetime | None) -> str:
    return f"until {until:%Y-%m-%dT%H:%M:%SZ}" if until is not None else "until it is removed"


IMMUTABLE: Final = Rule("self == oldSelf", "is immutable; create another Dataset instead")


class CreateSpec(ApiModel):
    """How to create the table if it does not exist. If unset, the table must exist."""

    table_schema: Annotated[str, length(1, 32_768)] = Field(alias="schema")
    """The columns, as in a CREATE TABLE statement of Spark SQL. The batch column is added if it is missing."""
    partition_by: Annotated[
        tuple[Annotated[str, length(1, 256, pattern=PARTITION_FIELD_PATTERN)], ...], items(maximum=16)
    ] = ()
    """Partition fields: a column, or identity, years, months, days or hours of a column, such as days(time_hour), or
    bucket(16, column), or truncate(4, column). A column may be a field of structs, such as customer.country. Put a name
    with other characters than letters, digits and underscores between backticks.
    """
    format_version: Annotated[Int32, keywords(enum=(2, 3))] = 2
    """Version of the Iceberg table format."""
    properties: Annotated[Mapping[str, Annotated[str, length(maximum=4096)]], entries(128)] = Field(
        default_factory=dict
    )
    """Table properties to set."""


class TableSpec(ApiModel):
    """The Iceberg table. A table belongs to one Dataset."""

    catalog: Annotated[str, length(1, 63, pattern="^[A-Za-z0-9_-]+$"), IMMUTABLE]
    """Name of a catalog from the chart's values. Immutable."""
    name: Annotated[str, length(3, 255, pattern=r"^[^.\s/]+(\.[^.\s/]+)+$"), IMMUTABLE]
    """Namespace and name of the table, such as air.flights. Immutable."""
    adopt: bool = False
    """Whether the first run may set the sort order and the metrics mode that Lethe needs on an existing table. If false,
    Lethe does not write to such a table, and the condition Ready has the reason TableNotPrepared.
    """
    create: CreateSpec | None = None


class CsvSpec(CsvDialect):
    """How the files of the format csv are written. The default is RFC 4180 with a header."""

    model_config = ConfigDict(extra="ignore")


class EventsSpec(ApiModel):
    """A queue of S3 event notifications for the buffer.

    With it, the operator finds a batch within seconds, whatever the size of the buffer. Without it, and while the queue
    does not answer, the operator lists the buffer.
    """

    cel_rules = (
        Rule(
            "self.maxMessages <= self.maxInFlight",
            "maxMessages cannot be greater than maxInFlight",
            ".maxMessages",
        ),
        Rule(
            "self.windowSeconds < self.visibilitySeconds",
            "windowSeconds must be less than visibilitySeconds",
            ".windowSeconds",
        ),
    )

    queue_url: Annotated[str, length(1, 1024, pattern=r"^https?://[^\s/]+/\S+$")]
    """URL of a queue of Amazon SQS, or of another server of its protocol at the catalog's property sqs.endpoint. No other
    Dataset may read it.
    """
    window_seconds: Annotated[Int32, between(1, 300)] = 5
    """How many seconds the operator collects messages, from the first one, before it looks at the batches that they name."""
    max_messages: Annotated[Int32, between(1, 10_000)] = 1000
    """A window ends early when it has this many messages."""
    visibility_seconds: Annotated[Int32, between(30, 43_200)] = 3600
    """How many seconds a received message is hidden from other readers. The operator deletes it when the batch is
    committed; otherwise the queue delivers it again. Set it longer than a batch usually waits.
    """
    max_in_flight: Annotated[Int32, between(1, 100_000)] = 10_000
    """The largest number of messages that are received and not yet deleted. At this number the operator stops receiving
    for a while.
    """
    resync_seconds: Annotated[Int32, between(10, 86_400)] = 900
    """How often, in seconds, the operator lists the whole buffer while it reads the queue, to find batches without a
    message.
    """


class BufferSpec(ApiModel):
    """Where producers put batches."""

    cel_rules = (
        Rule("!has(self.events) || self.uri.matches('^s3[an]?://.+')", "events needs a buffer in S3", ".events"),
        Rule("!has(self.csv) || (has(self.format) && self.format == 'csv')", "csv needs format csv", ".csv"),
    )

    uri: Annotated[Uri, IMMUTABLE]
    """URI of the folder of the batches, outside the table's location. Immutable."""
    format: FileFormat = FileFormat.PARQUET
    """Format of the files in it, and of the replacements of Restatements. json is one object per line, csv is RFC 4180
    with a header unless csv says otherwise; both may be compressed by gzip, zstd, bzip2 or lz4.
    """
    csv: CsvSpec | None = None
    layout: BufferLayout = BufferLayout.DIRECTORY
    """Directory: a batch is a folder "batchColumn=id", the id percent-encoded, and is complete when it holds an object
    _SUCCESS. File: a batch is one object directly in the buffer, "id.parquet", the id percent-encoded, with one of the
    extensions of the formats, .gz, .zst, .bz2 or .lz4 behind it or not, or none.
    """
    adopt: bool = False
    """Claim the buffer even if it contains objects that are not batches. The claim lists these objects; Lethe never moves
    or deletes them. A buffer that is part of a table, or that another Dataset has claimed, is rejected in any case.
    """
    retention_seconds: Annotated[int, between(0, 315_360_000)] = 86_400
    """How many seconds the objects of a batch stay in the buffer after its promotion. Lethe deletes only promoted
    objects, and none of registered batches.
    """
    events: EventsSpec | None = None


class EpochSpec(ApiModel):
    """When an epoch ends, and its batches become complete. Whichever is reached first."""

    max_seconds: Annotated[Int32, between(1, 86_400)] = 60
    """Seconds from its first message."""
    max_bytes: Annotated[
        Bytes,
        Rule(
            "type(self) == int ? self > 0 && self <= 1073741824 : isQuantity(self) && "
            "quantity(self).isGreaterThan(quantity('0')) && !quantity(self).isGreaterThan(quantity('1Gi'))",
            "must be a quantity from 1 to 1Gi, such as 64Mi",
        ),
    ] = 64 * MIB
    """Bytes of keys and values, of all partitions. The inlet keeps them in memory."""


class KafkaSource(ApiModel):
    """Topics of Kafka, whose messages are rows of the table.

    Each epoch makes one batch of each partition, named by topic, partition, first and last offset.
    """

    cel_rules = (
        Rule(
            "self.format != 'Avro' || (has(self.framing) && self.framing == 'SchemaRegistry') || has(self.schema)",
            "format Avro needs framing SchemaRegistry, or a schema",
        ),
        Rule("!has(self.schema) || self.format == 'Avro'", "schema is for format Avro"),
        Rule(
            "!has(self.schema) || !has(self.framing) || self.framing == 'None'",
            "with framing SchemaRegistry, the registry has the schema; leave schema out",
        ),
    )

    cluster: Annotated[str, length(1, 63, pattern="^[A-Za-z0-9_-]+$")]
    """Name of a Kafka cluster of the chart's value inlet.clusters."""
    topics: Annotated[
        tuple[Annotated[str, length(1, 200, pattern="^[A-Za-z0-9._-]+$")], ...], items(1, 100, kind="set")
    ]
    """Names of topics. The messages of all of them are rows of the one table."""
    format: MessageFormat
    """What a message holds, one JSON object or one Avro record."""
    framing: Framing = Framing.NONE
    """SchemaRegistry if each message begins with a zero byte and the id of its schema, as serializers with a schema
    registry write it. Avro schemas are read from the cluster's registry.
    """
    avro_schema: Annotated[str, length(1, 65_536)] = Field(default="", alias="schema")
    """The Avro schema of the messages, as JSON. A record whose fields are columns of the table."""
    unknown_fields: UnknownFields = UnknownFields.REFUSE
    """What happens to a message with a field that the table does not have. Refuse treats it by schemaEvolution, as a
    file; Ignore leaves the field out.
    """
    starting_offsets: StartingOffsets = StartingOffsets.EARLIEST
    """Where reading begins, before the first epoch of a topic. Later changes have no effect on it."""
    lost_offsets: LostOffsets = LostOffsets.STOP
    """What happens if messages have expired in Kafka before they were read. Stop reads nothing until this is Skip; Skip
    goes on behind them, and status.source.lostOffsets counts them.
    """
    epoch: Annotated[EpochSpec, StoredDefault()] = EpochSpec()
    suspend: bool = False
    """Read nothing."""


class SourceSpec(ApiModel):
    """What the inlet reads and writes into the buffer as batches. If unset, only producers write there."""

    kafka: Annotated[KafkaSource | None, Required()] = None


class RestatementsSpec(ApiModel):
    """How Restatements are grouped into commits."""

    window_seconds: Annotated[Int32, between(0, 3600)] = 5
    """How many seconds Restatements are collected for the next commit while a commit is in progress or has just been
    made. The first Restatement does not wait.
    """
    max_per_commit: Annotated[Int32, between(1, 5000)] = 5000
    """The largest number of Restatements in one commit."""


class NativeDeletesSpec(ApiModel):
    """How much a commit of Restatements may read to find the rows that native deletes hide.

    Above a limit, the commit has only tombstones, and the next run writes the native deletes. Files that hold a single
    batch are not read, and do not count.
    """

    max_files_per_commit: Annotated[Int32, between(0, 100_000)] = 2000
    """The largest number of data files that are read. With 0, only files of a single batch get native deletes at once."""
    max_bytes_per_commit: Annotated[
        Bytes,
        Rule(
            "type(self) == int ? self > 0 && self <= 4294967296 : isQuantity(self) && "
            "quantity(self).isGreaterThan(quantity('0')) && !quantity(self).isGreaterThan(quantity('4Gi'))",
            "must be a quantity from 1 to 4Gi, such as 256Mi",
        ),
    ] = 256 * MIB
    """The largest number of stored bytes of their batch columns."""


class ConsolidationSettings(ApiModel):
    """When and how batches move from the buffer into the table.

    A run starts when minBytes, minBatches or maxAgeSeconds is reached, whichever comes first.
    """

    mode: ConsolidationMode = ConsolidationMode.REWRITE
    """Rewrite writes the rows into few sorted files. Register adds the producer's Parquet files to the table without
    rewriting them: each file must contain the batch column and belong to one partition, and retention does not delete it.
    A change applies to later runs.
    """
    min_bytes: Annotated[Bytes, above_zero("128Mi")] = 128 * MIB
    """A run starts when the waiting batches have at least this many bytes."""
    min_batches: Annotated[int, between(1, 1_000_000)] = 100
    """A run starts when at least this many complete batches wait."""
    max_age_seconds: Annotated[int, between(0, 31_536_000)] = 600
    """A run starts when a complete batch has waited this many seconds."""
    max_bytes_per_run: Annotated[Bytes, above_zero("128Mi")] = 50 * GIB
    """The largest number of bytes of a run, the oldest batches first. A single batch that is larger is promoted in a run
    of its own.
    """
    max_batches_per_run: Annotated[Int32, between(1, 100_000)] = 50_000
    """The largest number of batches of a run, the oldest first."""
    target_file_size_bytes: Annotated[Bytes, above_zero("128Mi")] = 512 * MIB
    """The target size of data files."""
    suspend: bool = False
    """Do not start consolidations. An active run continues, and so do Restatements and vacuums."""


class BatchTrackingSpec(ApiModel):
    """An Iceberg table that lists the state of each batch, for any engine.

    Its name is the name of the table followed by "_batches". Runs keep it up to date.
    """

    enabled: bool = True
    """Whether runs create the table of batches and keep it up to date. Lethe never deletes it."""


class SnapshotsSpec(ApiModel):
    """Which snapshots are kept when snapshots expire. A tag or branch always keeps its snapshots."""

    cel_rules = (
        Rule(
            "!has(self.minToKeep) || !has(self.maxCount) || self.minToKeep <= self.maxCount",
            "minToKeep cannot be greater than maxCount",
            ".minToKeep",
        ),
    )

    max_age_seconds: Annotated[int, between(0, 315_360_000)] = 432_000
    """A snapshot older than this expires."""
    min_to_keep: Annotated[Int32, between(1, 100_000)] = 5
    """This many of the newest snapshots are kept, whatever their age."""
    max_count: Annotated[Int32, between(1, 100_000)] = 500
    """The largest number of snapshots that are kept, whatever their age."""


class PodSize(ApiModel):
    """The resources of one pod. If a field is unset, the chart's value applies, then the operator's default."""

    cpu: Annotated[Cpus, above_zero("500m")] | None = None
    """CPU request of the pod."""
    memory: Annotated[Bytes, above_zero("2Gi")] | None = None
    """Memory request and limit of the pod, shared by the Java heap and Python."""
    scratch: Annotated[Bytes, above_zero("20Gi")] | None = None
    """Size limit of the pod's scratch volume, to which Spark spills. If unset, the chart's runLimits.scratch."""


class ExecutorsSpec(PodSize):
    """The pods that share the work of large runs. Their number depends on the bytes of the run, between min and max."""

    cel_rules = (
        Rule("!has(self.min) || !has(self.max) || self.min <= self.max", "min cannot be greater than max", ".min"),
    )

    min: Annotated[Int32, between(0, 1000)] | None = None
    """The smallest number of executors, also for small runs."""
    max: Annotated[Int32, between(0, 1000)] | None = None
    """The largest number of executors. With 0 the driver always works without executors."""
    wait_seconds: Annotated[Int32, between(10, 86_400)] | None = None
    """How long a driver waits for its first executor, in seconds; then it works alone. A run that has lost all executors
    fails after this time and is repeated. If unset, the chart's value, or 300.
    """


DatasetName = Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
IdentityName = Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
ColumnName = Annotated[str, length(1, 256)]


class IdentitySpec(ApiModel):
    """A column that names subjects, such as persons."""

    name: IdentityName
    """What the values are, such as customer. Datasets of a namespace that use the same name mean the same values."""
    column: ColumnName
    """The column, or a field of it, such as customer.email, or passengers.element.email in a list."""
    via: Lookup | None = None
    """The column has keys of another table instead of the values themselves."""


class DerivedFrom(ApiModel):
    """A Dataset from whose rows the rows of this one are made."""

    dataset: DatasetName
    """Its name, in the same namespace."""
    batch_column: Annotated[str, length(1, 128)] = ""
    """The column of this Dataset with the id of the batch of the other one from which a row was made. If this Dataset does
    not declare an identity itself, a request to erase a subject then erases all rows that were made from batches with rows of
    the subject. Make them again afterwards.
    """


class RunTemplate(ApiModel):
    """The pods of this Dataset's runs. Fields set here replace those of the chart's runTemplate."""

    launcher: Launcher | None = None
    """What launches a run: a Job, or a SparkApplication of the Kubeflow Spark operator, which the chart's value
    sparkOperator.enabled allows. If unset, the chart's value, or Job.
    """
    queue: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")] | None = None
    """Name of a LocalQueue of Kueue in this namespace. A run is created suspended, and starts when Kueue admits it. If
    unset, the chart's value. The boundary of the namespace may name a queue that replaces this one.
    """
    driver: PodSize = PodSize()
    """The pod that plans and commits. For small runs it works without executors."""
    executors: ExecutorsSpec = ExecutorsSpec()
    pod_template: Annotated[Mapping[str, Any], Shape(PodTemplate)] = Field(default_factory=dict)


class DatasetSpec(ApiModel):
    """Which table, which buffer, and how batches go from one into the other."""

    cel_rules = (
        Rule(
            "!has(self.consolidation) || !has(self.consolidation.mode) || self.consolidation.mode != 'Register' || "
            "!has(self.buffer.format) || self.buffer.format == 'parquet'",
            "consolidation.mode Register needs buffer.format parquet",
        ),
        Rule(
            "!has(self.source) || !has(self.buffer.format) || self.buffer.format == 'parquet'",
            "source needs buffer.format parquet, because the inlet writes Parquet files",
        ),
        Rule(
            "!has(self.source) || !has(self.buffer.layout) || self.buffer.layout == 'Directory'",
            "source needs buffer.layout Directory",
        ),
        Rule(
            "!has(self.checks) || size(self.checks) == 0 || !has(self.consolidation) || "
            "!has(self.consolidation.mode) || self.consolidation.mode != 'Register'",
            "checks need consolidation.mode Rewrite, because Register does not read rows",
            ".checks",
        ),
    )

    table: TableSpec
    batch_column: Annotated[str, length(1, 128, pattern=r"^[^.=/\s]+$"), IMMUTABLE]
    """The column that holds a row's batch id, a top-level string column. Producers need not write it. Immutable."""
    buffer: BufferSpec
    source: SourceSpec = SourceSpec()
    schema_evolution: SchemaEvolution = SchemaEvolution.REFUSE
    """What happens to a batch whose columns differ from those of the table. Refuse moves the batch to _refused/.
    AddColumns adds new columns to the table as optional columns, widens types where Iceberg allows it (int to bigint,
    float to double, decimals), and reads optional columns that a batch lacks as null.
    """
    checks: Annotated[tuple[CheckSpec, ...], keyed_by("name", maximum=32)] = ()
    """What must hold for a batch before it is promoted. They apply to batches of the buffer, not to replacements of
    Restatements.
    """
    identities: Annotated[tuple[IdentitySpec, ...], keyed_by("name", "column", maximum=32)] = ()
    """The columns by which a Restatement with a subject finds the rows of a person, or of any other subject, in this table.
    """
    derived_from: Annotated[tuple[DerivedFrom, ...], keyed_by("dataset", maximum=32)] = ()
    """The Datasets from which this one is made. A Restatement with a subject that concerns one of them also concerns this
    one, whatever its labels.
    """
    holds: Annotated[tuple[HoldSpec, ...], keyed_by("name", maximum=32)] = ()
    """Legal holds: rows that vacuums, Erases and Redacts must not change. status.holds says from when each is in force."""
    restatements: Annotated[RestatementsSpec, StoredDefault()] = RestatementsSpec()
    consolidation: Annotated[ConsolidationSettings, StoredDefault()] = ConsolidationSettings()
    batch_tracking: Annotated[BatchTrackingSpec, StoredDefault()] = BatchTrackingSpec()
    deletes: Deletes = Deletes.AUTO
    """How deleted batches are marked. All values keep tombstones beside the table, which Lethe's readers apply. Auto also
    writes Iceberg deletes, so that all engines see the same rows: deletion vectors to tables of format version 3, position
    deletes to those of version 2. Ledger writes none: other engines see the rows until a vacuum. DeletionVectors and
    PositionDeletes demand one kind; with another format version the Dataset is Stalled: FormatVersionMismatch. A change
    applies to later commits.
    """
    native_deletes: Annotated[NativeDeletesSpec, StoredDefault()] = NativeDeletesSpec()
    snapshots: Annotated[SnapshotsSpec, StoredDefault()] = SnapshotsSpec()
    run_template: RunTemplate = RunTemplate()
