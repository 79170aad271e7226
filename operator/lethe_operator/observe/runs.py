"""Reconstructs runs from Jobs, their pods and the Dataset's ConfigMap. Pure, apart from reading documents beside the table."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from lethe.base.errors import EXIT_DONE, EXIT_INPUT, EXIT_TRANSIENT
from lethe.contract.kind import RunFamily, RunKind
from lethe.contract.result import AnyRunResult, Progress, RunOutcome, result_model
from lethe.contract.run import Document as RunDocument
from lethe.contract.run import ResultPointer, RunPointer, RunSpec, is_pointer
from pydantic import ValidationError

from lethe_operator.observe.documents import Documents
from lethe_operator.resources.common import (
    ANNOTATION_FAILURES,
    ANNOTATION_FOR_UID,
    ANNOTATION_GENERATION,
    DISPATCH_KEY,
    KEY_PREFIX_LENGTH,
    LABEL_ATTEMPT,
    LABEL_KIND,
    LABEL_RUN_ID,
    PROGRESS_KEY,
    RESULT_KEY,
    RUN_KEY,
)
from lethe_operator.resources.dispatch import Dispatch
from lethe_operator.resources.members import Member, members_of
from lethe_operator.resources.observed import Attempt, AttemptState, CommitterView, Failures, ObservedRun, kind_of

DRIVER_CONTAINER: Final = "spark"
# Reasons of a waiting container that need attention.
_TROUBLES: Final = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
Json = Mapping[str, Any]
D = TypeVar("D", bound=RunDocument)


def runs_of(
    uid: str,
    jobs: Iterable[Json],
    pods: Iterable[Json],
    data: Mapping[str, str],
    documents: Documents,
    committer: CommitterView | None = None,
) -> tuple[ObservedRun, ...]:
    """Every run of a Dataset that has a Job, a part of a Job, a note for the committer or an intent, with its attempts.

    Args:
        uid: Of the Dataset.
        data: Of the Dataset's ConfigMap.
        committer: As observed before that ConfigMap; None: there is none.
        documents: Beside the table; errors of reading them are passed on.
    """
    drivers: dict[str, Json] = {}
    executors: dict[tuple[str, str], list[Json]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get("spark-role") == "executor":
            executors.setdefault((labels.get(LABEL_RUN_ID, ""), labels.get(LABEL_ATTEMPT, "")), []).append(pod)
        elif name := labels.get("batch.kubernetes.io/job-name") or labels.get("job-name"):
            drivers[name] = pod
    attempts: dict[str, list[Attempt]] = {}
    for job in jobs:
        labels = job["metadata"].get("labels") or {}
        members = members_of(job["metadata"])
        if members:
            for member in (m for m in members if m.uid == uid):
                part = part_of(job, member, len(members), drivers.get(job["metadata"]["name"]), data, documents)
                attempts.setdefault(part.run_id, []).append(part)
            continue
        if LABEL_RUN_ID not in labels or labels.get(LABEL_KIND) not in set(RunFamily):
            continue
        helpers = executors.get((labels[LABEL_RUN_ID], labels.get(LABEL_ATTEMPT, "")), [])
        attempt = attempt_of(job, drivers.get(job["metadata"]["name"]), helpers, data, documents)
        attempts.setdefault(attempt.run_id, []).append(attempt)
    for key, text in data.items():
        if key.endswith(DISPATCH_KEY) and (dispatch := _dispatch(text)) is not None:
            jobs_since = any(a.number > dispatch.attempt for a in attempts.get(dispatch.run_id, ()))
            asked = dispatched(dispatch, key, data, documents, committer, jobs_since)
            attempts.setdefault(asked.run_id, []).append(asked)
    by_prefix = {i[:KEY_PREFIX_LENGTH]: i for i in attempts}
    intents = {}
    for key, text in data.items():
        if key.endswith(RUN_KEY):
            intent = _inline_or(RunPointer, RunSpec, text, documents)
            if intent is not None:
                intents[intent.run_id] = intent
                by_prefix.setdefault(intent.run_id[:KEY_PREFIX_LENGTH], intent.run_id)
    keys: dict[str, list[str]] = {}
    for key in sorted(data):
        run_id = by_prefix.get(key.partition(".")[0])
        if run_id is not None:
            keys.setdefault(run_id, []).append(key)
    found: list[ObservedRun] = []
    for run_id in sorted({*attempts, *intents}):
        mine = tuple(sorted(attempts.get(run_id, ()), key=lambda a: a.number))
        intent = intents.get(run_id)
        kind = intent.kind if intent is not None else mine[-1].kind
        found.append(ObservedRun(run_id, kind, intent, mine, tuple(keys.get(run_id, ()))))
    return tuple(found)


def attempt_of(
    job: Json, pod: Json | None, executors: Iterable[Json], data: Mapping[str, str], documents: Documents
) -> Attempt:
    """The attempt of one Job, with the information of its pod and of the ConfigMap."""
    metadata, status = job["metadata"], job.get("status") or {}
    labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    number, for_uid = int(labels.get(LABEL_ATTEMPT, 1)), annotations.get(ANNOTATION_FOR_UID, "")
    kind = kind_of(RunFamily(labels[LABEL_KIND]), for_uid)
    state, ended, reason, message = state_of(status)
    terminated = _terminated(pod)
    progress, result = _written(data, labels[LABEL_RUN_ID], kind, number, documents)
    if result is None:
        result = _document(result_model(kind), terminated.get("message"))
    return Attempt(
        job=metadata["name"],
        run_id=labels[LABEL_RUN_ID],
        kind=kind,
        number=number,
        state=state,
        created=time_of(metadata["creationTimestamp"]),
        finished=time_of(ended) if ended else None,
        generation=int(annotations.get(ANNOTATION_GENERATION, 0)),
        for_uid=for_uid,
        exit_code=terminated.get("exitCode"),
        oom=terminated.get("reason") == "OOMKilled",
        job_reason=reason,
        job_message=message,
        waiting=_waiting(pod, executors) if state is AttemptState.ACTIVE else "",
        deleting="deletionTimestamp" in metadata,
        failures_before=_failures(annotations.get(ANNOTATION_FAILURES, "")),
        progress=progress,
        result=result if result is not None and result.attempt == number else None,
    )


def _failures(text: str) -> Failures:
    """Zero if unreadable; the pauses between attempts then start again at the shortest."""
    run, _, infrastructure = text.partition("/")
    return Failures(int(run), int(infrastructure)) if run.isdecimal() and infrastructure.isdecimal() else Failures()


def part_of(
    job: Json, member: Member, datasets: int, pod: Json | None, data: Mapping[str, str], documents: Documents
) -> Attempt:
    """One Dataset's part of a Job that several share. The end of the driver counts only for parts without a result, and
    running out of memory only for the part that had begun.

    Args:
        datasets: How many share the Job.
    """
    metadata = job["metadata"]
    state, ended, reason, message = state_of(job.get("status") or {})
    progress, result = _written(data, member.run_id, RunKind.CONSOLIDATION, member.attempt, documents)
    part = Attempt(
        job=metadata["name"],
        run_id=member.run_id,
        kind=RunKind.CONSOLIDATION,
        number=member.attempt,
        state=AttemptState.FAILED if state is AttemptState.SUCCEEDED else state,
        created=time_of(metadata["creationTimestamp"]),
        finished=time_of(ended) if ended else None,
        generation=member.generation,
        oom=progress is not None and _terminated(pod).get("reason") == "OOMKilled",
        job_reason=reason,
        job_message=message,
        waiting=_waiting(pod, ()) if state is AttemptState.ACTIVE else "",
        deleting="deletionTimestamp" in metadata,
        datasets=datasets,
        progress=progress,
        result=result,
    )
    return part if result is None else _ended_as(part, result)


def dispatched(
    dispatch: Dispatch,
    key: str,
    data: Mapping[str, str],
    documents: Documents,
    committer: CommitterView | None,
    is_past: bool,
) -> Attempt:
    """An attempt that the committer got. It is active until it has a result, as long as there is a committer that can write one.

    Args:
        is_past: There is a later attempt.
    """
    kind = kind_of(dispatch.family, dispatch.for_uid)
    progress, result = _written(data, dispatch.run_id, kind, dispatch.attempt, documents)
    waits = committer is not None and (committer.alive or key.removesuffix(DISPATCH_KEY) in committer.mailbox)
    asked = Attempt(
        job=dispatch.name,
        run_id=dispatch.run_id,
        kind=kind,
        number=dispatch.attempt,
        state=AttemptState.ACTIVE if waits and not is_past else AttemptState.FAILED,
        created=dispatch.created_time,
        generation=dispatch.generation,
        for_uid=dispatch.for_uid,
        by_committer=True,
        progress=progress,
        result=result,
    )
    return asked if result is None else _ended_as(asked, result)


def _ended_as(attempt: Attempt, result: AnyRunResult) -> Attempt:
    """The attempt, ended with its result, whatever the state of the process."""
    failed = EXIT_INPUT if result.permanent else EXIT_TRANSIENT
    return replace(
        attempt,
        state=AttemptState.FAILED if result.outcome is RunOutcome.FAILED else AttemptState.SUCCEEDED,
        exit_code=failed if result.outcome is RunOutcome.FAILED else EXIT_DONE,
        finished=result.finished_time,
        oom=False,
        waiting="",
    )


def _dispatch(text: str) -> Dispatch | None:
    try:
        return Dispatch.model_validate_json(text)
    except ValidationError:
        return None


def _written(
    data: Mapping[str, str], run_id: str, kind: RunKind, number: int, documents: Documents
) -> tuple[Progress | None, AnyRunResult | None]:
    """What an attempt has written into the ConfigMap, without what another attempt of the same run wrote."""
    prefix = run_id[:KEY_PREFIX_LENGTH]
    progress = _document(Progress, data.get(prefix + PROGRESS_KEY))
    result = _inline_or(ResultPointer, result_model(kind), data.get(prefix + RESULT_KEY), documents, number)
    return (
        progress if progress is not None and progress.attempt == number else None,
        result if result is not None and result.attempt == number else None,
    )


def state_of(status: Json) -> tuple[AttemptState, str, str, str]:
    """The state and end of a Job, and the reason and message of its failure."""
    for c in status.get("conditions") or ():
        if c.get("status") == "True" and c.get("type") in ("Complete", "Failed"):
            state = AttemptState.SUCCEEDED if c["type"] == "Complete" else AttemptState.FAILED
            ended = status.get("completionTime") or c.get("lastTransitionTime") or ""
            return state, ended, c.get("reason", ""), c.get("message", "")
    return AttemptState.ACTIVE, "", "", ""


def _terminated(pod: Json | None) -> Json:
    for container in ((pod or {}).get("status") or {}).get("containerStatuses") or ():
        if container.get("name") == DRIVER_CONTAINER:
            found: Json = (container.get("state") or {}).get("terminated") or {}
            return found
    return {}


def _waiting(driver: Json | None, executors: Iterable[Json]) -> str:
    """Why the driver or its executors do not run yet; "": they run or are starting."""
    if driver is None:
        return "Its pod does not exist yet. If this persists, see the events of the Job."
    why = _why_pending(driver)
    if why:
        return f"Its pod does not start: {why}"
    pending = [w for w in map(_why_pending, executors) if w]
    return f"{len(pending)} executor pods do not start: {pending[0]}" if pending else ""


def _why_pending(pod: Json) -> str:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return ""
    for c in status.get("conditions") or ():
        if c.get("type") == "PodScheduled" and c.get("status") == "False":
            return f"{c.get('reason', 'Unschedulable')}: {c.get('message', '')}"
    for container in status.get("containerStatuses") or ():
        waits = (container.get("state") or {}).get("waiting") or {}
        if waits.get("reason") in _TROUBLES:
            return f"{waits['reason']}: {waits.get('message', '')}"
    return ""


def _inline_or(
    pointer: type[RunPointer], model: type[D], text: str | None, documents: Documents, attempt: int | None = None
) -> D | None:
    """A document in the ConfigMap, or the one that its pointer names. A pointer of another attempt is not followed."""
    try:
        found = json.loads(text or "null")
    except ValueError:
        return None
    if not isinstance(found, dict) or not is_pointer(found):
        return _document(model, text)
    where = _document(pointer, text)
    if where is None or (attempt is not None and isinstance(where, ResultPointer) and where.attempt != attempt):
        return None
    return documents.get(model, where)


def _document(model: type[D], text: str | None) -> D | None:
    """A document of the contract; None: it is missing, or it is invalid, which must not stop the operator."""
    if not text:
        return None
    try:
        return model.model_validate_json(text)
    except ValidationError:
        return None


def time_of(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))
