"""Random acts and faults that follow from a seed alone. Pure.

Both are endless: whoever carries them out stops when the time is over. A seed gives the same plan, however long each act takes.
Acts and model are those of the random walks in tests/model. They are left to what a cluster can be asked for; chosen here and not
by Hypothesis, because the acts of a step are applied at once.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import count, cycle
from random import Random
from typing import Final, Literal, TypeAlias

import numpy as np

from tests.model.acts import Append, Change, Erase, EraseRows, Replay, Request, Revert, Setup, Undo, Vacuum
from tests.model.model import Model, erased_marks
from tests.model.rows import Rows, mark_of

Act: TypeAlias = Append | Request | Vacuum
# Acts that are applied at once. They concern different rows, so their order does not matter.
Step: TypeAlias = tuple[Act, ...]

SETUP: Final = Setup(rows=30)
# How often a kind of act is chosen, relative to the others.
WEIGHTS: Final[dict[type[Act], int]] = {
    Append: 5,
    Revert: 3,
    Undo: 2,
    Replay: 3,
    Change: 2,
    EraseRows: 1,
    Erase: 1,
    Vacuum: 1,
}
FIRST_BATCHES: Final = 4
AT_MOST_AT_ONCE: Final = 3
KEPT_AT_LEAST: Final = 6  # rows of a batch that later acts may use


class FaultKind(Enum):
    KILL_LEADER = "the operator's leader is killed"
    KILL_COMMITTER = "the committer is killed"
    KILL_DRIVER = "the driver of a Job is killed"
    KILL_EXECUTOR = "an executor is killed"
    KILL_WARM_DRIVER = "the warm driver is killed"
    EVICT = "a pod is evicted"
    PAUSE_API_SERVER = "the API server is paused"
    RESTART_S3 = "S3 restarts during a commit"
    RESTART_POSTGRES = "PostgreSQL restarts during a commit"
    SHIFT_COMMITTER_CLOCK = "the committer's clock is an hour ahead"
    SHIFT_RUN_CLOCK = "the clocks of a Dataset's runs are an hour behind"
    FILL_DISK = "the scratch volume of a driver is full"


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    after_seconds: float  # since the end of the fault before
    lasts_seconds: float  # for kinds that last
    choice: int  # chooses among the possible targets, modulo their number


AFTER_SECONDS, LASTS_SECONDS = (8.0, 30.0), (3.0, 15.0)


def faults(seed: int) -> Iterator[Fault]:
    """Rounds with each kind of fault once, each round in another order."""
    random = Random(f"{seed}/faults")
    while True:
        for kind in random.sample(list(FaultKind), len(FaultKind)):
            yield Fault(kind, random.uniform(*AFTER_SECONDS), random.uniform(*LASTS_SECONDS), random.randrange(1000))


def may_be_purged(act: Act, begun: Collection[Act]) -> bool:
    """Whether Lethe may refuse an act because a vacuum has purged the rows that it needs.

    Args:
        begun: The acts before it, and those of its step.
    """
    return isinstance(act, Undo) and any(isinstance(a, Erase | EraseRows | Vacuum) for a in begun)


def all_erased_marks(model: Model) -> frozenset[str]:
    """The marks that no object may contain in the end, by a model that no vacuum has changed."""
    written = {mark_of(row) for row in model.files + model.dead}
    return frozenset().union(*(erased_marks(request, written) for request in model.requests.values()))


def steps(seed: int, dataset: int) -> Iterator[Step]:
    """The acts of one table. The acts of a step concern different batches, and an undone batch is left alone."""
    return _Steps(Random(f"{seed}/acts/{dataset}"), dataset).each()


class _Steps:
    """Chooses acts. `free` are visible batches with their rows that no act has changed."""

    def __init__(self, random: Random, dataset: int) -> None:
        self._random = random
        self._letter = "abcdefghij"[dataset]
        self._numbers = count()
        self._free: dict[str, Rows] = {}
        self._reverts: list[Revert] = []  # that are not undone

    def each(self) -> Iterator[Step]:
        first = Append(tuple(self._batch_id() for _ in range(FIRST_BATCHES)))
        self._free = _written(first.ids)
        yield (first,)
        while True:
            yield self._step()

    def _step(self) -> Step:
        pool, reverts = dict(self._free), list(self._reverts)
        made: dict[str, Rows] = {}
        acts: list[Act] = []
        for _ in range(self._random.randint(1, AT_MOST_AT_ONCE)):
            may_vacuum = not any(isinstance(a, Vacuum) for a in acts)  # the annotation has room for one
            acts.append(self._act(pool, reverts, made, may_vacuum))
        self._reverts = reverts + [a for a in acts if isinstance(a, Revert)]
        self._free = pool | made
        return tuple(acts)

    def _act(self, pool: dict[str, Rows], reverts: list[Revert], made: dict[str, Rows], may_vacuum: bool) -> Act:
        """Choose an act.

        Args:
            pool: The batches that it may use. It takes out those that it uses.
            reverts: The Reverts that it may undo.
            made: It adds batches that later steps may use.
        """
        can = {Undo: bool(reverts), Vacuum: may_vacuum, Append: True}
        possible = [kind for kind in WEIGHTS if can.get(kind, bool(pool))]
        kind = self._random.choices(possible, [WEIGHTS[k] for k in possible])[0]
        if kind is Append:
            act = Append((self._batch_id(),))
            made |= _written(act.ids)
            return act
        if kind is Vacuum:
            return Vacuum()
        if kind is Undo:
            return Undo(reverts.pop(self._random.randrange(len(reverts))))
        if kind is Change or kind is EraseRows:
            source = self._random.choice(sorted(pool))
            rows = sorted(pool.pop(source))
            chosen = self._random.sample(rows, self._random.randint(2, 6))
            if len(rows) >= KEPT_AT_LEAST + len(chosen):
                made[source] = Rows(rows) - Rows(chosen)
            if kind is EraseRows:
                return EraseRows(tuple(sorted(map(mark_of, chosen))))
            ops: Iterator[Literal["U", "D"]] = cycle(("U", "D"))
            return Change(tuple(zip(ops, (v for _, v, _ in chosen), strict=False)), self._batch_id())
        ids = tuple(self._random.sample(sorted(pool), min(len(pool), self._random.randint(1, 2))))
        for i in ids:
            del pool[i]
        if kind is Replay:
            by = self._batch_id()
            made[by] = SETUP.replacement_of(by)
            return Replay(ids, by)
        return Revert(ids) if kind is Revert else Erase(ids)

    def _batch_id(self) -> str:
        """An id that no other table has, so that the marks of its rows occur in no other."""
        return self._letter + np.base_repr(next(self._numbers), 36).lower().zfill(3)


def _written(ids: Iterable[str]) -> dict[str, Rows]:
    return {i: SETUP.rows_of(i) for i in ids}
