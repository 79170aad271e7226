"""Judges a run by its attempts: whether it is active, has ended, is retried and when, or is given up. Pure.

Classifies failed attempts by cause, and counts and delays each cause separately. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from lethe.base.errors import EXIT_INPUT

from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import NO_FAILURES, Attempt, AttemptState, Engine, Failures, ObservedRun
from lethe_operator.settings import BackOff, Settings

# Reasons that a run reports for errors of unknown cause.
_OWN_FAULT: Final = frozenset({"SparkFailed", "UnexpectedError"})
# Exit codes: unknown, SIGKILL, SIGTERM.
_TAKEN_AWAY: Final = frozenset({None, 128 + 9, 128 + 15})


class FailureCause(Enum):
    """The cause of a failed attempt."""

    RUN = "Run"
    """The run itself. The next attempt may fail in the same way."""
    INFRASTRUCTURE = "Infrastructure"
    """Something temporary that would make any run fail: a node or service became unavailable, memory was too small, another
    writer committed first, or an object does not exist yet.
    """


def cause(attempt: Attempt) -> FailureCause:
    """The cause of a failed attempt."""
    if attempt.oom or _never_started(attempt):
        return FailureCause.INFRASTRUCTURE
    if attempt.job_reason == "DeadlineExceeded":
        return FailureCause.RUN
    result = attempt.result
    if result is not None and result.reason:
        return FailureCause.RUN if result.permanent or result.reason in _OWN_FAULT else FailureCause.INFRASTRUCTURE
    return FailureCause.INFRASTRUCTURE if attempt.exit_code in _TAKEN_AWAY else FailureCause.RUN


def less_might_help(attempt: Attempt) -> bool:
    """Whether a smaller run might succeed where this failed attempt did not."""
    return attempt.oom or cause(attempt) is FailureCause.RUN


def counted(attempts: Iterable[Attempt], generation: int, for_uid: str = "") -> Failures:
    """The number of failures of a run, including attempts whose Jobs were deleted.

    Args:
        attempts: Its known attempts, oldest first. The oldest may be missing.
        generation: The Dataset's. Failures before its last edit do not count.
        for_uid: Only attempts with this `for_uid` count.
    """
    same = [a for a in attempts if (a.generation, a.for_uid) == (generation, for_uid)]
    failed = [cause(a) for a in same if a.state is AttemptState.FAILED]
    own = sum(c is FailureCause.RUN for c in failed)
    return (same[0].failures_before if same else Failures()) + Failures(own, len(failed) - own)


def pause_seconds(last: Attempt, failures: Failures, settings: Settings) -> float:
    """The delay between a failed attempt and the next one. Only failures with the same cause make it longer."""
    if cause(last) is FailureCause.RUN:
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


# A driver that was killed for its memory is retried twice, because the need may vary. Then a user must raise the memory.
OOM_ATTEMPTS: Final = 3
# Failures that depend on the state of the table are never final: no run starts while the Dataset's conditions show them.
OF_THE_TABLE: Final = frozenset({Reason.TABLE_ROLLED_BACK, Reason.TABLE_REPLACED, Reason.LEDGER_LOST})


@dataclass(frozen=True)
class NotStarted:
    """The document of the run is stored, and there is no attempt yet."""

    number: int
    """Of the next attempt."""


@dataclass(frozen=True)
class Running:
    """An attempt is active."""

    attempt: Attempt
    failures: Failures = NO_FAILURES
    """Of the attempts before it."""
    reason: str = ""
    """Of the last failure before it."""
    message: str = ""
    """Of the last failure before it."""


@dataclass(frozen=True)
class Succeeded:
    """The last attempt succeeded."""

    attempt: Attempt


@dataclass(frozen=True)
class RetryAt:
    """The last attempt failed for a temporary reason."""

    at: datetime
    """The next attempt does not start earlier."""
    number: int
    """Of the next attempt."""
    reason: str
    """Of the failure."""
    message: str
    """Of the failure."""
    failures: Failures
    """Since the last edit of the Dataset."""
    attempt: Attempt
    """The last one."""


@dataclass(frozen=True)
class Exhausted:
    """No attempt follows until something changes."""

    attempt: Attempt
    """The last one."""
    reason: str
    """Of the failure."""
    message: str
    """Of the failure."""
    permanent: bool
    """True: the run reported a permanent error; False: it failed too often."""


Verdict = NotStarted | Running | Succeeded | RetryAt | Exhausted


def retry_state(run: ObservedRun, generation: int, settings: Settings, for_uid: str = "") -> Verdict:
    """Judge a run by its attempts.

    Args:
        generation: The Dataset's. Failures under other generations do not count, so the operator retries at once after an edit.
        for_uid: Only attempts with this `for_uid` count, so a Restatement that was deleted and created again starts from the
            beginning.
    """
    active = [a for a in run.attempts if a.state is AttemptState.ACTIVE]
    if active:
        before = [a for a in run.attempts if a.state is not AttemptState.ACTIVE]
        earlier = retry_state(replace(run, attempts=tuple(before)), generation, settings, for_uid)
        if isinstance(earlier, RetryAt):
            return Running(active[-1], earlier.failures, earlier.reason, earlier.message)
        return Running(active[-1])
    number = max((a.number for a in run.attempts), default=0) + 1
    mine = [a for a in run.attempts if a.for_uid == for_uid]
    if not mine:
        return NotStarted(number)
    last = mine[-1]
    if last.state is AttemptState.SUCCEEDED:
        return Succeeded(last)
    reason, message = failure(last)
    ended = last.finished or last.created
    same_generation = [a for a in mine if a.generation == generation]
    final = last.exit_code == EXIT_INPUT and not last.oom and reason not in OF_THE_TABLE
    if final and same_generation:
        return Exhausted(last, reason, message, permanent=True)
    if sum(a.oom for a in same_generation) >= OOM_ATTEMPTS:
        hint = f"{message} This happened {OOM_ATTEMPTS} times. Increase spec.runTemplate.driver.memory of the Dataset."
        return Exhausted(last, reason, hint, permanent=False)
    if not same_generation:
        return RetryAt(ended, number, reason, message, NO_FAILURES, last)
    failures = counted(run.attempts, generation, for_uid)
    if last.engine is not Engine.JOB:  # a Job tries the same at once
        return RetryAt(ended, number, reason, message, failures, last)
    at = ended + timedelta(seconds=pause_seconds(last, failures, settings))
    return RetryAt(at, number, reason, message, failures, last)
