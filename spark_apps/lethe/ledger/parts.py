"""The large parts of a ledger as mappings that may be read piece by piece. Pure: what reads them lies elsewhere.

Anything that is a Mapping will do; one that can answer many keys, or a range of keys, with less reading says so by having
the methods of `Part`.
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
    """A mapping that lies in files: len, `in` and get are cheap; to iterate reads all of it."""

    def get_many(self, keys: Iterable) -> dict: ...

    def within(self, intervals: Sequence[Interval]) -> list: ...

    def apart(self) -> Mapping: ...


def get_many(mapping: Mapping[K, V], keys: Iterable[K]) -> dict[K, V]:
    """Those of the keys that the mapping has, with their values."""
    if isinstance(mapping, Part):
        return mapping.get_many(keys)
    return {k: mapping[k] for k in keys if k in mapping}


def apart(mapping: Mapping[K, V]) -> Mapping[K, V]:
    """The same part for a walk over more keys than memory should hold, in a thread of its own: it shares nothing that
    changes with the mapping, and remembers no answer."""
    return mapping.apart() if isinstance(mapping, Part) else mapping


def within(mapping: Mapping[K, V], intervals: Sequence[Interval], text: Callable[[K], str]) -> list[V]:
    """The values whose keys, as `text` has them, lie in one of the intervals."""
    if isinstance(mapping, Part):
        return mapping.within(intervals)
    ranges = Ranges(intervals)
    return [v for k, v in mapping.items() if text(k) in ranges]


class Ranges:
    """The ground that intervals cover, asked in O(log n)."""

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
    """The same ground covered by as few intervals as possible, in order."""
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
