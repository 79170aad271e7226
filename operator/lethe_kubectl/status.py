"""The rows of `lethe status` and `lethe runs`, and whether the vacuum that a user waits for has ended. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from lethe.contract.status import (
    NOT_CARRIED_OUT,
    DatasetStatus,
    LastVacuum,
    RequestedVacuum,
    RestatementStatus,
    RunEntry,
    Status,
    SubjectProgress,
    VacuumPolicyStatus,
    VacuumStatus,
    parse_status,
)
from lethe.restatement.repeats import repetitions, request_of
from lethe_operator.reasons import Reason
from lethe_operator.resources.vacuum_policy import VALUE_AT_MOST

Document = Mapping[str, Any]
HEADERS: Final = ("RESOURCE", "STATE", "REASON", "BATCHES", "WAITING", "DETAIL")
WIDE: Final = ("AGE", "MESSAGE")
OPTIONAL: Final = ("BATCHES", "WAITING", "DETAIL")
"""A narrow terminal leaves these out, the first one first."""
_STATUSES: Final[Mapping[str, type[DatasetStatus | RestatementStatus | VacuumPolicyStatus]]] = {
    "dataset": DatasetStatus,
    "restatement": RestatementStatus,
    "vacuumpolicy": VacuumPolicyStatus,
}


def rows(resources: Sequence[tuple[str, Document]], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each resource.

    Args:
        resources: Kinds, and resources.
        wide: Whether to add the columns of `WIDE`.
    """
    for kind, document in resources:
        metadata, status = document["metadata"], status_of(kind, document)
        ready = status.condition("Ready")
        row = [f"{kind}/{metadata['name']}", _state(status), ready.reason if ready is not None else ""]
        row += [*_batches(status), _detail(document, status)]
        message = ready.message if ready is not None else ""
        yield [*row, age(metadata.get("creationTimestamp"), now), message] if wide else row


def status_of(kind: str, document: Document) -> DatasetStatus | RestatementStatus | VacuumPolicyStatus:
    """The status of a resource.

    Args:
        kind: dataset, restatement or vacuumpolicy.
    """
    return parse_status(_STATUSES[kind], document.get("status"))


def dataset_status(document: Document) -> DatasetStatus:
    """The status of a Dataset."""
    return parse_status(DatasetStatus, document.get("status"))


def _state(status: Status) -> str:
    if isinstance(status, RestatementStatus) and status.phase:
        return status.phase
    return {"True": "Ready", "False": "NotReady"}.get(status.value_of("Ready") or "", "Pending")


def _batches(status: Status) -> list[str]:
    """The promoted and the waiting ones of a Dataset."""
    if not isinstance(status, DatasetStatus):
        return ["", ""]
    promoted = status.batches.promoted if status.batches is not None else None
    waiting = status.buffer.batches if status.buffer is not None else None
    return ["" if number is None else str(number) for number in (promoted, waiting)]


def _detail(document: Document, status: DatasetStatus | RestatementStatus | VacuumPolicyStatus) -> str:
    match status:
        case RestatementStatus():
            spec = document["spec"]
            if "datasetRef" not in spec:
                return f"{spec['operation']} of a subject {_of_datasets(status.subject)}".strip()
            return f"{spec['operation']} of {spec['datasetRef']['name']} {status.progress or ''}".strip()
        case VacuumPolicyStatus():
            return f"{status.datasets_count or 0} datasets"
        case DatasetStatus():
            parts = {"consolidation": status.consolidation, "vacuum": status.vacuum}
            return ", ".join(f"{p} {said.reason}" for p, said in parts.items() if said is not None and said.reason)


def _of_datasets(subject: SubjectProgress | None) -> str:
    """How far the Datasets of a subject are, such as "2/5 verified, 1 blocked"; "": the operator has not counted them."""
    if subject is None:
        return ""
    blocked = f", {subject.blocked} blocked" if subject.blocked else ""
    return f"{subject.verified or 0}/{subject.selected or 0} verified{blocked}"


def age(since: datetime | str | None, now: datetime) -> str:
    """The time since then, as kubectl prints it: 5s, 3m, 7h, 2d; "" without one."""
    if not since:
        return ""
    begun = datetime.fromisoformat(since) if isinstance(since, str) else since
    seconds = max(int((now - begun) / timedelta(seconds=1)), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


RUN_HEADERS: Final = ("RUN", "DATASET", "KIND", "PHASE", "PROGRESS", "ATTEMPT", "STARTED", "TOOK", "REASON")
WIDE_RUN_HEADERS: Final = ("EXECUTORS", "MESSAGE")
OPTIONAL_RUN_HEADERS: Final = ("ATTEMPT", "DATASET", "KIND", "TOOK", "STARTED", "PROGRESS")
FAILED_WITHIN: Final = timedelta(days=1)
_FAILED: Final = "Failed"
_ENDED: Final = frozenset({"Succeeded", _FAILED})
_RESTATED: Final = _ENDED | {"Cancelled"}
_NEVER_ERASED: Final = frozenset({Reason.ERASURE_UNDONE, Reason.ERASURE_NOT_WATCHED})
_NOT_STARTED: Final = datetime.max.replace(tzinfo=UTC)  # after all that have started


class RunOfDataset(RunEntry):
    """A run in the status of its Dataset."""

    dataset: str


def runs_of(datasets: Sequence[Document], active: bool = False) -> list[RunOfDataset]:
    """The runs in the statuses of Datasets, the newest first.

    Args:
        active: Only those that have not ended.
    """
    runs = [
        RunOfDataset(dataset=d["metadata"]["name"], **dict(entry))
        for d in datasets
        for entry in dataset_status(d).runs or ()
    ]
    runs = [run for run in runs if not active or run.phase not in _ENDED]
    return sorted(runs, key=lambda run: run.start_time or _NOT_STARTED, reverse=True)


def run_rows(runs: Sequence[RunOfDataset], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each run.

    Args:
        wide: Whether to add the columns of `WIDE`.
    """
    for run in runs:
        row = [run.name, run.dataset, run.kind, run.phase or "", run.progress or "", str(run.attempt or "")]
        row += [age(run.start_time, now), _took(run, now), run.reason or ""]
        yield [*row, run.executors or "", run.message or ""] if wide else row


@dataclass(frozen=True)
class RecentFailures:
    """What failed within `FAILED_WITHIN`."""

    restatements: Sequence[str]
    runs: Sequence[str]
    """Those that the statuses still have, also if a later attempt succeeded. The newest first."""

    def __bool__(self) -> bool:
        """Whether something failed."""
        return bool(self.restatements or self.runs)

    def __str__(self) -> str:
        """One sentence with all names."""
        parts = [
            f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({', '.join(names)})"
            for what, names in (("Restatement", self.restatements), ("run", self.runs))
            if names
        ]
        return f"failed in the last day: {', '.join(parts)}"


def failures(found: Sequence[tuple[str, Document]], now: datetime) -> RecentFailures:
    """The Restatements and runs that failed lately, without Restatements that were repeated with success since.

    Args:
        found: Kinds, and all resources of them.
        now: The end of the time in which they failed.
    """
    documents = [d for kind, d in found if kind == "restatement"]
    repeated = repetitions(map(request_of, documents))
    names = (str(d["metadata"]["name"]) for d in documents if _has_failed(d, now))
    runs = runs_of([d for kind, d in found if kind == "dataset"])
    return RecentFailures(
        [name for name in names if name not in repeated],
        [r.name for r in runs if r.phase == _FAILED and _is_recent(r.finish_time, now)],
    )


def need_attention(found: Sequence[tuple[str, Document]], now: datetime) -> list[tuple[str, Document]]:
    """All Datasets and VacuumPolicies, and the Restatements that have not ended or count as failed.

    Args:
        found: Kinds, and all resources of them.
        now: The end of the time in which they failed.
    """
    failed = frozenset(failures(found, now).restatements)
    return [
        (kind, d) for kind, d in found if kind != "restatement" or d["metadata"]["name"] in failed or not _has_ended(d)
    ]


def _has_ended(document: Document) -> bool:
    return parse_status(RestatementStatus, document.get("status")).phase in _RESTATED


def _has_failed(document: Document, now: datetime) -> bool:
    """Whether a Restatement failed within `FAILED_WITHIN`."""
    status = parse_status(RestatementStatus, document.get("status"))
    ready = status.condition("Ready")
    return status.phase == _FAILED and _is_recent(ready.last_transition_time if ready is not None else None, now)


def _is_recent(time: datetime | None, now: datetime) -> bool:
    """A time that is not known counts as recent."""
    return time is None or now - time <= FAILED_WITHIN


def _took(run: RunOfDataset, now: datetime) -> str:
    """Until now if the run has not ended."""
    if run.finish_time is None and run.phase in _ENDED:
        return ""
    return age(run.start_time, run.finish_time or now)


@dataclass(frozen=True)
class WaitOutcome:
    """How a wait ends."""

    succeeded: bool
    failed: bool
    """A run failed; False and not succeeded: nothing more happens by itself."""
    message: str


class WaitGoal(StrEnum):
    """What a wait for a Restatement is for."""

    END = "end"
    """Its commit."""
    HIDDEN = "hidden"
    """No reader sees the rows, in any engine that reads the deletes that Lethe writes."""
    GONE = "gone"
    """The bytes are verified to be gone."""


def restatement_ended(status: RestatementStatus, generation: object, goal: WaitGoal) -> WaitOutcome | None:
    """The outcome; None: wait.

    Args:
        status: Its status.
        generation: Of its spec; an older status says nothing.
        goal: What the wait is for.
    """
    if status.observed_generation != generation:
        return None
    ready, erased = status.condition("Ready"), status.condition("Erased")
    if status.phase in NOT_CARRIED_OUT or status.is_true("Stalled"):
        said = f"{ready.reason} {ready.message}" if ready is not None else ""
        return WaitOutcome(False, status.phase == _FAILED, f"is {status.phase or 'Pending'}: {said}".strip())
    if status.phase != "Succeeded":
        return None
    succeeded = status.condition("Succeeded")
    done = WaitOutcome(True, False, (succeeded.message if succeeded is not None else "") or "Succeeded")
    match goal:
        case WaitGoal.END:
            return done
        case WaitGoal.HIDDEN:
            return done if status.value_of("VisibleToAllEngines") != "False" else None
        case WaitGoal.GONE:
            if erased is not None and erased.status == "True":
                return WaitOutcome(True, False, erased.message)
            if erased is not None and erased.reason in _NEVER_ERASED:
                return WaitOutcome(False, False, f"is not erased: {erased.reason} {erased.message}")
            return None


def waits_for(status: RestatementStatus) -> str:
    """Why a wait goes on, in a few words."""
    erased = status.condition("Erased")
    if status.phase == "Succeeded" and erased is not None:
        return f"{erased.reason} {erased.message}"
    return f"{status.phase or 'Pending'} {status.progress or ''}".strip()


def vacuum_ended(status: DatasetStatus, before: DatasetStatus, requested: str) -> WaitOutcome | None:
    """The outcome; None: wait.

    Args:
        before: The status before the vacuum was requested or approved.
        requested: The value of the annotation lethe.dev/vacuum-now; "": the vacuum was approved.
    """
    vacuum, vacuum_before = status.vacuum or VacuumStatus(), before.vacuum or VacuumStatus()
    answer = vacuum.requested or RequestedVacuum()
    if requested and answer.value == requested[:VALUE_AT_MOST] and answer.outcome in _ENDED:
        failed = answer.outcome == "Failed"
        return WaitOutcome(not failed, failed, answer.message or "")
    # The same reason before the request is about an earlier value, as long as the operator has not read the new one.
    invalid = vacuum.reason == Reason.INVALID_VACUUM_NOW != vacuum_before.reason
    outside = vacuum.reason == Reason.OUTSIDE_BOUNDARY
    if invalid or outside or (requested and vacuum.decision == "NeedsApproval"):
        return WaitOutcome(False, False, vacuum.message or "")
    return None if requested else _approved(status, before)


def _approved(status: DatasetStatus, before: DatasetStatus) -> WaitOutcome | None:
    """By the vacuums that ended since."""
    last, last_before = ((s.vacuum and s.vacuum.last_run) or LastVacuum() for s in (status, before))
    if last.run_id is not None and last.run_id != last_before.run_id:
        return WaitOutcome(True, False, last.message or "")
    known = {r.name for r in before.runs or ()}
    new = [r for r in status.runs or () if r.kind == "Vacuum" and r.name not in known]
    if new and new[0].phase == "Failed":
        return WaitOutcome(False, True, new[0].message or "")
    return None
