"""Reconstructs runs from Jobs, SparkApplications, their pods and the Dataset's ConfigMap. I/O: documents beside the table.

Each kind of object has one function here, and nothing else depends on the kind. Each document is read once: the content of a
pointer never changes.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from lethe.base.errors import EXIT_DONE, EXIT_INPUT, EXIT_TRANSIENT
from lethe.contract.result import AnyRunResult, Progress, RunOutcome, result_model
from lethe.contract.run import Document, ResultPointer, RunPointer, RunSpec, is_pointer
from lethe.contract.run import Document as RunDocument
from lethe.contract.settings import Launcher, RunFamily, RunKind
from pydantic import ValidationError

from lethe_operator.cluster.run_pods import launched_by
from lethe_operator.resources.common import (
    ANNOTATION_FAILURES,
    ANNOTATION_FOR_UID,
    ANNOTATION_GENERATION,
    CONTAINER,
    DISPATCH_KEY,
    KEY_PREFIX_LENGTH,
    LABEL_ATTEMPT,
    LABEL_KIND,
    LABEL_QUEUE,
    LABEL_RUN_ID,
    PROGRESS_KEY,
    RESULT_KEY,
    RUN_KEY,
    SPARK_CONTAINER,
)
from lethe_operator.resources.observed import (
    Attempt,
    AttemptState,
    Dispatch,
    Engine,
    Failures,
    ObservedRun,
    WorkerView,
    kind_of,
)

Stored = TypeVar("Stored", bound=Document)

# A Dataset whose group of Restatements is halved repeatedly has about twenty documents, each with up to megabytes.
KEPT: Final = 64


class Documents:
    """One per operator, shared by its threads.

    Args:
        read: Returns the content of a pointer; None: it does not exist. Its exceptions are passed on.
    """

    def __init__(self, read: Callable[[RunPointer], bytes | None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[type[Any], str], Any] = OrderedDict()

    def get(self, model: type[Stored], pointer: RunPointer) -> Stored | None:
        """The document; None: it does not exist, or it is invalid, which must not stop the operator."""
        key = (model, pointer.sha256)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                stored: Stored = self._kept[key]
                return stored
        content = self._read(pointer)
        if content is None:
            return None
        try:
            document = model.model_validate_json(content, extra="ignore")
        except ValidationError:
            return None
        with self._lock:
            self._kept[key] = document
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return document


Json = Mapping[str, Any]
MESSAGE_AT_MOST: Final = 300  # characters
SUBMISSION_FAILED: Final = "SubmissionFailed"


@dataclass(frozen=True)
class RunObject:
    """A Job or a SparkApplication."""

    launcher: Launcher
    metadata: Json
    state: AttemptState
    ended: str = ""
    """When it ended; "": it has not."""
    # Why it ended; "": unknown, or it has not.
    reason: str = ""
    message: str = ""
    suspended: str = ""
    """Why it may not start a pod now; "": it may."""
    started: datetime | None = None
    """Since when it may start a pod; None: since it was created."""

    @property
    def name(self) -> str:
        """The name of the object in its namespace."""
        return str(self.metadata["name"])


def of_job(body: Json) -> RunObject:
    """A Job."""
    status = body.get("status") or {}
    started = status.get("startTime")
    for c in status.get("conditions") or ():
        if c.get("status") == "True" and c.get("type") in ("Complete", "Failed"):
            state = AttemptState.SUCCEEDED if c["type"] == "Complete" else AttemptState.FAILED
            ended = status.get("completionTime") or c.get("lastTransitionTime") or ""
            return RunObject(Launcher.JOB, body["metadata"], state, ended, c.get("reason", ""), c.get("message", ""))
    return RunObject(
        Launcher.JOB,
        body["metadata"],
        AttemptState.ACTIVE,
        suspended=_suspended(body),
        started=time_of(started) if started else None,
    )


def of_spark_application(body: Json) -> RunObject:
    """A SparkApplication, by Kubeflow's operator."""
    status = body.get("status") or {}
    application = status.get("applicationState") or {}
    state = {"COMPLETED": AttemptState.SUCCEEDED, "FAILED": AttemptState.FAILED}.get(
        application.get("state", ""), AttemptState.ACTIVE
    )
    submitted = status.get("lastSubmissionAttemptTime")
    if state is AttemptState.ACTIVE:
        return RunObject(
            Launcher.SPARK_APPLICATION,
            body["metadata"],
            state,
            suspended=_suspended(body),
            started=time_of(submitted) if submitted else None,
        )
    # Without an execution there was no driver: spark-submit failed, for example because the API server refused the pod.
    reason = SUBMISSION_FAILED if state is AttemptState.FAILED and not status.get("executionAttempts") else ""
    ended = status.get("terminationTime") or submitted or body["metadata"]["creationTimestamp"]
    return RunObject(
        Launcher.SPARK_APPLICATION,
        body["metadata"],
        state,
        ended,
        reason,
        _cause(str(application.get("errorMessage", ""))),
    )


def _suspended(body: Json) -> str:
    if not (body.get("spec") or {}).get("suspend"):
        return ""
    queue = (body["metadata"].get("labels") or {}).get(LABEL_QUEUE)
    if queue:
        return f"It waits until Kueue admits it to the queue {queue}. Its Workload shows why it waits."
    return "It is suspended (spec.suspend), so it starts no pod."


def _cause(text: str) -> str:
    """The line of an error of spark-submit that says most: the API server's message, or the last exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line.partition("Message: ")[2] for line in lines if "Message: " in line]
    thrown = [line for line in lines if "Exception" in line and not line.startswith("at ")]
    return (said or thrown or lines or [""])[-1 if said or thrown else 0][:MESSAGE_AT_MOST]


def time_of(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


# The names of the driver's container in the pods of Jobs and of SparkApplications.
DRIVER_CONTAINERS: Final = frozenset({CONTAINER, SPARK_CONTAINER})
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
D = TypeVar("D", bound=RunDocument)


def runs_of(
    objects: Iterable[RunObject],
    pods: Iterable[Json],
    data: Mapping[str, str],
    documents: Documents,
    workers: Mapping[Engine, WorkerView] | None = None,
) -> tuple[ObservedRun, ...]:
    """Every run of a Dataset that has an object, a note for such a process or an intent, with its attempts.

    Args:
        objects: The Jobs and SparkApplications of its runs.
        data: Of the Dataset's ConfigMap.
        workers: The processes that take runs from a mailbox, as observed before that ConfigMap; None: there are none.
        documents: Beside the table; errors of reading them are passed on.
    """
    drivers: dict[str, Json] = {}
    executors: dict[tuple[str, str], list[Json]] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        if labels.get("spark-role") == "executor":
            executors.setdefault((labels.get(LABEL_RUN_ID, ""), labels.get(LABEL_ATTEMPT, "")), []).append(pod)
        elif name := launched_by(pod):
            drivers[name] = pod
    attempts: dict[str, list[Attempt]] = {}
    for one in objects:
        labels = one.metadata.get("labels") or {}
        if LABEL_RUN_ID not in labels or labels.get(LABEL_KIND) not in set(RunFamily):
            continue
        helpers = executors.get((labels[LABEL_RUN_ID], labels.get(LABEL_ATTEMPT, "")), [])
        attempt = attempt_of(one, drivers.get(one.name), helpers, data, documents)
        attempts.setdefault(attempt.run_id, []).append(attempt)
    intents: dict[str, RunSpec] = {}
    for key, text in data.items():
        if key.endswith(RUN_KEY) and (intent := _inline_or(RunPointer, RunSpec, text, documents)) is not None:
            intents[intent.run_id] = intent
    for key, text in data.items():
        if key.endswith(DISPATCH_KEY) and (dispatch := _dispatch(text)) is not None:
            # The object of a later attempt may not exist yet: its document is stored first.
            numbers = [a.number for a in attempts.get(dispatch.run_id, ())]
            numbers += [intents[dispatch.run_id].attempt] if dispatch.run_id in intents else []
            worker = (workers or {}).get(dispatch.engine)
            is_past = any(number > dispatch.attempt for number in numbers)
            asked = dispatched(dispatch, key, data, documents, worker, is_past)
            attempts.setdefault(asked.run_id, []).append(asked)
    by_prefix = {i[:KEY_PREFIX_LENGTH]: i for i in (*intents, *attempts)}
    keys: dict[str, list[str]] = {}
    for key in sorted(data):
        run_id = by_prefix.get(key.partition(".")[0])
        if run_id is not None:
            keys.setdefault(run_id, []).append(key)
    runs: list[ObservedRun] = []
    for run_id in sorted({*attempts, *intents}):
        mine = tuple(sorted(attempts.get(run_id, ()), key=lambda a: a.number))
        intent = intents.get(run_id)
        kind = intent.kind if intent is not None else mine[-1].kind
        runs.append(ObservedRun(run_id, kind, intent, mine, tuple(keys.get(run_id, ()))))
    return tuple(runs)


def attempt_of(
    one: RunObject, pod: Json | None, executors: Iterable[Json], data: Mapping[str, str], documents: Documents
) -> Attempt:
    """The attempt of one Job or SparkApplication, with the information of its pod and of the ConfigMap."""
    metadata = one.metadata
    labels, annotations = metadata["labels"], metadata.get("annotations") or {}
    number, for_uid = int(labels.get(LABEL_ATTEMPT, 1)), annotations.get(ANNOTATION_FOR_UID, "")
    kind = kind_of(RunFamily(labels[LABEL_KIND]), for_uid)
    terminated = _terminated(pod)
    progress, result = _written(data, labels[LABEL_RUN_ID], kind, number, documents)
    if result is None:
        result = _document(result_model(kind), terminated.get("message"))
    return Attempt(
        job=one.name,
        run_id=labels[LABEL_RUN_ID],
        kind=kind,
        number=number,
        state=one.state,
        launcher=one.launcher,
        created=time_of(metadata["creationTimestamp"]),
        started=one.started,
        finished=time_of(one.ended) if one.ended else None,
        generation=int(annotations.get(ANNOTATION_GENERATION, 0)),
        for_uid=for_uid,
        exit_code=terminated.get("exitCode"),
        oom=terminated.get("reason") == "OOMKilled",
        job_reason=_deadline(pod) or one.reason,
        job_message=one.message,
        suspended=one.suspended,
        waiting=_waiting(pod, one),
        executors_waiting=_executors_waiting(executors) if one.state is AttemptState.ACTIVE else "",
        deleting="deletionTimestamp" in metadata,
        failures_before=_failures(annotations.get(ANNOTATION_FAILURES, "")),
        progress=progress,
        result=result if result is not None and result.attempt == number else None,
    )


def _failures(text: str) -> Failures:
    """Zero if unreadable; the pauses between attempts then start again at the shortest."""
    run, _, infrastructure = text.partition("/")
    return Failures(int(run), int(infrastructure)) if run.isdecimal() and infrastructure.isdecimal() else Failures()


def dispatched(
    dispatch: Dispatch,
    key: str,
    data: Mapping[str, str],
    documents: Documents,
    worker: WorkerView | None,
    is_past: bool,
) -> Attempt:
    """An attempt that a process of the namespace got. It is active until it has a result, as long as the process can write one.

    Args:
        is_past: There is a later attempt, or its document.
    """
    kind = kind_of(dispatch.family, dispatch.for_uid)
    progress, result = _written(data, dispatch.run_id, kind, dispatch.attempt, documents)
    waits = worker is not None and (worker.alive or key.removesuffix(DISPATCH_KEY) in worker.mailbox)
    asked = Attempt(
        job=dispatch.name,
        run_id=dispatch.run_id,
        kind=kind,
        number=dispatch.attempt,
        state=AttemptState.ACTIVE if waits and not is_past else AttemptState.FAILED,
        created=dispatch.created_time,
        generation=dispatch.generation,
        for_uid=dispatch.for_uid,
        engine=dispatch.engine,
        secrets=dispatch.secrets,
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
        executors_waiting="",
        suspended="",
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


def _terminated(pod: Json | None) -> Json:
    for container in ((pod or {}).get("status") or {}).get("containerStatuses") or ():
        if container.get("name") in DRIVER_CONTAINERS:
            terminated: Json = (container.get("state") or {}).get("terminated") or {}
            return terminated
    return {}


def _deadline(pod: Json | None) -> str:
    """The reason of a driver whose pod exceeded its own time limit, as that of a SparkApplication does; "": it did not."""
    reason = ((pod or {}).get("status") or {}).get("reason")
    return str(reason) if reason == "DeadlineExceeded" else ""


def _waiting(driver: Json | None, one: RunObject) -> str:
    """Why the driver of an active attempt does not run yet; "": it runs or is starting, or its object is suspended."""
    if one.state is not AttemptState.ACTIVE or one.suspended:
        return ""
    if driver is None and one.launcher is Launcher.SPARK_APPLICATION and one.started is None:
        return (
            "Kubeflow's operator has not submitted it yet. If this persists, check that the operator runs and watches this "
            "namespace."
        )
    if driver is None:
        return f"Its pod does not exist yet. If this persists, see the events of the {one.launcher}."
    why = _why_pending(driver)
    return f"Its pod does not start: {why}" if why else ""


def _executors_waiting(executors: Iterable[Json]) -> str:
    """Why executors do not run yet; "": they run or are starting."""
    pending = [w for w in map(_why_pending, executors) if w]
    return f"{len(pending)} executor pods do not start: {pending[0]}" if pending else ""


def _why_pending(pod: Json) -> str:
    status = pod.get("status") or {}
    if status.get("phase") != "Pending":
        return ""
    for c in status.get("conditions") or ():
        if c.get("type") == "PodScheduled" and c.get("status") == "False":
            queue = (pod["metadata"].get("labels") or {}).get(LABEL_QUEUE)
            if queue and c.get("reason") == "SchedulingGated":
                return f"Kueue has not admitted it to the queue {queue}. Its Workload shows why it waits."
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
        document = json.loads(text or "null")
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not is_pointer(document):
        return _document(model, text)
    where = _document(pointer, text)
    if where is None or (attempt is not None and isinstance(where, ResultPointer) and where.attempt != attempt):
        return None
    return documents.get(model, where)


def _document(model: type[D], text: str | None) -> D | None:
    """A document of the contract; None: it is missing, or it is invalid, which must not stop the operator.

    Unknown fields are ignored: after a rollback, the operator sees the runs of a newer version.
    """
    if not text:
        return None
    try:
        return model.model_validate_json(text, extra="ignore")
    except ValidationError:
        return None
