"""What a resource waits for, and the next command. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lethe_operator.reasons import Reason

from lethe_kubectl.errors import Place
from lethe_kubectl.next_commands import Step, Subject, command, step_of, subject_of

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
    "EventsReady",
    "SourceRead",
    "EvictionOnTime",
    "EventsPublished",
)

_KNOWN: Final = {r.value: r for r in Reason}


@dataclass(frozen=True)
class Related:
    """What else the answer needs."""

    dataset: Document | None = None  # of a Restatement; None: it does not exist, or the resource is none


@dataclass(frozen=True)
class Finding:
    """One thing that the resource waits for."""

    about: str  # a condition, or a part of the status
    reason: str
    message: str
    step: Step


@dataclass(frozen=True)
class Answer:
    """Lines for people, and the next command; "": there is nothing to do."""

    lines: Sequence[str]
    command: str


def why(kind: str, document: Document, related: Related, place: Place) -> Answer:
    """Say what a resource waits for. The same arguments give the same answer.

    Args:
        kind: dataset, restatement or vacuumpolicy.
    """
    status = document.get("status") or {}
    runs = ((document if kind == "dataset" else related.dataset or {}).get("status") or {}).get("runs") or ()
    subject = subject_of(kind, document, runs)
    if status.get("observedGeneration") != document["metadata"].get("generation"):
        message = (
            "The operator has not read this version of the resource yet. If that lasts, the operator does not run."
        )
        return _answer([Finding("Ready", "NotObserved", message, Step.DESCRIBE)], subject, place)
    findings = list(_of_conditions(status))
    if kind == "dataset":
        findings += _of_parts(status)
    if kind == "vacuumpolicy":
        findings += _of_entries(status)
    if not findings:
        ready: Document = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
        said = str(ready.get("message") or "")
        return Answer([f"{kind}/{subject.name} waits for nothing. {said}".strip()], "")
    return _answer(findings, subject, place)


def finding(about: str, reason: str, message: str) -> Finding:
    """With the meaning of the reason, if there is no message."""
    known = _KNOWN.get(reason)
    if known is None:  # a run's own reason
        return Finding(about, reason, message, Step.LOGS)
    return Finding(about, reason, message or known.meaning, step_of(known))


def _of_conditions(status: Document) -> Iterator[Finding]:
    by_type = {str(c.get("type")): c for c in status.get("conditions") or ()}
    seen = set()
    for name in _ASKED:
        condition = by_type.get(name)
        if condition is None or (condition.get("status") == "True") != (name in _BAD_IF_TRUE):
            continue
        reason = str(condition.get("reason") or "")
        if reason in seen:
            continue
        seen.add(reason)
        found = finding(name, reason, str(condition.get("message") or ""))
        if found.step is not Step.NOTHING:
            yield found


def _of_parts(status: Document) -> Iterator[Finding]:
    """Of a Dataset: its consolidation and its vacuum, if they wait or run."""
    for part in ("consolidation", "vacuum"):
        said = status.get(part) or {}
        if said.get("reason"):
            found = finding(part, str(said["reason"]), str(said.get("message") or ""))
            if found.step is not Step.NOTHING:
                yield found


def _of_entries(status: Document) -> Iterator[Finding]:
    """Of a VacuumPolicy: the Datasets that wait."""
    for entry in status.get("datasets") or ():
        reason = str(entry.get("reason") or "")
        if reason:
            found = finding(f"dataset/{entry.get('name')}", reason, str(entry.get("message") or ""))
            if found.step not in (Step.NOTHING, Step.WAIT):
                yield Finding(found.about, found.reason, found.message, Step.DATASETS)


def _answer(findings: Sequence[Finding], subject: Subject, place: Place) -> Answer:
    lines = [f"{subject.kind}/{subject.name}"]
    lines += [f"  {f.about}: {f.reason}. {f.message}" for f in findings]
    # What needs a user comes before what Lethe does by itself.
    first = next((f for f in findings if f.step is not Step.WAIT), findings[0])
    return Answer(lines, command(first.step, subject, place))
