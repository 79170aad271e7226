"""A Hypothesis state machine that takes a random walk: it chooses the next act, in any world."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import strategies
from tests.model.acts import Act, Append, Replay, Revert, Setup, job_of
from tests.model.model import Model
from tests.model.strategies import EVERY_KIND, IDS, Kinds, Known


class Player(Protocol):
    """One table of a world, and the model of it."""

    @property
    def model(self) -> Model: ...

    @property
    def past(self) -> Sequence[Act]:
        """All acts, including those that happened during others."""

    def do(self, act: Act) -> None:
        """Play an act on the table and on the model. Raises: AssertionError: they do not agree."""

    def end(self) -> None:
        """Remove the table, after a last comparison if no act failed."""


class TableMachine(RuleBasedStateMachine):
    """For any order of runs, crashes, retries and other writers, a read returns the rows of the model."""

    begin: ClassVar[Callable[[], Player]]  # creates a table
    kinds: ClassVar[Kinds] = EVERY_KIND  # of acts that the world can play
    ids: ClassVar[str] = IDS  # of batches; with fewer, acts meet more often

    def __init__(self) -> None:
        super().__init__()
        self.player: Player | None = None

    def teardown(self) -> None:
        if self.player is not None:
            self.player.end()

    @property
    def known(self) -> Known:
        """The state that the choice of the next act depends on. It includes past runs, because crashed runs must be retried."""
        if self.player is None:
            return Known(Setup(), kinds=self.kinds, ids=self.ids)
        model = self.player.model
        requests = tuple(r for r in model.requests.values() if isinstance(r, Revert | Replay))
        runs = tuple(job for act in self.player.past if (job := job_of(act)) is not None)
        rows = tuple(sorted(model.files, key=str))
        return Known(model.setup, tuple(sorted(model.states)), requests, runs, rows, self.kinds, self.ids)

    @initialize(example=st.integers(0, 9), first=st.runner().flatmap(lambda m: strategies.first_appends(m.known)))
    def begin_with_some_batches(self, example: int, first: Append) -> None:
        assume(example)  # Hypothesis first makes the simplest choice everywhere, which repeats one act
        self.player = type(self).begin()
        self.player.do(first)

    @rule(act=st.runner().flatmap(lambda m: strategies.acts(m.known)))
    def then(self, act: Act) -> None:
        assert self.player is not None
        self.player.do(act)
