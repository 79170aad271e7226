"""The ledger of a table as of a snapshot, and a change to it. Pure: values in, values out, nothing is mutated.

A ledger is what a snapshot of ours points to: the active tombstones, the batches it ever heard of, the restatements
it carried out, the open erasures, and the carriers of retained bare snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from lethe.ledger.tombstone import Tombstone, merged


class BatchState(StrEnum):
    PROMOTED = "promoted"
    REVERTED = "reverted"
    REPLACED = "replaced"
    ERASED = "erased"
    REFUSED = "refused"


@dataclass(frozen=True)
class BufferedObject:
    """An object of the buffer as it was promoted; retention deletes exactly this and nothing else."""

    key: str  # full URI
    size: int  # bytes
    etag: str


@dataclass(frozen=True)
class BatchEntry:
    """What the table remembers of a batch, for ever: its id is never reused."""

    id: str
    state: BatchState
    run: str  # the run that set this state
    time: datetime
    restatement: str | None = None  # request key that reverted, replaced or added it
    replaced_by: str | None = None
    rows: int | None = None  # None: never promoted by us, so not known
    bytes: int | None = None
    snapshot_id: int | None = None  # None until the commit after the one that promoted it, see Ledger.pending_run
    objects: tuple[BufferedObject, ...] = ()
    refusal: str | None = None  # reason and message, of a refused batch

    @property
    def blocks_promotion(self) -> bool:
        """Promoted already, or taken back before it came."""
        return self.state is not BatchState.REFUSED


@dataclass(frozen=True)
class RequestEntry:
    """The result of one Restatement, by its request key. `result` is a RequestResult as plain JSON values."""

    key: str
    run: str
    time: datetime
    result: Mapping[str, Any]


@dataclass(frozen=True)
class Erasure:
    """An open obligation: physical rows must go by `evict_by`. Never holds the value itself."""

    restatement: str
    field_id: int
    evict_by: datetime


@dataclass(frozen=True)
class Carrier:
    """A snapshot whose ledger retained bare snapshots resolve to, kept in case the carrier itself is expired. `bare` are
    those snapshots: for any other one, this carrier proves nothing."""

    snapshot_id: int
    sequence_number: int
    ledger: str  # URI of its root
    bare: tuple[int, ...] = ()


_EMPTY: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Ledger:
    """`version` counts commits of ours on this lineage; `pending_run` is the run that wrote it, whose snapshot id could
    not be known before the commit and is filled into its entries by the next one."""

    version: int = 0
    pending_run: str = ""
    tombstones: Mapping[tuple[int, str], Tombstone] = field(default_factory=lambda: _EMPTY)
    batches: Mapping[str, BatchEntry] = field(default_factory=lambda: _EMPTY)
    requests: Mapping[str, RequestEntry] = field(default_factory=lambda: _EMPTY)
    erasures: tuple[Erasure, ...] = ()
    carriers: tuple[Carrier, ...] = ()

    def ids(self, field_id: int) -> frozenset[str]:
        """The tombstoned values of one column."""
        return frozenset(t.id for t in self.tombstones.values() if t.namespace == field_id)

    def knows_run(self, run: str) -> bool:
        """Whether a commit of this run is in this ledger's history."""
        return (
            self.pending_run == run
            or any(b.run == run for b in self.batches.values())
            or any(r.run == run for r in self.requests.values())
        )


EMPTY = Ledger()


@dataclass(frozen=True)
class Delta:
    """A change to a ledger, planned on one ledger and valid for that one only: on another, plan again."""

    run: str
    add_tombstones: tuple[Tombstone, ...] = ()
    remove_tombstones: frozenset[tuple[int, str]] = frozenset()
    set_batches: tuple[BatchEntry, ...] = ()
    set_requests: tuple[RequestEntry, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.add_tombstones or self.remove_tombstones or self.set_batches or self.set_requests)


def settle(ledger: Ledger, snapshot_id: int | None) -> Ledger:
    """The ledger with its own snapshot's id filled into the entries that its commit wrote.

    `snapshot_id` is that of the carrier the ledger was read from, None when there is none.
    """
    run = ledger.pending_run
    if not run or snapshot_id is None:
        return ledger
    batches = {
        k: replace(b, snapshot_id=snapshot_id) if b.run == run and b.snapshot_id is None else b
        for k, b in ledger.batches.items()
    }
    requests = {
        k: replace(r, result={**r.result, "snapshotId": snapshot_id})
        if r.run == run and r.result.get("snapshotId") is None and r.result.get("succeeded")
        else r
        for k, r in ledger.requests.items()
    }
    return replace(ledger, batches=batches, requests=requests)


def apply(ledger: Ledger, delta: Delta, carriers: tuple[Carrier, ...] = ()) -> Ledger:
    """The ledger after `delta`. Removal comes before addition, so that a delta may re-arm what it purges."""
    kept = {k: t for k, t in ledger.tombstones.items() if k not in delta.remove_tombstones}
    return replace(
        ledger,
        version=ledger.version + 1,
        pending_run=delta.run,
        tombstones=merged(kept, delta.add_tombstones),
        batches={**ledger.batches, **{b.id: b for b in delta.set_batches}},
        requests={**ledger.requests, **{r.key: r for r in delta.set_requests}},
        carriers=carriers,
    )
