"""Plans several changes of a ledger one on the other before any is committed, and which chunks of a part to merge. Pure.

Only the entries that are asked for are read, so the cost is that of the changes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from lethe.ledger.ledger import (
    BatchEntry,
    Delta,
    Interval,
    Ledger,
    Ranges,
    RequestEntry,
    apart,
    erasures_after,
    get_many,
    within,
)
from lethe.ledger.root import Chunk
from lethe.ledger.tombstone import Tombstone, merged

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Thresholds:
    """Sizes of chunks, in entries."""

    floor: int = 1024
    """Chunks up to this size are always merged."""
    cap: int = 65_536
    """Chunks from this size are merged only if most of a part is garbage; also the largest size of a new chunk."""


def kept(chunks: Sequence[Chunk], new: int, live: int, thresholds: Thresholds) -> int:
    """How many of the oldest chunks to keep when a chunk of `new` entries is added. The other chunks are merged with it.

    Args:
        live: The number of entries of the part after the change.
    """
    written = sum(c.records for c in chunks) + new
    if live <= thresholds.floor or written > 2 * live + thresholds.floor:
        return 0
    size, stay = new, len(chunks)
    while stay:
        before = chunks[stay - 1].records
        if before >= thresholds.cap or (before > thresholds.floor and before > size):
            break
        size += before
        stay -= 1
    return stay


def fold(layers: Iterable[tuple[bool, Mapping[K, V]]]) -> tuple[dict[K, V], dict[K, V]]:
    """Combine layers of (removes, entries), oldest first. Returns the entries that are set, and those that are removed.

    A log-structured merge: each commit adds a chunk of its changes. A new chunk is merged with the chunks before it while these
    are small or not larger, so sizes grow geometrically and each entry is rewritten O(log n) times. Chunks at the cap are not
    merged until removed entries are as many as live ones.
    """
    entries: dict[K, V] = {}
    removed: dict[K, V] = {}
    for removes, layer in layers:
        if removes:
            removed.update(layer)
            for key in layer:
                entries.pop(key, None)
        else:
            entries.update(layer)
            for key in layer:
                removed.pop(key, None)
    return entries, removed


class Overlay(Mapping[K, V]):
    """A part of a ledger (see `lethe.ledger.ledger`) with entries set and removed on top of it."""

    def __init__(
        self,
        below: Mapping[K, V],
        key: Callable[[V], K],
        text: Callable[[K], str],
        changed: Mapping[K, V | None] | None = None,
    ) -> None:
        self._below = below
        self._key = key
        self._text = text
        self._changed: dict[K, V | None] = dict(changed or {})  # None: removed

    def put(self, entries: Mapping[K, V]) -> None:
        """Set entries on top of the part below, which does not change. Keys that were removed are there again."""
        self._changed.update(entries)

    def drop(self, keys: Iterable[K]) -> None:
        """Remove keys without looking them up, so they need not exist. The part below does not change."""
        self._changed.update(dict.fromkeys(keys))

    def get_many(self, keys: Iterable[K]) -> dict[K, V]:
        """The entries of those keys that exist after the changes. The part below is asked for unchanged keys only."""
        distinct_keys = list(dict.fromkeys(keys))
        entries: dict[K, V | None] = {**get_many(self._below, [k for k in distinct_keys if k not in self._changed])}
        entries |= {k: self._changed[k] for k in distinct_keys if k in self._changed}
        return {k: v for k in distinct_keys if (v := entries.get(k)) is not None}

    def within(self, intervals: Sequence[Interval]) -> list[V]:
        """The values whose keys are in one of the intervals. Those that were set come after those of the part below."""
        ranges = Ranges(intervals)
        below = within(self._below, intervals, self._text)
        kept = [v for v in below if self._key(v) not in self._changed]
        return kept + [v for k, v in self._changed.items() if v is not None and self._text(k) in ranges]

    def apart(self) -> "Overlay[K, V]":
        """A copy for another thread: later changes of one do not affect the other."""
        return Overlay(apart(self._below), self._key, self._text, self._changed)

    def __getitem__(self, key: K) -> V:
        return self.get_many([key])[key]

    def __contains__(self, key: object) -> bool:
        return bool(self.get_many([key]))  # type: ignore[list-item]

    def __len__(self) -> int:
        set_ = sum(v is not None for v in self._changed.values())
        return len(self._below) - len(get_many(self._below, self._changed)) + set_

    def __iter__(self) -> Iterator[K]:
        yield from (k for k in self._below if k not in self._changed)
        yield from (k for k, v in self._changed.items() if v is not None)


class Folding:
    """Applies changes to a ledger one after the other. `ledger` is the current result; plan each change on it."""

    def __init__(self, ledger: Ledger, run: str) -> None:
        self._run = run
        self._deltas: list[Delta] = []
        self._tombstones = Overlay(ledger.tombstones, _key_of_tombstone, _text_of_tombstone)
        self._batches = Overlay(ledger.batches, _key_of_batch, str)
        self._requests = Overlay(ledger.requests, _key_of_request, str)
        self.ledger = replace(
            ledger, tombstones=self._tombstones, batches=self._batches, requests=self._requests, recorded=None
        )

    def add(self, delta: Delta) -> None:
        """Set `ledger` to the result of a change that was planned on it. Purged files are only in `delta`."""
        self._deltas.append(delta)
        self._tombstones.drop(delta.remove_tombstones)
        current = self._tombstones.get_many(t.key for t in delta.add_tombstones)
        self._tombstones.put(merged(current, delta.add_tombstones))
        self._batches.drop(delta.forget_batches)
        self._batches.put({b.id: b for b in delta.set_batches})
        self._requests.put({r.key: r for r in delta.set_requests})
        self.ledger = replace(self.ledger, erasures=erasures_after(self.ledger.erasures, delta))

    @property
    def delta(self) -> Delta:
        """All changes as one change of the original ledger."""
        return _composed(self._run, self._deltas)


def _composed(run: str, deltas: Sequence[Delta]) -> Delta:
    """Divides the list in halves, so that each entry is processed O(log n) times."""
    if len(deltas) < 2:
        return deltas[0] if deltas else Delta(run)
    middle = len(deltas) // 2
    return _composed(run, deltas[:middle]).then(_composed(run, deltas[middle:]))


def _key_of_tombstone(tombstone: Tombstone) -> tuple[int, str]:
    return tombstone.key


def _text_of_tombstone(key: tuple[int, str]) -> str:
    return key[1]


def _key_of_batch(entry: BatchEntry) -> str:
    return entry.id


def _key_of_request(entry: RequestEntry) -> str:
    return entry.key
