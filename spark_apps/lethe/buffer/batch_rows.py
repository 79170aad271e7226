"""The batches table of a table: its rows, made from ledger entries, its totals, and which of its files an update rewrites. Pure.

The batches table is a projection of the ledger and can be recreated from it at any time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lethe.base import names
from lethe.buffer.layout import BufferedBatch
from lethe.contract.run import Provenance
from lethe.ledger.ledger import BatchEntry, BatchState

BUFFERED: Final = "buffered"
STATES: Final = (*(s.value for s in BatchState), BUFFERED)
BUFFERED_AT_MOST: Final = 20_000
"""The maximum number of rows for waiting batches; the oldest are shown."""


@dataclass(frozen=True)
class BatchRow:
    """A row of the batches table, its fields in the order of the columns. None: unknown, or not applicable."""

    batch_id: str
    state: str
    """One of STATES."""
    state_time: datetime
    """When the batch reached this state; for a buffered batch, when its oldest object was written."""
    rows: int | None = None
    bytes: int | None = None
    """The size of its objects in the buffer."""
    objects: int | None = None
    """The number of its objects in the buffer; None: the batch did not come from the buffer."""
    snapshot_id: int | None = None
    run_id: str | None = None
    restatement: str | None = None
    replaced_by: str | None = None
    refusal_reason: str | None = None
    refusal_message: str | None = None
    evict_by: datetime | None = None
    reason: str | None = None
    """Why the Restatement was requested, as all that follows."""
    ticket: str | None = None
    requested_by: str | None = None
    reference: str | None = None
    """The id of the run of another program that delivered it."""


def row_of(entry: BatchEntry, provenance: Provenance | None = None) -> BatchRow:
    """The row of a batch that the ledger records.

    Args:
        provenance: Of the Restatement that set the state of the batch; None: there is none, or it is unknown.
    """
    asked = provenance or Provenance()
    refusal = entry.refusal
    return BatchRow(
        batch_id=entry.id,
        state=entry.state.value,
        state_time=entry.time,
        rows=entry.rows,
        bytes=entry.bytes,
        objects=len(entry.objects) or None,  # a batch that did not come from the buffer has none
        snapshot_id=entry.snapshot_id,
        run_id=entry.run,
        restatement=entry.restatement,
        replaced_by=entry.replaced_by,
        refusal_reason=(refusal.reason or None) if refusal is not None else None,
        refusal_message=refusal.message if refusal is not None else None,
        evict_by=entry.evict_by,
        reason=asked.reason or None,
        ticket=asked.ticket or None,
        requested_by=asked.requested_by or None,
        reference=entry.reference,
    )


def buffered_row(batch: BufferedBatch) -> BatchRow:
    """The row of a complete batch in the buffer that the ledger does not record."""
    return BatchRow(batch.id, BUFFERED, batch.oldest_time, bytes=batch.bytes, objects=len(batch.data_objects))


@dataclass(frozen=True)
class Total:
    """The sums of one state."""

    batches: int = 0
    rows: int = 0
    """Rows of the batches with a known number of rows."""
    bytes: int = 0
    """Bytes of the batches with a known size."""

    def plus(self, other: "Total", sign: int = 1) -> "Total":
        """Add the three numbers of another total, or subtract them with the sign -1. The result may be negative."""
        return Total(
            self.batches + sign * other.batches, self.rows + sign * other.rows, self.bytes + sign * other.bytes
        )


@dataclass(frozen=True)
class Totals:
    """The sums of all states."""

    by_state: Mapping[str, Total] = field(default_factory=dict)
    """Totals by state. States without batches are left out."""

    def __getitem__(self, state: str) -> Total:
        return self.by_state.get(state, Total())

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        """Add state by state, or subtract with the sign -1. States of which nothing is left are dropped."""
        states = self.by_state.keys() | other.by_state.keys()
        return Totals({s: t for s in states if (t := self[s].plus(other[s], sign)) != Total()})

    def minus(self, other: "Totals") -> "Totals":
        """Subtract state by state. States of which nothing is left are dropped; numbers may be negative."""
        return self.plus(other, -1)

    def without(self, state: str) -> "Totals":
        """The sums of all other states; all of them if the state has no batches."""
        return Totals({s: t for s, t in self.by_state.items() if s != state})

    def agree_with(self, counts: Mapping[str, int]) -> bool:
        """Whether the number of batches in each state equals that of a ledger. Buffered batches do not count."""
        return {s: t.batches for s, t in self.without(BUFFERED).by_state.items()} == {
            s: n for s, n in counts.items() if n
        }

    def as_summary(self) -> dict[str, str]:
        """One key for each state and number. Zeros are included, because graphs need them."""
        return {
            names.TRACKING_TOTAL.format(what=what, state=state): str(getattr(self[state], what))
            for state in STATES
            for what in ("batches", "rows", "bytes")
        }

    @classmethod
    def of_summary(cls, summary: Mapping[str, str]) -> "Totals":
        """Read what `as_summary` writes. A missing key counts as 0.

        Raises:
            ValueError: A value is not an integer.
        """

        def number(what: str, state: str) -> int:
            return int(summary.get(names.TRACKING_TOTAL.format(what=what, state=state), "0"))

        all_ = {s: Total(number("batches", s), number("rows", s), number("bytes", s)) for s in STATES}
        return cls({s: t for s, t in all_.items() if t != Total()})


@dataclass(frozen=True)
class Sizes:
    """Sizes of files of the batches table, in rows."""

    floor: int = 4096
    """Files up to this size are always merged."""
    cap: int = 65_536
    """The maximum size of a file; files of this size are not merged."""


def to_merge(records: Sequence[int], new: int, sizes: Sizes) -> tuple[int, ...]:
    """Choose the files of one state that are merged with `new` rows.

    These are the small files, and files no larger than the rows merged so far. So sizes grow geometrically, and each row is
    written O(log n) times. A single file without new rows is not rewritten.

    Args:
        records: The number of rows that remain in each file.

    Returns:
        Positions in `records`.
    """
    size, chosen = new, []
    for index in sorted(range(len(records)), key=lambda n: records[n]):
        if records[index] >= sizes.cap or records[index] > max(sizes.floor, size):
            break
        size += records[index]
        chosen.append(index)
    return tuple(chosen) if new or len(chosen) > 1 else ()
