"""How much of what is deleted a data file is likely to hold, by metadata alone. Pure.

Bounds only say that a file might hold a batch. Where files overlap several might, of which few do: a batch comes in one piece, so
its rows lie in as few of them as they fit into. Nothing is decided by this but what goes first; it predicts.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import exp, log1p

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Layer, Suspects
from lethe.ledger.tombstone import Tombstone

_SURE = -1e9  # the logarithm of the probability of what cannot be


class Likely:
    """What to expect of each of the files that might hold tombstoned rows.

    Args:
        files: All of them.
        rows: Of batches, as far as anybody knows; others count as one row.
    """

    def __init__(self, suspects: Suspects, files: Iterable[FileBounds], rows: Mapping[str, int]) -> None:
        self._suspects = suspects
        asked: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in suspects.layers_of(f):
                asked.setdefault(id(layer), (layer, []))[1].append(f)
        self._of = {key: _Expected(layer, of, rows) for key, (layer, of) in asked.items()}

    def rows_in(self, file: FileBounds) -> float:
        """How many of its rows are deleted."""
        return sum(self._of[id(layer)].rows(*layer.index.span(file)) for layer in self._suspects.layers_of(file))

    def none_in(self, file: FileBounds) -> float:
        """The probability that none of them is."""
        return exp(
            sum(self._of[id(layer)].log_none(*layer.index.span(file)) for layer in self._suspects.layers_of(file))
        )


class _Expected:
    """Of the tombstones of a layer, in their order, sums over all before: rows in one of the files, and the logarithm of the
    probability that it holds none."""

    def __init__(self, layer: Layer, files: Sequence[FileBounds], rows: Mapping[str, int]) -> None:
        edges = [0] * (len(layer.tombstones) + 1)
        for f in files:
            start, end = layer.index.span(f)
            edges[start] += 1
            edges[end] -= 1
        rows_in_a_file = max(1.0, sum(f.records for f in files) / len(files))
        each = [0.0]
        none = [0.0]
        for t, depth in zip(layer.tombstones, accumulate(edges), strict=False):
            known = _rows_of(t, rows)
            files_needed = max(1.0, known / rows_in_a_file)
            held = min(1.0, files_needed / max(depth, 1))
            each.append(known / max(depth, 1))
            none.append(_SURE if held >= 1.0 else log1p(-held))
        self._rows, self._none = list(accumulate(each)), list(accumulate(none))

    def rows(self, start: int, end: int) -> float:
        return self._rows[end] - self._rows[start]

    def log_none(self, start: int, end: int) -> float:
        return self._none[end] - self._none[start]


def _rows_of(tombstone: Tombstone, rows: Mapping[str, int]) -> float:
    """In each of the partitions that it may have rows in."""
    return max(rows.get(tombstone.id, 1), 1) / max(len(tombstone.partitions or ()), 1)


def in_vain_percent(likely: Likely, files: Iterable[FileBounds]) -> float | None:
    """Of the files' bytes, how much is likely to lie in files that hold no deleted row; None: of no files. What native deletes
    hide of a file is in it for sure."""
    known = list(files)
    total = sum(f.size for f in known)
    return 100 * sum(f.size * likely.none_in(f) for f in known if not f.deletes) / total if total else None


class Drift:
    """How far the files of a partition are from lying one behind the other in the order of batches."""

    def __init__(self) -> None:
        self._bounds: dict[str | None, tuple[list[str], list[str], list[str]]] = {}

    def add(self, file: FileBounds) -> None:
        """O(1); keeps the bounds alone."""
        lowers, uppers, single = self._bounds.setdefault(file.partition, ([], [], []))
        if file.lower is not None and file.lower == file.upper:
            single.append(file.lower)
            return
        lowers.append(file.lower or "")  # nothing sorts before the empty text
        if file.upper is not None:
            uppers.append(file.upper)

    def mean_depth(self) -> float | None:
        """How many files of its partition, itself included, reach beyond the lower bound of a file, on the average: 1.0 where
        at most the last batch of each is the first of the next one. None: there are no files. O(n log n)."""
        total = files = 0
        for lowers, uppers, single in self._bounds.values():
            lowers.sort()
            uppers.sort()
            total += sum(bisect_right(lowers, lower) - bisect_right(uppers, lower) for lower in lowers)
            # Files of one and the same batch alone follow one another.
            total += sum(1 + bisect_left(lowers, batch) - bisect_right(uppers, batch) for batch in single)
            files += len(lowers) + len(single)
        return total / files if files else None
