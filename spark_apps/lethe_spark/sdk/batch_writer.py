"""Writing a batch from a Spark job of one's own: its rows, what it replaces, one commit. I/O.

Invariant: exactly once. A batch id that the ledger knows is never written again, which is looked up before anything is
written and inside every attempt to commit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from lethe.base.errors import ConflictError, InputError, TransientError
from lethe.base.ids import MAX_BATCH_ID_LENGTH, request_key, run_id
from lethe.buffer.promotion import Publish, WrittenBatch, plan_publication
from lethe.contract.operation import Operation
from lethe.contract.run import Replacement, RestatementRequest
from lethe.ledger.ledger import BatchState, Ledger
from lethe.restatement.plan import ReplacementRows, Restated, plan_restatement
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
from lethe_spark.sdk.sdk_writer import OwnJob, find_table, ids_in_files, prepare_table


@dataclass(frozen=True)
class WriteResult:
    """What became of a write.

    Args:
        snapshot_id: Of the commit that brought the batch in, also when that was an earlier one; None if it expired.
        rows: That the batch has.
        already: The batch had been written before; nothing was written now.
        rows_deleted: That the replaced batches had, as far as the ledger knows.
        restatement: The ledger's key of the replacement; None when nothing was replaced.
    """

    batch_id: str
    snapshot_id: int | None
    rows: int
    already: bool
    rows_deleted: int = 0
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
    """Write the rows of a frame as one batch, and take back the batches that it replaces, in one commit.

    Args:
        frame: The batch's rows. Columns are matched by name; a nullable one may be missing. If it has the batch column,
            every row must hold `batch_id` there.
        table: `catalog.namespace.table`, which must exist; the catalog is one that both the frame's session and
            `.pyiceberg.yaml` know.
        batch_id: A name that was never used and never will be again, 1 to 256 characters. The same id again writes
            nothing, whatever the frame holds: a job that is repeated after a crash loads its rows once.
        batch_ids_to_replace: Their rows are deleted in the same snapshot. An id that never came is remembered, and kept out.
        batch_replacing_reason: Kept in the ledger, for people.
        batch_column: Only looked at for a table that Lethe has not prepared; a prepared one remembers its own.
        prepare: Sort the table by the batch column and keep exact bounds of it from now on, also when it has rows
            already; an empty table is prepared in any case. What lies there stays as it is.
    Raises: InputError: TableNotFound, BatchTakenBack, BatchAlreadyWritten, BatchIdMismatch, AlreadyReplaced, …;
        ConflictError, if other writers were faster again and again; TransientError; LedgerError. Nothing is committed then.
    """
    wanted = _Wanted.of(batch_id, batch_ids_to_replace, batch_replacing_reason)
    found, properties = find_table(frame.sparkSession, table)
    prepare_table(found, properties, batch_column, prepare)
    run = run_id(found.uuid, "Write", [batch_id])
    job = OwnJob(found.name, batch_column, run, "Write", properties, seen_table_uuid=found.uuid)
    with noted(job, found, [batch_id]):
        return _written(frame, found, job, wanted)


def _written(frame: DataFrame, found: SparkTable, job: OwnJob, wanted: "_Wanted") -> WriteResult:
    """Write, once the run has noted that it does."""
    run = job.run_id
    base = observe_base(job, found)
    if (done := _written_before(base.ledger, wanted)) is not None:
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
        # Somebody else's job wrote the batch meanwhile; or an attempt of ours that was in doubt has landed.
        discard(found, files, attempts)
        return committed.outcome
    keep_up(job, found, create=False)
    return replace(committed.outcome, snapshot_id=committed.snapshot_id)


@dataclass(frozen=True)
class _Wanted:
    batch_id: str
    replaces: tuple[str, ...]
    reason: str

    @classmethod
    def of(cls, batch_id: str, replaces: Sequence[str], reason: str) -> "_Wanted":
        """Raises: InputError (InvalidBatchId, ReplacementIsReplaced)."""
        if isinstance(replaces, str):
            replaces = (replaces,)
        for i in (batch_id, *replaces):
            if not isinstance(i, str) or not 1 <= len(i) <= MAX_BATCH_ID_LENGTH:
                raise InputError(
                    "InvalidBatchId",
                    f"a batch id is a text of 1 to {MAX_BATCH_ID_LENGTH} characters; found {type(i).__name__}"
                    + (f" of {len(i)}." if isinstance(i, str) else "."),
                )
        if batch_id in replaces:
            raise InputError(
                "ReplacementIsReplaced",
                f"batch {batch_id!r} cannot replace itself. A replacement is a new batch: give it an id of its own.",
            )
        return cls(batch_id, tuple(dict.fromkeys(replaces)), reason)

    @property
    def key(self) -> str:
        """How the ledger remembers the replacement. The reason is no part of it: the same act may be told in other words."""
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


def _written_before(ledger: Ledger, wanted: _Wanted) -> WriteResult | None:
    """The result of an earlier write of this batch. Raises: InputError (BatchTakenBack, BatchAlreadyWritten)."""
    entry = ledger.batches.get(wanted.batch_id)
    if entry is None or not entry.blocks_promotion:
        return None
    if entry.rows is None and entry.state is not BatchState.PROMOTED:
        raise InputError(
            "BatchTakenBack",
            f"batch {wanted.batch_id!r} was {entry.state} before it came, so its rows do not go in. Undo that, or give the "
            "rows another batch id.",
        )
    done = ledger.requests.get(wanted.key) if wanted.replaces else None
    if wanted.replaces and done is None:
        raise InputError(
            "BatchAlreadyWritten",
            f"batch {wanted.batch_id!r} was written before, and did not replace just these {len(wanted.replaces)} batches "
            "then. Nothing was written: give the new rows a batch id that was never used.",
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
    base: Base, wanted: _Wanted, files: tuple[DataFile, ...], in_files: frozenset[str], run: str
) -> Intent[WriteResult] | NothingToCommit[WriteResult]:
    done = _written_before(base.ledger, wanted)
    if done is not None:
        return NothingToCommit(done)
    now, batch = datetime.now(UTC), wanted.batch_id
    rows, size = sum(f.records for f in files), sum(f.bytes for f in files)
    partitions = base.partitions_of(files, [batch])[batch]
    change = Append(files) if files else LedgerOnly()
    if not wanted.replaces:
        published = plan_publication(
            base.ledger, {batch: WrittenBatch(batch, rows, size, ())}, {}, run, now, partitions={batch: partitions}
        )
        assert isinstance(published, Publish)
        return Intent(published.delta, change, WriteResult(batch, None, rows, already=False))
    restated = plan_restatement(
        base.ledger,
        wanted.request(now),
        in_files,
        base.field_id,
        run,
        now,
        ReplacementRows(rows, size, partitions),
    )
    assert isinstance(restated, Restated)
    result = WriteResult(batch, None, rows, False, restated.result.rows_deleted, wanted.key)
    return Intent(restated.delta, change, result)


OPTIONS: Final = ("batchId", "batchIdsToReplace", "batchReplacingReason", "batchColumn", "prepare")


class BatchWriter:
    """`write` in the manner of Spark's own writers; made by `writer`."""

    def __init__(self, frame: DataFrame) -> None:
        self._frame = frame
        self._options: dict[str, Any] = {}

    def option(self, key: str, value: Any) -> "BatchWriter":
        """Set one option; names as in Spark, whatever their case.

        Args:
            key: batchId, batchIdsToReplace (ids separated by commas, or a list of them), batchReplacingReason,
                batchColumn, prepare.
        Raises: InputError (UnknownOption).
        """
        known = {o.lower(): o for o in OPTIONS}.get(key.lower())
        if known is None:
            raise InputError("UnknownOption", f"there is no option {key!r}; the options are {', '.join(OPTIONS)}.")
        self._options[known] = value
        return self

    def options(self, **options: Any) -> "BatchWriter":
        for key, value in options.items():
            self.option(key, value)
        return self

    def save(self, table: str) -> WriteResult:
        """Write, as `lethe_spark.write` does."""
        if "batchId" not in self._options:
            raise InputError("InvalidBatchId", "the option batchId is missing: say which batch the rows are.")
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
    """`lethe_spark.writer(frame).option("batchId", "2026-03-01").save("main.air.flights")`."""
    return BatchWriter(frame)
