"""A queue of keys to reconcile: one reconcile of a key at a time, with a pause after errors and timers for the next one.

The interface is asyncio; reconciles run in threads, because they block. A key that is added while it is being reconciled is
reconciled again afterwards. A burst of additions leads to one reconcile.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

log = logging.getLogger(__name__)

WORKERS: Final = 8
# Watch events come in bursts (a Job, its pod, a ConfigMap, a status). The first waits this long for the others.
GATHER_SECONDS: Final = 0.3
# After a reconcile that took longer than this, the key rests for as long as it took: with continuous events it is reconciled half
# of the time.
LONG_SECONDS: Final = 1.0
REST_AT_MOST_SECONDS: Final = 5.0
# The kind of a key for all offered runs of a namespace. Its name is empty.
SHARED_RUNS: Final = "SharedRuns"


@dataclass(frozen=True, order=True)
class Key:
    """What is reconciled: a resource, or the offered runs of a namespace."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass
class _Entry:
    """Times are those of time.monotonic."""

    due: float | None = None  # None: not requested
    running_since: float | None = None  # None: not running
    failures: int = 0  # in a row
    rests_until: float = 0.0

    @property
    def starts(self) -> float | None:
        """When the reconcile may start; None: it is not requested, or it is running."""
        return None if self.due is None or self.running_since is not None else max(self.due, self.rests_until)


@dataclass
class WorkQueue:
    # Returns when to reconcile the key again; None: when it is added again.
    reconcile: Callable[[Key], datetime | None]
    # The pause after a first error, and the longest.
    base_seconds: float = 1.0
    max_seconds: float = 60.0
    gather_seconds: float = GATHER_SECONDS
    long_seconds: float = LONG_SECONDS
    # Number of threads.
    workers: int = WORKERS
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _pool: ThreadPoolExecutor | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, key: Key, delay: float | None = None) -> None:
        """Reconcile `key` soon, or after `delay` seconds; the earliest request counts. Call it on the loop's thread."""
        entry = self._entries.setdefault(key, _Entry())
        due = time.monotonic() + (self.gather_seconds if delay is None else max(delay, 0.0))
        if entry.due is None or due < entry.due:
            entry.due = due
            self._changed.set()

    def from_threads(self) -> Callable[[Key], None]:
        """A version of `add` for other threads. Call this method on the loop's thread."""
        loop = asyncio.get_running_loop()

        def add(key: Key) -> None:
            with suppress(RuntimeError):  # the loop is closed: the operator stops
                loop.call_soon_threadsafe(self.add, key)

        return add

    async def run(self) -> None:
        """Run until cancelled."""
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="reconcile")
        try:
            while True:
                self._changed.clear()
                self._start_due()
                try:
                    await asyncio.wait_for(self._changed.wait(), self._next_wait())
                except TimeoutError:
                    continue
        finally:
            for task in self._tasks:
                task.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def longest_running_seconds(self) -> float:
        """How long the longest running reconcile has taken. One that never ends is a reason to restart the operator."""
        now = time.monotonic()
        return max((now - e.running_since for e in self._entries.values() if e.running_since is not None), default=0.0)

    def _start_due(self) -> None:
        now = time.monotonic()
        for key, entry in list(self._entries.items()):
            if len(self._tasks) >= self.workers:
                return
            starts = entry.starts
            if starts is not None and starts <= now:
                entry.due = None
                entry.running_since = now
                self._tasks.add(asyncio.get_running_loop().create_task(self._work(key, entry)))

    def _next_wait(self) -> float | None:
        if len(self._tasks) >= self.workers:
            return None
        now = time.monotonic()
        waits = [starts - now for e in self._entries.values() if (starts := e.starts) is not None]
        return max(min(waits), 0.0) if waits else None

    async def _work(self, key: Key, entry: _Entry) -> None:
        began = time.monotonic()
        try:
            again = await asyncio.get_running_loop().run_in_executor(self._pool, self.reconcile, key)
        except Exception as e:
            entry.failures += 1
            pause = min(self.max_seconds, self.base_seconds * 2 ** min(entry.failures - 1, 10))
            log.warning("%s: %s: %s; retry in %g s", key, type(e).__name__, e, pause, exc_info=_unexpected(e))
            entry.running_since = None
            self.add(key, pause)
        else:
            entry.failures = 0
            entry.running_since = None
            if again is not None:
                self.add(key, (again - datetime.now(UTC)).total_seconds())
            elif entry.due is None and time.monotonic() - began <= self.long_seconds:
                self._entries.pop(key, None)
        finally:
            entry.running_since = None
            took = time.monotonic() - began
            rest = min(took, REST_AT_MOST_SECONDS) if took > self.long_seconds else 0.0
            entry.rests_until = time.monotonic() + rest
            # Before the loop wakes up; otherwise it still counts this task and sleeps again.
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            self._changed.set()


def _unexpected(error: Exception) -> bool:
    """Whether the log shows the stack trace."""
    return not hasattr(error, "reason")
