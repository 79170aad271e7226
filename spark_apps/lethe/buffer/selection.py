"""What a run finds of its batches in a listing of the buffer: all that it asked for, and of the rest what it must tell. Pure.

The listing goes by folder by folder. Kept are the batches that were asked for and the oldest of those that wait, so that what
a run needs does not grow with what lies in the buffer.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.batch_rows import BUFFERED_AT_MOST, BatchRow, buffered_row
from lethe.buffer.digest import LookUp, pieces
from lethe.buffer.refusals import is_left
from lethe.ledger.ledger import BatchEntry


@dataclass
class Found:
    """What became of a listing.

    Args:
        batches: Those asked for that are there, complete, under one name; also such without data files.
        entries: What the ledger knows of them.
        left: Others that were refused before, and of which there are still objects.
    """

    batches: dict[str, BufferedBatch] = field(default_factory=dict)
    entries: dict[str, BatchEntry] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    _waiting: dict[str, BatchRow] = field(default_factory=dict)
    _of_run: dict[str, BatchRow] = field(default_factory=dict)  # those asked for that the ledger does not know
    _seen: set[str] = field(default_factory=set)  # of those asked for
    _ambiguous: set[str] = field(default_factory=set)

    def waiting_but(self, *settled: Container[str]) -> tuple[BatchRow, ...]:
        """The batches that wait, when some of those asked for do not any more, the oldest first, bounded."""
        rows = [*self._waiting.values(), *(r for i, r in self._of_run.items() if not any(i in s for s in settled))]
        return tuple(sorted(rows, key=_age)[:BUFFERED_AT_MOST])

    def _add(self, batch: BufferedBatch, entry: BatchEntry | None, wanted: bool) -> None:
        if batch.id in self._ambiguous or batch.id in self._seen or batch.id in self._waiting:
            # Two folders of one id: nobody can tell which is meant.
            self._ambiguous.add(batch.id)
            for known in (self.batches, self.entries, self._waiting, self._of_run):
                known.pop(batch.id, None)
            return
        if wanted:
            self._seen.add(batch.id)
        if wanted and batch.complete:
            self.batches[batch.id] = batch
            if entry is not None:
                self.entries[batch.id] = entry
        elif is_left(batch, entry):
            self.left.append(batch.id)
        if entry is None and batch.complete and batch.data_objects:
            (self._of_run if wanted else self._waiting)[batch.id] = buffered_row(batch)
            if len(self._waiting) >= 2 * BUFFERED_AT_MOST:
                oldest = sorted(self._waiting.values(), key=_age)[:BUFFERED_AT_MOST]
                self._waiting = {r.batch_id: r for r in oldest}


def find(folders: Iterable[BufferedBatch | NoBatch], wanted: Container[str], look_up: LookUp) -> Found:
    """Go through a listing.

    Args:
        folders: As the buffer lists them.
        wanted: The ids that are asked for.
        look_up: Those of some ids that the ledger knows, with their entries; asked once for each piece of the listing.
    """
    found = Found()
    for piece in pieces(folders):
        batches = [f for f in piece if isinstance(f, BufferedBatch)]
        entries = look_up([b.id for b in batches])
        for batch in batches:
            found._add(batch, entries.get(batch.id), batch.id in wanted)
    return found


def _age(row: BatchRow) -> tuple[object, str]:
    return row.state_time, row.batch_id
