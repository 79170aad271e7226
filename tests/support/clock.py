"""A clock that a test sets, and waiting for a condition."""

import threading
import time
from collections.abc import Callable

SLOWER = 2
"""How much slower a machine may be than the one that limits of waiting are chosen for. Only tests that fail wait as long."""


class ManualClock:
    """Returns `now`, in seconds; only the test changes it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def wait_until(
    holds: Callable[[], bool], within_seconds: float, before_each: Callable[[], object] | None = None
) -> None:
    """Wait for a condition; call `before_each` before each look at it. Fails after the limit, times SLOWER.

    A look that takes long is not repeated at once: most of the time belongs to what is waited for.
    """
    limit, pause = SLOWER * within_seconds, threading.Event()
    deadline = time.monotonic() + limit
    while True:
        began = time.monotonic()
        if before_each is not None:
            before_each()
        if holds():
            return
        now = time.monotonic()
        assert now < deadline, f"the condition did not hold within {limit} s"
        pause.wait(min(max(0.01, 3 * (now - began)), 0.25))
