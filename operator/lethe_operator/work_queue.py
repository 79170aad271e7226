"""A queue of keys: one reconcile of a key at a time, from any cause, with a pause after errors and timers to look again.

Asyncio on the outside, threads within: a reconcile blocks. A key that comes while it is being reconciled runs once more
afterwards; a burst of causes is one reconcile.
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
# Causes come in bursts (a Job, its pod, a ConfigMap, a status); the first waits this long for the others.
GATHER_SECONDS: Final = 0.3
# One that takes longer than this is not repeated at once: while causes keep coming it is at work half of the time.
LONG_SECONDS: Final = 1.0
REST_AT_MOST_SECONDS: Final = 5.0
# The kind of a key that stands for no resource but for all runs of a namespace that wait for company; its name is empty.
SHARED_RUNS: Final = "SharedRuns"


@dataclass(frozen=True, order=True)
class Key:
    """What is reconciled."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass
class _Entry:
    due: float | None = None
    running_since: float | None = None
    failures: int = 0
    rests_until: float = 0.0

    @property
    def starts(self) -> float | None:
        """When it may start; None: nobody asked for it, or it is under way."""
        return None if self.due is None or self.running_since is not None else max(self.due, self.rests_until)


@dataclass
class WorkQueue:
    """`reconcile(key)` returns when to look again, None for whenever something happens."""

    reconcile: Callable[[Key], datetime | None]
    base_seconds: float = 1.0
    max_seconds: float = 60.0
    gather_seconds: float = GATHER_SECONDS
    long_seconds: float = LONG_SECONDS
    workers: int = WORKERS
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _pool: ThreadPoolExecutor | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, key: Key, delay: float | None = None) -> None:
        """Reconcile `key` soon, or after `delay` seconds, whichever was asked for first. Call it on the loop's thread."""
        entry = self._entries.setdefault(key, _Entry())
        due = time.monotonic() + (self.gather_seconds if delay is None else max(delay, 0.0))
        if entry.due is None or due < entry.due:
            entry.due = due
            self._changed.set()

    def from_threads(self) -> Callable[[Key], None]:
        """`add` for other threads. Call it on the loop's thread."""
        loop = asyncio.get_running_loop()

        def add(key: Key) -> None:
            with suppress(RuntimeError):  # the loop is closed: the operator ends
                loop.call_soon_threadsafe(self.add, key)

        return add

    async def run(self) -> None:
        """Until cancelled."""
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
        """Of the reconciles under way; one that never ends is a reason to start anew."""
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
            log.warning("%s: %s: %s; again in %g s", key, type(e).__name__, e, pause, exc_info=_unexpected(e))
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
            # Before the loop is woken, or it would still count this one and go back to sleep.
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            self._changed.set()


def _unexpected(error: Exception) -> bool:
    """Whether the log should show where it came from."""
    return not hasattr(error, "reason")
