"""Which ledger a snapshot has: that of its nearest ancestor that carries one. Pure.

Nobody inherits summary keys for us: a foreign commit yields a *bare* snapshot, and its ledger is found by walking.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lethe import names
from lethe.errors import LedgerError
from lethe.ledger.ledger import Carrier


@dataclass(frozen=True)
class Snapshot:
    """The part of an Iceberg snapshot that matters here; `timestamp_ms` in epoch milliseconds."""

    id: int
    parent_id: int | None
    sequence_number: int
    timestamp_ms: int
    summary: Mapping[str, str] = field(default_factory=dict)

    @property
    def ledger(self) -> str | None:
        return self.summary.get(names.LEDGER)


@dataclass(frozen=True)
class Resolution:
    """`pointer` is the URI of the ledger's root, None at a root of history (the empty ledger); `carrier_id` the snapshot
    that carries it (None too when it was found in the carriers list); `bare` the snapshots walked over, newest first."""

    pointer: str | None
    carrier_id: int | None
    bare: tuple[int, ...] = ()


def resolve(
    snapshots: Mapping[int, Snapshot], snapshot_id: int | None, carriers: Sequence[Carrier] = (), table: str = "table"
) -> Resolution:
    """Walk from `snapshot_id` to the nearest carrier.

    Args:
        snapshots: Every retained snapshot, by id.
        snapshot_id: Where to start; None is a table without snapshots.
        carriers: The carriers list of the newest ledger of this table, for snapshots whose carrier was expired.
        table: For the message.
    Raises: LedgerError (`LedgerLost`), if the walk ends at an expired parent that the carriers list cannot stand for.
    """
    bare: list[int] = []
    current = snapshot_id
    while current is not None:
        snapshot = snapshots.get(current)
        if snapshot is None:
            below = snapshots[bare[-1]].sequence_number
            known = [c for c in carriers if c.sequence_number < below]
            if known:
                newest = max(known, key=lambda c: c.sequence_number)
                return Resolution(newest.ledger, newest.snapshot_id, tuple(bare))
            raise LedgerError(
                "LedgerLost",
                f"{table}: snapshot {bare[0]} has no ledger of its own, and its ancestor {current}, which might carry "
                "it, was expired. Reading would show deleted rows. Roll back to a snapshot that carries "
                f"`{names.LEDGER}`, or let Lethe commit before snapshots are expired.",
            )
        if snapshot.ledger is not None:
            return Resolution(snapshot.ledger, snapshot.id, tuple(bare))
        bare.append(current)
        current = snapshot.parent_id
    return Resolution(None, None, tuple(bare))


def is_ancestor(snapshots: Mapping[int, Snapshot], ancestor: int, of: int | None) -> bool:
    """Whether `ancestor` is `of` or one of its retained ancestors. A rolled-back head fails this."""
    while of is not None:
        if of == ancestor:
            return True
        of = snapshots[of].parent_id if of in snapshots else None
    return False


def needed_carriers(snapshots: Mapping[int, Snapshot], known: Sequence[Carrier] = ()) -> tuple[Carrier, ...]:
    """The carriers list for the next ledger: what retained bare snapshots resolve to, oldest first."""
    needed: dict[int, Carrier] = {}
    for snapshot in snapshots.values():
        if snapshot.ledger is not None:
            continue
        try:
            found = resolve(snapshots, snapshot.id, known)
        except LedgerError:
            continue
        if found.pointer is None or found.carrier_id is None:
            continue
        carrier = snapshots.get(found.carrier_id)
        sequence = (
            carrier.sequence_number
            if carrier
            else next(c.sequence_number for c in known if c.snapshot_id == found.carrier_id)
        )
        needed[found.carrier_id] = Carrier(found.carrier_id, sequence, found.pointer)
    return tuple(sorted(needed.values(), key=lambda c: c.sequence_number))
