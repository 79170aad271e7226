"""Which objects of the buffer may be deleted: exactly those that were promoted, as they were. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lethe.base import names
from lethe.buffer.batch import BufferedBatch
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Ledger


@dataclass(frozen=True)
class Sweep:
    """`unexpected`: objects in a promoted batch's folder that were not promoted with it; reported, never deleted."""

    delete: tuple[BufferedObject, ...] = ()
    unexpected: tuple[BufferedObject, ...] = ()


def plan_sweep(batches: Iterable[BufferedBatch], ledger: Ledger, retention_seconds: int, now: datetime) -> Sweep:
    """Objects of batches that are in a committed snapshot for longer than the retention."""
    sweeps = [
        sweep_of(batch, entry, retention_seconds, now)
        for batch in batches
        if (entry := ledger.batches.get(batch.id)) is not None
    ]
    return Sweep(tuple(o for s in sweeps for o in s.delete), tuple(o for s in sweeps for o in s.unexpected))


def sweep_of(batch: BufferedBatch, entry: BatchEntry, retention_seconds: int, now: datetime) -> Sweep:
    """What of one batch may go.

    An object goes only if key, size and ETag are those recorded at promotion. The `_SUCCESS` marker of a folder goes
    with the last object of it. Batches taken back later were promoted once too: their recorded objects go likewise. Of a
    registered batch nothing goes, whatever the Dataset says today: its objects are the table's files, and only the expiry
    of snapshots may tell that no reader needs them any more.
    """
    if entry.state is BatchState.REFUSED or not entry.objects:
        return Sweep()
    recorded = {o.key: o for o in entry.objects}
    data = [o for o in batch.objects if not o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    strangers = tuple(o for o in data if recorded.get(o.key) != o)
    if entry.registered or entry.time + timedelta(seconds=retention_seconds) > now:
        return Sweep((), strangers)
    delete = [o for o in data if recorded.get(o.key) == o]
    if not strangers:
        delete += [o for o in batch.objects if o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    return Sweep(tuple(delete), strangers)
