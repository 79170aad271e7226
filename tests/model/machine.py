"""A Hypothesis state machine that chooses the next act."""

import time
from collections.abc import Callable
from typing import ClassVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model.acts import Act, Append, Replay, Revert, job_of
from tests.model.play import Play
from tests.model.world import World
from tests.support import strategies
from tests.support.strategies import Known


class TableMachine(RuleBasedStateMachine):
    """For any order of runs, crashes, retries and other writers, a read returns the rows of the model."""

    begin: ClassVar[Callable[[], World]]  # creates the table
    played: ClassVar[int] = 0  # acts, over all tables

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(type(self).begin())

    def teardown(self) -> None:
        self.play.world.end()

    def on_step(self, act: Act, seconds: float) -> None:
        """Called after each act. Subclasses may print it."""

    def _do(self, act: Act) -> None:
        type(self).played += 1
        before = time.monotonic()
        try:
            self.play.do(act)
        finally:
            self.on_step(act, time.monotonic() - before)

    @property
    def known(self) -> Known:
        """The state that the choice of the next act depends on. It includes past runs, because crashed runs must be retried."""
        model = self.play.model
        requests = tuple(r for r in model.requests.values() if isinstance(r, Revert | Replay))
        runs = tuple(job for act in self.play.past if (job := job_of(act)) is not None)
        return Known(model.setup, tuple(sorted(model.states)), requests, runs, tuple(sorted(model.files, key=str)))

    @initialize(example=st.integers(0, 9), first=strategies.appends(at_least=2))
    def begin_with_some_batches(self, example: int, first: Append) -> None:
        assume(example)  # Hypothesis first makes the simplest choice everywhere, which repeats one act
        self._do(first)

    @rule(act=st.runner().flatmap(lambda m: strategies.acts(m.known)))
    def then(self, act: Act) -> None:
        self._do(act)
