"""Decides which objects of the buffer may be deleted: only those that were promoted and are unchanged since. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from lethe.base import names
from lethe.buffer.batch import BufferedBatch
from lethe.ledger.ledger import BatchEntry, BatchState, BufferedObject, Ledger


@dataclass(frozen=True)
class Sweep:
    """The objects of promoted batches that retention deletes or reports."""

    delete: tuple[BufferedObject, ...] = ()
    unexpected: tuple[BufferedObject, ...] = ()  # not promoted with their batch: reported, never deleted


def plan_sweep(batches: Iterable[BufferedBatch], ledger: Ledger, retention_seconds: int, now: datetime) -> Sweep:
    """Plan the deletion of objects whose batches were promoted longer ago than the retention."""
    sweeps = [
        sweep_of(batch, entry, retention_seconds, now)
        for batch in batches
        if (entry := ledger.batches.get(batch.id)) is not None
    ]
    return Sweep(tuple(o for s in sweeps for o in s.delete), tuple(o for s in sweeps for o in s.unexpected))


def sweep_of(batch: BufferedBatch, entry: BatchEntry, retention_seconds: int, now: datetime) -> Sweep:
    """Decide which objects of one batch may be deleted.

    An object is deleted only if its key, size and ETag are those recorded at promotion. The `_SUCCESS` marker of a folder is
    deleted together with the last object. The objects of batches that were reverted or replaced after promotion are deleted
    in the same way. Nothing of a registered batch is deleted, whatever the Dataset's current mode: its objects are data files
    of the table, and only the expiry of snapshots shows that they are no longer needed.
    """
    if entry.state is BatchState.REFUSED or not entry.objects:
        return Sweep()
    recorded = {o.key: o for o in entry.objects}
    data = [o for o in batch.objects if not o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    unexpected = tuple(o for o in data if recorded.get(o.key) != o)
    if entry.registered or entry.time + timedelta(seconds=retention_seconds) > now:
        return Sweep((), unexpected)
    delete = [o for o in data if recorded.get(o.key) == o]
    if not unexpected:
        delete += [o for o in batch.objects if o.key.endswith(f"/{names.SUCCESS_MARKER}")]
    return Sweep(tuple(delete), unexpected)
