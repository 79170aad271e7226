"""Calls of one service that hang do not delay those of others, and do not cost a thread each."""

import threading

import pytest
from lethe_operator.cluster.time_limit import LOST_SECONDS, Limiter, Threads, TookTooLong

from tests.support.clock import ManualClock, wait_until

LIMIT_SECONDS = 20


def test_a_service_that_hangs_has_few_threads_and_fails_at_once_while_others_work() -> None:
    release, limiter = threading.Event(), Limiter(at_once=2)
    before = threading.active_count()
    for n in range(2):
        with pytest.raises(TookTooLong, match="no answer within"):
            limiter.call(f"table {n}", 0.05, release.wait, "hung")

    for n in range(100):
        with pytest.raises(TookTooLong, match="2 earlier calls have not returned yet"):
            limiter.call(f"other table {n}", 60, release.wait, "hung")
    answer = limiter.call("table", 5, lambda: "answer", "well")

    assert (answer, threading.active_count() - before <= 3) == ("answer", True)
    release.set()
    wait_until(lambda: not limiter._running["hung"], LIMIT_SECONDS)
    assert limiter.call("table", 5, lambda: "again", "hung") == "again"


def test_a_call_waits_for_a_thread_of_its_service() -> None:
    release, started, limiter = threading.Event(), threading.Event(), Limiter(at_once=1)
    found: list[str] = []

    def first() -> str:
        started.set()
        release.wait(LIMIT_SECONDS)
        return "first"

    one = threading.Thread(target=lambda: found.append(limiter.call("a", LIMIT_SECONDS, first, "s")))
    one.start()
    assert started.wait(LIMIT_SECONDS)
    two = threading.Thread(target=lambda: found.append(limiter.call("b", LIMIT_SECONDS, lambda: "second", "s")))
    two.start()
    release.set()

    one.join(LIMIT_SECONDS)
    two.join(LIMIT_SECONDS)
    assert sorted(found) == ["first", "second"]


def test_a_call_that_never_returns_is_given_up() -> None:
    clock, release = ManualClock(), threading.Event()
    limiter = Limiter(at_once=1, clock=clock)
    with pytest.raises(TookTooLong):
        limiter.call("a", 0.01, release.wait, "s")

    clock.now += LOST_SECONDS

    assert limiter.call("a", 5, lambda: "answer", "s") == "answer"
    release.set()


def test_threads_are_used_again() -> None:
    threads, done = Threads("test"), threading.Semaphore(0)
    used: set[int] = set()

    def note() -> None:
        used.add(threading.get_ident())
        done.release()

    for _ in range(50):
        threads.start(note)
        assert done.acquire(timeout=LIMIT_SECONDS)
        wait_until(lambda: bool(threads._idle), LIMIT_SECONDS)

    assert len(used) == 1
