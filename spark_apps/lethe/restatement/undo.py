"""Plans an Undo, which makes the rows of a Revert visible again if the table still contains all of them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from lethe.base.errors import InputError
from lethe.contract.operation import Operation
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import BatchEntry, BatchState, Delta, Ledger, RequestEntry
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import META_PURGED_BY, PURGED_AT_ONCE, PURGED_BESIDE, Tombstone
from lethe.restatement.record import name_of, recalled, remembered, version_of


@dataclass(frozen=True)
class PlannedUndo:
    delta: Delta
    result: RequestResult


def plan_undo(ledger: Ledger, request: RestatementRequest, field_id: int, run: str, now: datetime) -> PlannedUndo:
    """Plan to take back the request `request.undoes`, completely or not at all.

    Batches that were promoted before become promoted again. The ledger forgets a batch that was never promoted, so it may be
    promoted later. Rows that another writer added with its batch id become visible again.

    Raises: InputError: UnknownRestatement; NotUndoable, for a Replay, an Erase, an Undo, or a request that is already undone;
        for one of its batches AlreadyReplaced, AlreadyPurged, HeldByAnother or ErasedSince.
    """
    where = f"Restatement {request.name}: spec.undoes"
    entry = ledger.requests.get(request.undoes)
    if entry is None:
        raise InputError(
            "UnknownRestatement",
            f"{where} names {name_of(request.undoes)}, which was never carried out on this table. Name a "
            "Restatement that has succeeded and whose spec has not changed since.",
        )
    known = recalled(entry)
    _check_undoable(where, known)
    tombstones = get_many(ledger.tombstones, [(field_id, i) for i in known.batch_ids])
    batches = get_many(ledger.batches, known.batch_ids)
    for batch_id in known.batch_ids:
        _check_batch(where, known, batch_id, batches.get(batch_id), tombstones.get((field_id, batch_id)))
    _check_erased(where, ledger, entry, [i for i, b in batches.items() if b.rows is None], field_id)
    promoted = _promoted_again(batches, request, run, now)
    result = RequestResult(
        key=request.key,
        name=request.name,
        succeeded=True,
        committed_time=now,
        operation=request.operation,
        undoes=request.undoes,
        tombstones_removed=len(tombstones),
        rows_restored=sum(b.rows or 0 for b in promoted),
    )
    undone = replace(entry, result={**entry.result, "undoneBy": request.key})
    delta = Delta(
        run,
        remove_tombstones=frozenset(tombstones),
        set_batches=promoted,
        forget_batches=frozenset(i for i, b in batches.items() if b.rows is None),
        set_requests=(undone, remembered(ledger, request, result, run, now)),
        close_erasures=frozenset(e.restatement for e in ledger.erasures if e.restatement == known.key),
    )
    return PlannedUndo(delta, result)


def _check_undoable(where: str, known: RequestResult) -> None:
    if known.undone_by:
        raise InputError(
            "NotUndoable",
            f"{where} names {known.name}, which {name_of(known.undone_by)} has already undone. Nothing was changed.",
        )
    match known.operation:
        case Operation.REVERT:
            return
        case Operation.REPLAY:
            text = (
                f"{where} names the Replay {known.name}. Its batches were replaced, and showing them again "
                "would duplicate rows. To get the old rows back, replay the replacement with a batch that "
                "contains them."
            )
        case Operation.ERASE:
            text = (
                f"{where} names the Erase {known.name}. An Erase cannot be undone, even if the bytes still "
                "exist. If it was a mistake, load the rows again under a new batch id."
            )
        case Operation.UNDO | None:
            text = (
                f"{where} names {known.name}, which is not a Revert. Only a Revert can be undone. To delete "
                "the batches again, create another Revert."
            )
        case _:
            assert_never(known.operation)
    raise InputError("NotUndoable", text)


def _check_batch(
    where: str, known: RequestResult, batch_id: str, batch: BatchEntry | None, tombstone: Tombstone | None
) -> None:
    if batch is not None and batch.state is BatchState.REPLACED:
        raise InputError(
            "AlreadyReplaced",
            f"{where} names {known.name}, whose batch {batch_id!r} was replaced by {batch.replaced_by!r}; "
            f"showing it again would duplicate rows. Nothing was undone. Restate {batch.replaced_by!r} "
            "instead.",
        )
    if (
        batch is None
        or tombstone is None
        or META_PURGED_BY in tombstone.meta
        or known.key not in tombstone.restatements
    ):
        raise InputError(
            "AlreadyPurged",
            f"{where} names {known.name}. {_how_purged(batch_id, tombstone)}, so the rows cannot be restored. "
            "Nothing was undone. Load the rows again under a new batch id.",
        )
    others = [r for r in tombstone.restatements if r != known.key]
    if others:
        raise InputError(
            "HeldByAnother",
            f"{where} names {known.name}, but {name_of(others[0])} has deleted its batch {batch_id!r} as "
            "well, and is not undone. Nothing was undone. Load the rows again under a new batch id.",
        )


def _check_erased(where: str, ledger: Ledger, entry: RequestEntry, to_come: Sequence[str], field_id: int) -> None:
    """Refuse the Undo if it would allow batches to be promoted that a later Erase of records should have searched. The Erase
    could not see them: a reverted batch in the buffer is not promoted, so no Erase waits for it.

    Args:
        to_come: Those of the batches that were never promoted.
    Raises: InputError: ErasedSince.
    """
    records = [e.restatement for e in ledger.erasures if e.field_id != field_id] if to_come else []
    erases = get_many(ledger.requests, records).values()
    since = next((e for e in erases if version_of(e) >= version_of(entry)), None)
    if since is None:
        return
    name, erase = name_of(entry.key), name_of(since.key)
    raise InputError(
        "ErasedSince",
        f"{where} names {name}, which reverted batch {to_come[0]!r} before it was promoted. Restatement "
        f"{erase} has erased records since then, and did not search the files that the buffer may hold under "
        "that id. Nothing was undone. Write these rows to the buffer under a new batch id.",
    )


def _how_purged(batch_id: str, tombstone: Tombstone | None) -> str:
    why = tombstone.meta.get(META_PURGED_BY) if tombstone is not None else None
    if why == PURGED_AT_ONCE:
        return (
            f"Data files that held only its batch {batch_id!r} were removed from the table in the same commit "
            "(spec.deletes)"
        )
    if why == PURGED_BESIDE:
        return f"Other writers or Restatements have also deleted rows of its batch {batch_id!r}"
    return f"A vacuum has purged its batch {batch_id!r}, completely or partly"


def _promoted_again(
    batches: Mapping[str, BatchEntry], request: RestatementRequest, run: str, now: datetime
) -> tuple[BatchEntry, ...]:
    """The new entries of the batches that were promoted before the Revert."""
    return tuple(
        replace(b, state=BatchState.PROMOTED, run=run, time=now, restatement=request.key, evict_by=None)
        for b in batches.values()
        if b.rows is not None
    )
