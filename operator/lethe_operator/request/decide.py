"""Decides what to do for a subject request, and makes its status. Pure.

Everything comes from the Datasets and from the statuses of the Restatements that the request has made, so a restarted operator
goes on where it was.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import Any, Final

from lethe.base.errors import Verdict
from lethe.contract.kubernetes import API_VERSION
from lethe.contract.restatement import DatasetRef, RedactSpec, RestatementSpec, RowsSpec
from lethe.contract.run import REQUESTED_BY
from lethe.contract.settings import Operation
from lethe.contract.status import (
    SUBJECT_DATASETS_AT_MOST,
    Condition,
    ConditionStatus,
    ErasureStatus,
    RestatementPlan,
    RestatementResult,
    RestatementStatus,
    SubjectDataset,
    SubjectProgress,
)

from lethe_operator import conditions
from lethe_operator.actions import Event, earliest
from lethe_operator.conditions import FALSE, TRUE, UNKNOWN
from lethe_operator.reasons import Reason
from lethe_operator.request.targets import Target, Targets
from lethe_operator.resources.common import LABEL_REQUEST
from lethe_operator.resources.observed import Invalid
from lethe_operator.resources.restatement import Restatement
from lethe_operator.restatement.outcome import RestatementPhase

LOOK_AGAIN: Final = timedelta(seconds=10)
"""How soon a new Dataset, or a changed one, joins an open request."""
NAMED_AT_MOST: Final = 3
MESSAGE_AT_MOST: Final = 300
"""Characters of the message about one Dataset."""
_NAME_AT_MOST: Final = 253
_LABEL_AT_MOST: Final = 63
_STATES: Final = ("Blocked", "Waiting", "Running", "Hidden", "Planned", "Purged", "Verified")
"""In the order of the list in the status."""
_LATE: Final = (str(Reason.ERASURE_OVERDUE), str(Reason.ERASURE_BLOCKED), str(Reason.GC_DISABLED))


@dataclass(frozen=True)
class Part:
    """One Dataset of a request."""

    dataset: str
    """Its name."""
    target: Target | None
    """None: its spec is invalid, or it is no longer part of the request, and its Restatement exists."""
    child: Restatement | Invalid | None
    """Its Restatement; None: there is none yet."""
    state: SubjectDataset
    hidden: bool = False
    """Readers no longer see the rows."""
    purged: bool = False
    """No data file of the table has the rows."""
    verified: bool = False
    """A run has verified that no file in the storage has them."""
    blocked: bool = False
    """Something must be changed, or keeps the bytes."""
    starts: bool = False
    """Its Restatement can be made now."""


@dataclass(frozen=True)
class RequestWorld:
    """Everything that a decision about a request depends on, except for the clock."""

    request: Restatement
    targets: Targets
    children: Mapping[str, Restatement | Invalid]
    """The Restatements that the request owns, by their name."""
    names_taken: frozenset[str] = frozenset()
    """Names that other Restatements have."""
    denied: Mapping[str, Verdict] = field(default_factory=dict)
    """Why the requester may not erase from a Dataset, by the Dataset's name. It has only Datasets without a Restatement."""

    @cached_property
    def child_of(self) -> Mapping[str, Restatement | Invalid]:
        """The Restatements that the request owns, by the name of their Dataset. Its own comes before a forged one."""
        made, forged = dict[str, Restatement | Invalid](), dict[str, Restatement | Invalid]()
        for child in self.children.values():
            is_forged = isinstance(child, Restatement) and not _is_own(self.request, child)
            (forged if is_forged else made)[_dataset_of(child)] = child
        return forged | made


@dataclass(frozen=True)
class RequestActions:
    """What to do for a request."""

    status: RestatementStatus
    create: tuple[Mapping[str, Any], ...] = ()
    """Restatements to create."""
    change: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Merge patches of the specs of its Restatements, by name."""
    parts: tuple[Part, ...] = ()
    complete: bool = False
    """All is verified, and the record of the request is to be written."""
    delete: bool = False
    """The ttlSecondsAfterFinished of the request has passed."""
    look_again: datetime | None = None
    """None: when something changes."""


def decide(world: RequestWorld, now: datetime) -> RequestActions:
    """Decide what to do for a request now."""
    request = world.request
    if is_closed(request):
        return _closed(request, now)
    parts = tuple(_parts(world))
    create = () if _stops(request) else tuple(child_document(request, p.target) for p in parts if p.starts)
    return RequestActions(
        status=_status(world, parts, now),
        create=create,
        change=_changes(request, parts),
        parts=parts,
        complete=_is_complete(request, parts),
        look_again=now + LOOK_AGAIN,
    )


def is_closed(request: Restatement) -> bool:
    """Whether nothing changes any more: it is verified everywhere, or was only planned, or was cancelled."""
    status, subject = request.status, request.status.subject or SubjectProgress()
    if status.is_true(conditions.ERASED):
        return True
    if status.observed_generation != request.meta.generation:
        return False
    if status.phase == RestatementPhase.CANCELLED:
        return subject.hidden == subject.verified  # what was committed before is still erased
    return request.spec.dry_run and status.is_true(conditions.SUCCEEDED)


def _closed(request: Restatement, now: datetime) -> RequestActions:
    ttl, old = request.spec.ttl_seconds_after_finished, request.status
    last = conditions.ERASED if old.is_true(conditions.ERASED) else conditions.SUCCEEDED
    ended = old.condition(last)
    status = old.model_copy(update={"observed_generation": request.meta.generation})
    if ttl is None or ended is None or ended.last_transition_time is None:
        return RequestActions(status)
    expires = ended.last_transition_time + timedelta(seconds=ttl)
    return RequestActions(status, delete=expires <= now, look_again=expires)


def _stops(request: Restatement) -> bool:
    return request.spec.suspend or request.spec.cancel or request.meta.deleting


def child_name(request: str, dataset: str) -> str:
    """The name of the Restatement of one Dataset. The same for the same names."""
    name = f"{request}-{dataset}"
    if len(name) <= _NAME_AT_MOST:
        return name
    # A part of a name between dots must not begin with a hyphen.
    return f"{name[: _NAME_AT_MOST - 11].rstrip('.')}-{sha256(name.encode()).hexdigest()[:10]}"


def child_document(request: Restatement, target: Target | None) -> dict[str, Any]:
    """The Restatement that erases or redacts the subject in one Dataset."""
    assert target is not None
    spec, meta = request.spec, request.meta
    child = RestatementSpec(
        dataset_ref=DatasetRef(name=target.name),
        operation=spec.operation,
        rows=RowsSpec(any_of=target.conditions),
        redact=spec.redact,
        reason=spec.reason,
        ticket=spec.ticket,
        evict_by_seconds=spec.evict_by_seconds,
        deadline_seconds=spec.deadline_seconds,
        dry_run=spec.dry_run,
    )
    marks = {REQUESTED_BY: by} if (by := meta.annotations.get(REQUESTED_BY)) else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "Restatement",
        "metadata": {
            "name": child_name(meta.name, target.name),
            "namespace": meta.namespace,
            "labels": {LABEL_REQUEST: meta.name} if len(meta.name) <= _LABEL_AT_MOST else {},
            "annotations": marks,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": "Restatement",
                    "name": meta.name,
                    "uid": meta.uid,
                    "controller": True,
                }
            ],
        },
        # Without defaults: the API server distinguishes an empty list from none.
        "spec": child.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }


def _parts(world: RequestWorld) -> Iterable[Part]:
    """The Datasets of a request, by name: those that are, or may be, part of it now, and those of its Restatements."""
    targets = {t.name: t for t in world.targets.included}
    for name in sorted({*targets, *world.targets.invalid, *world.child_of}):
        target, child = targets.get(name), world.child_of.get(name)
        if child is None:
            yield _without_child(world, target) if target is not None else _invalid(name)
        elif isinstance(child, Restatement) and not _is_own(world.request, child):
            text = f"Restatement {child.meta.name} names this request as its owner, and has another task. Delete it."
            shown = _shown(name, child.meta.name, "Blocked", Verdict(Reason.NAME_TAKEN, text))
            yield Part(name, target, child, shown, blocked=True)
        else:
            yield _with_child(name, target, child)


def _is_own(request: Restatement, child: Restatement) -> bool:
    """Whether a Restatement does what the request asks for, as far as its spec says. Anyone could write that a request owns it.

    Its columns are not compared: the identities of the Dataset may have changed since.
    """
    subject, rows = request.spec.subject, child.spec.rows
    asked = [i.values_from for i in subject.identities] if subject is not None else []
    return (
        child.meta.name == child_name(request.meta.name, child.spec.dataset)
        and _task(child) == _task(request)
        and rows is not None
        and all(c.values_from in asked for c in rows.conditions)
    )


def _task(restatement: Restatement) -> tuple[Operation, bool, RedactSpec | None]:
    """What is done to the rows that belong to the subject."""
    return restatement.spec.operation, restatement.spec.dry_run, restatement.spec.redact


def _content(request: Restatement) -> str:
    """What has to go, for messages."""
    return "the old values" if request.spec.operation is Operation.REDACT else "the rows"


def _dataset_of(child: Restatement | Invalid) -> str:
    return child.spec.dataset if isinstance(child, Restatement) else child.meta.name


def _without_child(world: RequestWorld, target: Target) -> Part:
    name, own = target.name, child_name(world.request.meta.name, target.name)
    problem = target.problem or world.denied.get(name)
    if problem is None and own in world.names_taken:
        text = f"Another Restatement has the name {own}. Delete it, or give the request another name."
        problem = Verdict(Reason.NAME_TAKEN, text)
    if problem is None and (used := _erased_lookups(world, target)):
        text = (
            f"Dataset {name} looks up keys in {', '.join(used)}, where this request has erased or redacted the subject already. "
            "Make another Restatement of this Dataset that names the keys."
        )
        problem = Verdict(Reason.LOOKUP_ERASED, text)
    if problem is not None:
        return Part(name, target, None, _shown(name, "", "Blocked", problem), blocked=True)
    if readers := _awaited(world, target):
        text = f"Its rows are needed until the Restatements of {', '.join(readers)} have looked up keys in them."
        return Part(name, target, None, _shown(name, "", "Waiting", Verdict(Reason.WAITS_FOR_LOOKUPS, text)))
    shown = _shown(name, "", "Waiting", Verdict(Reason.QUEUED, Reason.QUEUED.meaning))
    return Part(name, target, None, shown, starts=True)


def _invalid(dataset: str) -> Part:
    text = f"Dataset {dataset} has an invalid spec, so it is not known how to find the subject in it. Its status names the field."
    shown = _shown(dataset, "", "Blocked", Verdict(Reason.INVALID_SPEC, text))
    return Part(dataset, None, None, shown, blocked=True)


def _awaited(world: RequestWorld, target: Target) -> tuple[str, ...]:
    """The Datasets that still have to look up keys in this one."""
    readers = world.targets.readers_of.get(target.name, frozenset())
    return tuple(n for n in sorted(readers) if not _is_hidden(world.request, world.child_of.get(n)))


def _erased_lookups(world: RequestWorld, target: Target) -> tuple[str, ...]:
    """The Datasets in which this one looks up keys, and whose own erasure has begun."""
    return tuple(n for n in sorted(target.lookups) if n in world.child_of)


def _is_hidden(request: Restatement, child: Restatement | Invalid | None) -> bool:
    """Whether the request's own Restatement of a Dataset has succeeded. Another one's success says nothing of the subject."""
    return isinstance(child, Restatement) and _is_own(request, child) and child.status.is_true(conditions.SUCCEEDED)


def _shown(
    dataset: str, child: str, state: str, verdict: Verdict, result: RestatementResult | None = None
) -> SubjectDataset:
    return SubjectDataset(
        name=dataset,
        restatement=child or None,
        state=state,
        reason=str(verdict.reason),
        message=verdict.message[:MESSAGE_AT_MOST],
        rows_erased=result.rows_erased if result is not None else None,
        rows_redacted=result.rows_redacted if result is not None else None,
    )


def _with_child(dataset: str, target: Target | None, child: Restatement | Invalid) -> Part:
    name = child.meta.name
    if isinstance(child, Invalid):
        shown = _shown(dataset, name, "Blocked", Verdict(Reason.INVALID_SPEC, child.message))
        return Part(dataset, target, child, shown, blocked=True)
    status = child.status
    if not status.is_true(conditions.SUCCEEDED):
        ready = status.condition(conditions.READY)
        verdict = ready.verdict if ready is not None else Verdict(Reason.QUEUED, Reason.QUEUED.meaning)
        stopped = status.is_true(conditions.STALLED) or status.value_of(conditions.SUCCEEDED) == FALSE
        running = "Running" if status.phase == RestatementPhase.RUNNING else "Waiting"
        shown = _shown(dataset, name, "Blocked" if stopped else running, verdict)
        return Part(dataset, target, child, shown, blocked=stopped)
    ended = status.condition(conditions.SUCCEEDED)
    assert ended is not None
    erased, erasure = status.condition(conditions.ERASED), status.erasure or ErasureStatus()
    if child.spec.dry_run:
        return Part(dataset, target, child, _shown(dataset, name, "Planned", ended.verdict, status.result), hidden=True)
    if erased is not None and erased.status == TRUE:
        shown = _shown(dataset, name, "Verified", erased.verdict, status.result)
        return Part(dataset, target, child, shown, hidden=True, purged=True, verified=True)
    verdict = erased.verdict if erased is not None else ended.verdict
    purged = erasure.vacuum_snapshot_id is not None
    blocked = erased is not None and (bool(erasure.blocked_by_count) or erased.reason == Reason.RECORD_NOT_SIGNED)
    state = "Blocked" if blocked else "Purged" if purged else "Hidden"
    shown = _shown(dataset, name, state, verdict, status.result)
    return Part(dataset, target, child, shown, hidden=True, purged=purged, blocked=blocked)


def _changes(request: Restatement, parts: Iterable[Part]) -> dict[str, dict[str, Any]]:
    """What the request's Restatements that have not ended take over from it."""
    wanted: dict[str, dict[str, Any]] = {}
    for part in parts:
        child = part.child
        if not isinstance(child, Restatement) or child.status.value_of(conditions.SUCCEEDED) in (TRUE, FALSE):
            continue
        if request.spec.cancel and not child.spec.cancel:
            wanted[child.meta.name] = {"cancel": True}
        elif request.spec.suspend != child.spec.suspend:
            wanted[child.meta.name] = {"suspend": request.spec.suspend}
    return wanted


def _is_complete(request: Restatement, parts: tuple[Part, ...]) -> bool:
    return bool(parts) and not _stops(request) and not request.spec.dry_run and all(p.verified for p in parts)


def _status(world: RequestWorld, parts: tuple[Part, ...], now: datetime) -> RestatementStatus:
    request = world.request
    phase, succeeded, shown = _overall(world, parts)
    written = [*shown, Condition.of(conditions.SUCCEEDED, succeeded, shown[0].reason, shown[0].message)]
    if not request.spec.dry_run and any(p.hidden for p in parts):
        written.append(_erased(parts))
    generation = request.meta.generation
    return RestatementStatus(
        observed_generation=generation,
        phase=phase,
        progress=f"{sum(p.hidden for p in parts)}/{len(parts)} Datasets" if parts else None,
        conditions=conditions.written(request.status.conditions, written, generation, now),
        plan=_plan(parts) if request.spec.dry_run else None,
        result=_result(parts),
        erasure=_due(parts),
        subject=_progress(world, parts),
    )


def _overall(
    world: RequestWorld, parts: tuple[Part, ...]
) -> tuple[RestatementPhase, ConditionStatus, tuple[Condition, ...]]:
    """The phase, the status of the condition Succeeded, and the conditions of kstatus."""
    request, hidden = world.request, sum(p.hidden for p in parts)
    name, of, content = request.meta.name, f"{hidden} of {len(parts)} Datasets", _content(request)
    going = [p for p in parts if p.child is not None and not p.hidden and not p.blocked]
    if request.spec.cancel and not going:
        text = f"Restatement {name} was cancelled. Readers no longer see {content} in {of}."
        return RestatementPhase.CANCELLED, FALSE, conditions.healthy(Verdict(Reason.CANCELLED, text))
    if request.spec.cancel:
        text = f"Restatement {name} was cancelled. The operator is stopping {len(going)} Restatements."
        return RestatementPhase.RUNNING, UNKNOWN, conditions.waiting(Verdict(Reason.CANCELLING, text))
    if not parts:
        return RestatementPhase.PENDING, UNKNOWN, conditions.stalled(_nothing(world))
    if hidden == len(parts):
        done = Reason.PLANNED if request.spec.dry_run else Reason.SUCCEEDED
        text = f"Planned for {of}." if request.spec.dry_run else f"Readers no longer see {content} in {of}."
        return RestatementPhase.SUCCEEDED, TRUE, conditions.healthy(Verdict(done, text))
    if request.spec.suspend:
        return (
            RestatementPhase.SUSPENDED,
            UNKNOWN,
            conditions.waiting(Verdict(Reason.SUSPENDED, f"spec.suspend is true; {of}.")),
        )
    stuck = [p for p in parts if p.blocked and not p.hidden]
    if stuck:
        text = f"{_named(stuck)} Readers no longer see {content} in {of}."
        phase = RestatementPhase.RUNNING if going else RestatementPhase.PENDING
        return phase, UNKNOWN, conditions.stalled(Verdict(Reason.DATASETS_BLOCKED, text))
    text = f"Readers no longer see {content} in {of}. {_named([p for p in parts if not p.hidden])}"
    return RestatementPhase.RUNNING, UNKNOWN, conditions.waiting(Verdict(Reason.RUNNING, text))


def _nothing(world: RequestWorld) -> Verdict:
    subject = world.request.spec.subject
    asked = ", ".join(sorted({i.identity for i in subject.identities})) if subject is not None else ""
    count = len(world.targets.without_identity)
    text = (
        f"Restatement {world.request.meta.name}: of {count} Datasets that spec.datasetSelector selects, none declares the "
        f"identity {asked} in spec.identities. A Dataset that does joins by itself."
    )
    return Verdict(Reason.NO_DATASETS, text)


def _named(parts: Iterable[Part]) -> str:
    """The first of some Datasets, with what their state says."""
    every = list(parts)
    first = [f"{p.dataset}: {p.state.message}" for p in every[:NAMED_AT_MOST]]
    more = len(every) - len(first)
    return " ".join([*first, *([f"And {more} more (status.subject)."] if more else [])])


def _erased(parts: tuple[Part, ...]) -> Condition:
    verified = sum(p.verified for p in parts)
    left = [p for p in parts if not p.verified]
    text, not_searched = f"Verified in {verified} of {len(parts)} Datasets.", _not_searched(parts)
    if not left:
        text = f"{text} The record is being written.{not_searched}"
        return Condition.of(conditions.ERASED, UNKNOWN, Reason.ERASURE_NOT_VERIFIED, text)
    reasons = {p.state.reason or "" for p in left if p.hidden}
    reason = next((r for r in _LATE if r in reasons), None) or next(iter(sorted(reasons)), str(Reason.ROWS_IN_TABLE))
    return Condition.of(conditions.ERASED, FALSE, reason, f"{text} {_named(left)}{not_searched}")


def _plan(parts: Iterable[Part]) -> RestatementPlan:
    plans = [c.status.plan for p in parts if isinstance(c := p.child, Restatement) and c.status.plan is not None]
    return RestatementPlan(
        files=sum(p.files or 0 for p in plans),
        bytes=sum(p.bytes or 0 for p in plans),
        whole_files=sum(p.whole_files or 0 for p in plans),
    )


def _result(parts: Iterable[Part]) -> RestatementResult | None:
    results = [c.status.result for p in parts if isinstance(c := p.child, Restatement) and c.status.result is not None]
    times = [r.committed_time for r in results if r.committed_time is not None]
    if not times:
        return None
    erased = [r.rows_erased for r in results if r.rows_erased is not None]
    redacted = [r.rows_redacted for r in results if r.rows_redacted is not None]
    return RestatementResult(
        committed_time=max(times),
        rows_erased=sum(erased) if erased else None,
        rows_redacted=sum(redacted) if redacted else None,
    )


def _due(parts: Iterable[Part]) -> ErasureStatus | None:
    """When the first of the Datasets that are not verified is due."""
    erasures = [c.status.erasure for p in parts if isinstance(c := p.child, Restatement) and not p.verified]
    due = earliest(*(e.due_time for e in erasures if e is not None))
    return ErasureStatus(due_time=due) if due is not None else None


def _progress(world: RequestWorld, parts: tuple[Part, ...]) -> SubjectProgress:
    rank = {state: n for n, state in enumerate(_STATES)}
    states = sorted((p.state for p in parts), key=lambda s: (rank.get(s.state or "", 0), s.name))
    return SubjectProgress(
        selected=len(parts),
        hidden=sum(p.hidden for p in parts) if not world.request.spec.dry_run else 0,
        purged=sum(p.purged for p in parts),
        verified=sum(p.verified for p in parts),
        blocked=sum(p.blocked for p in parts),
        without_identity=len(world.targets.without_identity),
        datasets=tuple(states[:SUBJECT_DATASETS_AT_MOST]),
    )


def _not_searched(parts: Iterable[Part]) -> str:
    """The batches that are in the buffer or its `_refused/`, and never were in a table. No run searches them."""
    found = [
        f"{part.dataset} ({counts.held or 0} held, {counts.refused or 0} refused)"
        for part in parts
        if part.target is not None
        and (counts := part.target.dataset.status.batches) is not None
        and (counts.held or counts.refused)
    ]
    if not found:
        return ""
    more = f" and {len(found) - NAMED_AT_MOST} more" if len(found) > NAMED_AT_MOST else ""
    return (
        f" Not searched: held and refused batches of {', '.join(found[:NAMED_AT_MOST])}{more}. They may contain the subject: "
        "revert held ones, and delete the files of both in the buffer."
    )


def verified(request: Restatement, actions: RequestActions, erasure: ErasureStatus, now: datetime) -> RestatementStatus:
    """The status of a request whose record is written.

    Args:
        actions: As `decide` makes them.
    """
    status, generation = actions.status, request.meta.generation
    text = (
        f"A run verified in each of {len(actions.parts)} Datasets that no file in the storage contains {_content(request)}. "
        f"The record is {erasure.record}.{_not_searched(actions.parts)}"
    )
    erased = Condition.of(conditions.ERASED, TRUE, Reason.ERASED, text)
    others = [c for c in status.conditions or () if c.type != conditions.ERASED]
    return status.model_copy(
        update={
            "erasure": erasure,
            "conditions": conditions.written(status.conditions, [*others, erased], generation, now),
        }
    )


def without_record(request: Restatement, actions: RequestActions, why: str, now: datetime) -> RestatementStatus:
    """The status of a request that is verified everywhere, and whose record could not be written.

    Args:
        actions: As `decide` makes them.
    """
    erased = Condition.of(conditions.ERASED, UNKNOWN, Reason.RECORD_NOT_SIGNED, why)
    shown = [erased if c.type == conditions.ERASED else c for c in actions.status.conditions or ()]
    written = conditions.written(request.status.conditions, shown, request.meta.generation, now)
    return actions.status.model_copy(update={"conditions": written})


def events(name: str, old: RestatementStatus, new: RestatementStatus) -> tuple[Event, ...]:
    """An event for each change of what the request waits for, and for the states that Datasets enter."""
    was, now = old.condition(conditions.READY), new.condition(conditions.READY)
    found: list[Event] = []
    if now is not None and (was is None or (was.status, was.reason) != (now.status, now.reason)):
        found.append(Event("Restatement", name, now.verdict, warning=new.is_true(conditions.STALLED)))
    before, after = old.condition(conditions.ERASED), new.condition(conditions.ERASED)
    if after is not None and (before is None or before.reason != after.reason):
        is_wrong = after.reason in (Reason.ERASURE_OVERDUE, Reason.RECORD_NOT_SIGNED)
        found.append(Event("Restatement", name, after.verdict, warning=is_wrong))
    return tuple(found)
