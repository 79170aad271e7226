"""When chunks of a part are merged, so that adding k entries to n costs O(k) and reading them needs few files. Pure.

A log-structured merge: each commit adds a chunk of what it changed. A new chunk swallows the ones before it while they
are small or of its own size, so that sizes grow geometrically and each entry is rewritten O(log n) times. A chunk that has
grown to the cap is left alone; what removals have made of it is cleaned up once they are as many as what is left.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from lethe.ledger.root import Chunk

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True)
class Thresholds:
    """In entries. `floor`: chunks up to this size are always merged. `cap`: chunks of this size and more only when most
    of a part is garbage; also the size of the chunks that a merge of everything is cut into."""

    floor: int = 1024
    cap: int = 65_536


def kept(chunks: Sequence[Chunk], new: int, live: int, thresholds: Thresholds) -> int:
    """How many of the oldest chunks stay as they are, when a chunk of `new` entries is added; the others are merged
    with it.

    Args:
        live: How many entries the part has after the change.
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
    """What layers of (removes, entries) say together, oldest first: the entries that are set, and those removed."""
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
