"""Calls that may hang, with a time limit. I/O: threads.

A hung store must not hold up anything else. A thread cannot be killed, so a call that ran out of time is left alone, and
the same probe is not started again before it came back: at most one thread hangs for each probe.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class TookTooLong(Exception):
    """The call has not come back within its time."""


class Limiter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[Any]] = {}

    def call(self, probe: str, seconds: float, function: Callable[[], T]) -> T:
        """Call `function` in a thread of its own.

        Args:
            probe: Names what is asked; while a call under the same name hangs, no other starts.
        Raises: TookTooLong; whatever `function` raises.
        """
        with self._lock:
            hanging = self._under_way.get(probe)
            if hanging is not None and not hanging.done():
                raise TookTooLong(f"an earlier call has not come back yet ({probe})")
            future: Future[T] = Future()
            self._under_way[probe] = future

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
