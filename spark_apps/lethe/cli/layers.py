"""How many entries lists of chunks hold together, for many lists that share most of their chunks. Pure.

Each commit's ledger differs from the one before by a chunk or two: folding every list anew would cost the whole ledger per
snapshot. Here a list costs what its chunks have in common, and a difference the chunks that only one of two lists has.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from lethe.ledger.root import Chunk


@dataclass(frozen=True)
class ChunkKeys:
    """The keys of a chunk's entries, and the least and the greatest of their texts; None of an empty one."""

    keys: frozenset[Hashable]
    lower: str | None = None
    upper: str | None = None

    def overlaps(self, other: "ChunkKeys") -> bool:
        if self.lower is None or self.upper is None or other.lower is None or other.upper is None:
            return False
        return self.lower <= other.upper and other.lower <= self.upper


class Layers:
    """Lists of chunks, oldest first, by the keys in their files."""

    def __init__(self, files: Mapping[str, ChunkKeys]) -> None:
        self._files = files
        self._common: dict[tuple[str, str], frozenset[Hashable]] = {}

    def can_tell(self, chunks: Sequence[Chunk]) -> bool:
        """Whether all of their files could be read."""
        return all(c.file in self._files for c in chunks)

    def size(self, chunks: Sequence[Chunk]) -> int:
        """How many keys are set: of each chunk those that no later one sets or removes."""
        total = 0
        for n, chunk in enumerate(chunks):
            if chunk.removes:
                continue
            later = [self._shared(chunk.file, c.file) for c in chunks[n + 1 :]]
            decided = frozenset().union(*(s for s in later if s)) if any(later) else ()
            total += len(self._files[chunk.file].keys) - len(decided)
        return total

    def changed(self, before: Sequence[Chunk], after: Sequence[Chunk]) -> tuple[int, int]:
        """How many keys are set only after, and only before."""
        known = {c.file for c in before} & {c.file for c in after}
        touched = {k for c in (*before, *after) if c.file not in known for k in self._files[c.file].keys}
        held = [(self._holds(before, k), self._holds(after, k)) for k in touched]
        return sum(now and not then for then, now in held), sum(then and not now for then, now in held)

    def _holds(self, chunks: Sequence[Chunk], key: Hashable) -> bool:
        last = next((c for c in reversed(chunks) if key in self._files[c.file].keys), None)
        return last is not None and not last.removes

    def _shared(self, older: str, newer: str) -> frozenset[Hashable]:
        pair = (older, newer)
        if pair not in self._common:
            one, other = self._files[older], self._files[newer]
            self._common[pair] = one.keys & other.keys if one.overlaps(other) else frozenset()
        return self._common[pair]
