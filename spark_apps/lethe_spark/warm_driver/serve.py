"""The supervisor of a warm driver: its loop, the process of its Spark session, its metrics. I/O.

Invariants: at most one run is handed over at a time. A session that crashed, exceeded a limit or keeps too much is replaced
before the next run. A run during which the session was replaced is not repeated here.
"""

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Final

from lethe.base.errors import LetheError
from lethe.kube import KubeError
from lethe.logs import about

from lethe_spark.mailbox import Mailbox, MailboxMetrics, Post, Upkeep, Watching, metrics_port, receive
from lethe_spark.run.handover import ANSWERS, Handover, SessionAnswer
from lethe_spark.run.kube import PodApi, require_pod_api
from lethe_spark.warm_driver.delivery import (
    Delivery,
    SessionLimits,
    SessionUse,
    exceeded,
    keeps_too_much,
    measured,
    not_delivered,
    over_limit,
    processes,
    session_ended,
    was_cancelled,
)

log = logging.getLogger(__name__)

DELIVERED = "Delivered"
"""The outcome of a run that has delivered its own result, which may be a failure."""
STOPPED = "Stopped"
"""The outcome of a run whose failure the supervisor has delivered."""

COMMAND: Final = (sys.executable, "-m", "lethe_spark.apps.warm_session")
KILL_SECONDS: Final = 10.0
# How long an idle session that is replaced may take to end by itself. It sends its traces then.
END_SECONDS: Final = 5.0

NAME: Final = "lethe-warm-driver"
RETRY_SECONDS: Final = 5.0
"""Pause before a run whose documents could not be read or written is looked at again."""
MEASURE_SECONDS: Final = 0.5
"""How often the use of a run is measured."""
# After SIGTERM, of 30 seconds: a run may finish within the first limit; then it stops at its next step; then it is killed.
FINISH_SECONDS: Final = 12.0
STOP_SECONDS: Final = 8.0
STARTS_AT_MOST: Final = 3
"""A session that ends this many times in a row before it is ready will not start here."""
# Exit codes. Kubernetes restarts the process after any other code than 0.
IDLE: Final = 0
BROKEN: Final = 1


class WarmDriverMetrics(MailboxMetrics):
    """The Prometheus metrics of the supervisor, one object per process."""

    def __init__(self, namespace: str, mailbox: Mailbox[Any], lock: threading.Condition) -> None:
        super().__init__("lethe_warm_driver", namespace, mailbox, lock)
        # Whether the session can take a run, or carries one out.
        self.session_works = False
        # What the session used when it was last measured; None: it was not.
        self.use: SessionUse | None = None
        self.sessions = self.counter(
            "sessions_total", "Spark sessions that were started: the first one, and those that replaced another."
        )
        self.gauge("session_up", "1 while the Spark session works, 0 while it starts.", lambda: self.session_works)
        self.gauge(
            "session_memory_bytes",
            "Memory of the processes of the session, as last measured, during a run or after it.",
            lambda: self.use.memory if self.use else 0,
        )
        self.gauge(
            "session_disk_bytes",
            "Space of the session's files, as last measured, during a run or after it.",
            lambda: self.use.disk if self.use else 0,
        )


@dataclass
class SessionProcess:
    """A session, its Python workers and its JVM. They are one session in the sense of setsid, so none outlives it."""

    process: "subprocess.Popen[str]"
    folder: Path
    """Everything that it writes to the local disk is below this folder."""
    answers: deque[SessionAnswer | None] = field(default_factory=deque)
    """Its answers that were not read yet; None: it has ended."""
    runs: int = 0
    """Number of runs so far."""

    @classmethod
    def start(
        cls, command: Sequence[str], folder: Path, environ: Mapping[str, str], on_answer: Callable[[], object]
    ) -> "SessionProcess":
        """Start it in an empty folder. It answers when it is ready.

        Args:
            on_answer: Called after each answer, in another thread.
        """
        shutil.rmtree(folder, ignore_errors=True)
        temporary = folder / "tmp"
        temporary.mkdir(parents=True)
        reading, writing = os.pipe()
        try:
            process = subprocess.Popen(
                command,
                env={**environ, ANSWERS: str(writing), "SPARK_LOCAL_DIRS": str(folder), "TMPDIR": str(temporary)},
                stdin=subprocess.PIPE,
                stdout=sys.stderr,
                pass_fds=[writing],
                start_new_session=True,
                text=True,
            )
        finally:
            os.close(writing)
        started = cls(process, folder)
        threading.Thread(target=started._hear, args=(reading, on_answer), name="lethe-session", daemon=True).start()
        return started

    def hand_over(self, run: Handover) -> None:
        """Hand the work over.

        Raises:
            OSError: It has ended.
        """
        assert self.process.stdin is not None
        self.runs += 1
        print(run.line(), file=self.process.stdin, flush=True)

    def use(self, seconds: float) -> SessionUse:
        """What it uses, `seconds` after its run began."""
        return measured(seconds, self.process.pid, self.folder)

    def terminate(self) -> None:
        """Ask the run to stop at its next step, and the process to end after it."""
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Let the process end by itself, for some seconds at most. Only while it has no run."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(timeout=END_SECONDS)

    def kill(self) -> int:
        """End all its processes now, and remove its folder.

        Returns:
            The exit code.
        """
        for pid in processes(self.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        code = self.process.wait(timeout=KILL_SECONDS)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code

    def _hear(self, pipe: int, on_answer: Callable[[], object]) -> None:
        with os.fdopen(pipe) as lines:
            for line in lines:
                self.answers.append(SessionAnswer.of(line))
                on_answer()
        self.answers.append(None)
        on_answer()


@dataclass(frozen=True)
class WarmSettings:
    """The settings of the process."""

    api: PodApi
    name: str
    """Name of the mailbox (a ConfigMap)."""
    idle_seconds: float
    """The process ends after this time without a run."""
    limits: SessionLimits
    scratch: Path
    """Folder for the files of sessions."""
    metrics_port: int | None = None
    """The port of /metrics; None: no metrics are served."""
    files: frozenset[str] = frozenset()
    """Names of the files with values and keys that are mounted into the pod."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "WarmSettings":
        """Make `WarmSettings`.

        Raises:
            InputError: NotInAPod.
        """
        name = environ.get("LETHE_WARM_DRIVER") or NAME
        api = require_pod_api(environ, name, "the warm driver")
        limits = SessionLimits(
            seconds=float(environ.get("LETHE_WARM_RUN_SECONDS") or 300),
            disk=int(environ.get("LETHE_WARM_DISK_BYTES") or 8 * 1024**3),
            memory=int(environ.get("LETHE_WARM_MEMORY_BYTES") or 2 * 1024**3),
        )
        return cls(
            api,
            name,
            float(environ.get("LETHE_WARM_IDLE_SECONDS") or 600),
            limits,
            Path((environ.get("SPARK_LOCAL_DIRS") or "/tmp").split(",")[0]),
            metrics_port(environ),
            frozenset(filter(None, environ.get("LETHE_WARM_FILES", "").split(","))),
        )


@dataclass
class _Running:
    """The run that the session carries out."""

    post: Post
    since: float
    """When it was handed over: monotonic seconds."""
    next_measure: float
    """When it is measured next."""
    stops_by: float | None = None
    """Until when it may stop by itself; None: it was not asked to stop."""


@dataclass
class WarmDriver:
    """The supervisor."""

    settings: WarmSettings
    arguments: Sequence[str] = ()
    """Arguments of the session: Spark's settings."""
    command: Sequence[str] = COMMAND
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    mailbox: Mailbox[None] = field(default_factory=Mailbox)
    news: threading.Condition = field(default_factory=threading.Condition)
    """Guards the mailbox, and is notified of its changes, of answers of the session, and of SIGTERM."""
    _session: SessionProcess | None = None
    _ready: bool = False
    _running: _Running | None = None
    _failed_starts: int = 0
    """Sessions in a row that ended before they were ready."""
    _idle_since: float = field(default_factory=monotonic)
    """Since when nothing is to be done."""
    _leaving_since: float | None = None
    """When SIGTERM came; None: it did not."""
    _sessions: int = 0
    """Number of sessions so far; names their folders."""

    def __post_init__(self) -> None:
        self.mailbox.files = self.settings.files
        self.metrics = WarmDriverMetrics(self.settings.api.namespace, self.mailbox, self.news)

    @property
    def _delivery(self) -> Delivery:
        return Delivery(self.settings.api, self.settings.name)

    def run(self) -> int:
        """Serve until SIGTERM, or until there was nothing to do for the idle time.

        Returns:
            The exit code.
        """
        self._listen_for_sigterm()
        settings = self.settings
        self.metrics.serve(settings.metrics_port)
        Watching(settings.api, settings.name, self._put, lambda: None).start()
        log.info("serving the mailbox %s of namespace %s", settings.name, settings.api.namespace)
        try:
            code = self._serve()
        finally:
            if self._session is not None:
                self._session.kill()
        try:
            # An entry may have come just now. If one comes later, the operator sees that this process has ended.
            came = any(map(self.mailbox.is_for_us, self._delivery.entries()))
            return BROKEN if code == IDLE and came else code
        except KubeError as e:
            log.warning("the mailbox %s could not be read: %s", settings.name, e)
            return BROKEN

    def _serve(self) -> int:
        while True:
            with self.news:
                if self._session is None:
                    self._start_session()
                self._hear()
                if self._failed_starts >= STARTS_AT_MOST:
                    log.error("the Spark session ended %d times before it was ready", STARTS_AT_MOST)
                    return BROKEN
                self._acknowledge_cancelled()
                self._watch_over()
                if self._leaving_since is not None and self._running is None:
                    return IDLE
                if self._ready and self._running is None:
                    self._begin_next()
                now = monotonic()
                if self._running is not None or not self.mailbox.is_empty(now):
                    self._idle_since = now
                elif self._ready and self.mailbox.has_others(now):
                    log.info("the runs that wait need files that this pod does not have")
                    return IDLE
                elif self._ready and now - self._idle_since >= self.settings.idle_seconds:
                    log.info("no run for %g seconds", self.settings.idle_seconds)
                    return IDLE
                if self._session is not None and not self._session.answers:
                    self.news.wait(self._pause(now))

    # --- the session ------------------------------------------------------------------------------------------------------

    def _start_session(self) -> None:
        self._sessions += 1
        folder = self.settings.scratch / f"session-{self._sessions}"
        self._ready = False
        self.metrics.sessions.inc()
        self._session = SessionProcess.start((*self.command, *self.arguments), folder, self.environ, self._notify)

    def _hear(self) -> None:
        """Act on the session's answers."""
        session = self._session
        while session is not None and session is self._session and session.answers:
            answer = session.answers.popleft()
            if answer is None:
                self._failed_starts += not self._ready and session.runs == 0
                self._replace(session_ended)
            elif answer.ready:
                self._take_back(session, answer)
            elif self._running is not None:
                self._finish(None if answer.delivered else not_delivered())

    def _take_back(self, session: SessionProcess, answer: SessionAnswer) -> None:
        """The session is ready, unless its last run left too much in it."""
        self._failed_starts = 0
        self.metrics.session_works = True
        self.metrics.use = use = session.use(0)
        why = keeps_too_much(use, answer.heap_used, answer.heap_max, self.settings.limits)
        if why and session.runs:
            log.info("the Spark session is replaced after %d runs: %s", session.runs, why)
            session.end()
            self._replace(session_ended)
        else:
            self._ready = True

    def _replace(self, error_of: Callable[[int], LetheError]) -> None:
        """End the session and all its processes, and with it its run. The next one starts in an empty folder.

        Args:
            error_of: The failure of the run, by the exit code of the session.
        """
        assert self._session is not None
        code = self._session.kill()
        self._session, self._ready, self.metrics.session_works = None, False, False
        if self._running is not None:
            self._finish(error_of(code))

    # --- a run ------------------------------------------------------------------------------------------------------------

    def _begin_next(self) -> None:
        chosen = self.mailbox.take(monotonic())
        if chosen is None:
            return
        assert not isinstance(chosen, Upkeep), "the warm driver requests no upkeep"
        try:
            document = self._delivery.begin(chosen.entry)
            if document is None:
                self._settle(chosen)
                return
        except KubeError as e:
            self._put_off(chosen, e)
            return
        now = monotonic()
        self._ready, self._running = False, _Running(chosen, now, now + MEASURE_SECONDS)
        with about(namespace=self.settings.api.namespace, run=chosen.entry.run_id, attempt=chosen.entry.attempt):
            log.info("run %s, attempt %d", chosen.entry.run_id, chosen.entry.attempt)
        try:
            self._hand_over(chosen, document)
        except OSError as e:
            log.warning("the Spark session does not take a run: %s", e)
            self._replace(session_ended)

    def _hand_over(self, post: Post, document: str) -> None:
        """Hand the work over.

        Raises:
            OSError: The session has ended or the disk is full.
        """
        session, entry = self._session, post.entry
        assert session is not None
        folder, file = session.folder / f"run-{session.runs}", session.folder / "run.json"
        folder.mkdir()
        file.write_text(document)
        session.hand_over(
            Handover(
                run_id=entry.run_id,
                family=entry.family,
                attempt=entry.attempt,
                run_file=str(file),
                folder=str(folder),
                config_map=entry.config_map,
                prefix=entry.prefix,
            )
        )

    def _watch_over(self) -> None:
        """Stop a run that exceeds its limits, was cancelled, or would delay the end of this process."""
        running, session, now = self._running, self._session, monotonic()
        if running is None or session is None:
            return
        if running.stops_by is None:
            late = self._leaving_since is not None and now > self._leaving_since + FINISH_SECONDS
            if late or not self.mailbox.wants(running.post.key):
                session.terminate()
                running.stops_by = now + STOP_SECONDS
        elif now > running.stops_by:
            self._replace(lambda _: was_cancelled())
            return
        if now >= running.next_measure:
            running.next_measure = now + MEASURE_SECONDS
            self.metrics.use = use = session.use(now - running.since)
            why = exceeded(use, self.settings.limits)
            if why:
                self._replace(lambda _: over_limit(why))

    def _acknowledge_cancelled(self) -> None:
        """Deliver the results of cancelled runs that have not begun."""
        for post in self.mailbox.cancelled(monotonic()):
            if self._running is None or self._running.post.key != post.key:
                self._deliver(post, was_cancelled(), begun_here=False)

    def _finish(self, error: LetheError | None) -> None:
        """The run has ended. `error`: what to report, if it has delivered no result; None: it has delivered one."""
        assert self._running is not None
        post, since, self._running = self._running.post, self._running.since, None
        self._idle_since = monotonic()
        outcome, reason = (DELIVERED, "") if error is None else (STOPPED, error.reason)
        self.metrics.run_ended(post.entry.family, outcome, reason, self._idle_since - since)
        self._deliver(post, error)

    def _deliver(self, post: Post, error: LetheError | None, begun_here: bool = True) -> None:
        try:
            if error is not None:
                self._delivery.end(post.entry, error, begun_here)
            self._settle(post)
        except KubeError as e:
            self._put_off(post, e)

    def _settle(self, post: Post) -> None:
        """Remove the key of a run that is done from the mailbox.

        Raises:
            KubeError: The API server rejected the request, or did not answer.
        """
        self._delivery.drop(post.key)
        self.mailbox.settled(post, monotonic())

    def _put_off(self, post: Post, error: Exception) -> None:
        with about(namespace=self.settings.api.namespace, run=post.entry.run_id, attempt=post.entry.attempt):
            log.warning("run %s stays in the mailbox: %s", post.entry.run_id, error)
        self.metrics.put_off()
        self.mailbox.put_off(post, monotonic() + RETRY_SECONDS)

    # --- what others say --------------------------------------------------------------------------------------------------

    def _pause(self, now: float) -> float | None:
        """How long nothing happens without news; None: for ever."""
        times = [self._idle_since + self.settings.idle_seconds - now]
        if self._running is not None:
            times = [self._running.next_measure - now]
        elif (due := self.mailbox.next_due(now)) is not None:
            times.append(due)
        return max(0.0, min(times))

    def _notify(self) -> None:
        with self.news:
            self.news.notify_all()

    def _put(self, data: Mapping[str, str]) -> None:
        receive(self.mailbox, self.news, data, self._delivery.drop)

    def _listen_for_sigterm(self) -> None:
        # A pipe, because the handler may interrupt the main thread while it holds the lock of `news`.
        reading, writing = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: os.write(writing, b"."))

        def leave() -> None:
            os.read(reading, 1)
            with self.news:
                log.info("shutting down")
                self._leaving_since = monotonic()
                self.news.notify_all()

        threading.Thread(target=leave, name="lethe-sigterm", daemon=True).start()


def end(code: int) -> None:
    """End the process immediately, without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
