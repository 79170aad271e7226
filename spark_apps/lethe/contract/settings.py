"""The closed sets of values of a Dataset's settings, as its CRD and `run.json` write them. Pure.

`tests/unit/test_closed_sets.py` compares them with the CRD.

`spec.buffer.csv`: how the CSV files of a buffer are written. Pure.

The operations of a Restatement. Pure.

To add an operation, start here: mypy then reports every `match` that must cover it.
`tests/unit/test_closed_sets.py` compares the enum with the CRD, the chart and the reference.

The kinds of runs. Pure.

To add a kind, start here: mypy then reports every `match` that must cover it.
`tests/unit/test_closed_sets.py` checks that run documents and the labels of Jobs preserve each kind.

Why a batch or a request is refused, as a value that goes from the check to the status unchanged. Pure.

How many executors a run gets for the bytes that it reads. Pure. The operator and the driver use the same rule.
"""

import math
import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated, Any, Final, assert_never

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.alias_generators import to_camel


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


class Deletes(StrEnum):
    """`spec.deletes`: how deleted batches are marked, in addition to the ledger."""

    LEDGER = "Ledger"
    """Only in the ledger."""
    DELETION_VECTORS = NativeDeletes.DELETION_VECTORS.value
    POSITION_DELETES = NativeDeletes.POSITION_DELETES.value

    @property
    def native(self) -> NativeDeletes | None:
        """The native deletes that it asks for; None: it asks for none."""
        match self:
            case Deletes.LEDGER:
                return None
            case Deletes.DELETION_VECTORS:
                return NativeDeletes.DELETION_VECTORS
            case Deletes.POSITION_DELETES:
                return NativeDeletes.POSITION_DELETES
            case _:
                assert_never(self)


class CsvDialect(BaseModel):
    """The default is RFC 4180 with a header."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")

    delimiter: str = ","
    quote: str = '"'
    """Empty: fields are never quoted."""
    escape: str = ""
    """Before a quote within a quoted field, as Spark writes it; "": such a quote is written twice."""
    null_text: str | None = None
    """A field of exactly this text is null, unless it is quoted. None: an empty field is null, or an empty text in a text column.
    """
    header: bool = True
    """False: the columns are those of the table, in its order, without the batch column."""
    ignore_columns: tuple[str, ...] = ()
    """By their names in the header; "" is a column without a name."""


RFC_4180: Final = CsvDialect()


class Operation(StrEnum):
    """`spec.operation` of a Restatement."""

    REPLAY = "Replay"
    """Replace batches, or rows by key columns, with a new batch."""
    REVERT = "Revert"
    """Delete batches."""
    ERASE = "Erase"
    """Delete batches or records, and prove that their bytes are gone."""
    UNDO = "Undo"
    """Take a Revert back."""

    @property
    def is_metadata_only(self) -> bool:
        """Whether a request that names only batches is carried out without reading or writing data files."""
        match self:
            case Operation.REVERT | Operation.ERASE | Operation.UNDO:
                return True
            case Operation.REPLAY:
                return False
            case _:
                assert_never(self)

    @property
    def always_evicts(self) -> bool:
        """Whether its rows must be deleted from storage even if the request has no deadline."""
        match self:
            case Operation.ERASE:
                return True
            case Operation.REPLAY | Operation.REVERT | Operation.UNDO:
                return False
            case _:
                assert_never(self)


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


_TEXT: Final = re.compile(r"([A-Z][A-Za-z]+): ")


@dataclass(frozen=True)
class Refusal:
    reason: str
    """CamelCase, for programs; "": an earlier version stored none."""
    message: str
    """For users."""

    def __str__(self) -> str:
        """The text that ledgers store; `parse` reads it."""
        return f"{self.reason}: {self.message}" if self.reason else self.message

    @classmethod
    def parse(cls, text: str) -> "Refusal":
        found = _TEXT.match(text)
        return cls(found[1], text[found.end() :]) if found else cls("", text)


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
