"""The table of batches beside a table: its rows, made of the ledger's entries, its totals, and which of its files a change
writes anew. Pure.

The ledger is the truth, and the table a projection of it: what is here can be made again at any time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lethe.base import names
from lethe.buffer.batch import BufferedBatch
from lethe.ledger.ledger import BatchEntry, BatchState

BUFFERED: Final = "buffered"
STATES: Final = (*(s.value for s in BatchState), BUFFERED)
# Of all that waits, so many are shown, the oldest: a buffer may hold more than anybody would look through.
BUFFERED_AT_MOST: Final = 20_000


@dataclass(frozen=True)
class BatchRow:
    """A row of the table, its fields in the order of the columns. `state_time`: since when it is in this state, a buffered
    one when the oldest of its objects was written; `bytes` and `objects` of the buffer."""

    batch_id: str
    state: str
    state_time: datetime
    rows: int | None = None
    bytes: int | None = None
    objects: int | None = None
    snapshot_id: int | None = None
    run_id: str | None = None
    restatement: str | None = None
    replaced_by: str | None = None
    refusal_reason: str | None = None
    refusal_message: str | None = None
    evict_by: datetime | None = None


def row_of(entry: BatchEntry) -> BatchRow:
    """What the ledger remembers of a batch, as a row."""
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
    )


def buffered_row(batch: BufferedBatch) -> BatchRow:
    """What lies complete in the buffer and is not known to the ledger, as a row."""
    return BatchRow(batch.id, BUFFERED, batch.oldest_time, bytes=batch.bytes, objects=len(batch.data_objects))


@dataclass(frozen=True)
class Total:
    """Of one state. `rows` and `bytes` leave out batches of which they are not known."""

    batches: int = 0
    rows: int = 0
    bytes: int = 0

    def plus(self, other: "Total", sign: int = 1) -> "Total":
        return Total(
            self.batches + sign * other.batches, self.rows + sign * other.rows, self.bytes + sign * other.bytes
        )


@dataclass(frozen=True)
class Totals:
    """Batches, rows and bytes by state; a state of no batches is not there."""

    by_state: Mapping[str, Total] = field(default_factory=dict)

    def __getitem__(self, state: str) -> Total:
        return self.by_state.get(state, Total())

    def plus(self, other: "Totals", sign: int = 1) -> "Totals":
        states = self.by_state.keys() | other.by_state.keys()
        return Totals({s: t for s in states if (t := self[s].plus(other[s], sign)) != Total()})

    def minus(self, other: "Totals") -> "Totals":
        return self.plus(other, -1)

    def without(self, state: str) -> "Totals":
        return Totals({s: t for s, t in self.by_state.items() if s != state})

    def agree_with(self, counts: Mapping[str, int]) -> bool:
        """Whether there are as many batches in each state as a ledger counts; what waits is in none."""
        return {s: t.batches for s, t in self.without(BUFFERED).by_state.items()} == {
            s: n for s, n in counts.items() if n
        }

    def as_summary(self) -> dict[str, str]:
        """One key for each state and number, 0 included: whoever draws a graph needs the zeros."""
        return {
            names.TRACKING_TOTAL.format(what=what, state=state): str(getattr(self[state], what))
            for state in STATES
            for what in ("batches", "rows", "bytes")
        }

    @classmethod
    def of_summary(cls, summary: Mapping[str, str]) -> "Totals":
        def number(what: str, state: str) -> int:
            return int(summary.get(names.TRACKING_TOTAL.format(what=what, state=state), "0"))

        all_ = {s: Total(number("batches", s), number("rows", s), number("bytes", s)) for s in STATES}
        return cls({s: t for s, t in all_.items() if t != Total()})


@dataclass(frozen=True)
class Sizes:
    """In rows. `floor`: files up to this size are always merged; `cap`: no file is larger."""

    floor: int = 4096
    cap: int = 65_536


def to_merge(records: Sequence[int], new: int, sizes: Sizes) -> tuple[int, ...]:
    """Which files of one state are written together with `new` rows, by their positions: the small ones, and those no larger
    than what is merged already, so that sizes grow geometrically and a row is written O(log n) times. Nothing is merged
    with itself.

    Args:
        records: Of each file, how many rows stay in it.
    """
    size, chosen = new, []
    for at in sorted(range(len(records)), key=lambda n: records[n]):
        if records[at] >= sizes.cap or records[at] > max(sizes.floor, size):
            break
        size += records[at]
        chosen.append(at)
    return tuple(chosen) if new or len(chosen) > 1 else ()
