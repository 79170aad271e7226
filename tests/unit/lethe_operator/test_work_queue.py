"""The queue: one reconcile of a key at a time, bursts gathered, pauses after errors, timers."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe_operator.work_queue import Key, WorkQueue

A, B = Key("Dataset", "ns", "a"), Key("Dataset", "ns", "b")
PATIENCE_SECONDS = 10


def played(queue: WorkQueue, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the queue during the test."""

    async def play() -> None:
        running = asyncio.create_task(queue.run())
        try:
            await asyncio.wait_for(story(), PATIENCE_SECONDS)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(play())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


class Reconciles:
    """Records calls; each waits for the gate, and answers or raises what the script says."""

    def __init__(self, *script: Any) -> None:
        self.calls: list[Key] = []
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = 0
        self.most_at_once: dict[Key, int] = {}
        self._under_way: dict[Key, int] = {}
        self._script = list(script)
        self._lock = threading.Lock()

    def __call__(self, key: Key) -> datetime | None:
        with self._lock:
            self.calls.append(key)
            self._under_way[key] = self._under_way.get(key, 0) + 1
            self.most_at_once[key] = max(self.most_at_once.get(key, 0), self._under_way[key])
            answer = self._script.pop(0) if self._script else None
        self.gate.wait(PATIENCE_SECONDS)
        with self._lock:
            self._under_way[key] -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer


def a_queue(reconciles: Reconciles, **changes: Any) -> WorkQueue:
    return WorkQueue(reconciles, **{"gather_seconds": 0.02, "base_seconds": 0.01, "max_seconds": 0.05, **changes})


def test_a_burst_of_causes_is_one_reconcile() -> None:
    reconciles = Reconciles()
    queue = a_queue(reconciles)

    async def story() -> None:
        for _ in range(50):
            queue.add(A)
        queue.add(B)
        await until(lambda: len(reconciles.calls) >= 2)
        await asyncio.sleep(0.1)  # a third one would have come by now

    played(queue, story)

    assert sorted(reconciles.calls) == [A, B]


def test_a_cause_during_a_reconcile_makes_one_more_afterwards_and_never_two_at_once() -> None:
    reconciles = Reconciles()
    reconciles.gate.clear()
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: reconciles.calls == [A])
        for _ in range(5):
            queue.add(A)
        await asyncio.sleep(0.05)
        assert reconciles.calls == [A]
        reconciles.gate.set()
        await until(lambda: len(reconciles.calls) == 2)

    played(queue, story)

    assert (reconciles.calls, reconciles.most_at_once[A]) == ([A, A], 1)


def test_one_key_that_hangs_holds_up_no_other() -> None:
    reconciles = Reconciles()
    reconciles.gate.clear()
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: A in reconciles.calls)
        queue.add(B)
        await until(lambda: B in reconciles.calls)
        assert queue.longest_running_seconds() > 0
        reconciles.gate.set()

    played(queue, story)


def test_an_error_is_repeated_until_it_passes() -> None:
    reconciles = Reconciles(ValueError("x"), ValueError("y"), None)
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(reconciles.calls) == 3)

    played(queue, story)

    assert reconciles.calls == [A, A, A]


def test_a_reconcile_may_ask_for_another_look() -> None:
    reconciles = Reconciles(datetime.now(UTC) + timedelta(seconds=0.05))
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(reconciles.calls) == 2)

    played(queue, story)


def test_what_needs_no_other_look_is_forgotten() -> None:
    reconciles = Reconciles()
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: bool(reconciles.calls) and not queue._entries)

    played(queue, story)


def test_more_keys_than_workers_all_get_their_turn() -> None:
    reconciles = Reconciles()
    queue = a_queue(reconciles, workers=2)
    keys = [Key("Dataset", "ns", str(n)) for n in range(20)]

    async def story() -> None:
        for key in keys:
            queue.add(key)
        await until(lambda: len(reconciles.calls) == 20)

    played(queue, story)

    assert set(keys) == set(reconciles.calls)


def test_another_thread_may_ask_for_a_reconcile_also_when_the_operator_has_ended() -> None:
    reconciles = Reconciles()
    queue = a_queue(reconciles)
    kept: list[Callable[[Key], None]] = []

    async def story() -> None:
        kept.append(queue.from_threads())
        threading.Thread(target=kept[0], args=(A,)).start()
        await until(lambda: reconciles.calls == [A])

    played(queue, story)
    kept[0](B)

    assert reconciles.calls == [A]


def test_one_that_takes_long_rests_as_long_however_many_causes_come() -> None:
    """Thousands of events would keep a core busy with it otherwise, and the runs on it waiting."""
    began: list[float] = []
    work_seconds = 0.1

    def reconcile(_: Key) -> None:
        began.append(time.monotonic())
        while time.monotonic() < began[-1] + work_seconds:
            pass

    queue = WorkQueue(reconcile, gather_seconds=0.0, long_seconds=0.05)

    async def story() -> None:
        while len(began) < 4:
            queue.add(A)
            await asyncio.sleep(0)

    played(queue, story)

    assert all(later - earlier >= 2 * work_seconds for earlier, later in itertools.pairwise(began))
