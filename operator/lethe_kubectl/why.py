"""What a resource waits for, and the next step of a user for each reason of a condition, as a command. Pure."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, assert_never

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import ACCEPT_HEAD, GROUP, PAUSED
from lethe.contract.status import (
    BatchCounts,
    BufferStatus,
    DatasetStatus,
    RestatementStatus,
    RunEntry,
    Status,
    SubjectDataset,
    VacuumPolicyStatus,
)
from lethe_operator.reasons import Reason

from lethe_kubectl.errors import ResourcePlace
from lethe_kubectl.status import dataset_status, status_of


class UserStep(StrEnum):
    """What a user does next."""

    NOTHING = "nothing"
    """All is well, or the resource has ended."""
    WAIT = "wait"
    """Lethe goes on by itself."""
    EDIT = "edit"
    """The spec of the resource needs a change."""
    DESCRIBE = "describe"
    """Events say more; what is wrong is outside the resource."""
    LOGS = "logs"
    """The log of the last run says more."""
    UNPAUSE = "unpause"
    RESUME = "resume"
    """`spec.suspend`."""
    ACCEPT_HEAD = "accept-head"
    """The table was changed from outside."""
    APPROVE = "approve"
    VACUUM = "vacuum"
    DATASET = "dataset"
    """The Dataset of the resource says more."""
    DATASETS = "datasets"
    """Other Datasets or all resources say more."""
    POLICIES = "policies"
    REFUSED = "refused"
    """The refused batches of the Dataset, each with its reason."""
    HELD = "held"
    """The batches that a check holds, each with its reason. A person approves or reverts them."""
    UNDONE = "undone"
    """The Restatement that an Undo names."""
    NEW = "new"
    """The Restatement can never succeed; a new one can."""
    RENEW = "renew"
    """The annotation lethe.dev/vacuum-now needs another value."""


def step_of(reason: Reason) -> UserStep:
    """What a user does next if a condition has this reason. A new reason needs an entry here, or mypy fails."""
    match reason:
        case (
            Reason.AVAILABLE | Reason.NOT_PAUSED | Reason.HEAD_ACCEPTED | Reason.QUEUE_READ | Reason.RUN_SUCCEEDED
            | Reason.HEAD_REANCHORED | Reason.SUCCEEDED | Reason.CANCELLED | Reason.ERASED | Reason.ERASURE_UNDONE
            | Reason.EXPIRED | Reason.IN_FORCE | Reason.BELOW_TRIGGERS | Reason.NOTHING_LEFT | Reason.ON_TIME
            | Reason.TIE_WON | Reason.NATIVE_DELETES_WRITTEN | Reason.NOTHING_WAITS | Reason.EVENTS_DELIVERED | Reason.SOURCE_READ
        ):  # fmt: skip
            return UserStep.NOTHING
        case (
            Reason.WAITING_FOR_FIRST_BATCH | Reason.BUFFER_BEING_LISTED | Reason.ENOUGH_BATCHES | Reason.ENOUGH_BYTES
            | Reason.OLD_ENOUGH | Reason.PAUSE_BETWEEN_COMMITS | Reason.QUEUE_NOT_ASKED | Reason.RUN_STARTED
            | Reason.COMMITTER_AWAY | Reason.WARM_DRIVER_AWAY | Reason.WARM_DRIVER_MADE_WAY | Reason.COMMIT_NOT_SEEN
            | Reason.RUN_DELETED | Reason.RUNNING | Reason.CANCELLING | Reason.EVICT_BY_NEAR | Reason.TOO_MANY_TOMBSTONES
            | Reason.TOO_MANY_HIDDEN_ROWS | Reason.TOMBSTONE_TOO_OLD | Reason.VACUUM_NOW | Reason.WINDOW_CLOSED
            | Reason.SOURCE_STARTING | Reason.TABLE_NOT_READY | Reason.CREATES_TABLE | Reason.NATIVE_DELETES_FOLLOW
            | Reason.WAITS_FOR_LOOKUPS | Reason.ROWS_TOO_OLD
        ):  # fmt: skip
            return UserStep.WAIT
        case (
            Reason.NOT_SUPPORTED | Reason.INVALID_SPEC | Reason.OUTSIDE_BOUNDARY | Reason.INVALID_TABLE_DEFINITION
            | Reason.POD_TEMPLATE_NOT_ALLOWED | Reason.UNKNOWN_CATALOG | Reason.UNSUPPORTED_CATALOG
            | Reason.UNSAFE_PROPERTY | Reason.TABLE_IS_VIEW
            | Reason.TABLE_NOT_FOUND | Reason.BATCH_COLUMN_MISSING | Reason.TABLE_CLAIMED | Reason.TABLE_HOLDS_BATCHES
            | Reason.TABLE_NOT_PREPARED | Reason.FORMAT_VERSION_MISMATCH | Reason.BUFFER_OVERLAPS_TABLE
            | Reason.BUFFER_LOCAL | Reason.BUFFER_HOLDS_TABLE | Reason.BUFFER_HOLDS_OTHER_OBJECTS
            | Reason.BUFFER_CLAIMED | Reason.TABLE_IN_OTHER_TABLE | Reason.BUFFER_SHARED | Reason.QUEUE_NOT_FOUND
            | Reason.QUEUE_SHARED | Reason.OOM_KILLED | Reason.LAUNCHER_NOT_AVAILABLE | Reason.INVALID_WINDOW
            | Reason.WINDOW_NEVER_OPENS | Reason.SOURCE_SUSPENDED | Reason.CLUSTER_NOT_FOUND | Reason.TOPIC_NOT_FOUND
            | Reason.OFFSETS_LOST | Reason.INVALID_SCHEMA | Reason.INVALID_HOLD
        ):  # fmt: skip
            return UserStep.EDIT
        case (
            Reason.CATALOG_UNAVAILABLE | Reason.STORAGE_UNAVAILABLE | Reason.NAME_TAKEN | Reason.QUEUE_UNAVAILABLE
            | Reason.QUEUE_ACCESS_DENIED | Reason.QUEUE_OVER_LIMIT | Reason.POD_WAITING | Reason.RUN_SUSPENDED
            | Reason.SUBMISSION_FAILED | Reason.EXECUTORS_MISSING | Reason.LAUNCH_FAILED | Reason.VERSION_SKEW
            | Reason.LIST_NOT_FOUND | Reason.LIST_NOT_ALLOWED | Reason.RECORD_NOT_SIGNED | Reason.ERASURE_BLOCKED
            | Reason.GC_DISABLED | Reason.ERASURE_OVERDUE | Reason.SINK_UNAVAILABLE | Reason.SINK_DENIED | Reason.SINK_NOT_FOUND
            | Reason.MESSAGE_TOO_LARGE | Reason.MESSAGE_REFUSED | Reason.CURSOR_UNREADABLE | Reason.INLET_SILENT
            | Reason.BROKER_AWAY | Reason.SOURCE_DENIED | Reason.SOURCE_REPLACED | Reason.REGISTRY_AWAY
            | Reason.NO_SCHEMA_REGISTRY | Reason.EPOCH_LOG_UNREADABLE | Reason.SOURCE_FAILED | Reason.DATASETS_BLOCKED
            | Reason.VALUES_NOT_DELETED | Reason.REQUESTER_NOT_ALLOWED | Reason.LEGAL_HOLD
        ):  # fmt: skip
            return UserStep.DESCRIBE
        case (
            Reason.PAUSE_AFTER_RUN | Reason.RUN_RETRYING | Reason.RUN_FAILED | Reason.DEADLINE_EXCEEDED
            | Reason.DRIVER_LOST
        ):  # fmt: skip
            return UserStep.LOGS
        case Reason.PAUSED:
            return UserStep.UNPAUSE
        case Reason.SUSPENDED:
            return UserStep.RESUME
        case Reason.TABLE_ROLLED_BACK | Reason.TABLE_REPLACED | Reason.TABLE_DROPPED | Reason.LEDGER_LOST:
            return UserStep.ACCEPT_HEAD
        case Reason.NEEDS_APPROVAL:
            return UserStep.APPROVE
        case (
            Reason.ROWS_IN_TABLE | Reason.ERASURE_NOT_VERIFIED | Reason.EVICT_BY_INFEASIBLE | Reason.EVICT_BY_MISSED
            | Reason.ERASURE_NOT_WATCHED
        ):  # fmt: skip
            return UserStep.VACUUM
        case Reason.QUEUED | Reason.WAITS_FOR_BATCHES | Reason.ROLLED_BACK | Reason.DATASET_NOT_READY:
            return UserStep.DATASET
        case (
            Reason.DATASET_NOT_FOUND | Reason.WAITING_FOR_RESTATEMENT | Reason.WAITS_FOR_OTHER_VACUUMS
            | Reason.NO_DATASETS | Reason.DERIVED_WITHOUT_IDENTITY | Reason.LOOKUPS_IN_CIRCLE
        ):  # fmt: skip
            return UserStep.DATASETS
        case Reason.PLANNED:
            return UserStep.NEW
        case Reason.NO_VACUUM_POLICY | Reason.LESS_SPECIFIC | Reason.TIE_LOST | Reason.INVALID_RETENTION:
            return UserStep.POLICIES
        case Reason.UNDONE_RESTATEMENT_NOT_FOUND:
            return UserStep.UNDONE
        case (
            Reason.SECRET_NOT_ALLOWED | Reason.UNDONE_RESTATEMENT_NOT_COMMITTED | Reason.REPLACEMENT_IN_BUFFER
            | Reason.PLACE_IN_TABLE | Reason.PLACE_LOCAL | Reason.INVALID_ID_LIST | Reason.LIST_CHANGED
            | Reason.VALUES_CHANGED | Reason.VALUES_NOT_COMPARABLE | Reason.UNKNOWN_BATCHES | Reason.LOOKUP_ERASED
            | Reason.TOO_MANY_COLUMNS | Reason.TOO_MANY_BATCHES
        ):  # fmt: skip
            return UserStep.NEW
        case Reason.INVALID_VACUUM_NOW:
            return UserStep.RENEW
        case _:
            assert_never(reason)


@dataclass(frozen=True)
class Subject:
    """The resource that a command is about."""

    kind: str
    """Dataset, restatement or vacuumpolicy."""
    name: str
    dataset: str
    """The Dataset that it belongs to; "": none."""
    run: str = ""
    """The last run; "": none."""
    undoes: str = ""
    """The Restatement that an Undo names; "": none."""
    part: str = ""
    """Of the erasure of a subject: the Restatement of the first Dataset that is blocked; "": none."""


def command(step: UserStep, subject: Subject, place: ResourcePlace, message: str = "") -> str:
    """The command of a step; "": there is none.

    Args:
        step: What the user does.
        subject: What the command is about. If it lacks what the step needs, its events say more.
        place: Where it is.
        message: Of the condition, which may name a value.
    """
    name, dataset = shlex.quote(subject.name), shlex.quote(subject.dataset)
    kind = f"{subject.kind}.{GROUP}"  # others have kinds of these names, too
    accepted = _ACCEPTED.search(message)
    lacks = {
        UserStep.LOGS: not subject.run,
        UserStep.ACCEPT_HEAD: accepted is None or not subject.dataset,
        UserStep.UNDONE: not subject.undoes,
        UserStep.RESUME: subject.kind not in _SUSPEND,
        **dict.fromkeys(
            (
                *(UserStep.APPROVE, UserStep.VACUUM, UserStep.RENEW, UserStep.DATASET),
                *(UserStep.REFUSED, UserStep.HELD),
            ),
            not subject.dataset,
        ),
    }
    if lacks.get(step):
        step = UserStep.DESCRIBE
    match step:
        case UserStep.NOTHING:
            return ""
        case UserStep.WAIT:
            return place.run(f"why {subject.kind}/{name}")
        case UserStep.EDIT:
            return f"{place.kubectl} edit {kind} {name}"
        case UserStep.DESCRIBE:
            return f"{place.kubectl} describe {kind} {name}"
        case UserStep.LOGS:
            return place.run(f"logs {shlex.quote(subject.run)}")
        case UserStep.UNPAUSE:
            return f"{place.kubectl} annotate {kind} {name} {PAUSED}-"
        case UserStep.RESUME:
            return f"{place.kubectl} patch {kind} {name} --type merge -p '{_SUSPEND[subject.kind]}'"
        case UserStep.ACCEPT_HEAD:
            assert accepted is not None
            return f"{place.kubectl} annotate dataset.{GROUP} {dataset} --overwrite {ACCEPT_HEAD}={shlex.quote(accepted[1])}"
        case UserStep.APPROVE:
            return place.run(f"approve {dataset}")
        case UserStep.VACUUM:
            return place.run(f"vacuum-now {dataset}")
        case UserStep.DATASET:
            return place.run(f"why dataset/{dataset}")
        case UserStep.DATASETS:
            return place.run("status")
        case UserStep.POLICIES:
            return f"{place.kubectl} get vacuumpolicies.{GROUP}"
        case UserStep.REFUSED | UserStep.HELD:
            return place.run(f"batches {dataset} --state {step.value}")
        case UserStep.UNDONE:
            return place.run(f"why restatement/{shlex.quote(subject.undoes)}")
        case UserStep.NEW:
            return f"{place.kubectl} get {kind} {name} -o yaml"
        case UserStep.RENEW:
            return place.run(f"vacuum-now {dataset}")
        case _:
            assert_never(step)


def subject_of(kind: str, document: Mapping[str, Any], runs: Iterable[RunEntry] = ()) -> Subject:
    """The subject for a resource; `runs` are the runs of its Dataset, the newest first."""
    spec, name = document.get("spec") or {}, str(document["metadata"]["name"])
    dataset = name if kind == "dataset" else str((spec.get("datasetRef") or {}).get("name") or "")
    run = next((r.name for r in runs if r.phase == "Failed"), "")
    blocked = (d.restatement for d in _datasets_of(status_of(kind, document)) if d.state == _BLOCKED)
    undoes = str((spec.get("undoes") or {}).get("name") or "")
    return Subject(kind, name, dataset, run, undoes, part=next((r for r in blocked if r), ""))


def _datasets_of(status: Status) -> Sequence[SubjectDataset]:
    """Of the erasure of a subject: its Datasets."""
    subject = status.subject if isinstance(status, RestatementStatus) else None
    return (subject.datasets or ()) if subject is not None else ()


Document = Mapping[str, Any]
# Conditions in which True is bad news, or no news; of all others, False and Unknown are.
_BAD_IF_TRUE: Final = frozenset({"Stalled", "Reconciling", "Paused"})
# In the order of importance. Reconciling repeats what Ready says.
_ASKED: Final = (
    "Stalled",
    "Ready",
    "Paused",
    "Succeeded",
    "Erased",
    "VisibleToAllEngines",
    "EventsReady",
    "SourceRead",
    "EvictionOnTime",
    "EventsPublished",
)

_KNOWN: Final = {r.value: r for r in Reason}
_ACCEPTED: Final = re.compile(rf"{re.escape(ACCEPT_HEAD)}=(\S+)")
"""Messages of conditions name the value that accepts what was found, and what that means."""
_BLOCKED: Final = "Blocked"
"""The state of a Dataset of a subject's erasure in which something must be changed."""
_SUSPEND: Final = {
    "dataset": '{"spec":{"consolidation":{"suspend":false}}}',
    "restatement": '{"spec":{"suspend":false}}',
}
"""The patch that ends a suspension, by kind."""


@dataclass(frozen=True)
class Related:
    """What else the answer needs."""

    dataset: Document | None = None
    """Of a Restatement; None: it does not exist, or the resource is none."""


@dataclass(frozen=True)
class Wait:
    """One thing that the resource waits for."""

    about: str
    """A condition, or a part of the status."""
    verdict: Verdict
    step: UserStep


@dataclass(frozen=True)
class NextStep:
    """Lines for people, and the next command; "": there is nothing to do."""

    lines: Sequence[str]
    command: str


def why(kind: str, document: Document, related: Related, place: ResourcePlace) -> NextStep:
    """Say what a resource waits for. The same arguments give the same answer.

    Args:
        kind: dataset, restatement or vacuumpolicy.
    """
    status = status_of(kind, document)
    of_dataset = status if isinstance(status, DatasetStatus) else dataset_status(related.dataset or {})
    subject = subject_of(kind, document, of_dataset.runs or ())
    if status.observed_generation != document["metadata"].get("generation"):
        message = (
            "The operator has not read this version of the resource yet. If that lasts, the operator does not run."
        )
        unread = Wait("Ready", Verdict("NotObserved", message), UserStep.DESCRIBE)
        return _answer([unread], subject, place, Related())
    findings = list(_of_conditions(status))
    if isinstance(status, DatasetStatus):
        findings += [*_of_parts(status), *_of_holds(status), *_of_buffer(status)]
    if isinstance(status, VacuumPolicyStatus):
        findings += _of_entries(status)
    if not findings:
        ready = status.condition("Ready")
        said = ready.message if ready is not None else ""
        lines = [f"{kind}/{subject.name} waits for nothing. {said}".strip(), *_lines_of(_datasets_of(status))]
        return NextStep(lines, "")
    answer = _answer(findings, subject, place, related)
    return replace(answer, lines=[*answer.lines, *_lines_of(_datasets_of(status))])


def _lines_of(datasets: Sequence[SubjectDataset]) -> Iterator[str]:
    """A line for each Dataset of a subject's erasure: how far it is, and what blocks it."""
    for dataset in datasets:
        of = f" by restatement/{dataset.restatement}" if dataset.restatement else ""
        blocked = f": {dataset.reason}. {dataset.message or ''}".rstrip() if dataset.state == _BLOCKED else ""
        yield f"  dataset/{dataset.name} {dataset.state or 'Waiting'}{of}{blocked}"


def finding(about: str, verdict: Verdict) -> Wait:
    """With the meaning of the reason, if there is no message."""
    known = _KNOWN.get(verdict.reason)
    if known is None:  # a run's own reason
        return Wait(about, verdict, UserStep.LOGS)
    return Wait(about, replace(verdict, message=verdict.message or known.meaning), step_of(known))


def _of_conditions(status: Status) -> Iterator[Wait]:
    seen = set()
    for name in _ASKED:
        condition = status.condition(name)
        if condition is None or (condition.status == "True") != (name in _BAD_IF_TRUE):
            continue
        if condition.reason in seen:
            continue
        seen.add(condition.reason)
        wait = finding(name, condition.verdict)
        if wait.step is not UserStep.NOTHING:
            yield wait


def _of_parts(status: DatasetStatus) -> Iterator[Wait]:
    """Of a Dataset: its consolidation and its vacuum, if they wait or run."""
    for part, said in (("consolidation", status.consolidation), ("vacuum", status.vacuum)):
        if said is not None and said.reason:
            wait = finding(part, Verdict(said.reason, said.message or ""))
            if wait.step is not UserStep.NOTHING:
                yield wait


def _of_holds(status: DatasetStatus) -> Iterator[Wait]:
    """Of a Dataset: the holds that are not in force yet, or not any more."""
    for hold in status.holds or ():
        if hold.active is False:
            yield Wait(f"hold/{hold.name}", Verdict("HoldNotInForce", hold.message or ""), UserStep.DESCRIBE)


def _of_buffer(status: DatasetStatus) -> Iterator[Wait]:
    """Of a Dataset: what is in the buffer and is no batch, what a check holds, and what was refused. Nothing happens to it."""
    buffer, batches = status.buffer or BufferStatus(), status.batches or BatchCounts()
    if buffer.waiting:
        message = f"{buffer.waiting} of its folders have no _SUCCESS yet, or no data file. Who writes a batch ends with _SUCCESS."
        yield Wait("buffer", Verdict("IncompleteBatches", message), UserStep.WAIT)
    if buffer.invalid:
        named = "; ".join(f"{f.folder}: {f.message or 'it is no batch'}" for f in (buffer.invalid_folders or ())[:3])
        message = f"{buffer.invalid} of its entries are no batches: {named}".rstrip(": ")
        yield Wait("buffer", Verdict("InvalidEntries", message), UserStep.DESCRIBE)
    for step, reason, count, latest in (
        (UserStep.HELD, "BatchesHeld", batches.held, batches.held_batches),
        (UserStep.REFUSED, "BatchesRefused", batches.refused, batches.refused_batches),
    ):
        if count:
            such = (
                f", such as {latest[0].batch_id}: {latest[0].reason} {latest[0].message or ''}".rstrip()
                if latest
                else ""
            )
            yield Wait("batches", Verdict(reason, f"{count} were {step.value}{such}"), step)


def _of_entries(status: VacuumPolicyStatus) -> Iterator[Wait]:
    """Of a VacuumPolicy: the Datasets that wait."""
    for entry in status.datasets or ():
        if entry.reason:
            wait = finding(f"dataset/{entry.name}", Verdict(entry.reason, entry.message or ""))
            if wait.step not in (UserStep.NOTHING, UserStep.WAIT):
                yield replace(wait, step=UserStep.DATASETS)


def _answer(findings: Sequence[Wait], subject: Subject, place: ResourcePlace, related: Related) -> NextStep:
    lines = [f"{subject.kind}/{subject.name}"]
    lines += [f"  {f.about}: {f.verdict.reason}. {f.verdict.message}" for f in findings]
    # What needs a user comes before what Lethe does by itself.
    first = next((f for f in findings if f.step is not UserStep.WAIT), findings[0])
    return NextStep(lines, _next(first, subject, place, related.dataset))


def _next(first: Wait, subject: Subject, place: ResourcePlace, dataset: Document | None) -> str:
    """The command. What a Restatement waits for is often its Dataset, and then the command is about that."""
    step = first.step
    if subject.part and step is not UserStep.WAIT:
        return place.run(f"why restatement/{shlex.quote(subject.part)}")
    if subject.kind == "restatement" and dataset is not None and _has(dataset, first.verdict.reason):
        subject = subject_of("dataset", dataset, dataset_status(dataset).runs or ())
    elif subject.kind == "restatement" and step is UserStep.EDIT:
        step = UserStep.NEW  # its spec cannot change
    return command(step, subject, place, first.verdict.message)


def _has(dataset: Document, reason: str) -> bool:
    """Whether a Dataset has a condition with this reason."""
    return any(c.reason == reason for c in dataset_status(dataset).conditions or ())
