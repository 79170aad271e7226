"""What the attempts of a run say: it goes on, it is done, again when, or given up. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.errors import EXIT_INPUT

from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Attempt, AttemptState, Run
from lethe_operator.settings import Settings

# A run that was killed for its memory is tried again twice: other pods' needs vary. Then somebody has to give it more.
OOM_ATTEMPTS: Final = 3
# What a run says that broke and does not know why.
_OWN_FAULT: Final = frozenset({"SparkFailed", "UnexpectedError"})
_TAKEN_AWAY: Final = frozenset({None, 128 + 9, 128 + 15})  # exit codes: nobody knows, SIGKILL, SIGTERM


@dataclass(frozen=True)
class Fresh:
    """The intent is stored and no Job was created yet."""

    number: int


@dataclass(frozen=True)
class Going:
    """An attempt is under way; `failures`, `reason` and `message` are those of the ones before it."""

    attempt: Attempt
    failures: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True)
class Ended:
    """The last attempt exited with 0."""

    attempt: Attempt


@dataclass(frozen=True)
class Again:
    """The last attempt failed for a reason that may pass; the next may start at `at`."""

    at: datetime
    number: int
    reason: str
    message: str
    failures: int
    attempt: Attempt


@dataclass(frozen=True)
class GivenUp:
    """No more attempts until something changes. `permanent`: the run said so; else it ran out of memory too often."""

    attempt: Attempt
    reason: str
    message: str
    permanent: bool


Verdict = Fresh | Going | Ended | Again | GivenUp


def back_off_seconds(failures: int, settings: Settings) -> float:
    """10, 20, 40… up to the longest pause."""
    return float(min(settings.retry_max_seconds, settings.retry_base_seconds * 2 ** min(max(failures - 1, 0), 30)))


def judge(run: Run, generation: int, settings: Settings, for_uid: str = "") -> Verdict:
    """Say how a run stands.

    Args:
        generation: The Dataset's now; a verdict on an older one is void, so that an edited Dataset is tried at once.
        for_uid: Only attempts made for this Restatement count: one of the same name and spec starts anew.
    """
    active = [a for a in run.attempts if a.state is AttemptState.ACTIVE]
    if active:
        before = [a for a in run.attempts if a.state is not AttemptState.ACTIVE]
        earlier = judge(replace(run, attempts=tuple(before)), generation, settings, for_uid)
        if isinstance(earlier, Again):
            return Going(active[-1], earlier.failures, earlier.reason, earlier.message)
        return Going(active[-1])
    number = max((a.number for a in run.attempts), default=0) + 1
    counted = [a for a in run.attempts if a.for_uid == for_uid]
    if not counted:
        return Fresh(number)
    last = counted[-1]
    if last.state is AttemptState.SUCCEEDED:
        return Ended(last)
    reason, message = failure(last)
    ended = last.finished or last.created
    same_generation = [a for a in counted if a.generation == generation]
    # Whether the table is still rolled back is the Dataset's to tell; once it may go on, so may its runs.
    final = last.exit_code == EXIT_INPUT and not last.oom and reason != Reason.TABLE_ROLLED_BACK
    if final and same_generation:
        return GivenUp(last, reason, message, permanent=True)
    if sum(a.oom for a in same_generation) >= OOM_ATTEMPTS:
        hint = f"{message} It was tried {OOM_ATTEMPTS} times. Raise spec.runTemplate.driver.memory of the Dataset."
        return GivenUp(last, reason, hint, permanent=False)
    if not same_generation:
        return Again(ended, number, reason, message, 0, last)
    if last.by_committer:  # what it could not do is for a Job to try, at once
        return Again(ended, number, reason, message, 1, last)
    failures = last.number - same_generation[0].number + 1
    at = ended + timedelta(seconds=back_off_seconds(failures, settings))
    return Again(at, number, reason, message, failures, last)


def failed_outside(attempt: Attempt) -> bool:
    """Whether an attempt failed for what lies outside of it: its pod was taken away, a service did not answer, another writer
    was faster. The same may happen to whatever it is to do."""
    if attempt.oom or attempt.job_reason == "DeadlineExceeded":
        return False
    if attempt.result is not None and attempt.result.reason:
        return attempt.result.reason not in _OWN_FAULT
    return attempt.exit_code in _TAKEN_AWAY


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
    if attempt.job_reason == "DeadlineExceeded":
        return Reason.DEADLINE_EXCEEDED, f"{attempt.job} took longer than a run may and was stopped."
    if attempt.by_committer:
        return Reason.COMMITTER_AWAY, f"The committer of the namespace did not say how {attempt.job} ended."
    if attempt.exit_code is None:
        return Reason.DRIVER_LOST, f"The driver pod of {attempt.job} went away before it could say how it ended."
    return Reason.RUN_FAILED, f"{attempt.job} ended with exit code {attempt.exit_code}; its log says more."
