"""What the attempts of a run say: it goes on, it is done, again when, or given up. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.base.errors import EXIT_INPUT

from lethe_operator.decide.runs.failures import counted, failure, pause_seconds
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import NO_FAILURES, Attempt, AttemptState, Failures, ObservedRun
from lethe_operator.settings import Settings

# A run that was killed for its memory is tried again twice: other pods' needs vary. Then somebody has to give it more.
OOM_ATTEMPTS: Final = 3
# Whether that is still so, the Dataset says; once it may go on, so may its runs.
OF_THE_TABLE: Final = frozenset({Reason.TABLE_ROLLED_BACK, Reason.TABLE_REPLACED, Reason.LEDGER_LOST})


@dataclass(frozen=True)
class Fresh:
    """The intent is stored and no Job was created yet."""

    number: int


@dataclass(frozen=True)
class Going:
    """An attempt is under way; `failures`, `reason` and `message` are those of the ones before it."""

    attempt: Attempt
    failures: Failures = NO_FAILURES
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
    failures: Failures
    attempt: Attempt


@dataclass(frozen=True)
class GivenUp:
    """No more attempts until something changes. `permanent`: the run said so; else it ran out of memory too often."""

    attempt: Attempt
    reason: str
    message: str
    permanent: bool


Verdict = Fresh | Going | Ended | Again | GivenUp


def judge(run: ObservedRun, generation: int, settings: Settings, for_uid: str = "") -> Verdict:
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
    mine = [a for a in run.attempts if a.for_uid == for_uid]
    if not mine:
        return Fresh(number)
    last = mine[-1]
    if last.state is AttemptState.SUCCEEDED:
        return Ended(last)
    reason, message = failure(last)
    ended = last.finished or last.created
    same_generation = [a for a in mine if a.generation == generation]
    final = last.exit_code == EXIT_INPUT and not last.oom and reason not in OF_THE_TABLE
    if final and same_generation:
        return GivenUp(last, reason, message, permanent=True)
    if sum(a.oom for a in same_generation) >= OOM_ATTEMPTS:
        hint = f"{message} It was tried {OOM_ATTEMPTS} times. Raise spec.runTemplate.driver.memory of the Dataset."
        return GivenUp(last, reason, hint, permanent=False)
    if not same_generation:
        return Again(ended, number, reason, message, NO_FAILURES, last)
    failures = counted(run.attempts, generation, for_uid)
    if last.by_committer:  # what it could not do is for a Job to try, at once
        return Again(ended, number, reason, message, failures, last)
    at = ended + timedelta(seconds=pause_seconds(last, failures, settings))
    return Again(at, number, reason, message, failures, last)
