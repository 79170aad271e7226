"""Whether the vacuum that a user waits for has ended, by the status of its Dataset. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_now import VALUE_AT_MOST

Status = Mapping[str, Any]
_INVALID: Final = Reason.INVALID_VACUUM_NOW.value


@dataclass(frozen=True)
class VacuumOutcome:
    """How the wait ends."""

    succeeded: bool
    failed: bool  # a run failed; False and not succeeded: no run starts by itself
    message: str


def vacuum_ended(status: Status, before: Status, requested: str) -> VacuumOutcome | None:
    """The outcome; None: wait.

    Args:
        status: Of the Dataset.
        before: The status before the vacuum was requested or approved.
        requested: The value of the annotation lethe.dev/vacuum-now; "": the vacuum was approved.
    """
    vacuum = status.get("vacuum") or {}
    answer: Status = vacuum.get("requested") or {}
    message = str(vacuum.get("message") or "")
    if (
        requested
        and answer.get("value") == requested[:VALUE_AT_MOST]
        and answer.get("outcome") in ("Succeeded", "Failed")
    ):
        failed = answer["outcome"] == "Failed"
        return VacuumOutcome(not failed, failed, str(answer.get("message") or ""))
    # The same reason before the request is about an earlier value, as long as the operator has not read the new one.
    invalid = vacuum.get("reason") == _INVALID and (before.get("vacuum") or {}).get("reason") != _INVALID
    outside = vacuum.get("reason") == Reason.OUTSIDE_BOUNDARY.value
    if invalid or outside or (requested and vacuum.get("decision") == "NeedsApproval"):
        return VacuumOutcome(False, False, message)
    return None if requested else _approved(status, before)


def _approved(status: Status, before: Status) -> VacuumOutcome | None:
    """By the vacuums that ended since."""
    last, last_before = ((s.get("vacuum") or {}).get("lastRun") or {} for s in (status, before))
    if last and last.get("runId") != last_before.get("runId"):
        return VacuumOutcome(True, False, str(last.get("message") or ""))
    known = {r.get("name") for r in before.get("runs") or ()}
    new = [r for r in status.get("runs") or () if r.get("kind") == "Vacuum" and r.get("name") not in known]
    if new and new[0].get("phase") == "Failed":
        return VacuumOutcome(False, True, str(new[0].get("message") or ""))
    return None
