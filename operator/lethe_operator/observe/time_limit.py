"""Calls that may hang, with a time limit. I/O: threads.

A store that hangs must not block anything else. A thread cannot be killed, so a call that exceeds its time continues in the
background, and the same call is not started again before it returns: for each probe, at most one thread hangs.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """The call has not returned within its time limit."""


class Limiter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[Any]] = {}

    def call(self, probe: str, seconds: float, function: Callable[[], T]) -> T:
        """Call `function` in a new thread.

        Args:
            probe: A name for the call. While a call with this name hangs, no other one starts.
        Raises: TookTooLong; whatever `function` raises.
        """
        with self._lock:
            hanging = self._running.get(probe)
            if hanging is not None and not hanging.done():
                raise TookTooLong(f"an earlier call has not returned yet ({probe})")
            future: Future[T] = Future()
            self._running[probe] = future

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as e:
                future.set_exception(e)

        threading.Thread(target=run, name=f"probe {probe}", daemon=True).start()
        try:
            return future.result(timeout=seconds)
        except TimeoutError:
            if future.done():
                raise
            raise TookTooLong(f"no answer within {seconds:g} s ({probe})") from None
