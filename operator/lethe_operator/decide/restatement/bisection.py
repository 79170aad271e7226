"""Finds the request in a group that makes runs fail, by halving the group. Pure.

A run reports a request that it refuses. But if a request makes the process fail, the run reports nothing, and it is unknown which
request it was. So the group is halved until the request is alone: it delays n others by about log n runs, not forever. Alone, it
gets a few more attempts.
"""

from collections.abc import Iterable
from typing import Final

from lethe_operator.decide.runs.failures import less_might_help
from lethe_operator.resources.observed import AttemptState, ObservedRun

# More than one, because a single failure may be temporary.
FAILURES_BEFORE_HALVING: Final = 2
# Failures with cause RUN, after which a request that is alone is given up: each attempt delays the other requests in the queue.
FAILURES_ALONE: Final = 5


def at_most(runs: Iterable[ObservedRun], generation: int) -> int | None:
    """The largest number of members of the next run; None: no limit.

    Args:
        runs: The runs that the request was a member of, oldest first.
        generation: The Dataset's. Failures under other generations do not count, so an edit of the Dataset removes the limit.
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
