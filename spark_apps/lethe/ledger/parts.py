"""The large parts of a ledger as mappings, which may be read piece by piece. Pure: `lethe.ledger_store` reads them.

A part is any Mapping. One that can look up many keys, or a range of keys, with less reading has the methods of `Part`.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

K = TypeVar("K")
V = TypeVar("V")

# Both ends inclusive, None: open.
Interval: TypeAlias = tuple[str | None, str | None]


@runtime_checkable
class Part(Protocol):
    """A mapping in files: `len`, `in` and get are cheap; iterating reads everything."""

    def get_many(self, keys: Iterable) -> dict: ...

    def within(self, intervals: Sequence[Interval]) -> list: ...

    def apart(self) -> Mapping: ...


def get_many(mapping: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    """The values of those keys that the mapping has."""
    if isinstance(mapping, Part):
        return mapping.get_many(keys)
    return {k: mapping[k] for k in keys if k in mapping}


def apart(mapping: Mapping[K, V]) -> Mapping[K, V]:
    """A copy of the part for looking up very many keys in another thread: it shares no mutable state and caches no answers."""
    return mapping.apart() if isinstance(mapping, Part) else mapping


def within(mapping: Mapping[K, V], intervals: Sequence[Interval], text: Callable[[K], str]) -> list[V]:
    """The values whose keys are in one of the intervals. `text` gives the text of a key."""
    if isinstance(mapping, Part):
        return mapping.within(intervals)
    ranges = Ranges(intervals)
    return [v for k, v in mapping.items() if text(k) in ranges]


class Ranges:
    """A set of intervals, searched in O(log n)."""

    def __init__(self, intervals: Iterable[Interval]) -> None:
        self.intervals = _united(intervals)
        self._lowers = [lo or "" for lo, _ in self.intervals]  # nothing sorts before the empty text

    def __contains__(self, text: str) -> bool:
        at = bisect_right(self._lowers, text) - 1
        if at < 0:
            return False
        upper = self.intervals[at][1]
        return upper is None or text <= upper

    @property
    def is_everything(self) -> bool:
        return self.intervals == ((None, None),)


def _united(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same set as disjoint intervals, in order."""
    found: list[Interval] = []
    for lo, hi in sorted(intervals, key=lambda i: (i[0] is not None, i[0] or "")):
        if found:
            last_lo, last_hi = found[-1]
            if last_hi is None:
                break
            if lo is None or lo <= last_hi:
                found[-1] = (last_lo, None if hi is None else max(last_hi, hi))
                continue
        found.append((lo, hi))
    return tuple(found)
