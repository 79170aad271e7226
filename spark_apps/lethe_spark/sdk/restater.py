"""Revert batches, and undo reverts, from a user's Spark job. I/O; `lethe.restatement` decides."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from lethe.base.names import request_key, run_id
from lethe.buffer.reference import require_reference
from lethe.contract.result import RequestResult
from lethe.contract.run import Provenance, RestatementRequest, SearchLimits
from lethe.contract.settings import Deletes, Operation, UnknownBatches
from lethe.ledger_chunks import delivered
from lethe.restatement.plan import AlreadyDone, PlanScope, check_request, plan_restatement
from lethe.restatement.selection import Deliveries, named_batches, references_of, with_selected
from pyspark.sql import SparkSession

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, keep_up
from lethe_spark.commit.masking import CannotLift, Masks, NativeMasker, lifts_of, native_kind
from lethe_spark.commit.table_state import Base
from lethe_spark.sdk.batch_writer import (
    SdkWriter,
    deletes_of,
    find_table,
    ids_in_files,
    prepare_table,
    unknown_of,
)
from lethe_spark.sql.searching import search_few_here


@dataclass(frozen=True)
class RestatementResult:
    """The outcome of a revert or an undo."""

    restatement: str
    """The key in the ledger, which `undo` takes."""
    snapshot_id: int | None
    """The snapshot of the commit, by this call or an earlier one. None: an earlier call, whose snapshot the ledger does not name.
    """
    already: bool
    """True: an earlier call did it, and this call changed nothing."""
    rows_deleted: int = 0
    """Number of rows of the reverted batches, as far as the ledger knows them."""
    rows_restored: int = 0
    """Number of rows that are visible again, as far as the ledger knows them."""
    unknown_batch_ids: tuple[str, ...] = ()
    """The first 20 ids that neither the ledger nor any data file knows. Batches with these ids are not promoted."""


def revert(
    spark: SparkSession,
    table: str,
    batch_ids: Sequence[str] = (),
    *,
    reference: str = "",
    reason: str = "",
    ticket: str = "",
    name: str | None = None,
    evict_by_seconds: int | None = None,
    batch_column: str = "batch_id",
    deletes: str = Deletes.AUTO,
    unknown_batches: str = UnknownBatches.REFUSE,
) -> RestatementResult:
    """Delete the rows of whole batches, in one commit that writes no data files.

    Example: `lethe_spark.revert(spark, "main.air.flights", ["2026-03-03"], reason="loaded too early")`

    Args:
        spark: A session with the table's catalog.
        table: `catalog.namespace.table`.
        batch_ids: The batches. Empty with a reference.
        reference: All batches that the run with this id delivered and that are in the table, instead of batch ids. Batches of
            the run that wait in a buffer are not found.
        reason: A text for people, stored in the ledger.
        ticket: A reference to a ticket, stored in the ledger.
        name: A name for this revert. A second call with the same name and ids changes nothing, also after an undo. Without a
            name, each call is a new revert.
        evict_by_seconds: The time from now by which a vacuum must have removed the bytes. None: no limit.
        batch_column: The column of batch ids, for a table that Lethe has not prepared. A prepared table stores its own.
        deletes: How the rows are hidden from other engines, as `spec.deletes` of a Dataset: Auto, Ledger, DeletionVectors or
            PositionDeletes.
        unknown_batches: What happens if the table does not know one of the batches, which may wait in a buffer. Refuse raises
            UnknownBatches. Allow records its id; a batch that arrives later with this id is not promoted.

    In these cases nothing is committed.

    Raises:
        InputError: InvalidName, UnknownCatalog, CatalogNotServed, UnsafeProperty, TableNotFound, TableHoldsBatches,
            TableNotPrepared, BatchColumnMissing, NoBatchIds, AlreadyReplaced, UnknownBatches, TooManyBatches,
            UnknownOption, FormatVersionMismatch, InvalidReference.
        ConflictError: The table moved between plan and commit.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """
    ids = named_batches(batch_ids, reference)
    called = name or f"revert-{uuid.uuid4().hex[:12]}"
    chosen = (
        {"reference": require_reference(reference, "the argument reference")}
        if reference
        else {"batchIds": sorted(ids)}
    )
    request = RestatementRequest(
        key=request_key("sdk", called, {"operation": Operation.REVERT, **chosen}),
        name=f"sdk/{called}",
        operation=Operation.REVERT,
        batch_ids=ids,
        reference=reference,
        unknown_batches=unknown_of(unknown_batches),
        reason=reason,
        creation_time=datetime.now(UTC),
        evict_by_seconds=evict_by_seconds,
        provenance=Provenance(reason=reason, ticket=ticket),
    )
    return _restate(spark, table, request, batch_column, deletes)


def undo(
    spark: SparkSession,
    table: str,
    restatement: str,
    *,
    reason: str = "",
    ticket: str = "",
    batch_column: str = "batch_id",
) -> RestatementResult:
    """Make the rows of a revert visible again, unless a vacuum has purged some of them.

    Example: `lethe_spark.undo(spark, "main.air.flights", reverted.restatement)`

    Args:
        spark: A session with the table's catalog.
        table: `catalog.namespace.table`.
        restatement: The key of the revert: `RestatementResult.restatement`, or as `lethe batches --json` prints it.
        reason: A text for people, stored in the ledger.
        ticket: A reference to a ticket, stored in the ledger.
        batch_column: The column of batch ids, for a table that Lethe has not prepared. A prepared table stores its own.

    In these cases nothing is committed.

    Raises:
        InputError: UnknownRestatement, NotUndoable, AlreadyPurged, AlreadyReplaced, HeldByAnother, ErasedSince,
            FileNotSearchable.
        ConflictError: The table moved between plan and commit.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
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
        provenance=Provenance(reason=reason, ticket=ticket),
    )
    return _restate(spark, table, request, batch_column, Deletes.LEDGER)


def _restate(
    spark: SparkSession, table: str, request: RestatementRequest, batch_column: str, deletes: str
) -> RestatementResult:
    check_request(request)
    found, properties = find_table(spark, table)
    prepare_table(found, properties, batch_column, required=False)
    run = run_id(found.uuid, request.operation, [request.key])
    job = SdkWriter(found.name, batch_column, run, request.operation, properties, seen_table_uuid=found.uuid)

    masker = NativeMasker(
        job,
        found,
        native_kind(found, deletes_of(deletes)),
        partial(search_few_here, spark.sparkContext, SearchLimits()),
    )
    last: Masks | None = None

    def plan(base: Base) -> Intent[RequestResult] | NothingToCommit[RequestResult]:
        nonlocal last
        chosen, in_files = request, frozenset[str]()
        if request.key not in base.ledger.requests:
            known = delivered(base.ledger.batches, references_of([request]))
            chosen = with_selected(base.ledger, request, Deliveries(known))
            in_files = ids_in_files(base, chosen.batch_ids)
        absent = frozenset(chosen.batch_ids).difference(in_files)
        scope = PlanScope(run, datetime.now(UTC), base.field_id, in_files, absent)
        planned = plan_restatement(base.ledger, chosen, scope)
        if isinstance(planned, AlreadyDone):
            return NothingToCommit(planned.result)
        last = masker.masks(base, planned.delta, lifts_of(base.ledger, [request]))
        return last.intent(planned.result, base.facts.head_id)

    attempts, committed = Attempts(), False
    try:
        done = commit_on_ledger(job, found, plan, attempts)
        committed = done.snapshot_id is not None
    except CannotLift as e:
        raise e.error from None
    finally:
        masker.discard_unused(last if committed else None, attempts)
    if committed:
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
