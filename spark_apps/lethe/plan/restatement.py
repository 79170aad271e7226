"""A restatement planned on a ledger: its tombstones, its batch states, its result, or the reason it is refused. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from lethe.errors import InputError
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger, RequestEntry
from lethe.ledger.tombstone import META_REASON, META_RESTATEMENTS, META_RUN, Tombstone
from lethe.run import LISTED_AT_MOST, RequestResult, RestatementRequest


@dataclass(frozen=True)
class ReplacementRows:
    """The rows of a replacement as they were written: not yet committed."""

    rows: int
    bytes: int


@dataclass(frozen=True)
class AlreadyDone:
    """The ledger remembers this request."""

    result: RequestResult


@dataclass(frozen=True)
class Restated:
    """Commit `delta`; `add_replacement` says whether the replacement's files go in with it."""

    delta: Delta
    result: RequestResult
    add_replacement: bool


def check_request(request: RestatementRequest) -> None:
    """Raises InputError for what no ledger can make right."""
    if request.operation not in ("Revert", "Replay"):
        raise InputError(
            "NotSupported", f"Restatement {request.name}: spec.operation {request.operation} is not supported yet."
        )
    if (request.operation == "Replay") != (request.replacement is not None):
        raise InputError(
            "InvalidSpec", f"Restatement {request.name}: spec.replacement belongs to Replay, and Replay needs it."
        )
    if request.replacement and request.replacement.batch_id in request.batch_ids:
        raise InputError(
            "ReplacementIsReplaced",
            f"Restatement {request.name}: spec.replacement.batchId {request.replacement.batch_id!r} is among "
            "spec.batchIds. A replacement is a new batch: give it an id of its own.",
        )


def plan_restatement(
    ledger: Ledger,
    request: RestatementRequest,
    in_files: Collection[str],
    field_id: int,
    run: str,
    now: datetime,
    replacement: ReplacementRows | None = None,
) -> AlreadyDone | Restated:
    """Plan one request on this ledger; on another ledger, plan again.

    Args:
        in_files: Those of the request's ids that some data file might hold (rows older than the ledger).
        field_id: The Iceberg field id of the batch column.
        replacement: What was written for a Replay; None when only asking what would be done.
    Raises: InputError: AlreadyReplaced, ReplacementAlreadyPromoted.
    """
    if request.key in ledger.requests:
        return AlreadyDone(RequestResult.model_validate(dict(ledger.requests[request.key].result)))
    check_request(request)
    ids = tuple(dict.fromkeys(request.batch_ids))
    add_replacement = False
    if request.replacement is not None:
        _refuse_doubling(ledger, request)
        known = ledger.batches.get(request.replacement.batch_id)
        # A replacement restated before it came (a group in another order) is not added; its tombstones are.
        add_replacement = known is None or not known.blocks_promotion
    entries = [_taken_back(ledger.batches.get(i), i, request, run, now) for i in ids]
    unknown = tuple(i for i in ids if i not in ledger.batches and i not in in_files)
    evict_by = now + timedelta(seconds=request.evict_by_seconds) if request.evict_by_seconds is not None else None
    meta = {META_RESTATEMENTS: request.key, META_RUN: run}
    if request.reason:
        meta[META_REASON] = request.reason
    tombstones = tuple(Tombstone(i, field_id, now, evict_by, meta) for i in ids)
    if add_replacement and request.replacement is not None and replacement is not None:
        entries.append(
            BatchEntry(
                request.replacement.batch_id,
                BatchState.PROMOTED,
                run,
                now,
                restatement=request.key,
                rows=replacement.rows,
                bytes=replacement.bytes,
            )
        )
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        committed_time=now,
        tombstones_added=sum((field_id, i) not in ledger.tombstones for i in ids),
        rows_deleted=_rows_hidden(ledger, ids, field_id),
        rows_added=replacement.rows if replacement and add_replacement else 0,
        unknown_batch_ids_count=len(unknown),
        unknown_batch_ids=unknown[:LISTED_AT_MOST],
    )
    remembered = RequestEntry(request.key, run, now, result.model_dump(mode="json", by_alias=True, exclude_none=True))
    delta = Delta(run, add_tombstones=tombstones, set_batches=tuple(entries), set_requests=(remembered,))
    return Restated(delta, result, add_replacement)


def _refuse_doubling(ledger: Ledger, request: RestatementRequest) -> None:
    assert request.replacement is not None
    for i in request.batch_ids:
        entry = ledger.batches.get(i)
        if entry is not None and entry.state is BatchState.REPLACED:
            raise InputError(
                "AlreadyReplaced",
                f"Restatement {request.name}: batch {i!r} was already replaced by {entry.replaced_by!r}; a second "
                f"replacement would double its rows. Nothing was added. Replay {entry.replaced_by!r} instead.",
            )
    known = ledger.batches.get(request.replacement.batch_id)
    if known is not None and known.state is BatchState.PROMOTED:
        raise InputError(
            "ReplacementAlreadyPromoted",
            f"Restatement {request.name}: spec.replacement.batchId {known.id!r} is already in the table. "
            "Give the replacement an id that was never used.",
        )


def _taken_back(
    known: BatchEntry | None, batch_id: str, request: RestatementRequest, run: str, now: datetime
) -> BatchEntry:
    """The entry of a batch after this request. Unknown ids are remembered too: they block a later promotion."""
    state = BatchState.REPLACED if request.replacement else BatchState.REVERTED
    if known is not None and known.state is BatchState.REPLACED:
        return known  # a revert of a replaced batch changes nothing: it stays replaced by what replaced it
    replaced_by = request.replacement.batch_id if request.replacement else None
    if known is None:
        return BatchEntry(batch_id, state, run, now, restatement=request.key, replaced_by=replaced_by)
    if known.state is BatchState.REFUSED:
        # Its objects were judged, never promoted: retention must not take them for promoted ones.
        known = replace(known, objects=(), refusal=None)
    return replace(known, state=state, run=run, time=now, restatement=request.key, replaced_by=replaced_by)


def _rows_hidden(ledger: Ledger, batch_ids: Collection[str], field_id: int) -> int:
    """Rows that this request takes out of sight: those of promoted batches not hidden already."""
    hidden = ledger.ids(field_id)
    entries: Mapping[str, BatchEntry] = ledger.batches
    return sum(
        entries[i].rows or 0
        for i in batch_ids
        if i in entries and i not in hidden and entries[i].state is BatchState.PROMOTED
    )
