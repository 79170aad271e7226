"""Which batches a request is about that names the run that delivered them, and not their ids. Pure.

The batches are chosen on the ledger on which the request is planned: on another ledger, they are chosen again. So a batch of the
run that is promoted while the request is open counts, and one that arrives after the commit does not.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lethe.base.errors import InputError
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import Operation
from lethe.ledger.ledger import BatchState, Ledger, get_many
from lethe.restatement.unknown import UNKNOWN_BATCHES

BATCHES_AT_MOST: Final = 100_000
"""As many as a list of batch ids may have."""
_VISIBLE: Final = frozenset({BatchState.PROMOTED, BatchState.HELD})
_IN_FILES: Final = frozenset({BatchState.PROMOTED, BatchState.REVERTED, BatchState.REPLACED})
"""Their bytes may still be in files."""
CHANGED_STATES: Final[Mapping[Operation, frozenset[BatchState]]] = {
    Operation.REVERT: _VISIBLE,
    Operation.REPLAY: _VISIBLE,
    Operation.APPROVE: frozenset({BatchState.HELD}),
    Operation.ERASE: _IN_FILES | {BatchState.HELD},
    Operation.REDACT: _IN_FILES,
}
"""The states of batches that an operation changes, if a selection and not their ids names the batches."""
_OF_WAITING: Final = frozenset({Operation.REVERT, Operation.REPLAY, Operation.ERASE})
"""The operations that also concern batches which are not promoted yet: they must not be promoted later."""


@dataclass(frozen=True)
class Deliveries:
    """The batches that runs of other programs delivered, by the reference of the run."""

    known: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Ids of batches that the ledger records, in any state."""
    waiting: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Ids of complete batches in the buffer."""

    def of(self, reference: str) -> tuple[str, ...]:
        """The ids of all batches of a run, sorted."""
        return tuple(sorted({*self.known.get(reference, ()), *self.waiting.get(reference, ())}))


NONE_DELIVERED: Final = Deliveries()


def named_batches(batch_ids: str | Sequence[str], reference: str) -> tuple[str, ...]:
    """The ids that a call of `revert` names, each once; empty: it names a reference instead.

    Raises:
        InputError: `NoBatchIds`, if it names neither or both.
    """
    ids = tuple(dict.fromkeys((batch_ids,) if isinstance(batch_ids, str) else batch_ids))
    if bool(ids) == bool(reference):
        raise InputError("NoBatchIds", "Name at least one batch to revert in batch_ids, or a reference, and not both.")
    return ids


def references_of(requests: Iterable[RestatementRequest]) -> frozenset[str]:
    """The references that these requests name."""
    return frozenset(r.reference for r in requests if r.reference)


def with_candidates(requests: Iterable[RestatementRequest], deliveries: Deliveries) -> list[RestatementRequest]:
    """The requests with the ids of all batches that they may concern, to sort them and to read the entries at once."""
    return [r.model_copy(update={"batch_ids": deliveries.of(r.reference)}) if r.reference else r for r in requests]


def with_selected(ledger: Ledger, request: RestatementRequest, deliveries: Deliveries) -> RestatementRequest:
    """The request with the ids of the batches that it concerns on this ledger. Without a reference, as it is.

    Raises:
        InputError: `UnknownBatches`, if there is no such batch; `TooManyBatches`.
    """
    if not request.reference:
        return request
    ids = deliveries.of(request.reference)
    entries = get_many(ledger.batches, ids)
    waiting = frozenset(deliveries.waiting.get(request.reference, ())) if request.operation in _OF_WAITING else ()
    states = CHANGED_STATES.get(request.operation, frozenset())
    changed = {i for i, entry in entries.items() if entry.state in states}
    blocked = {i for i, entry in entries.items() if entry.blocks_promotion}
    chosen = tuple(i for i in ids if i in changed or (i in waiting and i not in blocked))
    if not chosen:
        raise InputError(UNKNOWN_BATCHES, _none(request, [entries[i].state for i in entries]))
    if len(chosen) > BATCHES_AT_MOST:
        raise InputError(
            "TooManyBatches",
            f"Restatement {request.name}: spec.selector.reference {request.reference!r} delivered {len(chosen)} batches, "
            f"expected at most {BATCHES_AT_MOST}. Nothing was changed. Name them in several lists, see spec.batchIdsFrom.",
        )
    return request.model_copy(update={"batch_ids": chosen})


def _none(request: RestatementRequest, states: Sequence[BatchState]) -> str:
    others = ", ".join(f"{states.count(s)} {s.value}" for s in dict.fromkeys(sorted(states)))
    there = f" Of its batches, {others}." if others else " Neither the table nor the buffer has a batch of it."
    return (
        f"Restatement {request.name}: spec.selector.reference {request.reference!r} delivered no batch to "
        f"{request.operation.value.lower()}.{there} Nothing was changed. `lethe batches` with -o wide shows "
        "references."
    )
