"""Which runs of a group speak against one of its requests, and how small the next group has to be for that. Pure.

A request that is refused has an answer of its own. One that kills the process answers for nobody: its group is halved until it is
alone, so that it holds up n others for log n runs, and not for ever. Alone it has a few more tries.
"""

from collections.abc import Iterable
from typing import Final

from lethe_operator.decide.runs.failures import less_might_help
from lethe_operator.resources.observed import AttemptState, ObservedRun

# A first one may be chance.
FAILURES_BEFORE_HALVING: Final = 2
# Of a request that is alone, by itself: each costs the others of the queue the time of a run.
FAILURES_ALONE: Final = 5


def at_most(runs: Iterable[ObservedRun], generation: int) -> int | None:
    """How many members the next run may have; None: as many as there are.

    Args:
        runs: Those that one request was a member of, oldest first.
        generation: The Dataset's now: with an edited one they are tried together again.
    """
    failures, allowed = 0, None
    for run in runs:
        members = len(run.requests)
        for attempt in run.attempts:
            failed = attempt.state is AttemptState.FAILED and attempt.generation == generation
            if not failed or not less_might_help(attempt):
                continue
            failures += 1
            if failures >= FAILURES_BEFORE_HALVING:
                allowed = max(1, (members + 1) // 2)
    return allowed
