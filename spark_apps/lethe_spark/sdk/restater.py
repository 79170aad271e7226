"""Taking batches back, and taking that back, from a Spark job of one's own. I/O; decided in `lethe.plan`."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe.base.errors import InputError
from lethe.base.ids import request_key, run_id
from lethe.contract.operation import Operation
from lethe.contract.result import RequestResult
from lethe.contract.run import Provenance, RestatementRequest
from lethe.files.native_deletes import LEDGER, plan_masking, refuse_masked
from lethe.restatement.plan import AlreadyDone, check_request, plan_restatement
from pyspark.sql import SparkSession

from lethe_spark.commit.ledger_commit import Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base
from lethe_spark.commit.tracking import keep_up
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.sdk.sdk_writer import OwnJob, find_table, ids_in_files, prepare_table


@dataclass(frozen=True)
class RestatementResult:
    """What became of a revert or an undo.

    Args:
        restatement: Its key in the ledger: what `undo` wants to hear.
        snapshot_id: Of the commit that did it, also when that was an earlier one.
        already: It had been done before; nothing was changed now.
        rows_deleted, rows_restored: As far as the ledger knows the rows of its batches.
        unknown_batch_ids: The first 20 that neither the ledger nor any data file knows. They are kept out from now on.
    """

    restatement: str
    snapshot_id: int | None
    already: bool
    rows_deleted: int = 0
    rows_restored: int = 0
    unknown_batch_ids: tuple[str, ...] = ()


def revert(
    spark: SparkSession,
    table: str,
    batch_ids: Sequence[str],
    *,
    reason: str = "",
    name: str | None = None,
    evict_by_seconds: int | None = None,
    batch_column: str = "batch_id",
) -> RestatementResult:
    """Delete the rows of batches, in one commit that writes no data.

    Args:
        table: `catalog.namespace.table`.
        reason: Kept in the ledger, for people.
        name: A name for this act: with the same name and the same ids again, nothing is done again, also after an undo.
            Without one each call is an act of its own.
        evict_by_seconds: The bytes must be gone by then; a vacuum keeps to it.
    Raises: InputError (TableNotFound, …), ConflictError, TransientError, LedgerError.
    """
    ids = tuple(dict.fromkeys((batch_ids,) if isinstance(batch_ids, str) else batch_ids))
    if not ids:
        raise InputError("NoBatchIds", "name at least one batch to revert.")
    called = name or f"revert-{uuid.uuid4().hex[:12]}"
    request = RestatementRequest(
        key=request_key("sdk", called, {"operation": Operation.REVERT, "batchIds": sorted(ids)}),
        name=f"sdk/{called}",
        operation=Operation.REVERT,
        batch_ids=ids,
        reason=reason,
        creation_time=datetime.now(UTC),
        evict_by_seconds=evict_by_seconds,
        provenance=Provenance(reason=reason) if evict_by_seconds is not None else None,
    )
    return _restate(spark, table, request, batch_column)


def undo(
    spark: SparkSession, table: str, restatement: str, *, reason: str = "", batch_column: str = "batch_id"
) -> RestatementResult:
    """Show the rows of a revert again, as long as no vacuum has purged any of them.

    Args:
        restatement: The key of the revert: `RestatementResult.restatement`, or as `lethe batches --json` shows it.
    Raises: InputError: UnknownRestatement, NotUndoable, AlreadyPurged, AlreadyReplaced, HeldByAnother, ErasedSince:
        nothing was undone;
        ConflictError, TransientError, LedgerError.
    """
    called = f"undo-{uuid.uuid5(uuid.NAMESPACE_URL, restatement).hex[:12]}"
    request = RestatementRequest(
        key=request_key("sdk", called, {"operation": Operation.UNDO, "undoes": restatement}),
        name=f"sdk/{called}",
        operation=Operation.UNDO,
        batch_ids=(),
        undoes=restatement,
        reason=reason,
        creation_time=datetime.now(UTC),
    )
    return _restate(spark, table, request, batch_column)


def _restate(spark: SparkSession, table: str, request: RestatementRequest, batch_column: str) -> RestatementResult:
    check_request(request)
    found, properties = find_table(spark, table)
    prepare_table(found, properties, batch_column, wanted=False)
    run = run_id(found.uuid, request.operation, [request.key])
    job = OwnJob(found.name, batch_column, run, request.operation, properties, seen_table_uuid=found.uuid)

    def plan(base: Base) -> Intent[RequestResult] | NothingToCommit[RequestResult]:
        done = request.key in base.ledger.requests
        in_files = frozenset() if done else ids_in_files(base, request.batch_ids)
        planned = plan_restatement(base.ledger, request, in_files, base.field_id, run, datetime.now(UTC))
        if isinstance(planned, AlreadyDone):
            return NothingToCommit(planned.result)
        refuse_masked(request.name, plan_masking(base.ledger, planned.delta, base.field_id, LEDGER, all_masked=True))
        return Intent(planned.delta, LedgerOnly(), planned.result)

    done = commit_on_ledger(job, found, plan)
    if done.snapshot_id is not None:
        keep_up(job, found, create=False)
    result = done.outcome
    return RestatementResult(
        request.key,
        done.snapshot_id or result.snapshot_id,
        already=done.snapshot_id is None,
        rows_deleted=result.rows_deleted,
        rows_restored=result.rows_restored,
        unknown_batch_ids=result.unknown_batch_ids,
    )
