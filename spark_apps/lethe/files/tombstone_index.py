"""Which data files might hold rows of which tombstones, by the bounds of the batch column and by partitions. Pure.

Tombstones are asked by file, in O(log n) for each, however many there are. A tombstone rules a file out only if it remembers
partitions of the file's own spec alone, and not the file's: what was written under another partitioning may have been rewritten
into any partition of this one.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property

from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.partitions import spec_of
from lethe.ledger.tombstone import Tombstone

NEVER = datetime.max.replace(tzinfo=UTC)


class Layer:
    """Tombstones that are all asked of the same files, in the order of their ids."""

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        self.tombstones = sorted(tombstones, key=lambda t: t.id)
        self.index = IdIndex([t.id for t in self.tombstones])

    @cached_property
    def deadlines(self) -> "Deadlines":
        return Deadlines([t.evict_by for t in self.tombstones])


class Suspects:
    """Tombstones of the batch column, asked which files they might be about."""

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        every = list(tombstones)
        anywhere: list[Tombstone] = []
        in_partition: dict[str, list[Tombstone]] = {}
        of_spec: dict[str, list[Tombstone]] = {}
        for t in every:
            partitions = t.partitions
            specs = {spec_of(p) for p in partitions or ()}
            if partitions is None or len(specs) != 1:
                anywhere.append(t)
                continue
            of_spec.setdefault(specs.pop(), []).append(t)
            for p in partitions:
                in_partition.setdefault(p, []).append(t)
        self.ids = IdIndex([t.id for t in every])
        self._anywhere = [Layer(anywhere)] if anywhere else []
        self._in_partition = {p: Layer(ts) for p, ts in in_partition.items()}
        self._of_spec = {s: Layer(ts) for s, ts in of_spec.items()}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def layers(self) -> list[Layer]:
        """All of them. A tombstone may be in several, each of which is asked of other files."""
        return [*self._anywhere, *self._in_partition.values(), *self._of_spec.values()]

    def layers_of(self, file: FileBounds) -> list[Layer]:
        """Those that the file's partition does not rule out; each tombstone is in one of them at most."""
        if file.partition is None:
            return [*self._anywhere, *self._of_spec.values()]
        spec = spec_of(file.partition)
        found = self._anywhere + [layer for s, layer in self._of_spec.items() if s != spec]
        here = self._in_partition.get(file.partition)
        return found if here is None else [*found, here]

    def might_hold(self, file: FileBounds) -> bool:
        return any(layer.index.might_hold(file) for layer in self.layers_of(file))

    def must_hold(self, file: FileBounds) -> bool:
        """Whether each of its rows is one of a tombstoned batch. What is remembered of partitions does not matter then."""
        return self.ids.must_hold(file)

    def within(self, file: FileBounds) -> list[str]:
        """The ids that the file might hold."""
        return [i for layer in self.layers_of(file) for i in layer.index.within(file)]

    def covered(self, files: Iterable[FileBounds]) -> set[str]:
        """The ids that one of the files might hold. O(files x log ids + ids), however wide their bounds are."""
        asked: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in self.layers_of(f):
                asked.setdefault(id(layer), (layer, []))[1].append(f)
        return set[str]().union(*(layer.index.covered(of) for layer, of in asked.values()))

    def earliest(self, file: FileBounds) -> datetime:
        """The first deadline of the tombstones that the file might be about; `NEVER`: there is none."""
        return min((layer.deadlines.within(*layer.index.span(file)) for layer in self.layers_of(file)), default=NEVER)


class Deadlines:
    """The earliest of moments in a row, asked for any part of it in O(log n). A tree of minima."""

    def __init__(self, moments: Sequence[datetime | None]) -> None:
        self._size = len(moments) if any(m is not None for m in moments) else 0
        self._tree = [NEVER] * self._size + [m or NEVER for m in moments[: self._size]]
        for n in range(self._size - 1, 0, -1):
            self._tree[n] = min(self._tree[2 * n], self._tree[2 * n + 1])

    def within(self, start: int, end: int) -> datetime:
        """From the position `start` up to `end`, which is not part of it."""
        found = NEVER
        if not self._size:
            return found
        start, end = start + self._size, end + self._size
        while start < end:
            if start % 2:
                found = min(found, self._tree[start])
                start += 1
            if end % 2:
                end -= 1
                found = min(found, self._tree[end])
            start, end = start // 2, end // 2
        return found
