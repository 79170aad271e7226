"""Why attempts fail: by themselves, or for what lies outside of them; each is counted, and paused after, by itself. Pure."""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Attempt, AttemptState, Failures
from lethe_operator.settings import BackOff, Settings

# What a run says that broke and does not know why.
_OWN_FAULT: Final = frozenset({"SparkFailed", "UnexpectedError"})
_TAKEN_AWAY: Final = frozenset({None, 128 + 9, 128 + 15})  # exit codes: nobody knows, SIGKILL, SIGTERM


class Cause(Enum):
    """RUN: the same may fail again as it is. INFRASTRUCTURE: it passes, and would have hit whatever was to be done: a node or a
    service that went, too little memory, another writer that was faster, an object that is not there yet."""

    RUN = "Run"
    INFRASTRUCTURE = "Infrastructure"


def cause(attempt: Attempt) -> Cause:
    """Of an attempt that failed."""
    if attempt.oom or not attempt.reached or _never_started(attempt):
        return Cause.INFRASTRUCTURE
    if attempt.job_reason == "DeadlineExceeded":
        return Cause.RUN
    result = attempt.result
    if result is not None and result.reason:
        return Cause.RUN if result.permanent or result.reason in _OWN_FAULT else Cause.INFRASTRUCTURE
    return Cause.INFRASTRUCTURE if attempt.exit_code in _TAKEN_AWAY else Cause.RUN


def less_might_help(attempt: Attempt) -> bool:
    """Whether a run with less to do might be spared what this one failed for."""
    return attempt.oom or cause(attempt) is Cause.RUN


def counted(attempts: Iterable[Attempt], generation: int, for_uid: str = "") -> Failures:
    """How often a run has failed, attempts whose Jobs are gone included.

    Args:
        attempts: Its attempts, oldest first; if some are gone, then the oldest.
        generation: The Dataset's now: failures of before its last edit do not count.
        for_uid: Only attempts made for this Restatement count.
    """
    same = [a for a in attempts if (a.generation, a.for_uid) == (generation, for_uid)]
    failed = [cause(a) for a in same if a.state is AttemptState.FAILED]
    own = sum(c is Cause.RUN for c in failed)
    return (same[0].failures_before if same else Failures()) + Failures(own, len(failed) - own)


def pause_seconds(last: Attempt, failures: Failures, settings: Settings) -> float:
    """How long after a failed attempt the next one starts. Failures of the other cause do not make it longer."""
    if cause(last) is Cause.RUN:
        return back_off_seconds(failures.run, settings.retry)
    return back_off_seconds(failures.infrastructure, settings.infrastructure_retry)


def back_off_seconds(failures: int, back_off: BackOff) -> float:
    """The base, twice that, four times… up to the longest pause."""
    return float(min(back_off.max_seconds, back_off.base_seconds * 2 ** min(max(failures - 1, 0), 30)))


def failure(attempt: Attempt) -> tuple[str, str]:
    """Reason and message of a failed attempt, from what is surest to what is left."""
    if not attempt.reached:
        text = f"{attempt.job}, which {attempt.datasets} Datasets share, ended before it came to this one."
        return Reason.SHARED_RUN_ENDED, text
    if attempt.oom:
        return Reason.OOM_KILLED, f"The driver of {attempt.job} went over its memory limit and was killed."
    result = attempt.result
    if result is not None and result.reason:
        return result.reason, result.message
    if _never_started(attempt):
        return Reason.POD_WAITING, f"The pod of {attempt.job} did not start within the time that a run may take."
    if attempt.job_reason == "DeadlineExceeded":
        return Reason.DEADLINE_EXCEEDED, f"{attempt.job} took longer than a run may and was stopped."
    if attempt.by_committer:
        return Reason.COMMITTER_AWAY, f"The committer of the namespace did not say how {attempt.job} ended."
    if attempt.exit_code is None:
        return Reason.DRIVER_LOST, f"The driver pod of {attempt.job} went away before it could say how it ended."
    return Reason.RUN_FAILED, f"{attempt.job} ended with exit code {attempt.exit_code}; its log says more."


def _never_started(attempt: Attempt) -> bool:
    """Whether its time went by without a word of it."""
    heard = attempt.progress is not None or attempt.result is not None or attempt.exit_code is not None
    return attempt.job_reason == "DeadlineExceeded" and not heard
