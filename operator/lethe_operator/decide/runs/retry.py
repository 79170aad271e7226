"""Judges a run by its attempts: whether it is active, has ended, is retried and when, or is given up. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from lethe.base.errors import EXIT_INPUT

from lethe_operator.decide.runs.failures import counted, failure, pause_seconds
from lethe_operator.reasons import Reason
from lethe_operator.resources.engine import Engine
from lethe_operator.resources.observed import NO_FAILURES, Attempt, AttemptState, Failures, ObservedRun
from lethe_operator.settings import Settings

# A driver that was killed for its memory is retried twice, because the need may vary. Then a user must raise the memory.
OOM_ATTEMPTS: Final = 3
# Failures that depend on the state of the table are never final: no run starts while the Dataset's conditions show them.
OF_THE_TABLE: Final = frozenset({Reason.TABLE_ROLLED_BACK, Reason.TABLE_REPLACED, Reason.LEDGER_LOST})


@dataclass(frozen=True)
class Fresh:
    """The document of the run is stored, and there is no attempt yet."""

    number: int  # of the next attempt


@dataclass(frozen=True)
class Going:
    """An attempt is active."""

    attempt: Attempt
    failures: Failures = NO_FAILURES  # of the attempts before it
    reason: str = ""  # of the last failure before it
    message: str = ""  # of the last failure before it


@dataclass(frozen=True)
class Ended:
    """The last attempt succeeded."""

    attempt: Attempt


@dataclass(frozen=True)
class Again:
    """The last attempt failed for a temporary reason."""

    at: datetime  # the next attempt does not start earlier
    number: int  # of the next attempt
    reason: str  # of the failure
    message: str  # of the failure
    failures: Failures  # since the last edit of the Dataset
    attempt: Attempt  # the last one


@dataclass(frozen=True)
class GivenUp:
    """No attempt follows until something changes."""

    attempt: Attempt  # the last one
    reason: str  # of the failure
    message: str  # of the failure
    permanent: bool  # True: the run reported a permanent error; False: it failed too often


Verdict = Fresh | Going | Ended | Again | GivenUp


def judge(run: ObservedRun, generation: int, settings: Settings, for_uid: str = "") -> Verdict:
    """Judge a run by its attempts.

    Args:
        generation: The Dataset's. Failures under other generations do not count, so the operator retries at once after an edit.
        for_uid: Only attempts with this `for_uid` count, so a Restatement that was deleted and created again starts from the
            beginning.
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
        hint = f"{message} This happened {OOM_ATTEMPTS} times. Increase spec.runTemplate.driver.memory of the Dataset."
        return GivenUp(last, reason, hint, permanent=False)
    if not same_generation:
        return Again(ended, number, reason, message, NO_FAILURES, last)
    failures = counted(run.attempts, generation, for_uid)
    if last.engine is not Engine.JOB:  # a Job tries the same at once
        return Again(ended, number, reason, message, failures, last)
    at = ended + timedelta(seconds=pause_seconds(last, failures, settings))
    return Again(at, number, reason, message, failures, last)
