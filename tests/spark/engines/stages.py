"""The stages that a table goes through before engines read it: what happens, and which rows there are then."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from lethe.contract.settings import Deletes

from tests.spark.support.native_deletes import Native
from tests.spark.support.story import of_batches

ROWS: Final = 100  # of each batch that is there from the beginning
NEW_ROWS: Final = 50  # of the batch that replaces another
LATE: Final = (("B", 1_000_000), ("B", 1_000_001))
Rows = Counter[tuple[str | None, int]]


@dataclass(frozen=True)
class Stage:
    """One change of a table, and its rows afterwards."""

    name: str
    change: Callable[[Native], object]
    batches: tuple[str, ...]
    """Whose rows are right."""
    hidden: tuple[str, ...] = ()
    """Those whose rows data files still have."""
    late: bool | None = None
    """Another writer has added rows of a hidden batch. True: nothing deletes them natively yet; None: it has not."""

    @property
    def right(self) -> Rows:
        """The rows that Lethe's readers find."""
        return _rows(self.batches)

    @property
    def with_late_rows(self) -> Rows:
        """What the native deletes leave."""
        return self.right + Counter(LATE if self.late else ())

    @property
    def every(self) -> Rows:
        """All that is in data files."""
        return _rows((*self.batches, *self.hidden)) + Counter(LATE if self.late is not None else ())

    def found_by_others(self, deletes: Deletes) -> Rows:
        """What an engine finds that knows no ledger."""
        return self.every if deletes is Deletes.LEDGER else self.with_late_rows


def _rows(batches: Iterable[str]) -> Rows:
    found = (of_batches(b, rows=NEW_ROWS if b == "B2" else ROWS) for b in batches)
    return Counter({row[:2]: n for part in found for row, n in part.items()})


def _load(story: Native) -> None:
    """Three batches in the same files."""
    story.put("A", "B", "C", rows=ROWS)
    story.consolidate("A", "B", "C")


def _append_late_rows(story: Native) -> None:
    values = ", ".join(f"({v}, 1, '{batch}')" for batch, v in LATE)
    story.sql(f"INSERT INTO {{t}} (v, day, batch_id) VALUES {values}")


BEGIN: Final = Stage("the first batches", _load, ("A", "B", "C"))
STAGES: Final = (
    Stage("Revert", lambda s: s.revert("B"), ("A", "C"), hidden=("B",)),
    Stage("Undo", lambda s: s.undo(), ("A", "B", "C")),
    Stage("Replay", lambda s: s.replay("B", by="B2", rows=NEW_ROWS), ("A", "C", "B2"), hidden=("B",)),
    Stage("late rows", _append_late_rows, ("A", "C", "B2"), hidden=("B",), late=True),
    Stage("the operator's run", lambda s: s.run(s.following()), ("A", "C", "B2"), hidden=("B",), late=False),
    Stage("vacuum", lambda s: s.vacuum(), ("A", "C", "B2")),
)
