"""The threads of the committer, from the start to the end of its process. I/O.

Invariant: any failure of the JVM ends the process. The runs in progress stay in the mailbox for the next process.
"""

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Final

from lethe import tracing
from lethe.contract.kubernetes import parse_bytes
from lethe.kube import KubeError
from lethe.process import return_memory
from lethe.search.batches import ColumnCache

from lethe_spark.committer.reports import CommitterHealth, CommitterMetrics, Heartbeat, Reporting
from lethe_spark.committer.work import OpenTables, PendingCleanup, Worker
from lethe_spark.jvm.standalone_jvm import SmallJvm
from lethe_spark.mailbox import Mailbox, Post, Upkeep, Watching, metrics_port, receive
from lethe_spark.run.context import Cancelled
from lethe_spark.run.kube import PodApi, require_pod_api
from lethe_spark.run.redact import RedactingFormatter

log = logging.getLogger(__name__)

NAME: Final = "lethe-committer"
THREADS: Final = 4
CACHE: Final = "64Mi"
"""The memory for batch columns that earlier runs read."""
RETRY_SECONDS: Final = 5.0
"""Pause before a run whose result could not be delivered is repeated."""
# After SIGTERM, of 30 seconds: runs in progress may finish within the first limit; then they stop at their next step.
FINISH_SECONDS: Final = 15.0
STOP_SECONDS: Final = 7.0
BROKEN: Final = 1


@dataclass(frozen=True)
class ServeSettings:
    """The settings of the process."""

    api: PodApi
    """The API server."""
    name: str
    """Name of the mailbox (a ConfigMap) and of the Lease."""
    holder: str
    """Name of the pod, for the Lease."""
    threads: int
    """Number of runs in progress at once."""
    cache_bytes: int
    """The most bytes of batch columns to keep in memory."""
    metrics_port: int | None = None
    """The port of /metrics; None: no metrics are served."""

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "ServeSettings":
        """Make `ServeSettings`.

        Raises:
            InputError: NotInAPod.
        """
        api = require_pod_api(environ, NAME, "the committer")
        threads = int(environ.get("LETHE_COMMITTER_THREADS") or THREADS)
        return cls(
            api,
            environ.get("LETHE_COMMITTER") or NAME,
            environ.get("POD_NAME") or os.uname().nodename,
            threads,
            parse_bytes(environ.get("LETHE_COMMITTER_CACHE") or CACHE),
            metrics_port(environ),
        )


@dataclass
class CommitterProcess:
    """The committer's process, except for its JVM."""

    settings: ServeSettings
    jvm: SmallJvm
    formatter: RedactingFormatter
    mailbox: Mailbox[PendingCleanup] = field(default_factory=Mailbox)
    health: CommitterHealth = field(default_factory=CommitterHealth)
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set by SIGTERM: no run and no upkeep begins any more."""
    hurry: threading.Event = field(default_factory=threading.Event)
    """Set FINISH_SECONDS later: runs stop at their next step."""
    news: threading.Condition = field(default_factory=threading.Condition)
    """Guards the mailbox, and is notified of its changes."""

    def __post_init__(self) -> None:
        self.metrics = CommitterMetrics(self.settings.api.namespace, self.mailbox, self.news, self.health)

    def run(self) -> None:
        """Serve until SIGTERM, and then until the runs in progress have ended or their time is over."""
        # A pipe, because the handler may interrupt the main thread while it holds the lock of an Event.
        terminated, terminate = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: os.write(terminate, b"."))
        threading.excepthook = _end_with_thread
        settings, tables = self.settings, OpenTables(self.jvm, self.formatter)
        reporting = Reporting()
        worker = Worker(
            settings.api,
            settings.name,
            tables,
            reporting,
            self.hurry,
            self.leaving,
            self.metrics.result_delivered,
            ColumnCache(settings.cache_bytes),
        )
        self.metrics.serve(settings.metrics_port)
        self.jvm.on_end(lambda code: end(f"the JVM ended with exit code {code}", BROKEN))
        reporting.start()
        threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"lethe-work-{n}", daemon=True)
            for n in range(settings.threads)
        ]
        for thread in threads:
            thread.start()
        Watching(settings.api, settings.name, lambda data: self._put(worker, data), self._mailbox_answered).start()
        Heartbeat(settings.api, settings.name, settings.holder, self.health, self.jvm.answers, _hung).start()
        log.info("serving the mailbox %s of namespace %s", settings.name, settings.api.namespace)
        os.read(terminated, 1)
        self._leave(threads)

    def _leave(self, threads: list[threading.Thread]) -> None:
        self.leaving.set()
        with self.news:
            log.info("shutting down; runs of %d Datasets are in progress", self.mailbox.under_way)
            self.news.notify_all()
        until = monotonic() + FINISH_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))
        self.hurry.set()
        until = monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))

    def _mailbox_answered(self) -> None:
        self.health.mailbox_time = monotonic()

    def _put(self, worker: Worker, data: Mapping[str, str]) -> None:
        receive(self.mailbox, self.news, data, worker.drop)

    def _work(self, worker: Worker) -> None:
        while (chosen := self._take()) is not None:
            if isinstance(chosen, Upkeep):
                self._keep_up(chosen)
            else:
                self._carry_out(worker, chosen)
            with self.news:
                self.news.notify_all()

    def _take(self) -> Post | Upkeep[PendingCleanup] | None:
        """Wait for the next run or upkeep. None: the process is to end."""
        with self.news:
            while not self.leaving.is_set():
                now = monotonic()
                chosen = self.mailbox.take(now)
                if chosen is not None:
                    return chosen
                self.news.wait(self.mailbox.next_due(now))
        return None

    def _carry_out(self, worker: Worker, post: Post) -> None:
        try:
            left = worker.carry_out(post)
        except (Cancelled, OSError, KubeError) as e:
            log.warning("run %s stays in the mailbox: %s", post.entry.run_id, e)
            self.metrics.put_off()
            with self.news:
                self.mailbox.put_off(post, monotonic() + RETRY_SECONDS)
        else:
            with self.news:
                self.mailbox.settled(post, monotonic(), left)

    def _keep_up(self, upkeep: Upkeep[PendingCleanup]) -> None:
        upkeep.work.clean_up()
        self.metrics.upkeeps.inc()
        with self.news:
            self.mailbox.kept_up(upkeep.dataset_uid)
        return_memory()  # garbage of Python keeps objects of the JVM alive


def _hung() -> None:
    end("the JVM does not answer", BROKEN)


def _end_with_thread(args: threading.ExceptHookArgs) -> None:
    """End the process when one of its threads fails. The next process repeats the run, up to `BEGUN_AT_MOST` times."""
    name = args.thread.name if args.thread is not None else ""
    log.error("thread %s", name, exc_info=args.exc_value)
    if name.startswith("lethe-"):
        end(f"{args.exc_type.__name__} in the thread {name}", BROKEN)


def end(why: str, code: int) -> None:
    """End the process immediately. sys.exit would wait for threads of py4j."""
    log.log(logging.ERROR if code else logging.INFO, "the committer shuts down: %s", why)
    tracing.stop()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
