"""Estimates how many tombstoned rows a data file holds, from metadata alone. Pure.

Bounds only say that a file might hold a batch. Where files overlap, several might, but few do: a batch is written in one piece,
so its rows are in as few files as they fit into. The estimate only decides the order of files.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from math import exp, log1p

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Layer, Suspects
from lethe.ledger.tombstone import Tombstone

_LOG_IMPOSSIBLE = -1e9  # the logarithm of a probability of almost 0


class Estimate:
    """Estimates, for files that might hold tombstoned rows, how many they hold.

    Args:
        files: All these files.
        rows: The number of rows by batch id; a batch that is missing counts as one row.
    """

    def __init__(self, suspects: Suspects, files: Iterable[FileBounds], rows: Mapping[str, int]) -> None:
        self._suspects = suspects
        by_layer: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in suspects.layers_of(f):
                by_layer.setdefault(id(layer), (layer, []))[1].append(f)
        self._of = {key: _Expected(layer, of, rows) for key, (layer, of) in by_layer.items()}

    def rows_in(self, file: FileBounds) -> float:
        """The expected number of tombstoned rows in the file."""
        return sum(self._of[id(layer)].rows(*layer.index.span(file)) for layer in self._suspects.layers_of(file))

    def batches_in(self, file: FileBounds) -> float:
        """The expected number of tombstoned batches that the file holds rows of."""
        return sum(self._of[id(layer)].batches(*layer.index.span(file)) for layer in self._suspects.layers_of(file))

    def none_in(self, file: FileBounds) -> float:
        """The probability that no row of the file is tombstoned."""
        return exp(
            sum(self._of[id(layer)].log_none(*layer.index.span(file)) for layer in self._suspects.layers_of(file))
        )


class _Expected:
    """Prefix sums over the tombstones of a layer: of their expected rows in one file, of the probability that a file holds some,
    and of the logarithm of the probability that it holds none."""

    def __init__(self, layer: Layer, files: Sequence[FileBounds], rows: Mapping[str, int]) -> None:
        edges = [0] * (len(layer.tombstones) + 1)
        for f in files:
            start, end = layer.index.span(f)
            edges[start] += 1
            edges[end] -= 1
        rows_in_a_file = max(1.0, sum(f.records for f in files) / len(files))
        each = [0.0]
        some = [0.0]
        none = [0.0]
        for t, depth in zip(layer.tombstones, accumulate(edges), strict=False):
            known = _rows_of(t, rows)
            files_needed = max(1.0, known / rows_in_a_file)
            held = min(1.0, files_needed / max(depth, 1))
            each.append(known / max(depth, 1))
            some.append(held)
            none.append(_LOG_IMPOSSIBLE if held >= 1.0 else log1p(-held))
        self._rows, self._some, self._none = (list(accumulate(sums)) for sums in (each, some, none))

    def rows(self, start: int, end: int) -> float:
        return self._rows[end] - self._rows[start]

    def batches(self, start: int, end: int) -> float:
        return self._some[end] - self._some[start]

    def log_none(self, start: int, end: int) -> float:
        return self._none[end] - self._none[start]


def _rows_of(tombstone: Tombstone, rows: Mapping[str, int]) -> float:
    """The expected rows in each partition that the batch may have rows in."""
    return max(rows.get(tombstone.id, 1), 1) / max(len(tombstone.partitions or ()), 1)


def in_vain_percent(estimate: Estimate, files: Iterable[FileBounds]) -> float | None:
    """The expected share of the files' bytes, in percent, that is in files without tombstoned rows; None: there are no files.
    Files with native deletes certainly hold deleted rows."""
    known = list(files)
    total = sum(f.size for f in known)
    return 100 * sum(f.size * estimate.none_in(f) for f in known if not f.deletes) / total if total else None


class Drift:
    """Measures how much the files of a partition overlap in batch order."""

    def __init__(self) -> None:
        self._bounds: dict[str | None, tuple[list[str], list[str], list[str]]] = {}

    def add(self, file: FileBounds) -> None:
        """Add a file; O(1). Keeps only the bounds."""
        lowers, uppers, single = self._bounds.setdefault(file.partition, ([], [], []))
        if file.lower is not None and file.lower == file.upper:
            single.append(file.lower)
            return
        lowers.append(file.lower or "")  # nothing sorts before the empty text
        if file.upper is not None:
            uppers.append(file.upper)

    def mean_depth(self) -> float | None:
        """The average number of files of a partition, including the file itself, whose range contains the lower bound of a file.
        1.0: files share at most the last batch of one and the first of the next. None: there are no files. O(n log n)."""
        total = files = 0
        for lowers, uppers, single in self._bounds.values():
            lowers.sort()
            uppers.sort()
            total += sum(bisect_right(lowers, lower) - bisect_right(uppers, lower) for lower in lowers)
            # Files that hold only the same batch do not count as overlapping.
            total += sum(1 + bisect_left(lowers, batch) - bisect_right(uppers, batch) for batch in single)
            files += len(lowers) + len(single)
        return total / files if files else None
