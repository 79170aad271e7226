"""What the supervisor reads and writes about a run, and what a run may use. I/O; the limits are decided without.

The order matters: a run begins only after that was recorded, and its key is removed only after its result was delivered. If the
supervisor ends in between, the next one finds a run that began and has no result, and does not repeat it: a Job does.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lethe.base.errors import EXIT_INPUT, LetheError, TransientError
from lethe.contract.result import WARM_DRIVER_AWAY, WARM_DRIVER_LIMIT, Phase, Progress, RunOutcome, RunResult
from lethe.contract.run import Document, MailboxEntry
from lethe.kube import CONFIG_MAPS, NotFound
from lethe.logs import about
from lethe.version import version
from pydantic import ConfigDict, ValidationError

from lethe_spark.mailbox import drop_keys
from lethe_spark.run.kube import PodApi, StatusConfigMap

log = logging.getLogger(__name__)

MIB: Final = 1024**2
# Between two runs, a session that still holds more than these shares of the limits is replaced.
KEPT_HEAP: Final = 0.5
KEPT_MEMORY: Final = 0.8
KEPT_DISK: Final = 0.25

RESULT, PROGRESS, RUN = "result.json", "progress.json", "run.json"


@dataclass(frozen=True)
class SessionLimits:
    """Limits of one run, and with it of the session's processes."""

    seconds: float
    """Seconds from its start."""
    disk: int
    """Bytes in the session's folder."""
    memory: int
    """Bytes of memory of all processes of the session."""


@dataclass(frozen=True)
class SessionUse:
    """What the session uses now."""

    seconds: float
    disk: int
    memory: int


def exceeded(use: SessionUse, limits: SessionLimits) -> str:
    """Which limit a run exceeds, as a sentence without a final period; empty: none."""
    if use.seconds > limits.seconds:
        return f"it took longer than {limits.seconds:g} seconds"
    if use.disk > limits.disk:
        return f"it wrote {use.disk // MIB} MiB to the local disk, and may write {limits.disk // MIB} MiB"
    if use.memory > limits.memory:
        return f"its processes used {use.memory // MIB} MiB of memory, and may use {limits.memory // MIB} MiB"
    return ""


def keeps_too_much(use: SessionUse, heap_used: int, heap_max: int, limits: SessionLimits) -> str:
    """Why a session must be replaced before its next run; empty: it can carry out another one."""
    if heap_max and heap_used > heap_max * KEPT_HEAP:
        return f"{heap_used // MIB} of {heap_max // MIB} MiB of its heap are still in use"
    if use.memory > limits.memory * KEPT_MEMORY:
        return f"its processes still use {use.memory // MIB} MiB of memory"
    if use.disk > limits.disk * KEPT_DISK:
        return f"{use.disk // MIB} MiB are left on the local disk"
    return ""


def measured(seconds: float, session: int, folder: Path) -> SessionUse:
    """What the processes of a session (in the sense of setsid) and its folder use. I/O."""
    return SessionUse(seconds, sum(_sizes(folder)), sum(map(_memory, processes(session))))


def processes(session: int) -> list[int]:
    """The process ids of a session. I/O."""
    pids: list[int] = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:  # it has ended
                continue
            state, _, _, process_session = stat.rpartition(")")[2].split()[:4]
            if int(process_session) == session and state != "Z":
                pids.append(int(entry))
    return pids


def _memory(pid: int) -> int:
    """The memory of a process. Pages that several processes share, such as forked workers, count once in their sum."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:  # it has ended
        pass
    return 0


def _sizes(folder: Path) -> Iterator[int]:
    """The space that files take, in bytes."""
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:  # it was removed
                continue


def session_ended(code: int) -> LetheError:
    """The transient error of a run during which the process of the Spark session ended."""
    return TransientError(
        "WarmDriverEnded",
        f"the Spark session of the warm driver ended with exit code {code} during this run. A Job carries out the run.",
    )


def not_delivered() -> LetheError:
    """The transient error of a run that ended, and may have committed, without a result in the ConfigMap."""
    return TransientError(
        "WarmDriverEnded", "the run ended, but its result could not be reported. A Job finds out what it committed."
    )


def over_limit(why: str) -> LetheError:
    """The transient error of a run that was stopped. `why` is a sentence of `exceeded`, without a final period."""
    return TransientError(
        WARM_DRIVER_LIMIT,
        f"the warm driver stopped this run: {why}. A Job carries out the run.",
    )


def not_begun_again() -> LetheError:
    """The transient error of a run that another process of the warm driver began. It is unknown whether that one has ended."""
    return TransientError(
        WARM_DRIVER_AWAY, "the warm driver ended during this run. It does not repeat a run; a Job carries it out."
    )


def was_cancelled() -> LetheError:
    """The transient error of a run that was stopped because the operator cancelled it."""
    return TransientError("Cancelled", "the run was stopped on request.")


class _AttemptName(Document):
    """The fields that a result and a pointer to a result have in common."""

    model_config = ConfigDict(extra="ignore")

    run_id: str
    attempt: int = 1


@dataclass(frozen=True)
class Delivery:
    """The documents of the runs of one mailbox."""

    api: PodApi
    mailbox: str
    """Name of the mailbox's ConfigMap."""

    def begin(self, entry: MailboxEntry) -> str | None:
        """Record that a run begins.

        Whether the run has begun is then unknown.

        Returns:
            Its document; None: there is nothing to carry out, and its key can go.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        documents = self._documents(entry)
        if documents is None or RUN not in documents:
            with about(namespace=self.api.namespace, run=entry.run_id, attempt=entry.attempt):
                log.info("run %s is no longer in ConfigMap %s, and is dropped", entry.run_id, entry.config_map)
            return None
        if _has_result(entry, documents):
            return None
        if _has_begun(entry, documents):
            self._put(entry, not_begun_again())
            return None
        first = _progress(entry, Phase.STARTING)
        self._config_map(entry).put(PROGRESS, first.to_json())
        return documents[RUN]

    def end(self, entry: MailboxEntry, error: LetheError, begun_here: bool = True) -> None:
        """Deliver a failure, unless the run has delivered a result.

        Args:
            begun_here: False: if the run has begun, another process has it.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        documents = self._documents(entry)
        if documents is not None and not _has_result(entry, documents):
            is_elsewhere = not begun_here and _has_begun(entry, documents)
            self._put(entry, not_begun_again() if is_elsewhere else error)

    def drop(self, *keys: str) -> None:
        """Remove keys from the mailbox.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        drop_keys(self.api, self.mailbox, keys)

    def entries(self) -> Iterator[MailboxEntry]:
        """The entries that the mailbox has now. It leaves out those that cannot be read.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        config_map = self.api.kube.get(CONFIG_MAPS, self.api.namespace, self.mailbox)
        for text in (config_map.get("data") or {}).values():
            with suppress(ValidationError):
                yield MailboxEntry.model_validate_json(text)

    def _put(self, entry: MailboxEntry, error: LetheError) -> None:
        with about(namespace=self.api.namespace, run=entry.run_id, attempt=entry.attempt):
            log.warning("run %s: %s", entry.run_id, error)
        failed = RunResult(
            run_id=entry.run_id,
            family=entry.family,
            attempt=entry.attempt,
            outcome=RunOutcome.FAILED,
            reason=error.reason,
            permanent=error.exit_code == EXIT_INPUT,
            message=error.message,
            finished_time=datetime.now(UTC),
            version=version(),
        )
        last = _progress(entry, Phase.FAILED, error.message)
        with suppress(NotFound):  # the Dataset was deleted
            self._config_map(entry).put_all({RESULT: failed.to_json(), PROGRESS: last.to_json()})

    def _documents(self, entry: MailboxEntry) -> Mapping[str, str] | None:
        """The documents of the Dataset's runs; None: the Dataset was deleted."""
        try:
            return self._config_map(entry).documents()
        except NotFound:
            return None

    def _config_map(self, entry: MailboxEntry) -> StatusConfigMap:
        return StatusConfigMap(self.api, entry.config_map, entry.prefix)


def _progress(entry: MailboxEntry, phase: Phase, message: str = "") -> Progress:
    now = datetime.now(UTC)
    return Progress(run_id=entry.run_id, attempt=entry.attempt, phase=phase, message=message, begun=1, updated_time=now)


def _has_begun(entry: MailboxEntry, documents: Mapping[str, str]) -> bool:
    """Whether a process has begun this attempt."""
    try:
        progress = Progress.model_validate_json(documents.get(PROGRESS, ""))
    except ValidationError:
        return False
    return (progress.run_id, progress.attempt) == (entry.run_id, entry.attempt)


def _has_result(entry: MailboxEntry, documents: Mapping[str, str]) -> bool:
    """Whether the result of this attempt, or a pointer to it, was delivered."""
    text = documents.get(RESULT, "")
    try:
        attempt = _AttemptName.model_validate_json(text)
    except ValidationError:
        return False
    return (attempt.run_id, attempt.attempt) == (entry.run_id, entry.attempt)
