"""What two versions of a ledger say differently, as the content of events. Pure.

Same ledgers, same events in the same order: the position of an event in this order is part of its id.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, assert_never

from lethe.contract.refusal import Refusal
from lethe.contract.result import RequestResult
from lethe.ledger.ledger import BatchEntry, BatchState, RequestEntry

from lethe_operator.decide.publishing.event_types import (
    BatchData,
    BatchErased,
    BatchForgotten,
    BatchPromoted,
    BatchRefused,
    BatchReplaced,
    BatchRestored,
    BatchReverted,
    ErasureVerified,
    EventData,
    RestatementCommitted,
    TombstonesPurged,
)

MESSAGE_AT_MOST: Final = 2000  # characters of a refusal
# What an event may need besides its list, in bytes: its attributes, and the names of the table and the run.
ENVELOPE_BYTES: Final = 4096

T = TypeVar("T")

# The content that all events of a version share, as arguments of `EventData`, except for the run.
Common = Mapping[str, Any]


@dataclass(frozen=True)
class Versions(Generic[T]):
    """An entry in two versions of a ledger."""

    before: T | None  # None: it is not there
    after: T | None  # None: it is not there


def of_batch(entry: Versions[BatchEntry], common: Common) -> BatchData | None:
    """The event about a batch; None: it has none, because nothing that events show has changed."""
    before, after = entry.before, entry.after
    if after is None:
        if before is None:
            return None
        return BatchForgotten(batch_id=before.id, previous_state=before.state, run_id="", **common)
    if before is not None and _shown(before) == _shown(after):
        return None
    whole: dict[str, Any] = {
        **common,
        "run_id": after.run,
        "batch_id": after.id,
        "state_time": after.time,
        "rows": after.rows,
        "bytes": after.bytes,
        "restatement": after.restatement,
    }
    match after.state:
        case BatchState.PROMOTED:
            if before is not None and before.state not in (BatchState.REFUSED, BatchState.PROMOTED):
                return BatchRestored(**whole)
            return BatchPromoted(promoted_by_snapshot_id=after.snapshot_id, **whole)
        case BatchState.REFUSED:
            refusal = after.refusal or Refusal("", "")
            return BatchRefused(reason=refusal.reason, message=refusal.message[:MESSAGE_AT_MOST], **whole)
        case BatchState.REVERTED:
            return BatchReverted(evict_by=after.evict_by, **whole)
        case BatchState.REPLACED:
            return BatchReplaced(replaced_by=after.replaced_by or "", evict_by=after.evict_by, **whole)
        case BatchState.ERASED:
            return BatchErased(evict_by=after.evict_by, **whole)
        case _:
            assert_never(after.state)


def _shown(entry: BatchEntry) -> tuple[object, ...]:
    """What makes another event of a batch."""
    match entry.state:
        case BatchState.PROMOTED:
            return (entry.state, entry.snapshot_id)
        case BatchState.REFUSED:
            return (entry.state, entry.refusal)
        case BatchState.REVERTED | BatchState.REPLACED | BatchState.ERASED:
            return (entry.state, entry.restatement, entry.replaced_by, entry.evict_by)
        case _:
            assert_never(entry.state)


def of_request(entry: Versions[RequestEntry], common: Common) -> Iterator[EventData]:
    """The events about a restatement: that it was committed, that its erasure is verified."""
    if entry.after is None:
        return
    now = _result(entry.after)
    then = _result(entry.before) if entry.before is not None else None
    if then is None and now.succeeded:
        yield RestatementCommitted(
            restatement=now.key,
            name=now.name,
            operation=now.operation,
            undoes=now.undoes,
            rows_deleted=now.rows_deleted,
            rows_added=now.rows_added,
            rows_erased=now.rows_erased,
            rows_restored=now.rows_restored,
            run_id=entry.after.run,
            **common,
        )
    closed, was = now.erasure, then.erasure if then is not None else None
    if closed is not None and closed.verified_time is not None and (was is None or was.verified_time is None):
        yield ErasureVerified(
            restatement=now.key,
            verified_time=closed.verified_time,
            record=closed.record,
            record_sha256=closed.record_sha256,
            **common,
        )


def _result(entry: RequestEntry) -> RequestResult:
    """Without its batch ids, of which there may be hundreds of thousands."""
    return RequestResult.model_validate({k: v for k, v in entry.result.items() if k != "batchIds"})


def purged_ids(removed: Iterable[str], batches: Mapping[str, BatchEntry]) -> list[str]:
    """The batches that a vacuum has purged, sorted: their tombstone is gone, and they are still deleted.

    Args:
        removed: The ids of the tombstones that are gone.
        batches: The entries of these batches in the later version.
    """
    return sorted(i for i in set(removed) if (entry := batches.get(i)) is not None and _is_deleted(entry))


def _is_deleted(entry: BatchEntry) -> bool:
    match entry.state:
        case BatchState.REVERTED | BatchState.REPLACED | BatchState.ERASED:
            return True
        case BatchState.PROMOTED | BatchState.REFUSED:
            return False
        case _:
            assert_never(entry.state)


def of_purged(ids: Sequence[str], common: Common, run: str, max_event_bytes: int) -> Iterator[TombstonesPurged]:
    """The events about purged batches, each within the size."""
    pieces = list(pieces_of(ids, max_event_bytes - ENVELOPE_BYTES))
    for number, piece in enumerate(pieces, start=1):
        yield TombstonesPurged(batch_ids=piece, part=number, parts=len(pieces), run_id=run, **common)


def pieces_of(ids: Iterable[str], at_most_bytes: int) -> Iterator[tuple[str, ...]]:
    """Divide a list so that each piece, as JSON, has at most so many bytes, or a single entry."""
    piece: list[str] = []
    size = 0
    for id in ids:
        own = len(json.dumps(id, ensure_ascii=False).encode()) + 1  # the comma
        if piece and size + own > at_most_bytes:
            yield tuple(piece)
            piece, size = [], 0
        piece.append(id)
        size += own
    if piece:
        yield tuple(piece)
