"""Decides which chunks of a part to merge, so that adding k entries to n costs O(k), amortised, and a part has few files. Pure.

A log-structured merge: each commit adds a chunk of its changes. A new chunk is merged with the chunks before it while these are
small or not larger, so sizes grow geometrically and each entry is rewritten O(log n) times. Chunks at the cap are not merged
until removed entries are as many as live ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lethe.ledger.root import Chunk

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Thresholds:
    """Sizes of chunks, in entries."""

    floor: int = 1024  # chunks up to this size are always merged
    cap: int = 65_536  # chunks from this size are merged only if most of a part is garbage; also the largest size of a new chunk


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
    """Combine layers of (removes, entries), oldest first. Returns the entries that are set, and those that are removed."""
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
