"""What Jobs and SparkApplications say about an attempt of a run, in one form. Pure.

Each kind has one function here; nothing else depends on the kind.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from lethe_operator.resources.launcher import LABEL_QUEUE, Launcher
from lethe_operator.resources.observed import AttemptState

Json = Mapping[str, Any]
# The label of a pod with the name of the object that launched its run. Executors of Jobs have none.
POD_LABELS: Final[Mapping[Launcher, str]] = {
    Launcher.JOB: "batch.kubernetes.io/job-name",
    Launcher.SPARK_APPLICATION: "sparkoperator.k8s.io/app-name",
}
MESSAGE_AT_MOST: Final = 300  # characters
SUBMISSION_FAILED: Final = "SubmissionFailed"


@dataclass(frozen=True)
class RunObject:
    """A Job or a SparkApplication."""

    launcher: Launcher
    metadata: Json
    state: AttemptState
    # When it ended; "": it has not.
    ended: str = ""
    # Why it ended; "": unknown, or it has not.
    reason: str = ""
    message: str = ""
    # Why it may not start a pod now; "": it may.
    suspended: str = ""
    # Since when it may start a pod; None: since it was created.
    started: datetime | None = None

    @property
    def name(self) -> str:
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


def launched_by(pod: Json) -> str:
    """The name of the object that launched this driver's pod; "": it is not a driver's."""
    labels = pod["metadata"].get("labels") or {}
    if labels.get("spark-role") == "executor":
        return ""
    return next((str(labels[key]) for key in (*POD_LABELS.values(), "job-name") if labels.get(key)), "")


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
