"""Finds the batches of a run in a listing of the buffer, and of the other batches what the run must report. Pure.

The listing is read folder by folder. Only the requested batches and the oldest waiting batches are kept, so memory does not
grow with the size of the buffer.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from lethe.buffer.batch_rows import BUFFERED_AT_MOST, BatchRow, buffered_row
from lethe.buffer.digest import LookUp, pieces
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.buffer.promotion import is_left
from lethe.ledger.ledger import BatchEntry


@dataclass
class SelectedBatches:
    """The batches found in a listing, by id."""

    batches: dict[str, BufferedBatch] = field(default_factory=dict)
    """Requested batches that are complete and have one folder or file. Some may have no data files."""
    entries: dict[str, BatchEntry] = field(default_factory=dict)
    """The ledger's entries of `batches`."""
    left: list[str] = field(default_factory=list)
    """Ids of other batches that were refused and still have objects in the buffer."""
    _waiting: dict[str, BatchRow] = field(default_factory=dict)
    """Not requested and not in the ledger."""
    _of_run: dict[str, BatchRow] = field(default_factory=dict)
    """Requested and not in the ledger."""
    _seen: set[str] = field(default_factory=set)
    """Ids of requested batches."""
    _ambiguous: set[str] = field(default_factory=set)
    """Ids of more than one folder or file."""

    def waiting_but(self, *settled: Container[str]) -> tuple[BatchRow, ...]:
        """The oldest waiting batches, oldest first.

        Args:
            settled: Ids of requested batches that no longer wait.
        """
        rows = [*self._waiting.values(), *(r for i, r in self._of_run.items() if not any(i in s for s in settled))]
        return tuple(sorted(rows, key=_age)[:BUFFERED_AT_MOST])

    def _add(self, batch: BufferedBatch, entry: BatchEntry | None, is_requested: bool) -> None:
        if batch.id in self._ambiguous or batch.id in self._seen or batch.id in self._waiting:
            # Two folders of one id: it is unknown which of them the producer means.
            self._ambiguous.add(batch.id)
            for batches_by_id in (self.batches, self.entries, self._waiting, self._of_run):
                batches_by_id.pop(batch.id, None)
            return
        if is_requested:
            self._seen.add(batch.id)
        if is_requested and batch.complete:
            self.batches[batch.id] = batch
            if entry is not None:
                self.entries[batch.id] = entry
        elif is_left(batch, entry):
            self.left.append(batch.id)
        if entry is None and batch.complete and batch.data_objects:
            (self._of_run if is_requested else self._waiting)[batch.id] = buffered_row(batch)
            if len(self._waiting) >= 2 * BUFFERED_AT_MOST:
                oldest = sorted(self._waiting.values(), key=_age)[:BUFFERED_AT_MOST]
                self._waiting = {r.batch_id: r for r in oldest}


def find(folders: Iterable[BufferedBatch | NoBatch], requested_ids: Container[str], look_up: LookUp) -> SelectedBatches:
    """Find batches in a listing.

    Args:
        folders: In the order of the listing.
        requested_ids: The ids of the requested batches.
        look_up: Returns the ledger's entries of some ids. Called once for each piece of the listing.
    """
    selected = SelectedBatches()
    for piece in pieces(folders):
        batches = [f for f in piece if isinstance(f, BufferedBatch)]
        entries = look_up([b.id for b in batches])
        for batch in batches:
            selected._add(batch, entries.get(batch.id), batch.id in requested_ids)
    return selected


def _age(row: BatchRow) -> tuple[object, str]:
    return row.state_time, row.batch_id
