"""How a Restatement stands, as a value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lethe_operator.decide.conditions import FALSE, UNKNOWN
from lethe_operator.decide.erasure.status import Told
from lethe_operator.resources.observed import NO_FAILURES, Failures


@dataclass(frozen=True)
class Ready:
    """A Restatement may be a member of the next run. `since`: when it first might; `undoes`: the key of the request that an Undo
    takes back; `after`: the id of the run that it was a member of last, "" for none; `at_most`: so many may share the next one,
    None for as many as there are; `dry_run`: nothing of it is to be committed; `quick`: the committer may carry it out."""

    since: datetime
    undoes: str = ""
    after: str = ""
    at_most: int | None = None
    dry_run: bool = False
    quick: bool = False

    @property
    def company(self) -> tuple[str, int | None, bool]:
        """The same of those that may share a run."""
        return self.after, self.at_most, self.dry_run


@dataclass(frozen=True)
class Assessment:
    """How a Restatement stands. `succeeded` as the condition's status; `stalled`: somebody has to act; `ready`: it may start
    when its turn comes; `position`: its place in the queue until then, from 1; `cancel_job`: the run to stop once none of its
    members is wanted; `waits`: others may depend on it and it will go on by itself; `undoes`: the key of the request that an
    Undo takes back; `failures`: of its runs, once it has ended or stalls; `erasure`: how far its rows have gone, None: nobody was
    asked, or they need not go; `is_told`: the status says just this."""

    phase: str
    succeeded: str
    reason: str
    message: str
    stalled: bool = False
    result: Mapping[str, Any] | None = None
    plan: Mapping[str, Any] | None = None
    progress: str = ""
    ready: Ready | None = None
    position: int | None = None
    look_again: datetime | None = None
    cancel_job: str | None = None
    finished_time: datetime | None = None
    undoes: str = ""
    failures: Failures = NO_FAILURES
    erasure: Told | None = None
    is_told: bool = False

    @property
    def finished(self) -> bool:
        return self.succeeded != UNKNOWN

    @property
    def waits(self) -> bool:
        return not self.finished and not self.stalled


def stalled(reason: str, message: str, final: bool = False) -> Assessment:
    """Somebody has to act; `final`: by another Restatement, since this one has failed for good."""
    if final:
        return Assessment("Failed", FALSE, reason, message, stalled=True)
    return Assessment("Pending", UNKNOWN, reason, message, stalled=True)
