"""Hypothesis as the one who decides what happens next."""

import time
from collections.abc import Callable
from typing import ClassVar

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests import strategies
from tests.model.acts import Act, Append, Crash, During, Job, Replay, Revert
from tests.model.play import Play
from tests.model.world import World


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

    # What is drawn depends on what the table knows: strategies look at the machine for it.
    @property
    def known(self) -> list[str]:
        return sorted(self.play.model.states)

    @property
    def requests(self) -> list[Revert | Replay]:
        return [r for r in self.play.model.requests.values() if isinstance(r, Revert | Replay)]

    @property
    def runs(self) -> list[Job]:
        """Every run there was, dead ones too: these most of all have to be done again."""
        found = [act.job if isinstance(act, Crash | During) else act for act in self.play.past]
        return [job for job in found if isinstance(job, Job)]

    @initialize(example=st.integers(0, 9), first=strategies.appends(at_least=2))
    def begin_with_some_batches(self, example: int, first: Append) -> None:
        assume(example)  # hypothesis begins with the simplest choice everywhere: one act, again and again
        self._do(first)

    @rule(act=st.runner().flatmap(lambda m: strategies.acts(m.known, m.requests, m.runs)))
    def then(self, act: Act) -> None:
        self._do(act)
