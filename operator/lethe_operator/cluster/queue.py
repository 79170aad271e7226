"""A queue of keys to reconcile: one reconcile of a key at a time, in the order of `Schedule`, with a pause after errors.

The interface is asyncio; reconciles run in threads, because they block. A key that is added while it is being reconciled is
reconciled again afterwards. A burst of additions leads to one reconcile. A key of which nothing is requested is reconciled at an
interval that grows while it is idle.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from lethe.logs import about

from lethe_operator.cluster.schedule import Intervals, Key, Next, Priority, Schedule, Start

log = logging.getLogger(__name__)

WORKERS: Final = 8
# This many of them are left to other namespaces.
RESERVED: Final = 2
# Watch events come in bursts (a Job, its pod, a ConfigMap, a status). The first waits this long for the others.
GATHER_SECONDS: Final = 0.3
# After a reconcile that took longer than this, the key rests for as long as it took: with continuous events it is reconciled half
# of the time.
LONG_SECONDS: Final = 1.0
REST_AT_MOST_SECONDS: Final = 5.0
# The kind of a key for the warm driver of a namespace. Its name is empty.
WARM_DRIVER: Final = "WarmDriver"


class AddKey(Protocol):
    """Adds a key to the queue, from any thread."""

    def __call__(self, key: Key, priority: Priority = Priority.CHANGED) -> None:
        """Have the key reconciled soon. It returns before the reconcile starts."""


@dataclass
class _KeyState:
    """What the queue keeps of a key, beside its requests."""

    failures: int = 0
    """In a row."""
    idle_looks: int = 0
    """In a row."""
    running_since: float | None = None
    """By time.monotonic; None: not running."""


@dataclass
class WorkQueue:
    """The keys to reconcile and the threads that do it. After an error, a key waits for a pause that grows."""

    reconcile: Callable[[Key], Next | None]
    """Returns when to reconcile the key again; None: nothing of this key exists, and it is forgotten until it is added."""
    # The pause after a first error, and the longest.
    base_seconds: float = 1.0
    max_seconds: float = 60.0
    # The pauses after reconciles that ask for nothing.
    intervals: Intervals = field(default_factory=Intervals)
    gather_seconds: float = GATHER_SECONDS
    long_seconds: float = LONG_SECONDS
    workers: int = WORKERS
    """Number of threads."""
    per_namespace: int | None = None
    """How many of them one namespace may occupy; None: all."""
    # Called with each reconcile that starts.
    on_start: Callable[[Start], None] = lambda _start: None
    _states: dict[Key, _KeyState] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _pool: ThreadPoolExecutor | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._schedule = Schedule(self.workers, self.workers if self.per_namespace is None else self.per_namespace)

    def add(self, key: Key, delay: float | None = None, priority: Priority = Priority.CHANGED) -> None:
        """Reconcile `key` soon, or after `delay` seconds; the earliest request counts.

        A change resets the interval of the key. Call it on the loop's thread.
        """
        state = self._states.setdefault(key, _KeyState())
        if priority is Priority.CHANGED:
            state.idle_looks = 0
        due = time.monotonic() + (self.gather_seconds if delay is None else max(delay, 0.0))
        if self._schedule.add(key, priority, due):
            self._changed.set()

    def ensure(self, key: Key) -> None:
        """Reconcile `key` soon if the queue does not know it. Call it on the loop's thread."""
        if key not in self._states:
            self.add(key, priority=Priority.PERIODIC)

    def look_at_all(self, namespaces: Collection[str]) -> None:
        """Reconcile all known keys of these namespaces, after the keys that changed. Call it on the loop's thread."""
        for key in [k for k in self._states if k.namespace in namespaces]:
            self.add(key, priority=Priority.DUE)

    def depth(self, priority: Priority) -> int:
        """How many keys are due and wait for a worker."""
        return self._schedule.depth(priority)

    def from_threads(self) -> AddKey:
        """A version of `add` for other threads. Call this method on the loop's thread."""
        loop = asyncio.get_running_loop()

        def add(key: Key, priority: Priority = Priority.CHANGED) -> None:
            with suppress(RuntimeError):  # the loop is closed: the operator stops
                loop.call_soon_threadsafe(self.add, key, None, priority)

        return add

    async def run(self) -> None:
        """Run until cancelled."""
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="reconcile")
        try:
            while True:
                self._changed.clear()
                self._start_due()
                # Not `wait_for`, which in Python 3.11 ignores a cancellation that comes together with the change.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._next_wait()):
                        await self._changed.wait()
        finally:
            for task in self._tasks:
                task.cancel()
            self._pool.shutdown(wait=False, cancel_futures=True)

    def longest_running_seconds(self) -> float:
        """How long the longest running reconcile has taken. One that never ends is a reason to restart the operator."""
        now = time.monotonic()
        return max((now - s.running_since for s in self._states.values() if s.running_since is not None), default=0.0)

    def _start_due(self) -> None:
        while (start := self._schedule.take(time.monotonic())) is not None:
            self._states[start.key].running_since = time.monotonic()
            self.on_start(start)
            self._tasks.add(asyncio.get_running_loop().create_task(self._work(start.key)))

    def _next_wait(self) -> float | None:
        next_time = self._schedule.next_time()
        return None if next_time is None else max(next_time - time.monotonic(), 0.0)

    def _reconcile(self, key: Key) -> Next | None:
        with about(**key.log_fields):
            return self.reconcile(key)

    async def _work(self, key: Key) -> None:
        state, began = self._states[key], time.monotonic()
        try:
            next_look = await asyncio.get_running_loop().run_in_executor(self._pool, self._reconcile, key)
        except Exception as e:
            state.failures += 1
            pause = min(self.max_seconds, self.base_seconds * 2 ** min(state.failures - 1, 10))
            with about(**key.log_fields):
                log.warning("%s: %s: %s; retry in %g s", key, type(e).__name__, e, pause, exc_info=_unexpected(e))
            self.add(key, pause, Priority.DUE)
        else:
            state.failures = 0
            self._look_again(key, state, next_look, time.monotonic() - began)
        finally:
            state.running_since = None
            now = time.monotonic()
            took = now - began
            rest = min(took, REST_AT_MOST_SECONDS) if took > self.long_seconds else 0.0
            self._schedule.finish(key, now + rest)
            if key not in self._schedule:
                del self._states[key]
            # Before the loop wakes up; otherwise it still counts this task and sleeps again.
            task = asyncio.current_task()
            assert task is not None
            self._tasks.discard(task)
            self._changed.set()

    def _look_again(self, key: Key, state: _KeyState, following: Next | None, took: float) -> None:
        if following is None:
            if took <= self.long_seconds:
                return
            following = Next()  # the queue keeps the key while it rests
        if not following.idle:
            state.idle_looks = 0
        elif not self._schedule.is_requested(key):  # otherwise something has changed meanwhile
            state.idle_looks += 1
        if following.time is not None:
            self.add(key, (following.time - datetime.now(UTC)).total_seconds(), Priority.DUE)
        pause = self.intervals.pause(key, state.idle_looks, following.within_seconds)
        self.add(key, pause, Priority.PERIODIC)
        for other in following.others:
            self.add(other, priority=Priority.DUE)
        if following.for_namespace:
            self.look_at_all([key.namespace])


def _unexpected(error: Exception) -> bool:
    """Whether the log shows the stack trace."""
    return not hasattr(error, "reason")
