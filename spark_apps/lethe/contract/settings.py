"""Values that the specs of resources and `run.json` share: closed sets, how CSV files are written, executors for bytes. Pure.

To add an operation or a kind of runs, start here: mypy then reports every `match` that must cover it.
`tests/unit/test_closed_sets.py` compares the sets with the chart, the admission policies and the documentation.

The reason why a batch or a request is refused is a value that goes from the check to the status unchanged. The operator and the
driver use the same rule for the number of executors.
"""

import math
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, assert_never

from pydantic import BeforeValidator, ConfigDict, Field

from lethe.contract.schema import ApiModel, Rule, StoredDefault, items, length

PART_PATTERN: Final = r"(?:[A-Za-z0-9_]+|`(?:[^`]|``)+`)"
COLUMN_PATTERN: Final = rf"{PART_PATTERN}(?:\.{PART_PATTERN})*"
WIDTH_PATTERN: Final = r"[1-9][0-9]{0,8}"
"""Of buckets and truncations."""
PARTITION_FIELD_PATTERN: Final = (
    rf"^ *({COLUMN_PATTERN}"
    rf"|([iI][dD][eE][nN][tT][iI][tT][yY]|[yY][eE][aA][rR][sS]?|[mM][oO][nN][tT][hH][sS]?|[dD][aA][yY][sS]?|[hH][oO][uU][rR][sS]?)"
    rf" *\( *{COLUMN_PATTERN} *\)"
    rf"|([bB][uU][cC][kK][eE][tT]|[tT][rR][uU][nN][cC][aA][tT][eE])"
    rf" *\( *{WIDTH_PATTERN} *, *{COLUMN_PATTERN} *\)) *$"
)
"""An entry of `spec.table.create.partitionBy`. `lethe.files.transforms` parses it."""


class FileFormat(StrEnum):
    """`spec.buffer.format`: the format of the files in a buffer."""

    PARQUET = "parquet"
    ORC = "orc"
    AVRO = "avro"
    JSON = "json"
    CSV = "csv"


class BufferLayout(StrEnum):
    """`spec.buffer.layout`: what is a batch in a buffer."""

    DIRECTORY = "Directory"
    """Each folder."""
    FILE = "File"
    """Each file."""


class SchemaEvolution(StrEnum):
    """`spec.schemaEvolution`: what happens to batches with columns that the table does not have."""

    REFUSE = "Refuse"
    """They are refused."""
    ADD_COLUMNS = "AddColumns"
    """The run adds the columns to the table."""


class OnFailure(StrEnum):
    """`spec.checks[].onFailure`: what happens to a batch that fails a check."""

    REFUSE = "Refuse"
    """It is refused, like one that does not fit the table."""
    HOLD = "Hold"
    """It stays in the buffer until a person approves or reverts it."""


class UnknownBatches(StrEnum):
    """`spec.unknownBatches`: what happens to a Restatement with batch ids that its Dataset does not know."""

    REFUSE = "Refuse"
    """It is refused."""
    ALLOW = "Allow"
    """It is carried out. If such a batch arrives later, it is not promoted."""


class ConsolidationMode(StrEnum):
    """`spec.consolidation.mode`."""

    REWRITE = "Rewrite"
    """Read the files of batches, and write their rows into sorted files."""
    REGISTER = "Register"
    """Add the files of batches to the table unchanged."""


class NativeDeletes(StrEnum):
    """The kinds of Iceberg's own deletes that Lethe writes, for readers that do not know the ledger."""

    DELETION_VECTORS = "DeletionVectors"
    POSITION_DELETES = "PositionDeletes"

    @property
    def format_version(self) -> int:
        """The version of Iceberg's format that a table needs for them.

        Version 3 replaced the position deletes of version 2 by deletion vectors.
        """
        match self:
            case NativeDeletes.DELETION_VECTORS:
                return 3
            case NativeDeletes.POSITION_DELETES:
                return 2
            case _:
                assert_never(self)

    @classmethod
    def of_table(cls, format_version: int) -> "NativeDeletes | None":
        """The kind that tables of this version of Iceberg's format have; None: they have none."""
        if format_version >= cls.DELETION_VECTORS.format_version:
            return cls.DELETION_VECTORS
        return cls.POSITION_DELETES if format_version >= cls.POSITION_DELETES.format_version else None


class Deletes(StrEnum):
    """`spec.deletes`: how deleted batches are marked, in addition to the ledger."""

    AUTO = "Auto"
    """By native deletes of the kind that tables of this format version have."""
    LEDGER = "Ledger"
    """Only in the ledger."""
    DELETION_VECTORS = NativeDeletes.DELETION_VECTORS.value
    POSITION_DELETES = NativeDeletes.POSITION_DELETES.value

    @property
    def named(self) -> NativeDeletes | None:
        """The kind of native deletes that it names; None: it names none."""
        match self:
            case Deletes.AUTO | Deletes.LEDGER:
                return None
            case Deletes.DELETION_VECTORS:
                return NativeDeletes.DELETION_VECTORS
            case Deletes.POSITION_DELETES:
                return NativeDeletes.POSITION_DELETES
            case _:
                assert_never(self)

    def native(self, format_version: int) -> NativeDeletes | None:
        """The native deletes to write to a table of this format version; None: none."""
        return NativeDeletes.of_table(format_version) if self is Deletes.AUTO else self.named


class MessageFormat(StrEnum):
    """`spec.source.kafka.format`: what a message holds."""

    JSON = "JSON"
    """One object."""
    AVRO = "Avro"
    """One record, in Avro's binary encoding."""


class Framing(StrEnum):
    """`spec.source.kafka.framing`: what comes before the message's value."""

    NONE = "None"
    SCHEMA_REGISTRY = "SchemaRegistry"
    """A zero byte and the id of the schema, in four bytes."""


class UnknownFields(StrEnum):
    """`spec.source.kafka.unknownFields`: what happens to a message with a field that the table does not have."""

    REFUSE = "Refuse"
    """By spec.schemaEvolution, as for files."""
    IGNORE = "Ignore"
    """The field is left out."""


class StartingOffsets(StrEnum):
    """`spec.source.kafka.startingOffsets`: where the first epoch begins."""

    EARLIEST = "Earliest"
    LATEST = "Latest"


class LostOffsets(StrEnum):
    """`spec.source.kafka.lostOffsets`: what happens when offsets have expired in Kafka before they were read."""

    STOP = "Stop"
    """Nothing is read until a person decides."""
    SKIP = "Skip"
    """Reading goes on behind them, and the status counts them."""


class Launcher(StrEnum):
    """`spec.runTemplate.launcher` of a Dataset: the kind of the object that launches the driver of a run."""

    JOB = "Job"
    SPARK_APPLICATION = "SparkApplication"
    """Of the Kubeflow Spark operator."""


class RetentionBy(StrEnum):
    """What besides a column says how old a row is."""

    BATCH_AGE = "BatchAge"
    """The time at which its batch was promoted."""


class Approval(StrEnum):
    """`spec.approval` of a VacuumPolicy: whether a vacuum that is due waits for a person."""

    AUTOMATIC = "Automatic"
    MANUAL = "Manual"


class LabelOperator(StrEnum):
    """How a requirement on labels compares a label's value."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class CsvDialect(ApiModel):
    """How CSV files are written. The default is RFC 4180 with a header."""

    model_config = ConfigDict(extra="forbid")

    cel_rules = (
        Rule(
            "self.quote != self.delimiter && self.escape != self.delimiter && "
            "(self.escape == '' || self.escape != self.quote)",
            "delimiter, quote and escape must differ",
        ),
        Rule("self.escape == '' || self.quote != ''", "escape needs quote"),
        Rule(
            "self.header || !has(self.ignoreColumns) || size(self.ignoreColumns) == 0",
            "ignoreColumns needs header",
        ),
    )

    delimiter: Annotated[str, length(1, 1, pattern=r"^[\t -~]$")] = ","
    """The character between two fields."""
    quote: Annotated[str, length(maximum=1, pattern="^[!-~]?$")] = '"'
    """The character around a field that holds the delimiter, a quote or a line break. If empty, no field is quoted."""
    escape: Annotated[str, length(maximum=1, pattern="^[!-~]?$"), StoredDefault()] = ""
    """The character before a quote, and before itself, within a quoted field; a backslash in files of Spark. If empty,
    such a quote is written twice.
    """
    null_text: Annotated[str, length(maximum=64)] | None = None
    """A field of exactly this text is NULL in every column, unless it is quoted. "" makes an empty field NULL and a
    quoted empty field an empty text. If unset, an empty field is an empty text in a text column and NULL in any other.
    """
    header: bool = True
    """Whether the first record names the columns. If false, the fields are the columns of the table in its order, without
    the batch column.
    """
    ignore_columns: Annotated[tuple[Annotated[str, length(maximum=255)], ...], items(maximum=100, kind="set")] = ()
    """Columns of the files to leave out, by their names in the header; "" is a column without a name, such as the index
    of pandas.
    """


RFC_4180: Final = CsvDialect()


class Lookup(ApiModel):
    """Where the values of a column are looked up that stand for given values, such as customer numbers for addresses.

    They are the values of the column `to` in the rows of the Dataset's table that have a given value in the column `from`.
    """

    dataset: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of a Dataset in the same namespace."""
    from_column: Annotated[str, length(1, 256)] = Field(alias="from")
    """The column with the given values, or a field of it, such as customer.email, or passengers.element.email in a list."""
    to_column: Annotated[str, length(1, 256)] = Field(alias="to")
    """The column, or a field of structs, with the values that stand for them. Its type must be that of the column in which they
    are searched for, or one whose values can be converted to it exactly.
    """


class Operation(StrEnum):
    """`spec.operation` of a Restatement."""

    REPLAY = "Replay"
    """Replace batches, or rows by key columns, with a new batch."""
    REVERT = "Revert"
    """Delete batches."""
    ERASE = "Erase"
    """Delete batches or records, and prove that their bytes are gone."""
    REDACT = "Redact"
    """Replace values of columns in records or batches, and prove that the bytes of the old values are gone."""
    UNDO = "Undo"
    """Take a Revert back."""
    APPROVE = "Approve"
    """Promote batches that checks hold."""

    @property
    def is_metadata_only(self) -> bool:
        """Whether a request that names only batches is carried out without reading or writing data files."""
        match self:
            case Operation.REVERT | Operation.ERASE | Operation.UNDO | Operation.APPROVE:
                return True
            case Operation.REPLAY | Operation.REDACT:
                return False
            case _:
                assert_never(self)

    @property
    def always_evicts(self) -> bool:
        """Whether its rows or values must be deleted from storage even if the request has no deadline."""
        match self:
            case Operation.ERASE | Operation.REDACT:
                return True
            case Operation.REPLAY | Operation.REVERT | Operation.UNDO | Operation.APPROVE:
                return False
            case _:
                assert_never(self)

    @property
    def done(self) -> str:
        """What happens to rows that it finds by their values, for messages such as "Nothing was erased."."""
        match self:
            case Operation.ERASE:
                return "erased"
            case Operation.REDACT:
                return "redacted"
            case Operation.REPLAY | Operation.REVERT | Operation.UNDO | Operation.APPROVE:
                return "changed"
            case _:
                assert_never(self)


class RedactionMethod(StrEnum):
    """What a Redact writes instead of the values of a column."""

    # Not "Null": YAML reads that as no value.
    SET_NULL = "SetNull"
    CONSTANT = "Constant"
    KEYED_HASH = "KeyedHash"
    """HMAC-SHA-256 in hex."""


def _known(value: Any) -> Any:
    return value if value in _VALUES else None


_VALUES: Final = frozenset(Operation)
# The operation in a ledger. None: an earlier version did not store it, or this version does not know it.
RecordedOperation = Annotated[Operation | None, BeforeValidator(_known)]


class RunFamily(StrEnum):
    """The name of a kind in run documents, results, labels, Job names, snapshot summaries, statuses, events and metrics.

    These names must not change: active runs of an earlier version use them. Kinds that were added later share the name of a
    family; the content of the document, or the annotation of the Job, distinguishes them.
    """

    CONSOLIDATION = "Consolidation"
    RESTATEMENT = "Restatement"
    VACUUM = "Vacuum"


class RunKind(Enum):
    """The kind of a run. The values are explanations; use `kind.family` as a name."""

    CONSOLIDATION = "promote batches"
    REANCHORING = "give a ledger to a head without one; a Consolidation document without batch ids"
    RESTATEMENT = "carry out Restatements, or plan them"
    VACUUM = "purge, expire, maintain, or plan that"
    ERASURE_CHECK = "check the open erasures; a Vacuum document with erasuresOnly"

    @property
    def family(self) -> RunFamily:
        """The name in documents, labels and metrics. Several kinds share one, so it does not identify a kind."""
        match self:
            case RunKind.CONSOLIDATION | RunKind.REANCHORING:
                return RunFamily.CONSOLIDATION
            case RunKind.RESTATEMENT:
                return RunFamily.RESTATEMENT
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                return RunFamily.VACUUM
            case _:
                assert_never(self)

    @property
    def commits_in_steps(self) -> bool:
        """Whether a run of this kind may make several commits."""
        match self:
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                return True
            case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT:
                return False
            case _:
                assert_never(self)


# Iceberg's read.split.target-size: about as much as one task reads.
TASK_BYTES: Final = 128 * 1024 * 1024
# From this number of rounds of tasks on, executors are faster than a driver alone.
ROUNDS: Final = 4


@dataclass(frozen=True)
class ExecutorRule:
    """The limits between which the number of executors follows the bytes."""

    driver_cores: int
    """Tasks at the same time in a driver that works alone."""
    executor_cores: int
    """Tasks at the same time in one executor."""
    fewest: int
    """Executors, also for a small run."""
    most: int
    """Executors; 0: the driver always works alone."""

    def executors(self, run_bytes: int) -> int:
        """The number of executors for a run that reads `run_bytes`; 0: the driver works alone."""
        tasks = math.ceil(run_bytes / TASK_BYTES)
        if self.most == 0 or (self.fewest == 0 and tasks <= ROUNDS * self.driver_cores):
            return 0
        wanted = math.ceil(tasks / (self.executor_cores * ROUNDS))
        return min(max(wanted, 1, self.fewest), self.most)
