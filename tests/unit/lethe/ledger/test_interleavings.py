"""The random walk in a world of pure plans: the ledger and the plans are the real ones, files are a dict, and a commit is an
assignment. Runs have no steps: what happens during a run happens between its files and its commit.

The walks on real tables are in tests/spark/model.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from hypothesis import settings
from lethe.buffer.promotion import Publish, WrittenBatch, WrittenFiles, plan_promotion, plan_publication
from lethe.files.bounds import FileBounds
from lethe.files.native_deletes import AddedFiles, restore_tombstones
from lethe.ledger.ledger import Delta, Ledger, apply
from lethe.restatement.group import GroupFindings, plan_group
from lethe.restatement.plan import ErasedRows, PlanScope
from lethe.vacuum.plan import PurgeStep, plan_purge

from tests.model.acts import (
    Act,
    Append,
    Change,
    During,
    Erase,
    EraseRows,
    Group,
    Job,
    Register,
    Replay,
    Request,
    Revert,
    Undo,
    Vacuum,
    request_name,
)
from tests.model.foreign_acts import ForeignAppend, ForeignCompaction
from tests.model.machine import TableMachine
from tests.model.model import Model, rows_searched
from tests.model.requests import request_of
from tests.model.rows import Rows, foreign_rows, of_day, without
from tests.support.builders import FIELD, NOW, a_file, batch_states
from tests.support.vacuuming import plan_vacuum

REQUESTS: Final = frozenset((Revert, Erase, EraseRows, Replay, Change, Undo, Group))
KINDS: Final = REQUESTS | {Append, Vacuum, During, ForeignAppend, ForeignCompaction}
FILE_BYTES: Final = 3000
SEARCHED_FIELD: Final = FIELD + 1  # the column that erasures by records and key columns name
Commit: TypeAlias = Callable[[], bool]  # returns False, and commits nothing, if what was written does not fit the head


@dataclass
class PlannedTable:
    """After each commit, its files have the rows of the model, and a reader sees those that the model shows."""

    model: Model = field(default_factory=Model)
    past: list[Act] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    files: dict[str, Rows] = field(default_factory=dict)  # by path
    bare: set[str] = field(default_factory=set)  # paths that another writer added since the last commit of Lethe
    numbers: int = 0  # of runs and files

    def do(self, act: Act) -> None:
        self.past.append(act)
        match act:
            case During(job, _, other):
                commit = self._prepared(job)
                self.do(other)
                assert commit() or self._prepared(job)()
            case ForeignAppend(ids, day):
                rows = foreign_rows(ids, day, self._number())
                self.bare |= self._write(rows)
                self.model.appended(rows)
            case ForeignCompaction():
                rows, self.files = self._rows(), {}
                self.bare = self._write(rows)
            case _:
                assert isinstance(act, Job)
                assert self._prepared(act)()
        self.model.observed(self._rows())
        assert batch_states(self.ledger) == self.model.states
        assert without(self._rows(), self.ledger.ids(FIELD)) == self.model.visible

    def end(self) -> None:
        pass

    # --- runs ---

    def _prepared(self, job: Job) -> Commit:
        """Write what a run writes before its commit."""
        match job:
            case Append(ids) | Register(ids):
                return self._consolidation(job, plan_promotion(self.ledger, ids).promote)
            case Vacuum(max_bytes):
                return self._vacuum(max_bytes)
            case Group(requests):
                return lambda: self._restate(job, requests)
            case _:
                return lambda: self._restate(job, (job,))

    def _consolidation(self, job: Append | Register, ids: tuple[str, ...]) -> Commit:
        setup = self.model.setup
        written = WrittenFiles({i: WrittenBatch(i, setup.rows, FILE_BYTES, ()) for i in ids})

        def commit() -> bool:
            planned = plan_publication(self.ledger, written, {}, f"run-{self._number()}", NOW)
            if not isinstance(planned, Publish):
                return False
            self._commit(planned.delta)
            self._write(sum(map(setup.rows_of, ids), Rows()))
            self._carried_out(job)
            return True

        return commit

    def _restate(self, job: Job, acts: Collection[Request]) -> bool:
        requests = {(made := request_of(act, request_name)).key: (act, made) for act in acts}
        found = GroupFindings(
            erased={key: ErasedRows(0, SEARCHED_FIELD) for key, (_, r) in requests.items() if r.searches}
        )
        scope = PlanScope(f"run-{self._number()}", NOW, FIELD)
        plan = plan_group(self.ledger, [r for _, r in requests.values()], scope, found)
        refusals = {r.name.removeprefix("ns/"): r.reason for r in plan.results.values() if not r.succeeded}
        assert refusals == self.model.foresee(job).refusals
        before = self._rows()
        self._commit(plan.delta)
        for key in plan.erases:
            erased = rows_searched(requests[key][0], before)
            for path in [p for p, rows in self.files.items() if rows & erased]:
                self._write(self.files.pop(path) - erased)
        for key in plan.adds:
            self._write(self.model.setup.added_by(requests[key][0]))
        self._carried_out(job)
        return True

    def _vacuum(self, max_bytes: int | None) -> Commit:
        plan = plan_vacuum(self.ledger, 1, self._bounds(self.files), FIELD, max_bytes, NOW)
        applied = {t.id for t in plan.applied}
        survivors = [without(self.files[f.path], applied) for f in plan.rewrite]
        planned_at = self.numbers

        def commit() -> bool:
            whole = max_bytes is None and self.numbers == planned_at
            purge = plan_purge(plan, self.ledger, self._bounds(self.files), f"vacuum-{self._number()}")
            if not isinstance(purge, PurgeStep):
                return False
            self._commit(purge.delta)
            for path in plan.touched:
                del self.files[path]
            for rows in survivors:
                self._write(rows)
            vacuumed = frozenset(t.id for t in purge.vacuumed)
            self.model.vacuumed(whole, self._rows(), self.ledger.ids(FIELD), vacuumed)
            return True

        return commit

    def _commit(self, delta: Delta) -> None:
        """Commit a change of the ledger; the files of the commit follow."""
        added = AddedFiles(self._bounds(self.bare), FIELD)
        self.ledger, self.bare = apply(self.ledger, restore_tombstones(self.ledger, delta, added, NOW)), set()

    def _carried_out(self, job: Job) -> None:
        self.model.carry_out(job)
        self.model.committed(frozenset(self.ledger.ids(FIELD)))

    # --- files ---

    def _write(self, rows: Rows) -> set[str]:
        """Write a file for each day, whose bounds cover whatever lies between its batches. Returns: their paths."""
        files = {f"file-{self._number()}": of_day(rows, day) for day in {row[2] for row in rows}}
        self.files |= files
        return set(files)

    def _rows(self) -> Rows:
        return sum(self.files.values(), Rows())

    def _bounds(self, paths: Collection[str]) -> list[FileBounds]:
        return [bounds_of(path, self.files[path]) for path in paths]

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers


def bounds_of(path: str, rows: Rows) -> FileBounds:
    ids = [row[0] for row in rows if row[0] is not None]
    nulls = sum(n for row, n in rows.items() if row[0] is None)
    lower, upper = min(ids, default=None), max(ids, default=None)
    return a_file(lower, upper, path=path, nulls=nulls, size=FILE_BYTES, records=rows.total())


class Interleavings(TableMachine):
    begin = PlannedTable
    kinds = KINDS
    ids = "ABCDEFGH"


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(stateful_step_count=20)
