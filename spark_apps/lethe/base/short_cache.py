"""Remembers answers for a short time, in bounded memory. Pure: `now` is given, in monotonic seconds."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class ShortCache(Generic[K, V]):
    """Threads may share it. With more entries than it may have, it forgets those that were added first."""

    def __init__(self, max_entries: int = 10_000) -> None:
        self._max = max_entries
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K, now: float) -> V | None:
        """None: it is unknown, or no longer valid."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            until, value = entry
            if now >= until:
                del self._entries[key]
                return None
            return value

    def put(self, key: K, value: V, until: float) -> None:
        """Add or replace an entry, which is valid until this time, in monotonic seconds."""
        with self._lock:
            self._entries[key] = (until, value)
            self._entries.move_to_end(key)
            while len(self._entries) > self._max:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        return len(self._entries)
