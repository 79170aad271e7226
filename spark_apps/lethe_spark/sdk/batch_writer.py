"""Writes a batch from a user's Spark job: its rows, and tombstones for the batches that it replaces, in one commit. I/O.

It needs no operator and no Dataset. Invariant: exactly once. A batch id that the ledger knows is never written again. The ledger
is checked before anything is written, and again in every attempt to commit.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import ConflictError, InputError, TransientError
from lethe.base.names import MAX_BATCH_ID_LENGTH, request_key, run_id
from lethe.buffer.promotion import Publish, WrittenBatch, WrittenFiles, plan_publication
from lethe.buffer.reference import require_reference
from lethe.contract.result import Phase
from lethe.contract.run import AcceptedHead, Provenance, Replacement, RestatementRequest, SearchLimits
from lethe.contract.settings import Deletes, NativeDeletes, Operation, UnknownBatches
from lethe.files.bounds import IdIndex
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts, column_dropped
from lethe.ledger.ledger import BatchState, Delta, Ledger, get_many
from lethe.restatement.plan import PlanScope, ReplacementRows, Restated, plan_restatement
from lethe.restatement.unknown import refuse_unknown
from lethe.storage.vended import of_table
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructType

from lethe_spark.commit.ledger_commit import (
    Attempts,
    Intent,
    NothingToCommit,
    commit_on_ledger,
    discard,
    keep_up,
    noted,
)
from lethe_spark.commit.masking import Masks, NativeMasker, native_kind
from lethe_spark.commit.table_state import Base, facts_of, observe_base, refuse_batches
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.errors import JvmError
from lethe_spark.jvm.scan_tasks import write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import crash_point
from lethe_spark.sql.rest_servers import require_served
from lethe_spark.sql.searching import named, search_few_here

log = logging.getLogger(__name__)

_OTHER_BATCH: Final = "LETHE-OTHER-BATCH-ID"
_NULL: Final = "LETHE-NULL-IN-COLUMN:"

OPTIONS: Final = (
    "batchId",
    "batchIdsToReplace",
    "batchReplacingReason",
    "batchColumn",
    "prepare",
    "deletes",
    "unknownBatches",
    "reference",
)


class LogReporter:
    """Reports progress to the log only. The user watches the job."""

    def phase(self, phase: Phase, message: str = "") -> None:
        """Write the phase and the message to the log, at level DEBUG."""
        log.debug("%s %s", phase, message)


@dataclass(frozen=True)
class SdkWriter:
    """The `Committer` of a user's Spark job.

    It may write a table that a Dataset claims: each commit is a compare-and-set, so neither loses the other's changes.
    """

    table_name: str
    batch_column: str
    run_id: str
    run_kind: str
    catalog_properties: Mapping[str, str]
    reporter: LogReporter = field(default_factory=LogReporter)
    claim: str | None = None
    accepts: AcceptedHead | None = None
    seen_table_uuid: str | None = None
    seen_snapshot_id: int | None = None
    seen_sequence_number: int | None = None

    def step(self, name: str) -> None:
        """Do nothing, apart from fault injection in tests: Lethe does not cancel a user's Spark job."""
        crash_point(name)


def deletes_of(text: str) -> Deletes:
    """How rows are hidden from other engines.

    Raises:
        InputError: UnknownOption.
    """
    try:
        return Deletes(text)
    except ValueError:
        raise InputError("UnknownOption", f"deletes {text!r}: expected one of {', '.join(Deletes)}.") from None


def unknown_of(text: str) -> UnknownBatches:
    """Whether unknown batches are refused.

    Raises:
        InputError: UnknownOption.
    """
    try:
        return UnknownBatches(text)
    except ValueError:
        raise InputError(
            "UnknownOption", f"unknown_batches {text!r}: expected one of {', '.join(UnknownBatches)}."
        ) from None


def find_table(spark: SparkSession, table: str) -> tuple[SparkTable, dict[str, str]]:
    """The table and PyIceberg's properties of its catalog.

    Args:
        table: `catalog.namespace.table`. The catalog must be configured in this session and in `.pyiceberg.yaml`.

    Raises:
        InputError: InvalidName, UnknownCatalog, CatalogNotServed, TableNotFound, TableHoldsBatches.
        TableError: The table is not the one that the request was made for.
        TransientError: A dependency is temporarily unavailable.
    """
    catalog, dot, name = table.partition(".")
    if not dot or "." not in name:
        raise InputError("InvalidName", f"{table!r}: expected catalog.namespace.table.")
    properties = catalogs.properties(catalog)
    require_served(spark, catalog, name, properties)
    if spark.conf.get(f"spark.sql.catalog.{catalog}", None) is None:
        raise InputError(
            "UnknownCatalog",
            f"this Spark session has no catalog {catalog}. Make the session with lethe_spark.apps.session.make_session"
            f"({catalog!r}), or set spark.sql.catalog.{catalog} and its properties.",
        )
    loaded = SparkTable.load(spark, catalog, name)
    if loaded is None:
        raise InputError("TableNotFound", f"catalog {catalog} has no table {name}; create it first.")
    refuse_batches(loaded)
    return loaded, properties


def prepare_table(table: SparkTable, properties: Mapping[str, str], batch_column: str, required: bool) -> None:
    """Set the properties that say where the table's ledgers begin and which column holds the batch ids.

    If the table is empty or preparing is `required`, also set the sort order and exact bounds. Safe to repeat, and to run beside
    other writers.

    Raises:
        InputError: BatchColumnMissing, BatchColumnDropped, BatchColumnType, FormatVersionTooOld.
        TransientError: A dependency is temporarily unavailable.
    """
    facts = facts_of(table, of_table(properties, table.name), batch_column, table.name)
    if facts.format_version < 2:
        raise InputError(
            "FormatVersionTooOld",
            f"{table.full_name} has Iceberg format version 1, which does not number its commits. Set the table property "
            "format-version to 2.",
        )
    if facts.batch_field_id is None and facts.remembered_field_id is not None:
        raise column_dropped(facts, "the table")
    if facts.batch_field_id is None:
        raise InputError(
            "BatchColumnMissing",
            f"{table.full_name} has no column {batch_column}; its columns are {', '.join(facts.columns)}. Add a string "
            "column of that name, or pass the name of another with batch_column.",
        )
    missing: dict[str, str] = {}
    if facts.ledger_since is None and not any(s.ledger for s in facts.snapshots.values()):
        # The current rows are older than any ledger. They stay readable, also if the ancestors of the head have expired.
        missing[names.LEDGER_SINCE] = str(facts.last_sequence_number)
    if names.BATCH_COLUMN not in facts.properties:
        missing[names.BATCH_COLUMN] = str(facts.batch_field_id)
    column = table.column_name(facts.batch_field_id) or batch_column
    if not facts.prepared and (required or _is_empty(facts)):
        table.ensure_layout(column, missing)
    elif missing:
        table.set_properties(missing)
    if not facts.prepared and not required and not _is_empty(facts):
        log.warning(
            "%s is not sorted by %s or has truncated metrics of it: reads and vacuums open more files than necessary. Write "
            "once with prepare=True. `lethe doctor %s` shows the details.",
            table.full_name,
            column,
            table.full_name,
        )


def _is_empty(facts: TableFacts) -> bool:
    """Whether the head holds no rows. A head that does not record its number of rows counts as not empty."""
    if facts.head_id is None:
        return True
    return facts.snapshots[facts.head_id].summary.get("total-records") == "0"


def ids_in_files(base: Base, batch_ids: Collection[str]) -> frozenset[str]:
    """The ids that the ledger does not know and that, by the bounds, some data file may hold. Reads manifests, no rows."""
    entries = get_many(base.ledger.batches, batch_ids)
    unknown = [i for i in batch_ids if i not in entries]
    if not unknown:
        return frozenset()
    index = IdIndex(unknown)
    return frozenset(i for f in base.files() for i in index.within(f))


def rows_of_batch(frame: DataFrame, schema: StructType, batch_column: str, batch_id: str) -> DataFrame:
    """The frame with the table's columns in their order, each row with `batch_id` in the batch column.

    The rows are checked while they are written, so Spark computes the frame only once. A row with another batch id, or a null in
    a required column, fails the write before anything is committed.

    Raises:
        InputError: `SchemaMismatch`, naming the column.
    """
    insensitive = frame.sparkSession.conf.get("spark.sql.caseSensitive", "false") != "true"

    def plain(name: str) -> str:
        return name.lower() if insensitive else name

    fields_of_frame = {plain(f.name): f for f in frame.schema.fields}
    if len(fields_of_frame) < len(frame.schema.fields):
        raise InputError("SchemaMismatch", f"the frame has two columns with the same name: {', '.join(frame.columns)}.")
    table_columns = {plain(f.name) for f in schema.fields}
    if extra := [f.name for f in frame.schema.fields if plain(f.name) not in table_columns]:
        raise InputError(
            "SchemaMismatch",
            f"the frame has columns that the table does not have: {', '.join(extra)}. The table has "
            f"{', '.join(schema.names)}.",
        )
    columns: list[Column] = []
    for column in schema.fields:
        column_given = fields_of_frame.get(plain(column.name))
        if column.name == batch_column:
            columns.append(_batch_id(named(column_given.name) if column_given else None, batch_id).alias(column.name))
        elif column_given is not None and not column.nullable and column_given.nullable:
            columns.append(_not_null(named(column_given.name), column.name).alias(column.name))
        elif column_given is not None:
            columns.append(named(column_given.name).alias(column.name))
        elif column.nullable:
            columns.append(F.lit(None).cast(column.dataType).alias(column.name))
        else:
            raise InputError(
                "SchemaMismatch", f"the frame has no column {column.name}, which the table requires in every row."
            )
    return frame.select(*columns)


def write_rows(table: SparkTable, rows: DataFrame, run_id: str, batch_column: str) -> tuple[DataFile, ...]:
    """Write the rows as data files of no snapshot.

    Raises:
        InputError: BatchIdMismatch, NullInColumn, SchemaMismatch, and any error of computing the frame.
    """
    try:
        return write_uncommitted(table, rows, run_id)
    except AnalysisException as e:
        raise InputError(
            "SchemaMismatch", f"the frame does not fit {table.full_name}: {str(e).strip().splitlines()[0][:300]}"
        ) from e
    except (PySparkException, *JvmError) as e:
        text = str(e)
        if _OTHER_BATCH in text:
            raise InputError(
                "BatchIdMismatch",
                f"the frame has rows whose {batch_column} is null or differs from the batch_id of this write. Nothing was "
                "committed. Drop the column, or write one batch at a time.",
            ) from e
        if _NULL in text:
            column = text.split(_NULL, 1)[1].split(":", 1)[0]
            raise InputError(
                "NullInColumn",
                f"the frame has rows with a null in {column}, which {table.full_name} requires in every row.",
            ) from e
        raise


def _batch_id(column: Column | None, batch_id: str) -> Column:
    if column is None:
        return F.lit(batch_id)
    text = column.cast(StringType())
    return F.when(text == F.lit(batch_id), text).otherwise(F.raise_error(_OTHER_BATCH))


def _not_null(column: Column, name: str) -> Column:
    return F.when(column.isNotNull(), column).otherwise(F.raise_error(f"{_NULL}{name}:"))


@dataclass(frozen=True)
class WriteResult:
    """The outcome of a write."""

    batch_id: str
    snapshot_id: int | None
    """The snapshot that added the batch, by this call or an earlier one. None: an earlier call added it, and its snapshot
    expired.
    """
    rows: int
    """Number of rows of the batch."""
    already: bool
    """True: an earlier call wrote the batch, and this call wrote nothing."""
    rows_deleted: int = 0
    """Number of rows of the replaced batches, as far as the ledger knows them."""
    restatement: str | None = None
    """The key of the replacement in the ledger. None: the batch replaced nothing."""


def write(
    frame: DataFrame,
    table: str,
    *,
    batch_id: str,
    batch_ids_to_replace: Sequence[str] = (),
    batch_replacing_reason: str = "",
    batch_column: str = "batch_id",
    prepare: bool = False,
    deletes: str = Deletes.AUTO,
    unknown_batches: str = UnknownBatches.REFUSE,
    reference: str = "",
) -> WriteResult:
    """Write the rows of a frame as one batch, and delete the rows of the batches that it replaces, in one commit.

    Example: `lethe_spark.write(frame, "main.air.flights", batch_id="2026-03-02")`

    Args:
        frame: The rows of the batch. Columns are matched by name; a nullable column may be missing. If the frame has the
            batch column, it must hold `batch_id` in every row.
        table: `catalog.namespace.table`. The table must exist. The catalog must be configured in the frame's session and in
            `.pyiceberg.yaml`.
        batch_id: The id of the batch, 1 to 256 characters, used for no other batch. A second call with the same id writes
            nothing, whatever the frame holds, so a job that is repeated after a crash loads its rows once.
        batch_ids_to_replace: Batches whose rows are deleted in the same snapshot.
        batch_replacing_reason: A text for people, stored in the ledger.
        batch_column: The column of batch ids, for a table that Lethe has not prepared. A prepared table stores its own.
        prepare: Prepare a table that has rows: from now on, new files are sorted by the batch column and have exact bounds of
            it. Existing files do not change. An empty table is always prepared.
        deletes: How the rows of replaced batches are hidden from other engines, as `spec.deletes` of a Dataset: Auto, Ledger,
            DeletionVectors or PositionDeletes.
        unknown_batches: What happens if the table does not know one of the replaced batches, which may wait in a buffer. Refuse
            raises UnknownBatches. Allow records its id; a batch that arrives later with this id is not promoted.
        reference: The id of the run that writes the batch, such as of a DAG, by which `revert` takes back all that it wrote;
            "": none.

    In these cases nothing is committed.

    Returns:
        The outcome, also if an earlier call wrote the batch.

    Raises:
        InputError: InvalidName, UnknownCatalog, CatalogNotServed, UnsafeProperty, TableNotFound, TableHoldsBatches,
            BatchColumnMissing, BatchColumnDropped, BatchColumnType, FormatVersionTooOld, InvalidBatchId, BatchTakenBack,
            BatchAlreadyWritten, ReplacementIsReplaced, AlreadyReplaced, ReplacementAlreadyPromoted, BatchIdMismatch,
            NullInColumn, SchemaMismatch, UnknownBatches, UnknownOption, FormatVersionMismatch, InvalidReference.
        ConflictError: Other writers committed first in every attempt.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """
    request = _WriteRequest.of(
        batch_id, batch_ids_to_replace, batch_replacing_reason, unknown_of(unknown_batches), reference
    )
    found, properties = find_table(frame.sparkSession, table)
    prepare_table(found, properties, batch_column, prepare)
    run = run_id(found.uuid, "Write", [batch_id])
    job = SdkWriter(found.name, batch_column, run, "Write", properties, seen_table_uuid=found.uuid)
    with noted(job, found, [batch_id]):
        return _write_once(frame, found, job, request, native_kind(found, deletes_of(deletes)))


def _write_once(
    frame: DataFrame, table: SparkTable, job: SdkWriter, request: "_WriteRequest", native: NativeDeletes | None
) -> WriteResult:
    """Write and commit. The caller has recorded the run in the table's notes."""
    run = job.run_id
    base = observe_base(job, table)
    if (done := _earlier_result(base.ledger, request)) is not None:
        return done
    in_files = ids_in_files(base, request.replaces)
    refuse_unknown(base.ledger, request.request(datetime.now(UTC)), frozenset(request.replaces).difference(in_files))
    rows = rows_of_batch(frame, table.columns, base.batch_column, request.batch_id)
    files = write_rows(table, rows, run, base.batch_column)
    job.step("after-write")
    attempts, last = Attempts(), list[Masks]()
    search = partial(search_few_here, frame.sparkSession.sparkContext, SearchLimits())
    masker = NativeMasker(job, table, native, search)

    def plan(newest: Base) -> Intent[WriteResult] | NothingToCommit[WriteResult]:
        planned = _plan(newest, request, files, in_files, run)
        if isinstance(planned, NothingToCommit):
            return planned
        delta, result = planned
        last[:] = [masker.masks(newest, delta, {}) if request.replaces else Masks(delta)]
        return last[0].intent(result, newest.facts.head_id, files)

    landed = False
    try:
        committed = commit_on_ledger(job, table, plan, attempts)
        landed = committed.snapshot_id is not None
    except (InputError, ConflictError, TransientError):
        discard(table, files, attempts)
        raise
    finally:
        masker.discard_unused(last[0] if landed else None, attempts)
    if not landed:
        # Another job wrote the batch in the meantime, or an earlier attempt of this one, whose answer was lost, was committed.
        discard(table, files, attempts)
        return committed.outcome
    keep_up(job, table, create=False)
    return replace(committed.outcome, snapshot_id=committed.snapshot_id)


@dataclass(frozen=True)
class _WriteRequest:
    """The arguments of a write, validated."""

    batch_id: str
    replaces: tuple[str, ...]
    reason: str
    unknown_batches: UnknownBatches
    reference: str | None

    @classmethod
    def of(
        cls, batch_id: str, replaces: Sequence[str], reason: str, unknown_batches: UnknownBatches, reference: str
    ) -> "_WriteRequest":
        """Make `_WriteRequest`.

        Raises:
            InputError: InvalidBatchId, ReplacementIsReplaced, InvalidReference.
        """
        if isinstance(replaces, str):
            replaces = (replaces,)
        for i in (batch_id, *replaces):
            if not isinstance(i, str) or not 1 <= len(i) <= MAX_BATCH_ID_LENGTH:
                raise InputError(
                    "InvalidBatchId",
                    f"a batch id is a string of 1 to {MAX_BATCH_ID_LENGTH} characters; found {type(i).__name__}"
                    + (f" of {len(i)}." if isinstance(i, str) else "."),
                )
        if batch_id in replaces:
            raise InputError(
                "ReplacementIsReplaced",
                f"batch {batch_id!r} cannot replace itself. A replacement is a new batch: use a new id.",
            )
        named = require_reference(reference, "the argument reference") if reference else None
        return cls(batch_id, tuple(dict.fromkeys(replaces)), reason, unknown_batches, named)

    @property
    def key(self) -> str:
        """The key of the replacement in the ledger. The reason is not part of it, so a repeated call may change the reason."""
        spec = {"operation": Operation.REPLAY, "batchIds": sorted(self.replaces), "replacement": self.batch_id}
        return request_key("sdk", self.batch_id, spec)

    def request(self, now: datetime) -> RestatementRequest:
        return RestatementRequest(
            key=self.key,
            name=f"sdk/{self.batch_id}",
            operation=Operation.REPLAY,
            batch_ids=self.replaces,
            unknown_batches=self.unknown_batches,
            replacement=Replacement(batch_id=self.batch_id, uri=""),
            reason=self.reason,
            creation_time=now,
            provenance=Provenance(reason=self.reason),
        )


def _earlier_result(ledger: Ledger, request: _WriteRequest) -> WriteResult | None:
    """The result of an earlier write of this batch.

    Raises:
        InputError: BatchTakenBack, BatchAlreadyWritten.
    """
    entry = ledger.batches.get(request.batch_id)
    if entry is None or not entry.blocks_promotion:
        return None
    if entry.rows is None and entry.state is not BatchState.PROMOTED:
        raise InputError(
            "BatchTakenBack",
            f"batch {request.batch_id!r} was {entry.state} before it was written, so its rows are not added. "
            "Undo that, or write the rows under another batch id.",
        )
    done = ledger.requests.get(request.key) if request.replaces else None
    if request.replaces and done is None:
        raise InputError(
            "BatchAlreadyWritten",
            f"batch {request.batch_id!r} was already written, and did not replace exactly these "
            f"{len(request.replaces)} batches. Nothing was written. Write the new rows under a new batch id.",
        )
    return WriteResult(
        request.batch_id,
        entry.snapshot_id,
        entry.rows or 0,
        already=True,
        rows_deleted=int(done.result.get("rowsDeleted", 0)) if done is not None else 0,
        restatement=request.key if done is not None else None,
    )


def _plan(
    base: Base, request: _WriteRequest, files: tuple[DataFile, ...], in_files: frozenset[str], run: str
) -> tuple[Delta, WriteResult] | NothingToCommit[WriteResult]:
    done = _earlier_result(base.ledger, request)
    if done is not None:
        return NothingToCommit(done)
    now, batch = datetime.now(UTC), request.batch_id
    rows, size = sum(f.records for f in files), sum(f.bytes for f in files)
    partitions = base.partitions_of(files, [batch])[batch]
    if not request.replaces:
        references = {batch: request.reference} if request.reference else {}
        written = WrittenFiles({batch: WrittenBatch(batch, rows, size, ())}, {batch: partitions}, references=references)
        published = plan_publication(base.ledger, written, {}, run, now)
        assert isinstance(published, Publish)
        return published.delta, WriteResult(batch, None, rows, already=False)
    restated = plan_restatement(
        base.ledger,
        request.request(now),
        PlanScope(run, now, base.field_id, in_files),
        ReplacementRows(rows, size, partitions, request.reference),
    )
    assert isinstance(restated, Restated)
    result = WriteResult(batch, None, rows, False, restated.result.rows_deleted, request.key)
    return restated.delta, result


class BatchWriter:
    """`write` with the interface of Spark's writers. Create one with `writer`."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._options: dict[str, Any] = {}

    def option(self, key: str, value: Any) -> "BatchWriter":
        """Set one option.

        Args:
            key: batchId, batchIdsToReplace (a list, or a text of ids separated by commas), batchReplacingReason, batchColumn,
                prepare, deletes, unknownBatches or reference; not case-sensitive.
            value: As the argument of `write`.

        Returns:
            This writer.

        Raises:
            InputError: UnknownOption.
        """
        option = {o.lower(): o for o in OPTIONS}.get(key.lower())
        if option is None:
            raise InputError("UnknownOption", f"unknown option {key!r}; the options are {', '.join(OPTIONS)}.")
        self._options[option] = value
        return self

    def options(self, **options: Any) -> "BatchWriter":
        """Set several options. Returns this writer.

        Raises:
            InputError: UnknownOption.
        """
        for key, value in options.items():
            self.option(key, value)
        return self

    def save(self, table: str) -> WriteResult:
        """Write the batch; see `lethe_spark.write` for the outcome.

        Raises:
            InputError: InvalidBatchId, without the option batchId.
            Exception: As `write`.
        """
        if "batchId" not in self._options:
            raise InputError("InvalidBatchId", "the option batchId is missing. Set it to the id of the batch.")
        replaces = self._options.get("batchIdsToReplace", ())
        if isinstance(replaces, str):
            replaces = [i.strip() for i in replaces.split(",") if i.strip()]
        return write(
            self._frame,
            table,
            batch_id=self._options["batchId"],
            batch_ids_to_replace=tuple(replaces),
            batch_replacing_reason=str(self._options.get("batchReplacingReason", "")),
            batch_column=str(self._options.get("batchColumn", "batch_id")),
            prepare=str(self._options.get("prepare", "false")).lower() == "true",
            deletes=str(self._options.get("deletes", Deletes.AUTO)),
            unknown_batches=str(self._options.get("unknownBatches", UnknownBatches.REFUSE)),
            reference=str(self._options.get("reference", "")),
        )


def writer(frame: DataFrame) -> BatchWriter:
    """Create a writer for a frame.

    Example: `lethe_spark.writer(frame).option("batchId", "2026-03-01").save("main.air.flights")`
    """
    return BatchWriter(frame)
