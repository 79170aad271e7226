"""Finds tables at and above buffers, and shares what it finds between buffers of the same parent folders. I/O.

10,000 buffers below one folder have the same parents. If a folder holds no table, that counts for a while and for all of them; if
it holds one, it is checked again each time, so that the removal of the table is noticed at once.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from lethe.storage import surroundings

# How often to check a folder again. It costs two requests.
AGAIN_SECONDS: Final = 600.0

Properties = frozenset[tuple[str, str]]


@dataclass
class _Check:
    """Whether a folder holds a table."""

    result: Future[bool] = field(default_factory=Future)
    until: float = float("inf")  # by the clock, in seconds


class TablesAround:
    """One per operator, shared by its threads. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._checks: defaultdict[Properties, dict[str, _Check]] = defaultdict(dict)
        self._sweep_at = clock() + AGAIN_SECONDS

    def of(self, uri: str, properties: Mapping[str, str]) -> tuple[str, ...]:
        """The folders at and above a URI that hold a table, as `surroundings.tables_around`. A folder is checked by one thread at
        a time, and the others wait for its result.

        Args:
            properties: Of the catalog. Other credentials may see other folders, so they share nothing.
        Raises: errors of the store.
        """
        key = frozenset(properties.items())
        mine: dict[str, _Check] = {}
        checks: dict[str, _Check] = {}
        with self._lock:
            now = self._clock()
            self._sweep(now)
            known = self._checks[key]
            for place in surroundings.places_around(uri):
                if place not in known or known[place].until <= now:
                    known[place] = mine[place] = _Check()
                checks[place] = known[place]
        self._look(mine, properties)  # before waiting for others, which may wait for these
        return tuple(place for place, check in checks.items() if check.result.result())

    def _look(self, mine: Mapping[str, _Check], properties: Mapping[str, str]) -> None:
        try:
            holding = set(surroundings.holding_tables(tuple(mine), properties))
        except BaseException as e:
            self._keep(mine, not_these=set(mine))
            for check in mine.values():
                check.result.set_exception(e)
            raise
        self._keep(mine, not_these=holding)
        for place, check in mine.items():
            check.result.set_result(place in holding)

    def _keep(self, mine: Mapping[str, _Check], not_these: set[str]) -> None:
        with self._lock:
            for place, check in mine.items():
                check.until = self._clock() + (0 if place in not_these else AGAIN_SECONDS)

    def _sweep(self, now: float) -> None:
        """Drop what no longer counts, now and then: buffers and credentials go."""
        if now < self._sweep_at:
            return
        self._sweep_at = now + AGAIN_SECONDS
        for key, known in list(self._checks.items()):
            self._checks[key] = kept = {place: check for place, check in known.items() if check.until > now}
            if not kept:
                del self._checks[key]
