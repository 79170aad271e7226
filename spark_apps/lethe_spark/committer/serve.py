"""The threads of the committer, from the start to the end of its process. I/O.

Invariant: whatever is wrong with the JVM ends the process, and what it was at stays in the mailbox for the next one.
"""

import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from time import monotonic
from typing import Final

from lethe.base.errors import InputError

from lethe_spark.committer.heartbeat import Health, Heartbeat
from lethe_spark.committer.mailbox import Mailbox, Post, Upkeep
from lethe_spark.committer.reports import Reporting
from lethe_spark.committer.tables import Tables
from lethe_spark.committer.watching import Watching
from lethe_spark.committer.work import Aftermath, Worker
from lethe_spark.jvm.standalone_jvm import SmallJvm
from lethe_spark.run.context import Cancelled
from lethe_spark.run.kube import Api
from lethe_spark.run.redact import RedactingFormatter

log = logging.getLogger(__name__)

NAME: Final = "lethe-committer"
THREADS: Final = 4
AGAIN_SECONDS: Final = 5.0  # after what could not be told
# Of SIGTERM's 30 seconds: a commit under way is finished; then whatever has not come to it stops at its next step.
FINISH_SECONDS: Final = 15.0
STOP_SECONDS: Final = 7.0
BROKEN: Final = 1


@dataclass(frozen=True)
class Settings:
    """`name`: of the ConfigMap that is the mailbox, and of the Lease; `holder`: the pod's."""

    api: Api
    name: str
    holder: str
    threads: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Settings":
        """Raises: InputError (NotInAPod)."""
        missing = [name for name in ("KUBERNETES_SERVICE_HOST", "POD_NAMESPACE") if not environ.get(name)]
        api = Api.from_environment(environ) if not missing else None
        if api is None:
            raise InputError(
                "NotInAPod", f"the committer serves the namespace of its pod, and {' and '.join(missing)} is not set."
            )
        threads = int(environ.get("LETHE_COMMITTER_THREADS") or THREADS)
        return cls(api, environ.get("LETHE_COMMITTER") or NAME, environ.get("POD_NAME") or os.uname().nodename, threads)


@dataclass
class Committer:
    """The process, but for its JVM."""

    settings: Settings
    jvm: SmallJvm
    formatter: RedactingFormatter
    mailbox: Mailbox[Aftermath] = field(default_factory=Mailbox)
    health: Health = field(default_factory=Health)
    leaving: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)
    news: threading.Condition = field(default_factory=threading.Condition)

    def run(self) -> None:
        """Serve until SIGTERM, then until what is under way has come to an end, or has had time to."""
        # A pipe, since a handler may come upon the main thread at any point, a lock of an Event's in its hand.
        asked, ask = os.pipe()
        signal.signal(signal.SIGTERM, lambda *_: os.write(ask, b"."))
        threading.excepthook = _end_with_thread
        settings, tables = self.settings, Tables(self.jvm, self.formatter)
        reporting = Reporting()
        worker = Worker(settings.api, settings.name, tables, reporting, self.hurry, self.leaving)
        self.jvm.on_end(lambda code: end(f"its JVM ended with {code}", BROKEN))
        reporting.start()
        threads = [
            threading.Thread(target=self._work, args=(worker,), name=f"lethe-work-{n}", daemon=True)
            for n in range(settings.threads)
        ]
        for thread in threads:
            thread.start()
        Watching(settings.api, settings.name, lambda data: self._put(worker, data), self._heard).start()
        Heartbeat(settings.api, settings.name, settings.holder, self.health, self.jvm.answers, _hung).start()
        log.info("serving the mailbox %s of namespace %s", settings.name, settings.api.namespace)
        os.read(asked, 1)
        self._leave(threads)

    def _leave(self, threads: list[threading.Thread]) -> None:
        self.leaving.set()
        with self.news:
            log.info("leaving; %d Datasets are under way", self.mailbox.under_way)
            self.news.notify_all()
        until = monotonic() + FINISH_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))
        self.hurry.set()
        until = monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - monotonic()))

    def _heard(self) -> None:
        self.health.mailbox_time = monotonic()

    def _put(self, worker: Worker, data: Mapping[str, str]) -> None:
        with self.news:
            unreadable = self.mailbox.put(data)
            self.news.notify_all()
        for key, why in unreadable.items():
            log.error("key %s of the mailbox is dropped: %s", key, why)
        if unreadable:
            worker.drop(*unreadable)

    def _work(self, worker: Worker) -> None:
        while (chosen := self._take()) is not None:
            if isinstance(chosen, Upkeep):
                self._keep_up(chosen)
            else:
                self._carry_out(worker, chosen)
            with self.news:
                self.news.notify_all()

    def _take(self) -> Post | Upkeep[Aftermath] | None:
        """The next thing to do; None once the process is to end."""
        with self.news:
            while not self.leaving.is_set():
                now = monotonic()
                chosen = self.mailbox.take(now)
                if chosen is not None:
                    return chosen
                self.news.wait(self.mailbox.look_again(now))
        return None

    def _carry_out(self, worker: Worker, post: Post) -> None:
        try:
            left = worker.carry_out(post)
        except (Cancelled, OSError, HTTPException) as e:
            log.warning("run %s stays in the mailbox: %s", post.entry.run_id, e)
            with self.news:
                self.mailbox.put_off(post, monotonic() + AGAIN_SECONDS)
        else:
            with self.news:
                self.mailbox.settled(post, monotonic(), left)

    def _keep_up(self, upkeep: Upkeep[Aftermath]) -> None:
        upkeep.work.tidy_up()
        with self.news:
            self.mailbox.kept_up(upkeep.dataset_uid)
        # Python's references keep the JVM's objects alive, and those in cycles do so until they are looked for.
        gc.collect()


def _hung() -> None:
    end("its JVM does not answer any more", BROKEN)


def _end_with_thread(args: threading.ExceptHookArgs) -> None:
    """Half a process is none. What it was at is done by the next one, as often as `BEGUN_AT_MOST` allows."""
    name = args.thread.name if args.thread is not None else ""
    log.error("thread %s", name, exc_info=args.exc_value)
    if name.startswith("lethe-"):
        end(f"{args.exc_type.__name__} in its thread {name}", BROKEN)


def end(why: str, code: int) -> None:
    """End the process at once. Not sys.exit: no thread of py4j's may keep it alive."""
    log.log(logging.ERROR if code else logging.INFO, "the committer ends: %s", why)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
