"""The assessment of a Restatement, as a value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from lethe_operator.decide.conditions import FALSE, UNKNOWN
from lethe_operator.decide.erasure.status import ErasureState
from lethe_operator.resources.observed import NO_FAILURES, Failures


class RestatementPhase(StrEnum):
    """`status.phase`, for people. Programs read the conditions."""

    PENDING = "Pending"
    QUEUED = "Queued"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    CANCELLED = "Cancelled"
    ROLLED_BACK = "RolledBack"


@dataclass(frozen=True)
class Ready:
    """The Restatement may be a member of the next run."""

    # Since when.
    since: datetime
    # Key of the request that an Undo takes back; "": it is not an Undo.
    undoes: str = ""
    # Id of the last run that it was a member of; "": there was none.
    after: str = ""
    # The largest number of members of the next run; None: no limit.
    at_most: int | None = None
    dry_run: bool = False
    # The committer may carry it out.
    quick: bool = False

    @property
    def company(self) -> tuple[str, int | None, bool]:
        """Only Restatements with equal values may share a run."""
        return self.after, self.at_most, self.dry_run


@dataclass(frozen=True)
class Assessment:
    """The state of a Restatement, which its status shows."""

    phase: RestatementPhase
    # Status of the condition Succeeded.
    succeeded: str
    reason: str
    message: str
    # A user must act.
    stalled: bool = False
    # `status.result`; None: there is none.
    result: Mapping[str, Any] | None = None
    # For `status.plan`; None: nothing new.
    plan: Mapping[str, Any] | None = None
    # Phase and tasks of the active run; "": not shown.
    progress: str = ""
    # None: it cannot start now.
    ready: Ready | None = None
    # Its place in the queue, from 1; None: it is not in the queue.
    position: int | None = None
    # When the assessment changes by itself; None: at no known time.
    look_again: datetime | None = None
    # Name of the active Job to stop if no member of its run is wanted any more; None: there is none.
    cancel_job: str | None = None
    # When the condition Succeeded in the status last changed; None: the status has none, or it has not finished.
    finished_time: datetime | None = None
    # Key of the request that an Undo takes back; "": it is not an Undo, or the key is unknown.
    undoes: str = ""
    # Of its runs, once it has ended or stalled.
    failures: Failures = NO_FAILURES
    # The state of its erasure; None: its rows need not be erased, or the ledger was not read.
    erasure: ErasureState | None = None
    # It is in a run that has an object but has not started: the object is suspended.
    has_run: bool = False
    # The assessment was read from the status.
    from_status: bool = False

    @property
    def finished(self) -> bool:
        return self.succeeded != UNKNOWN

    @property
    def under_way(self) -> bool:
        """Whether a run that has it may commit at any time."""
        return self.phase is RestatementPhase.RUNNING or self.has_run

    @property
    def waits(self) -> bool:
        """Whether it will continue without an action of a user. Others may depend on it."""
        return not self.finished and not self.stalled


def stalled(reason: str, message: str, final: bool = False) -> Assessment:
    """The assessment of a Restatement for which a user must act.

    Args:
        final: It has failed, so the user must create another Restatement.
    """
    if final:
        return Assessment(RestatementPhase.FAILED, FALSE, reason, message, stalled=True)
    return Assessment(RestatementPhase.PENDING, UNKNOWN, reason, message, stalled=True)
