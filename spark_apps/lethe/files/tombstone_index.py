"""Finds which data files might hold rows of which tombstones, by bounds of the batch column and by partitions. Pure.

A search takes O(log n) per file. A tombstone excludes a file by partition only if all its partitions are of the file's spec and
none is the file's: rows written under another spec may have been rewritten into any partition of this spec.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property

from lethe.files.bounds import FileBounds, IdIndex
from lethe.files.partitions import spec_of
from lethe.ledger.tombstone import Tombstone

NEVER = datetime.max.replace(tzinfo=UTC)


class Layer:
    """Tombstones that apply to the same files, in the order of their ids."""

    def __init__(self, tombstones: Iterable[Tombstone]) -> None:
        self.tombstones = sorted(tombstones, key=lambda t: t.id)
        self.index = IdIndex([t.id for t in self.tombstones])

    @cached_property
    def deadlines(self) -> "Deadlines":
        return Deadlines([t.evict_by for t in self.tombstones])


class Suspects:
    """An index of tombstones of the batch column, to find the files that might hold their rows."""

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
        """All layers. A tombstone may be in several, which apply to different files."""
        return [*self._anywhere, *self._in_partition.values(), *self._of_spec.values()]

    def layers_of(self, file: FileBounds) -> list[Layer]:
        """The layers that the file's partition does not exclude. Each tombstone is in at most one of them."""
        if file.partition is None:
            return [*self._anywhere, *self._of_spec.values()]
        spec = spec_of(file.partition)
        found = self._anywhere + [layer for s, layer in self._of_spec.items() if s != spec]
        here = self._in_partition.get(file.partition)
        return found if here is None else [*found, here]

    def might_hold(self, file: FileBounds) -> bool:
        return any(layer.index.might_hold(file) for layer in self.layers_of(file))

    def must_hold(self, file: FileBounds) -> bool:
        """Whether all its rows are tombstoned, by the bounds. The partitions do not matter then."""
        return self.ids.must_hold(file)

    def within(self, file: FileBounds) -> list[str]:
        """The ids that the file might hold."""
        return [i for layer in self.layers_of(file) for i in layer.index.within(file)]

    def covered(self, files: Iterable[FileBounds]) -> set[str]:
        """The ids that one of the files might hold. O(files x log ids + ids), however wide their bounds are."""
        by_layer: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in self.layers_of(f):
                by_layer.setdefault(id(layer), (layer, []))[1].append(f)
        return set[str]().union(*(layer.index.covered(of) for layer, of in by_layer.values()))

    def earliest(self, file: FileBounds) -> datetime:
        """The earliest deadline of the tombstones whose rows the file might hold; `NEVER`: there is none."""
        return min((layer.deadlines.within(*layer.index.span(file)) for layer in self.layers_of(file)), default=NEVER)


class Deadlines:
    """Finds the earliest time in any part of a sequence in O(log n), with a tree of minima."""

    def __init__(self, times: Sequence[datetime | None]) -> None:
        self._size = len(times) if any(t is not None for t in times) else 0
        self._tree = [NEVER] * self._size + [t or NEVER for t in times[: self._size]]
        for n in range(self._size - 1, 0, -1):
            self._tree[n] = min(self._tree[2 * n], self._tree[2 * n + 1])

    def within(self, start: int, end: int) -> datetime:
        """The earliest time from position `start` up to, and without, `end`."""
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
