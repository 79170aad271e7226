"""Random acts and faults that follow from a seed alone. Pure.

Both are endless: whoever carries them out stops when the time is over. A seed gives the same plan, however long each act takes.
"""

from collections.abc import Iterator
from itertools import count
from random import Random

from tests.cluster.chaos.acts import (
    Act,
    Batch,
    Change,
    Erase,
    EraseRows,
    Fault,
    FaultKind,
    Put,
    Replay,
    Revert,
    Step,
    Undo,
    Vacuum,
)

# How often a kind of act is chosen, relative to the others.
WEIGHTS = {Put: 5, Revert: 3, Undo: 2, Replay: 3, Change: 2, EraseRows: 1, Erase: 1, Vacuum: 1}
FIRST_BATCHES = 4
AT_MOST_AT_ONCE = 3
ROWS = (10, 60)  # of a batch
KEPT_AT_LEAST = 6  # rows of a batch that later acts may use
IDS_PER_BATCH = 1000
# Of a fault.
AFTER_SECONDS, LASTS_SECONDS = (8.0, 30.0), (3.0, 15.0)


def steps(seed: int, dataset: int) -> Iterator[Step]:
    """The acts of one table. The acts of a step concern different batches, and an undone batch is left alone."""
    return _Steps(Random(f"{seed}/acts/{dataset}"), dataset).each()


def faults(seed: int) -> Iterator[Fault]:
    """Rounds with each kind of fault once, each round in another order."""
    random = Random(f"{seed}/faults")
    while True:
        for kind in random.sample(list(FaultKind), len(FaultKind)):
            yield Fault(kind, random.uniform(*AFTER_SECONDS), random.uniform(*LASTS_SECONDS), random.randrange(1000))


class _Steps:
    """Chooses acts. `free` are visible batches with the ids of their rows that no act has changed."""

    def __init__(self, random: Random, dataset: int) -> None:
        self._random = random
        self._dataset = dataset
        self._number = count()
        self._free: dict[str, frozenset[int]] = {}
        self._reverts: list[Revert] = []  # that are not undone

    def each(self) -> Iterator[Step]:
        first = [self._batch() for _ in range(FIRST_BATCHES)]
        self._free = {b.id: b.ids for b in first}
        yield tuple(Put(b) for b in first)
        while True:
            yield self._step()

    def _step(self) -> Step:
        pool, reverts = dict(self._free), list(self._reverts)
        made: dict[str, frozenset[int]] = {}
        acts: list[Act] = []
        for _ in range(self._random.randint(1, AT_MOST_AT_ONCE)):
            may_vacuum = not any(isinstance(a, Vacuum) for a in acts)  # the annotation has room for one
            acts.append(self._act(pool, reverts, made, may_vacuum))
        self._reverts = reverts + [a for a in acts if isinstance(a, Revert)]
        self._free = pool | made
        return tuple(acts)

    def _act(
        self, pool: dict[str, frozenset[int]], reverts: list[Revert], made: dict[str, frozenset[int]], may_vacuum: bool
    ) -> Act:
        """Choose an act.

        Args:
            pool: The batches that it may use. It takes out those that it uses.
            reverts: The Reverts that it may undo.
            made: It adds batches that later steps may use.
        """
        can = {Undo: bool(reverts), Vacuum: may_vacuum, Put: True}
        possible = [kind for kind in WEIGHTS if can.get(kind, bool(pool))]
        kind = self._random.choices(possible, [WEIGHTS[k] for k in possible])[0]
        name = f"{kind.__name__.lower()}-{next(self._number)}"
        if kind is Put:
            batch = self._batch()
            made[batch.id] = batch.ids
            return Put(batch)
        if kind is Vacuum:
            return Vacuum(name)
        if kind is Undo:
            return Undo(name, reverts.pop(self._random.randrange(len(reverts))))
        if kind is Change or kind is EraseRows:
            source = self._random.choice(sorted(pool))
            ids = sorted(pool.pop(source))
            chosen = self._random.sample(ids, self._random.randint(2, 6))
            if len(ids) >= KEPT_AT_LEAST + len(chosen):
                made[source] = frozenset(ids) - set(chosen)
            if kind is EraseRows:
                return EraseRows(name, tuple(chosen))
            by, half = f"d{self._dataset}b{next(self._number)}", (len(chosen) + 1) // 2
            return Change(name, by, tuple(chosen[:half]), tuple(chosen[half:]))
        batches = tuple(self._random.sample(sorted(pool), min(len(pool), self._random.randint(1, 2))))
        for b in batches:
            del pool[b]
        if kind is Replay:
            batch = self._batch()
            made[batch.id] = batch.ids
            return Replay(name, batches, batch)
        return Revert(name, batches) if kind is Revert else Erase(name, batches)

    def _batch(self) -> Batch:
        number = next(self._number)
        rows, day = self._random.randint(*ROWS), self._random.randint(1, 5)
        return Batch(f"d{self._dataset}b{number}", number * IDS_PER_BATCH, rows, day)
