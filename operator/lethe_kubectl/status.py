"""The rows of `lethe status`. Pure.

The rows of `lethe runs`. Pure.

Whether the vacuum that a user waits for has ended, by the status of its Dataset. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import VALUE_AT_MOST

Document = Mapping[str, Any]
HEADERS: Final = ("RESOURCE", "STATE", "REASON", "BATCHES", "WAITING", "DETAIL")
WIDE: Final = ("AGE", "MESSAGE")


def rows(found: Sequence[tuple[str, Document]], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each resource.

    Args:
        found: Kinds, and resources.
        wide: Whether to add the columns of `WIDE`.
    """
    for kind, document in found:
        status = document.get("status") or {}
        ready: Document = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
        state = str(
            status.get("phase") or {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Pending")
        )
        row = [f"{kind}/{document['metadata']['name']}", state, str(ready.get("reason") or "")]
        row += [_number(status, "batches", "promoted"), _number(status, "buffer", "batches"), _detail(kind, document)]
        yield (
            [*row, age(document["metadata"].get("creationTimestamp"), now), str(ready.get("message") or "")]
            if wide
            else row
        )


def _detail(kind: str, document: Document) -> str:
    status = document.get("status") or {}
    if kind == "restatement":
        spec = document["spec"]
        return f"{spec['operation']} of {spec['datasetRef']['name']} {status.get('progress', '')}".strip()
    if kind == "vacuumpolicy":
        return f"{status.get('datasetsCount', 0)} datasets"
    parts = [
        f"{p} {(status.get(p) or {}).get('reason')}"
        for p in ("consolidation", "vacuum")
        if (status.get(p) or {}).get("reason")
    ]
    return ", ".join(parts)


def _number(status: Document, part: str, key: str) -> str:
    value = (status.get(part) or {}).get(key)
    return "" if value is None else str(value)


def age(since: str | None, now: datetime) -> str:
    """The time since then, as kubectl prints it: 5s, 3m, 7h, 2d; "" without one."""
    if not since:
        return ""
    seconds = max(int((now - datetime.fromisoformat(since)) / timedelta(seconds=1)), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


RUN_HEADERS: Final = ("RUN", "DATASET", "KIND", "PHASE", "PROGRESS", "ATTEMPT", "STARTED", "TOOK", "REASON")
WIDE_RUN_HEADERS: Final = ("EXECUTORS", "MESSAGE")
_ENDED: Final = frozenset({"Succeeded", "Failed"})


def runs_of(datasets: Sequence[Document], active: bool = False) -> list[Document]:
    """The runs in the statuses of Datasets, the newest first, each with `dataset`.

    Args:
        active: Only those that have not ended.
    """
    runs = [
        {"dataset": d["metadata"]["name"], **run} for d in datasets for run in (d.get("status") or {}).get("runs") or ()
    ]
    runs = [run for run in runs if not active or run.get("phase") not in _ENDED]
    return sorted(runs, key=lambda run: str(run.get("startTime") or "9"), reverse=True)


def run_rows(runs: Sequence[Document], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each run.

    Args:
        wide: Whether to add the columns of `WIDE`.
    """
    for run in runs:
        row = [str(run.get(key) or "") for key in ("name", "dataset", "kind", "phase", "progress", "attempt")]
        row += [age(run.get("startTime"), now), _took(run, now), str(run.get("reason") or "")]
        yield [*row, str(run.get("executors") or ""), str(run.get("message") or "")] if wide else row


def _took(run: Document, now: datetime) -> str:
    """Until now if the run has not ended."""
    finished = run.get("finishTime")
    if not finished and run.get("phase") in _ENDED:
        return ""
    return age(run.get("startTime"), datetime.fromisoformat(finished) if finished else now)


_INVALID: Final = Reason.INVALID_VACUUM_NOW.value


@dataclass(frozen=True)
class VacuumOutcome:
    """How the wait ends."""

    succeeded: bool
    failed: bool
    """A run failed; False and not succeeded: no run starts by itself."""
    message: str


def vacuum_ended(status: Document, before: Document, requested: str) -> VacuumOutcome | None:
    """The outcome; None: wait.

    Args:
        status: Of the Dataset.
        before: The status before the vacuum was requested or approved.
        requested: The value of the annotation lethe.dev/vacuum-now; "": the vacuum was approved.
    """
    vacuum = status.get("vacuum") or {}
    answer: Document = vacuum.get("requested") or {}
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


def _approved(status: Document, before: Document) -> VacuumOutcome | None:
    """By the vacuums that ended since."""
    last, last_before = ((s.get("vacuum") or {}).get("lastRun") or {} for s in (status, before))
    if last and last.get("runId") != last_before.get("runId"):
        return VacuumOutcome(True, False, str(last.get("message") or ""))
    known = {r.get("name") for r in before.get("runs") or ()}
    new = [r for r in status.get("runs") or () if r.get("kind") == "Vacuum" and r.get("name") not in known]
    if new and new[0].get("phase") == "Failed":
        return VacuumOutcome(False, True, str(new[0].get("message") or ""))
    return None
