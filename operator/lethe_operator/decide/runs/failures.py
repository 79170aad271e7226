"""Classifies failed attempts by cause, and counts and delays each cause separately. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from lethe_operator.reasons import Reason
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import Attempt, AttemptState, Failures
from lethe_operator.settings import BackOff, Settings

# Reasons that a run reports for errors of unknown cause.
_OWN_FAULT: Final = frozenset({"SparkFailed", "UnexpectedError"})
# Exit codes: unknown, SIGKILL, SIGTERM.
_TAKEN_AWAY: Final = frozenset({None, 128 + 9, 128 + 15})


class Cause(Enum):
    """The cause of a failed attempt."""

    # The run itself. The next attempt may fail in the same way.
    RUN = "Run"
    # Something temporary that would make any run fail: a node or service became unavailable, memory was too small, another writer
    # committed first, or an object does not exist yet.
    INFRASTRUCTURE = "Infrastructure"


def cause(attempt: Attempt) -> Cause:
    """The cause of a failed attempt."""
    if attempt.oom or _never_started(attempt):
        return Cause.INFRASTRUCTURE
    if attempt.job_reason == "DeadlineExceeded":
        return Cause.RUN
    result = attempt.result
    if result is not None and result.reason:
        return Cause.RUN if result.permanent or result.reason in _OWN_FAULT else Cause.INFRASTRUCTURE
    return Cause.INFRASTRUCTURE if attempt.exit_code in _TAKEN_AWAY else Cause.RUN


def less_might_help(attempt: Attempt) -> bool:
    """Whether a smaller run might succeed where this failed attempt did not."""
    return attempt.oom or cause(attempt) is Cause.RUN


def counted(attempts: Iterable[Attempt], generation: int, for_uid: str = "") -> Failures:
    """The number of failures of a run, including attempts whose Jobs were deleted.

    Args:
        attempts: Its known attempts, oldest first. The oldest may be missing.
        generation: The Dataset's. Failures before its last edit do not count.
        for_uid: Only attempts with this `for_uid` count.
    """
    same = [a for a in attempts if (a.generation, a.for_uid) == (generation, for_uid)]
    failed = [cause(a) for a in same if a.state is AttemptState.FAILED]
    own = sum(c is Cause.RUN for c in failed)
    return (same[0].failures_before if same else Failures()) + Failures(own, len(failed) - own)


def pause_seconds(last: Attempt, failures: Failures, settings: Settings) -> float:
    """The delay between a failed attempt and the next one. Only failures with the same cause make it longer."""
    if cause(last) is Cause.RUN:
        return back_off_seconds(failures.run, settings.retry)
    return back_off_seconds(failures.infrastructure, settings.infrastructure_retry)


def back_off_seconds(failures: int, back_off: BackOff) -> float:
    """The delay after this many failures: the base delay, doubled with each further failure, up to the maximum."""
    return float(min(back_off.max_seconds, back_off.base_seconds * 2 ** min(max(failures - 1, 0), 30)))


def failure(attempt: Attempt) -> tuple[str, str]:
    """Reason and message of a failed attempt, from the most reliable source that is available."""
    if attempt.oom:
        return Reason.OOM_KILLED, f"The driver of {attempt.job} exceeded its memory limit and was killed."
    result = attempt.result
    if result is not None and result.reason:
        return result.reason, result.message
    if _never_started(attempt):
        return Reason.POD_WAITING, f"The pod of {attempt.job} did not start within the time limit of a run."
    if attempt.job_reason == "DeadlineExceeded":
        return Reason.DEADLINE_EXCEEDED, f"{attempt.job} exceeded the time limit of a run and was stopped."
    if attempt.engine is Engine.COMMITTER:
        return Reason.COMMITTER_AWAY, f"The committer of the namespace did not report how {attempt.job} ended."
    if attempt.job_reason == Reason.SUBMISSION_FAILED:
        why = attempt.job_message.rstrip(".")
        return Reason.SUBMISSION_FAILED, f"Kubeflow's operator could not submit {attempt.job}: {why}."
    if attempt.engine is Engine.WARM_DRIVER:
        return Reason.WARM_DRIVER_AWAY, f"The warm driver of the namespace did not report how {attempt.job} ended."
    if attempt.exit_code is None:
        return Reason.DRIVER_LOST, f"The driver pod of {attempt.job} disappeared before it reported a result."
    return Reason.RUN_FAILED, f"{attempt.job} ended with exit code {attempt.exit_code}. See its log."


def _never_started(attempt: Attempt) -> bool:
    """Whether the time limit passed, and the driver has reported nothing."""
    has_started = attempt.progress is not None or attempt.result is not None or attempt.exit_code is not None
    return attempt.job_reason == "DeadlineExceeded" and not has_started
