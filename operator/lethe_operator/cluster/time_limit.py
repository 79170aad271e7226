"""Calls that may hang, with a time limit, and messages about their errors without secrets. I/O: threads.

A service that hangs must not block anything else. A thread cannot be killed, so a call that exceeds its time continues in the
background, and the same call is not started again before it returns. Each service has a limited number of threads: if it hangs,
these threads hang, and further calls of this service fail at once.

The message of a library may contain a URI with a password or a key. Everything that looks like a secret is removed.
"""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

from lethe.base.errors import InputError, LetheError

from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import Unavailable

T = TypeVar("T")

# Calls of one service that run at the same time. There are as many reconciles.
AT_ONCE: Final = 8
# A thread without work ends after this time.
IDLE_SECONDS: Final = 30.0
# A call that has not returned after this time no longer counts. Its connection is lost, and its thread with it.
LOST_SECONDS: Final = 3600.0


class TookTooLong(Exception):
    """The call has not returned within its time limit."""


class Threads:
    """Runs functions in daemon threads, which are reused. The number is not limited here."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._idle: list[SimpleQueue[Callable[[], None]]] = []

    def start(self, function: Callable[[], None]) -> None:
        """Run a function that raises nothing."""
        with self._lock:
            if self._idle:
                self._idle.pop().put(function)
                return
        threading.Thread(target=self._work, args=(function,), name=self._name, daemon=True).start()

    def _work(self, first: Callable[[], None]) -> None:
        mine: SimpleQueue[Callable[[], None]] = SimpleQueue()
        first()
        del first
        while True:
            with self._lock:
                self._idle.append(mine)
            try:
                function = mine.get(timeout=IDLE_SECONDS)
            except Empty:
                with self._lock:
                    if mine in self._idle:
                        self._idle.remove(mine)
                        return
                function = mine.get()  # it was handed over just now
            function()
            del function


@dataclass(frozen=True)
class _Call:
    probe: str
    late_at: float
    """By the clock, in seconds."""
    lost_at: float
    """By the clock, in seconds."""


class Limiter:
    """Limits the time of calls, and their number for each service. `clock` returns seconds."""

    def __init__(self, at_once: int = AT_ONCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._at_once = at_once
        self._clock = clock
        self._threads = Threads("probe")
        self._changed = threading.Condition()
        self._running: defaultdict[str, dict[str, _Call]] = defaultdict(dict)  # by service and probe

    def call(self, probe: str, seconds: float, function: Callable[[], T], service: str = "") -> T:
        """Call `function` in another thread.

        Args:
            probe: A name for the call. While a call with this name hangs, no other one starts.
            service: What the call asks. While all threads of a service hang, no other call of it starts.

        Raises:
            TookTooLong: The call has not returned within its time limit.
            Exception: Whatever `function` raises.
        """
        call = self._begin(probe, seconds, service)
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = function()
            except BaseException as e:
                self._end(call, service)
                future.set_exception(e)
            else:
                self._end(call, service)  # first, so that the caller can call again
                future.set_result(result)

        self._threads.start(run)
        try:
            return future.result(timeout=max(call.late_at - self._clock(), 0))
        except TimeoutError:
            if future.done():
                raise
            raise TookTooLong(f"no answer within {seconds:g} s ({probe})") from None

    def _begin(self, probe: str, seconds: float, service: str) -> _Call:
        began = self._clock()
        with self._changed:
            while True:
                now = self._clock()
                running: dict[str, _Call] = self._running[service]
                for lost in [c for c in running.values() if now >= c.lost_at]:
                    del running[lost.probe]
                if probe in running:
                    raise TookTooLong(f"an earlier call has not returned yet ({probe})")
                if len(running) < self._at_once:
                    call = running[probe] = _Call(probe, began + seconds, now + LOST_SECONDS)
                    return call
                if all(now >= c.late_at for c in running.values()):
                    raise TookTooLong(f"{len(running)} earlier calls have not returned yet ({probe})")
                if now >= began + seconds:
                    raise TookTooLong(f"no answer within {seconds:g} s ({probe})")
                all_late = max(c.late_at for c in running.values())
                self._changed.wait(max(min(began + seconds, all_late) - now, 0.001))

    def _end(self, call: _Call, service: str) -> None:
        with self._changed:
            if self._running[service].get(call.probe) is call:
                del self._running[service][call.probe]
            self._changed.notify_all()


_CATALOG_MODULES: Final = ("sqlalchemy", "psycopg2", "sqlite3", "pyiceberg.catalog", "pyiceberg.exceptions", "requests")
_USER_INFO: Final = re.compile(r"://[^/\s@]*@")
_SECRET_KEY: Final = re.compile(r"secret|password|token|credential|access-key|\.key$", re.IGNORECASE)
MESSAGE_AT_MOST: Final = 300


def unavailable(error: BaseException, what: str, properties: Mapping[str, str], storage: bool) -> Unavailable:
    """What could not be observed, and why.

    Args:
        what: The subject of the message.
        properties: Of the catalog; the message must not contain their secrets.
        storage: True: a store failed; False: a catalog failed, possibly while it read from a store.
    """
    if isinstance(error, InputError):
        return Unavailable(error.reason, scrubbed(error.message, properties), transient=False)
    if isinstance(error, LetheError):
        return Unavailable(error.reason, scrubbed(error.message, properties))
    module = f"{type(error).__module__}."
    of_catalog = not storage and (
        isinstance(error, TookTooLong) or module.startswith(tuple(f"{m}." for m in _CATALOG_MODULES))
    )
    of_catalog = of_catalog and not (isinstance(error, OSError) and not module.startswith("requests."))
    reason = Reason.CATALOG_UNAVAILABLE if of_catalog else Reason.STORAGE_UNAVAILABLE
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    text = scrubbed(first_line, properties)[:MESSAGE_AT_MOST]
    return Unavailable(reason, f"{what}: {type(error).__name__}: {text}. The operator retries.")


def scrubbed(text: str, properties: Mapping[str, str]) -> str:
    """The text without the user names and passwords of URIs, and without the values of properties that look like secrets."""
    for key, value in properties.items():
        if len(value) >= 4 and _SECRET_KEY.search(key):
            text = text.replace(value, "***")
    return _USER_INFO.sub("://***@", text)
