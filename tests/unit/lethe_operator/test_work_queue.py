"""The queue: one reconcile of a key at a time, bursts gathered, pauses after errors, timers."""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from lethe_operator.cluster.queue import Key, WorkQueue
from lethe_operator.cluster.schedule import Intervals, Next, Priority, Start

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

    def __call__(self, key: Key) -> Next | None:
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
    reconciles = Reconciles(Next(datetime.now(UTC) + timedelta(seconds=0.05)))
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(reconciles.calls) == 2)

    played(queue, story)


class Looks:
    """Records the priority of each start, and how many idle looks in a row there were before."""

    def __init__(self) -> None:
        self.queue: WorkQueue | None = None
        self.starts: list[tuple[Priority, int]] = []

    def __call__(self, start: Start) -> None:
        assert self.queue is not None
        self.starts.append((start.priority, self.queue._states[start.key].idle_looks))


def a_watched_queue(reconcile: Callable[[Key], Next | None], intervals: Intervals) -> tuple[WorkQueue, Looks]:
    looks = Looks()
    looks.queue = WorkQueue(reconcile, intervals=intervals, gather_seconds=0.02, base_seconds=0.01, on_start=looks)
    return looks.queue, looks


def test_an_idle_key_is_looked_at_at_growing_intervals_and_a_change_resets_them() -> None:
    queue, looks = a_watched_queue(lambda _: Next(), Intervals(0.03, 0.2))

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(looks.starts) == 5)
        queue.add(A)
        await until(lambda: len(looks.starts) >= 7)

    played(queue, story)

    changed, periodic = Priority.CHANGED, Priority.PERIODIC
    assert looks.starts[:5] == [(changed, 0), *[(periodic, n) for n in range(1, 5)]]
    assert looks.starts[5:7] == [(changed, 0), (periodic, 1)]


def test_a_key_with_work_keeps_the_shortest_interval() -> None:
    queue, looks = a_watched_queue(lambda _: Next(idle=False), Intervals(0.02, 100))

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(looks.starts) >= 8)

    played(queue, story)

    assert looks.starts[1:8] == [(Priority.PERIODIC, 0)] * 7


def test_a_retry_and_a_time_are_no_changes() -> None:
    """They leave the interval as it has grown."""
    script = [Next(), Next(), Next(datetime.now(UTC)), ValueError("x"), Next()]
    queue, looks = a_watched_queue(Reconciles(*script, *[Next()] * 9), Intervals(0.02, 10))

    async def story() -> None:
        queue.add(A)
        await until(lambda: len(looks.starts) >= 6)

    played(queue, story)

    due, periodic = Priority.DUE, Priority.PERIODIC
    assert looks.starts[1:6] == [(periodic, 1), (periodic, 2), (due, 3), (due, 3), (periodic, 4)]


def test_what_is_known_is_not_added_by_a_listing() -> None:
    reconciles = Reconciles(*[Next()] * 9)
    queue = a_queue(reconciles)

    async def story() -> None:
        queue.ensure(A)
        await until(lambda: reconciles.calls == [A])
        queue.ensure(A)
        queue.ensure(B)
        await until(lambda: B in reconciles.calls)

    played(queue, story)

    assert reconciles.calls == [A, B]


def test_a_change_for_all_of_a_namespace_is_looked_at_by_all_of_it() -> None:
    other = Key("Dataset", "other", "a")
    calls: list[Key] = []

    def reconcile(key: Key) -> Next:
        calls.append(key)
        return Next(for_namespace=key.kind == "VacuumPolicy" and calls.count(key) == 1)

    queue = WorkQueue(reconcile, gather_seconds=0.0)

    async def story() -> None:
        for key in (A, B, other):
            queue.add(key)
        await until(lambda: len(calls) == 3)
        queue.add(Key("VacuumPolicy", "ns", "p"))
        await until(lambda: len(calls) >= 7)

    played(queue, story)

    assert (calls.count(A), calls.count(B), calls.count(other)) == (2, 2, 1)


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


def test_the_queue_ends_when_it_is_cancelled_together_with_a_change() -> None:
    queue = a_queue(Reconciles())

    async def story() -> None:
        running = asyncio.create_task(queue.run())
        for _ in range(5):  # until it waits
            await asyncio.sleep(0)
        queue._changed.set()
        running.cancel()
        await asyncio.wait_for(asyncio.wait([running]), PATIENCE_SECONDS)
        assert running.cancelled()

    asyncio.run(story())


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


def test_a_tenant_whose_reconciles_hang_leaves_two_workers() -> None:
    gate, calls = threading.Event(), list[Key]()

    def reconcile(key: Key) -> None:
        calls.append(key)
        if key.namespace == "big":
            gate.wait(PATIENCE_SECONDS)

    queue = WorkQueue(reconcile, gather_seconds=0.0, workers=8, per_namespace=6)

    async def story() -> None:
        for n in range(20):
            queue.add(Key("Dataset", "big", str(n)))
        await until(lambda: len(calls) == 6)
        for n in range(10):
            queue.add(Key("Dataset", "small", str(n)))
        await until(lambda: len(calls) == 16)
        gate.set()

    played(queue, story)

    assert [k.namespace for k in calls[:16]] == ["big"] * 6 + ["small"] * 10


def test_additions_from_many_threads_while_keys_run_are_all_followed_by_a_reconcile() -> None:
    """Whatever happens between an addition and the reconcile that it finds running: a later one begins after it."""
    keys = [Key("Dataset", f"ns{n % 3}", str(n)) for n in range(12)]
    asked: dict[Key, float] = {}
    began: dict[Key, float] = {}
    active: set[Key] = set()
    twice: list[Key] = []
    lock = threading.Lock()

    def reconcile(key: Key) -> None:
        with lock:
            twice.extend({key} & active)
            active.add(key)
            began[key] = time.monotonic()
        time.sleep(0)  # another thread goes on here
        with lock:
            active.discard(key)

    queue = WorkQueue(reconcile, gather_seconds=0.0, workers=4, per_namespace=2)

    async def story() -> None:
        add = queue.from_threads()

        def writer(seed: int) -> None:
            for n in range(300):
                key = keys[(n * seed) % len(keys)]
                with lock:
                    asked[key] = time.monotonic()
                add(key, Priority(n % 3))

        writers = [threading.Thread(target=writer, args=(seed,)) for seed in (1, 5, 7, 11)]
        for thread in writers:
            thread.start()
        for thread in writers:
            await asyncio.to_thread(thread.join)
        await until(lambda: not queue._states)

    played(queue, story)

    assert not twice
    assert asked.keys() == set(keys)
    assert all(began[key] >= asked[key] for key in keys)
