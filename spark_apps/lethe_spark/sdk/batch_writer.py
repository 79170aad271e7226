"""Write a batch from a user's Spark job: its rows, and tombstones for the batches that it replaces, in one commit. I/O.

Invariant: exactly once. A batch id that the ledger knows is never written again. The ledger is checked before anything is
written, and again in every attempt to commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from lethe.base.errors import ConflictError, InputError, TransientError
from lethe.base.ids import MAX_BATCH_ID_LENGTH, request_key, run_id
from lethe.buffer.promotion import Publish, WrittenBatch, WrittenFiles, plan_publication
from lethe.contract.operation import Operation
from lethe.contract.run import Replacement, RestatementRequest
from lethe.ledger.ledger import BatchState, Ledger
from lethe.restatement.plan import PlanScope, ReplacementRows, Restated, plan_restatement
from pyspark.sql import DataFrame

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.tracking import keep_up
from lethe_spark.commit.unpublished import discard
from lethe_spark.commit.writing import noted
from lethe_spark.jvm.commit import Append, LedgerOnly
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.sdk.batch_rows import rows_of_batch, write_rows
from lethe_spark.sdk.sdk_writer import SdkWriter, find_table, ids_in_files, prepare_table


@dataclass(frozen=True)
class WriteResult:
    """The outcome of a write."""

    batch_id: str
    # The snapshot that added the batch, by this call or an earlier one. None: an earlier call added it, and its snapshot expired.
    snapshot_id: int | None
    # Number of rows of the batch.
    rows: int
    # True: an earlier call wrote the batch, and this call wrote nothing.
    already: bool
    # Number of rows of the replaced batches, as far as the ledger knows them.
    rows_deleted: int = 0
    # The key of the replacement in the ledger. None: the batch replaced nothing.
    restatement: str | None = None


def write(
    frame: DataFrame,
    table: str,
    *,
    batch_id: str,
    batch_ids_to_replace: Sequence[str] = (),
    batch_replacing_reason: str = "",
    batch_column: str = "batch_id",
    prepare: bool = False,
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
        batch_ids_to_replace: Batches whose rows are deleted in the same snapshot. An id that the table does not know is
            recorded in the ledger; a batch that arrives later with this id is not promoted.
        batch_replacing_reason: A text for people, stored in the ledger.
        batch_column: The column of batch ids, for a table that Lethe has not prepared. A prepared table stores its own.
        prepare: Prepare a table that has rows: from now on, new files are sorted by the batch column and have exact bounds of
            it. Existing files do not change. An empty table is always prepared.
    Returns: the outcome, also if an earlier call wrote the batch.
    Raises: InputError (TableNotFound, BatchTakenBack, BatchAlreadyWritten, BatchIdMismatch, AlreadyReplaced, …);
        ConflictError, if other writers committed first in every attempt; TransientError; LedgerError. In these cases nothing
        is committed.
    """
    wanted = _WriteRequest.of(batch_id, batch_ids_to_replace, batch_replacing_reason)
    found, properties = find_table(frame.sparkSession, table)
    prepare_table(found, properties, batch_column, prepare)
    run = run_id(found.uuid, "Write", [batch_id])
    job = SdkWriter(found.name, batch_column, run, "Write", properties, seen_table_uuid=found.uuid)
    with noted(job, found, [batch_id]):
        return _write_once(frame, found, job, wanted)


def _write_once(frame: DataFrame, found: SparkTable, job: SdkWriter, wanted: "_WriteRequest") -> WriteResult:
    """Write and commit. The caller has recorded the run in the table's notes."""
    run = job.run_id
    base = observe_base(job, found)
    if (done := _earlier_result(base.ledger, wanted)) is not None:
        return done
    in_files = ids_in_files(base, wanted.replaces)
    rows = rows_of_batch(frame, found.columns, base.batch_column, wanted.batch_id)
    files = write_rows(found, rows, run, base.batch_column)
    job.step("after-write")
    attempts = Attempts()
    try:
        committed = commit_on_ledger(job, found, lambda b: _plan(b, wanted, files, in_files, run), attempts)
    except (InputError, ConflictError, TransientError):
        discard(found, files, attempts)
        raise
    if committed.snapshot_id is None:
        # Another job wrote the batch in the meantime, or an earlier attempt of this one, whose answer was lost, was committed.
        discard(found, files, attempts)
        return committed.outcome
    keep_up(job, found, create=False)
    return replace(committed.outcome, snapshot_id=committed.snapshot_id)


@dataclass(frozen=True)
class _WriteRequest:
    """The arguments of a write, validated."""

    batch_id: str
    replaces: tuple[str, ...]
    reason: str

    @classmethod
    def of(cls, batch_id: str, replaces: Sequence[str], reason: str) -> "_WriteRequest":
        """Raises: InputError (InvalidBatchId, ReplacementIsReplaced)."""
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
        return cls(batch_id, tuple(dict.fromkeys(replaces)), reason)

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
            replacement=Replacement(batch_id=self.batch_id, uri=""),
            reason=self.reason,
            creation_time=now,
        )


def _earlier_result(ledger: Ledger, wanted: _WriteRequest) -> WriteResult | None:
    """The result of an earlier write of this batch. Raises: InputError (BatchTakenBack, BatchAlreadyWritten)."""
    entry = ledger.batches.get(wanted.batch_id)
    if entry is None or not entry.blocks_promotion:
        return None
    if entry.rows is None and entry.state is not BatchState.PROMOTED:
        raise InputError(
            "BatchTakenBack",
            f"batch {wanted.batch_id!r} was {entry.state} before it was written, so its rows are not added. "
            "Undo that, or write the rows under another batch id.",
        )
    done = ledger.requests.get(wanted.key) if wanted.replaces else None
    if wanted.replaces and done is None:
        raise InputError(
            "BatchAlreadyWritten",
            f"batch {wanted.batch_id!r} was already written, and did not replace exactly these "
            f"{len(wanted.replaces)} batches. Nothing was written. Write the new rows under a new batch id.",
        )
    return WriteResult(
        wanted.batch_id,
        entry.snapshot_id,
        entry.rows or 0,
        already=True,
        rows_deleted=int(done.result.get("rowsDeleted", 0)) if done is not None else 0,
        restatement=wanted.key if done is not None else None,
    )


def _plan(
    base: Base, wanted: _WriteRequest, files: tuple[DataFile, ...], in_files: frozenset[str], run: str
) -> Intent[WriteResult] | NothingToCommit[WriteResult]:
    done = _earlier_result(base.ledger, wanted)
    if done is not None:
        return NothingToCommit(done)
    now, batch = datetime.now(UTC), wanted.batch_id
    rows, size = sum(f.records for f in files), sum(f.bytes for f in files)
    partitions = base.partitions_of(files, [batch])[batch]
    change = Append(files) if files else LedgerOnly()
    if not wanted.replaces:
        written = WrittenFiles({batch: WrittenBatch(batch, rows, size, ())}, {batch: partitions})
        published = plan_publication(base.ledger, written, {}, run, now)
        assert isinstance(published, Publish)
        return Intent(published.delta, change, WriteResult(batch, None, rows, already=False))
    restated = plan_restatement(
        base.ledger,
        wanted.request(now),
        PlanScope(run, now, base.field_id, in_files),
        ReplacementRows(rows, size, partitions),
    )
    assert isinstance(restated, Restated)
    result = WriteResult(batch, None, rows, False, restated.result.rows_deleted, wanted.key)
    return Intent(restated.delta, change, result)


OPTIONS: Final = ("batchId", "batchIdsToReplace", "batchReplacingReason", "batchColumn", "prepare")


class BatchWriter:
    """`write` with the interface of Spark's writers. Create one with `writer`."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._options: dict[str, Any] = {}

    def option(self, key: str, value: Any) -> "BatchWriter":
        """Set one option.

        Args:
            key: batchId, batchIdsToReplace (a list, or a text of ids separated by commas), batchReplacingReason, batchColumn
                or prepare; not case-sensitive.
            value: As the argument of `write`.
        Returns: this writer.
        Raises: InputError (UnknownOption).
        """
        known = {o.lower(): o for o in OPTIONS}.get(key.lower())
        if known is None:
            raise InputError("UnknownOption", f"unknown option {key!r}; the options are {', '.join(OPTIONS)}.")
        self._options[known] = value
        return self

    def options(self, **options: Any) -> "BatchWriter":
        """Set several options. Returns this writer. Raises: InputError (UnknownOption)."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def save(self, table: str) -> WriteResult:
        """Write the batch; see `lethe_spark.write` for the outcome and the errors. Raises: InputError (InvalidBatchId), without
        the option batchId."""
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
        )


def writer(frame: DataFrame) -> BatchWriter:
    """Create a writer for a frame.

    Example: `lethe_spark.writer(frame).option("batchId", "2026-03-01").save("main.air.flights")`
    """
    return BatchWriter(frame)
