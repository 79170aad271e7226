"""The executors of a run: the secret of their connections, how many run, why others are missing, whether the run can go on. I/O.

The state of the Spark context is read in one separate thread. The decisions are in `ExecutorTracker`, which is pure apart from
its probe.
"""

import base64
import json
import logging
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from lethe.base.errors import TransientError
from lethe.contract.result import ExecutorState
from lethe.kube import PODS, SECRETS, KubeError, RequestRefused
from pyspark import SparkContext

from lethe_spark.run.kube import DRIVER, PodApi
from lethe_spark.run.progress import Reporter, running_tasks

log = logging.getLogger(__name__)

NAME: Final = (
    "LETHE_RPC_SECRET"  # of the Secret that the executors mount; the operator sets it for a driver with executors
)
KEY: Final = "secret"
DRIVER_FILE: Final = "spark.authenticate.secret.driver.file"
PAUSES_SECONDS: Final = (0.5, 2.0)
# The pod of a resumed run has the run's name for the Secret, and Kubernetes deletes that of the former pod some seconds after it.
FORMER_FOR_SECONDS: Final = 60.0
FORMER_PAUSE_SECONDS: Final = 2.0

INTERVAL_SECONDS: Final = 2.0
MISSING_AFTER_SECONDS: Final = 20.0
"""Scheduling a pod and starting its JVM takes about this long. Only then missing executors are reported."""
PROBE_EVERY_SECONDS: Final = 60.0
MESSAGE_AT_MOST: Final = 300
"""The most characters of a message."""
RELEASED: Final = "Executor killed by driver"
"""Spark's reason for an executor that the driver itself has released."""


def provide(environ: Mapping[str, str]) -> dict[str, str]:
    """Create the secret of this run. Does nothing for a driver without executors.

    Without it, every pod that reaches the driver could connect to Spark's ports and run code. By default, Spark puts the secret
    into the environment of the executors' pods, where all users who may read pods can see it. Instead, the driver generates the
    secret and creates a Secret that Kubernetes deletes together with the driver's pod. The executors mount it. The operator does
    not know it.

    Returns:
        The Spark settings that name the secret; empty for a driver without executors.

    Raises:
        TransientError: It cannot be created: a run with executors does not start without it.
    """
    name, api = environ.get(NAME), PodApi.from_environment(environ, DRIVER)
    if not name or api is None:
        return {}
    secret = secrets.token_hex(32)
    _create(api, name, secret, environ)
    file = Path(tempfile.gettempdir(), "lethe-rpc-secret")
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as stream:
        stream.write(secret)
    return {DRIVER_FILE: str(file)}


def manifest(name: str, secret: str, pod: str, pod_uid: str) -> dict[str, object]:
    """The Secret, owned by the driver's pod. Pure."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "immutable": True,
        "data": {KEY: base64.b64encode(secret.encode()).decode()},
    }


def _create(api: PodApi, name: str, secret: str, environ: Mapping[str, str]) -> None:
    document = manifest(name, secret, environ["POD_NAME"], environ["POD_UID"])
    until = time.monotonic() + FORMER_FOR_SECONDS
    pauses = iter(PAUSES_SECONDS)
    unknown = False  # whether an answer was lost: then an existing Secret may be the driver's own
    while True:
        try:
            api.kube.create(SECRETS, api.namespace, document)
            return
        except KubeError as e:
            unknown = unknown or e.status == 0
            if e.status == 409 and unknown:
                return
            if e.status == 409 and time.monotonic() < until:
                log.info("waiting until Kubernetes has deleted the Secret %s of a former pod", name)
                pause: float | None = FORMER_PAUSE_SECONDS
            else:
                pause = next(pauses, None) if e.status == 0 or e.status >= 500 else None
            if pause is None:
                raise _failed(name, str(e)) from None
        time.sleep(pause)


def _failed(name: str, why: str) -> TransientError:
    return TransientError(
        "NoRpcSecret",
        f"the Secret {name}, with which the driver and its executors authenticate each other, could not be "
        f"created ({why}). No executor is started without one. The next attempt uses another name.",
    )


@dataclass(frozen=True)
class SeenExecutor:
    """An executor, as Spark knows it."""

    id: str
    active: bool
    why: str = ""
    """Why it ended; "": it has not, or Spark does not know."""
    seconds: float = 0.0
    """From its registration until its end, or until now."""


def seen(context: SparkContext) -> list[SeenExecutor]:
    """All executors that registered with this context; Spark forgets the oldest of the ended ones."""
    jsc = context._jsc
    if jsc is None:
        return []
    executor_list = jsc.sc().statusStore().executorList(False)
    now = time.time()
    executors = []
    for n in range(executor_list.size()):
        executor = executor_list.apply(n)
        if executor.id() == "driver":
            continue
        reason, removed = executor.removeReason(), executor.removeTime()
        ended = removed.get().getTime() / 1000 if removed.isDefined() else now
        executors.append(
            SeenExecutor(
                executor.id(),
                executor.isActive(),
                reason.get() if reason.isDefined() else "",
                max(0.0, ended - executor.addTime().getTime() / 1000),
            )
        )
    return executors


@dataclass
class ExecutorTracker:
    """Judges what was seen of the executors.

    Args:
        planned: How many the run has at most at the same time.
        cores: Tasks at the same time in one executor.
        wait_seconds: A run whose tasks wait this long without any executor is stopped.
        refusal: Returns why no further executor may be created; "": one may.
    """

    planned: int
    cores: int
    wait_seconds: float
    refusal: Callable[[], str]
    clock: Callable[[], float] = monotonic
    state: ExecutorState = field(init=False)
    starved: bool = field(init=False, default=False)
    """Tasks have waited for `wait_seconds` without any executor."""

    def __post_init__(self) -> None:
        self.state = ExecutorState(planned=self.planned, running=0)
        self._missing_since: float | None = None
        self._none_since: float | None = None
        self._probed: float | None = None
        self._refused = ""
        self._seconds: dict[str, float] = {}

    def update(self, executors: Sequence[SeenExecutor], open_tasks: int) -> ExecutorState:
        """Judge the executors now.

        Args:
            open_tasks: The number of tasks of the active jobs that have not ended.
        """
        now = self.clock()
        self._seconds |= {e.id: e.seconds for e in executors}
        running = sum(e.active for e in executors)
        lost = [e for e in executors if not e.active and not e.why.startswith(RELEASED)]
        needed = running < self.planned and open_tasks > running * self.cores
        self._missing_since = (self._missing_since if self._missing_since is not None else now) if needed else None
        self._none_since = (
            (self._none_since if self._none_since is not None else now) if needed and not running else None
        )
        self.starved = self._none_since is not None and now - self._none_since >= self.wait_seconds
        parts = []
        if lost:
            parts.append(f"{len(lost)} executors were lost, the last one: {_short(lost[-1].why)}")
        if self._missing_since is not None and now - self._missing_since >= MISSING_AFTER_SECONDS:
            parts.append(f"{running} of {self.planned} executors run")
            if why := self._probe(now):
                parts.append(f"no further one can be created: {_short(why)}")
        self.state = ExecutorState(
            planned=self.planned, running=running, lost=len(lost), message="; ".join(parts)[: 3 * MESSAGE_AT_MOST]
        )
        return self.state

    @property
    def core_seconds(self) -> float:
        """How long executors were there, for each of their cores."""
        return round(sum(self._seconds.values()) * self.cores, 3)

    def why_none(self) -> str:
        """Why no executor has started, as far as it is known."""
        refused = self._probe(self.clock())
        return f"The API server refuses their pods: {_short(refused)}" if refused else "See the events of their pods."

    def _probe(self, now: float) -> str:
        if self._probed is None or now - self._probed >= PROBE_EVERY_SECONDS:
            self._probed, self._refused = now, self.refusal()
        return self._refused


def _short(text: str) -> str:
    first = text.strip().splitlines()[0] if text.strip() else "Spark gives no reason"
    return first[:MESSAGE_AT_MOST].rstrip(". ")


class ExecutorMonitor:
    """Reports the executors of a context until it is closed.

    If tasks have no executor for too long, it calls `on_starved` again and again, because a cancelled job may be followed by
    another one.
    """

    def __init__(
        self, context: SparkContext, tracker: ExecutorTracker, reporter: Reporter, on_starved: Callable[[], None]
    ) -> None:
        self.tracker = tracker
        self.starved = False
        self._context, self._reporter, self._on_starved = context, reporter, on_starved
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lethe-executors", daemon=True)

    def wait_for_first(self, cancelled: threading.Event) -> bool:
        """Wait until an executor runs.

        Returns:
            False, if none did within the time of the tracker or the run was cancelled.
        """
        began = self.tracker.clock()
        while not cancelled.is_set():
            # Counted as if all planned executors had tasks: at this time, there are none yet.
            state = self.tracker.update(seen(self._context), self.tracker.planned * self.tracker.cores)
            self._reporter.executors(state)
            if state.running:
                return True
            if self.tracker.clock() - began >= self.tracker.wait_seconds:
                return False
            self._closed.wait(INTERVAL_SECONDS)
        return False

    def start(self) -> None:
        """Start the daemon thread, which reports every INTERVAL_SECONDS until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Look at the executors once more and end the reports. Waits for the thread for at most three intervals."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(timeout=INTERVAL_SECONDS * 3)

    def _watch(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(INTERVAL_SECONDS)
            if self._look() and self.tracker.starved and not closed:
                self.starved = True
                self._on_starved()

    def _look(self) -> bool:
        """Whether the executors could be observed."""
        try:
            done, total = running_tasks(self._context)
            self._reporter.executors(self.tracker.update(seen(self._context), total - done))
        except Exception as e:  # the JVM may be shutting down
            log.debug("the executors cannot be observed: %s", type(e).__name__)
            return False
        return True


def refusal_of(api: PodApi | None, template: Path, confs: Mapping[str, str]) -> str:
    """Why the API server would not create an executor now, such as an exhausted quota; "": it would, or it cannot be asked.

    Args:
        template: The file with the pod template of executors.
        confs: The Spark settings of the run.
    """
    if api is None:
        return ""
    try:
        pod = probe_pod(json.loads(template.read_text()), confs)
        api.kube.create(PODS, api.namespace, pod, dry_run=True)
    except RequestRefused as e:
        return e.explanation if e.status in (400, 403, 422) else ""
    except (KubeError, OSError, ValueError) as e:
        log.warning("the API server cannot be asked about executors: %s", e)
    return ""


def probe_pod(template: Mapping[str, Any], confs: Mapping[str, str]) -> dict[str, Any]:
    """A pod like those of the executors, as Spark would create them. Pure."""
    metadata, spec = template["metadata"], template["spec"]
    (container,) = spec["containers"]
    own = container.get("resources") or {}
    memory = sum(int(confs[f"spark.executor.{part}"].removesuffix("m")) for part in ("memory", "memoryOverhead"))
    cpu_limit = confs.get("spark.kubernetes.executor.limit.cores")
    resources = {
        "requests": {
            **(own.get("requests") or {}),
            "cpu": confs["spark.kubernetes.executor.request.cores"],
            "memory": f"{memory}Mi",
        },
        "limits": {
            **(own.get("limits") or {}),
            "memory": f"{memory}Mi",
            **({"cpu": cpu_limit} if cpu_limit else {}),
        },
    }
    image = confs["spark.kubernetes.container.image"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**metadata, "generateName": f"{confs['spark.kubernetes.executor.podNamePrefix']}-probe-"},
        "spec": {
            **spec,
            "restartPolicy": "Never",
            "containers": [{**container, "image": image, "resources": resources}],
        },
    }
