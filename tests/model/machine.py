"""Hypothesis as the one who decides what happens next."""

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
    """In whatever order writers come, die and come again, a read returns the rows that a plain dict would hold."""

    begin: ClassVar[Callable[[], World]]
    played: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        self.play = Play(type(self).begin())

    def teardown(self) -> None:
        self.play.world.end()

    def on_step(self, act: Act, seconds: float) -> None:
        """For whoever wants to see it go."""

    def _do(self, act: Act) -> None:
        type(self).played += 1
        before = time.monotonic()
        try:
            self.play.do(act)
        finally:
            self.on_step(act, time.monotonic() - before)

    @property
    def known(self) -> Known:
        """What is drawn depends on what the table knows; dead runs, most of all, have to be done again."""
        model = self.play.model
        requests = tuple(r for r in model.requests.values() if isinstance(r, Revert | Replay))
        runs = tuple(job for act in self.play.past if (job := job_of(act)) is not None)
        return Known(model.setup, tuple(sorted(model.states)), requests, runs, tuple(sorted(model.files, key=str)))

    @initialize(example=st.integers(0, 9), first=strategies.appends(at_least=2))
    def begin_with_some_batches(self, example: int, first: Append) -> None:
        assume(example)  # hypothesis begins with the simplest choice everywhere: one act, again and again
        self._do(first)

    @rule(act=st.runner().flatmap(lambda m: strategies.acts(m.known)))
    def then(self, act: Act) -> None:
        self._do(act)
