"""What a table must contain after any sequence of acts. Pure, and without Lethe's code."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from tests.cluster.chaos.acts import Act, Change, Erase, EraseRows, Put, Replay, Revert, Undo, Vacuum

Row: TypeAlias = tuple[str, int]  # batch and id


@dataclass
class Model:
    shown: dict[str, frozenset[int]] = field(default_factory=dict)  # by batch, the ids of its visible rows
    hidden: dict[str, frozenset[int]] = field(
        default_factory=dict
    )  # by reverted batch, the ids that an Undo brings back
    erased: frozenset[Row] = frozenset()  # no object of the table may contain them in the end
    # A vacuum may have purged reverted batches. Before it, an Undo has no reason to fail.
    purging: bool = False

    @property
    def rows(self) -> Counter[Row]:
        return Counter((batch, i) for batch, ids in self.shown.items() for i in ids)

    def may_refuse(self, act: Act) -> bool:
        """Whether Lethe may refuse an act because the rows that it needs are purged."""
        return isinstance(act, Undo) and self.purging

    def announce(self, acts: Collection[Act]) -> None:
        """Take note of acts that are about to be applied, in any order: a vacuum may come before the others."""
        self.purging = self.purging or any(isinstance(a, Erase | EraseRows | Vacuum) for a in acts)

    def carry_out(self, act: Act) -> None:
        match act:
            case Put(batch):
                self.shown[batch.id] = batch.ids
            case Revert(_, batches):
                self.hidden |= {b: self.shown.pop(b) for b in batches}
            case Undo(_, of):
                self.shown |= {b: self.hidden.pop(b) for b in of.batches}
            case Erase(_, batches):
                self.erased |= {(b, i) for b in batches for i in self.shown.pop(b)}
            case EraseRows(_, ids):
                self.erased |= self._take_out(ids)
            case Replay(_, batches, by):
                for b in batches:
                    del self.shown[b]
                self.shown[by.id] = by.ids
            case Change(_, by, updates, deletes):
                self._take_out({*updates, *deletes})
                self.shown[by] = frozenset(updates)
            case Vacuum():
                pass
            case _:
                assert_never(act)

    def _take_out(self, ids: Collection[int]) -> frozenset[Row]:
        """Remove rows by their ids. Returns: the visible rows among them."""
        taken = frozenset((b, i) for b, own in self.shown.items() for i in own.intersection(ids))
        self.shown = {b: own.difference(ids) for b, own in self.shown.items()}
        self.hidden = {b: own.difference(ids) for b, own in self.hidden.items()}
        return taken
