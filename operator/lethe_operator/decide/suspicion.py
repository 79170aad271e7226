"""Which runs of a group speak against one of its requests, and how small the next group has to be for that. Pure.

A request that is refused has an answer of its own. One that kills the process answers for nobody: its group is halved until it is
alone, so that it holds up n others for log n runs, and not for ever.
"""

from collections.abc import Iterable
from typing import Final

from lethe_operator.decide.retry import failed_outside
from lethe_operator.resources.observed import AttemptState, Run

# A first one may be chance.
FAILURES_BEFORE_HALVING: Final = 2


def at_most(runs: Iterable[Run], generation: int) -> int | None:
    """How many members the next run may have; None: as many as there are.

    Args:
        runs: Those that one request was a member of, oldest first.
        generation: The Dataset's now: with an edited one they are tried together again.
    """
    failures, allowed = 0, None
    for run in runs:
        members = len(run.requests)
        for attempt in run.attempts:
            if attempt.state is not AttemptState.FAILED or attempt.generation != generation or failed_outside(attempt):
                continue
            failures += 1
            if failures >= FAILURES_BEFORE_HALVING:
                allowed = max(1, (members + 1) // 2)
    return allowed
