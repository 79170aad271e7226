"""Promotions, reverts, undos, partial vacuums and another writer's appends in any order, also in the middle of a vacuum:
after each commit a reader sees every row of every batch that is not taken back, and no other.

The plans are the real ones; files and their rows are a dict, and a commit is an assignment.
"""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from lethe.base.errors import InputError
from lethe.buffer.promotion import Publish, WrittenBatch, WrittenFiles, plan_promotion, plan_publication
from lethe.contract.run import RestatementRequest
from lethe.files.bounds import FileBounds
from lethe.files.rearm import AddedFiles, rearmed
from lethe.ledger.ledger import Delta, Ledger, apply
from lethe.restatement.plan import PlanScope, Restated, plan_restatement
from lethe.vacuum.plan import Purge, VacuumPlan, plan_purge

from tests.support.builders import FIELD, NOW, RUN, a_file, a_request
from tests.unit.lethe.vacuum.vacuuming import plan_vacuum

Rows = Counter[str]  # batch id -> rows
ids = st.sampled_from("ABC")


@dataclass
class Table:
    """`bare`: paths that a writer added who knows no ledger, since the last commit of ours."""

    ledger: Ledger = field(default_factory=Ledger)
    files: dict[str, Rows] = field(default_factory=dict)
    bare: set[str] = field(default_factory=set)

    def bounds(self, paths: set[str] | None = None) -> list[FileBounds]:
        """With sizes of 10 bytes a row."""
        return [
            a_file(min(rows), max(rows), path=path, size=10 * rows.total(), records=rows.total())
            for path, rows in self.files.items()
            if rows and (paths is None or path in paths)
        ]

    def commit(self, delta: Delta) -> None:
        self.ledger = apply(self.ledger, rearmed(self.ledger, delta, AddedFiles(self.bounds(self.bare), FIELD), NOW))
        self.bare = set()

    def visible(self) -> Rows:
        hidden = self.ledger.ids(FIELD)
        return Counter({i: n for i, n in sum(self.files.values(), Counter()).items() if i not in hidden})


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.table = Table()
        self.written: Rows = Counter()  # ever, whoever wrote them
        self.taken_back: dict[str, set[str]] = {}  # request -> its batches, while it is not undone
        self.requests: dict[str, RestatementRequest] = {}
        self.numbers = 0

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers

    def _write(self, rows: Rows) -> str:
        path = f"f{self._number()}"
        self.table.files[path] = rows
        return path

    @rule(batches=st.sets(ids, min_size=1, max_size=3))
    def promote(self, batches: set[str]) -> None:
        """Each in two common files, as of two days, whose bounds cover whatever lies between them."""
        chosen = plan_promotion(self.table.ledger, sorted(batches)).promote
        written = WrittenFiles({i: WrittenBatch(i, 2, 20, ()) for i in chosen})
        planned = plan_publication(self.table.ledger, written, {}, f"run-{self._number()}", NOW)
        if not chosen or not isinstance(planned, Publish):
            return
        self.table.commit(planned.delta)
        for _ in range(2):
            self._write(Counter(chosen))
        self.written += Counter(dict.fromkeys(chosen, 2))

    @rule(batches=st.sets(ids, min_size=1, max_size=3))
    def revert(self, batches: set[str]) -> None:
        request = a_request(f"r{self._number()}", batch_ids=sorted(batches))
        self._restate(request)
        self.taken_back[request.key] = batches
        self.requests[request.key] = request

    @rule(data=st.data())
    def undo(self, data: st.DataObject) -> None:
        """Either every row is back, or nothing has changed."""
        if not self.taken_back:
            return
        key = data.draw(st.sampled_from(sorted(self.taken_back)))
        before = self.table.visible()
        refused = self._refusal(a_request(f"u{self._number()}", "Undo", batch_ids=(), undoes=key))
        if refused is not None:
            assert refused in ("AlreadyPurged", "HeldByAnother")
            assert self.table.visible() == before
            return
        for i in self.taken_back.pop(key):
            assert self.table.visible()[i] == self.written[i]

    def _refusal(self, request: RestatementRequest) -> str | None:
        """Carry a request out; the reason if it is refused."""
        try:
            self._restate(request)
        except InputError as e:
            return e.reason
        return None

    def _restate(self, request: RestatementRequest) -> None:
        planned = plan_restatement(self.table.ledger, request, PlanScope(RUN, NOW, FIELD))
        assert isinstance(planned, Restated)
        self.table.commit(planned.delta)

    @rule(batch=ids, rows=st.integers(1, 2))
    def somebody_else_appends(self, batch: str, rows: int) -> None:
        """Under an id of ours, which is the worst that may be done."""
        self.table.bare.add(self._write(Counter({batch: rows})))
        self.written += Counter({batch: rows})

    @rule(budget=st.sampled_from([None, 0, 20, 40]), data=st.data())
    def vacuum(self, budget: int | None, data: st.DataObject) -> None:
        """Its files are written from the plan; anything may happen before they are committed."""
        plan = plan_vacuum(self.table.ledger, 1, self.table.bounds(), FIELD, budget, NOW)
        survivors = self._survivors(plan)
        match data.draw(st.sampled_from(["nothing", "undo", "revert", "promote", "append", "vacuum"])):
            case "undo":
                self.undo(data)
            case "revert":
                self.revert({data.draw(ids)})
            case "promote":
                self.promote({data.draw(ids)})
            case "append":
                self.somebody_else_appends(data.draw(ids), 1)
            case "vacuum":
                self._commit_vacuum(*self._planned_again(budget))
            case _:
                pass
        self._commit_vacuum(plan, survivors)

    def _planned_again(self, budget: int | None) -> tuple[VacuumPlan, list[Rows]]:
        plan = plan_vacuum(self.table.ledger, 1, self.table.bounds(), FIELD, budget, NOW)
        return plan, self._survivors(plan)

    def _survivors(self, plan: VacuumPlan) -> list[Rows]:
        applied = {t.id for t in plan.applied}
        found = [self.table.files[f.path] for f in plan.rewrite]
        return [Counter({i: n for i, n in rows.items() if i not in applied}) for rows in found]

    def _commit_vacuum(self, plan: VacuumPlan, survivors: list[Rows]) -> None:
        purge = plan_purge(plan, self.table.ledger, self.table.bounds(), f"vacuum-{self._number()}")
        if not isinstance(purge, Purge):
            return
        removed = sum((self.table.files[p] for p in plan.touched), Counter())
        self.table.commit(purge.delta)
        for path in plan.touched:
            del self.table.files[path]
        for rows in survivors:
            if rows:
                self._write(rows)
        # What a reader of increments asks for: each id of which rows left is in the vacuum's file.
        left = removed - sum(survivors, Counter())
        assert set(left) <= {t.id for t in purge.vacuumed}

    @invariant()
    def a_reader_sees_the_batches_that_are_not_taken_back(self) -> None:
        if self.table.bare:
            return  # until our next commit
        gone = set().union(*self.taken_back.values())
        assert self.table.visible() == Counter({i: n for i, n in self.written.items() if i not in gone})


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(max_examples=200, stateful_step_count=12, deadline=None)
