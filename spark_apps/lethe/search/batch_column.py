"""Finds the rows of batches in a data file, and keeps what was read of its batch column. I/O: reads that column.

Data files never change, and a table uses no path twice: what was read once is right forever.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import ValueKind, Values, ValueType
from lethe.search.positions import Bounds, Part, SearchedFile, Unsure, frozen

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_OVERHEAD: Final = 500
"""About the bytes of the objects of a kept part, without its arrays."""
_TEXT: Final = ValueKind(ValueType.STRING)


@dataclass(frozen=True)
class EncodedIds:
    """The batch ids of consecutive rows, in little memory: as runs of equal ids, or as one number for each row."""

    distinct: pa.Array
    codes: _Numbers = field(repr=False)
    """The index in `distinct` of each run or row. The number of distinct ids stands for null."""
    ends: _Numbers | None = field(repr=False)
    """The row behind each run. None: there is a code for each row."""

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> "EncodedIds":
        """Encode a column.

        Raises:
            pa.ArrowException: The column has no text.
        """
        if not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        ids = column.unify_dictionaries().combine_chunks()
        null = len(ids.dictionary)
        codes = np.asarray(ids.indices.fill_null(null)).astype(np.min_scalar_type(null))
        distinct = ids.dictionary.cast(pa.string())
        ends = _ends(codes)
        if len(ends) * (ends.itemsize + codes.itemsize) < codes.nbytes:
            return cls(distinct, codes[ends - 1], ends)
        return cls(distinct, codes, None)

    @property
    def memory(self) -> int:
        """The bytes that it takes."""
        return (
            self.distinct.get_total_buffer_size() + self.codes.nbytes + (0 if self.ends is None else self.ends.nbytes)
        )

    def runs_of(self, ids: pa.Array) -> Iterator[tuple[int, int, int]]:
        """The runs of rows that have one of these ids: the index of the id, the first row, and the row behind the last."""
        wanted = np.asarray(pc.fill_null(pc.index_in(self.distinct, value_set=ids), -1))
        places = np.flatnonzero(np.append(wanted >= 0, False)[self.codes])
        if not len(places):
            return
        if self.ends is not None:
            starts, ends = np.append(np.uint32(0), self.ends[:-1])[places], self.ends[places]
        else:
            is_next = np.diff(places) == 1
            begins = np.append(True, ~(is_next & (np.diff(self.codes[places]) == 0)))
            starts, ends = places[begins], places[np.append(begins[1:], True)] + 1
            places = starts
        for index, start, end in zip(wanted[self.codes[places]], starts, ends, strict=True):
            yield int(index), int(start), int(end)


def _ends(values: _Numbers) -> _Numbers:
    """The index behind each longest run of equal values."""
    return np.append(np.flatnonzero(np.diff(values)) + 1, [len(values)] if len(values) else []).astype(np.uint32)


@dataclass(frozen=True)
class KnownPart:
    """A part of a batch column."""

    start: int
    """The position of its first row."""
    bounds: Bounds
    ids: EncodedIds | None = None
    """None: it was not read, or not kept."""

    @property
    def memory(self) -> int:
        """About the bytes that it takes."""
        return _OVERHEAD + (self.ids.memory if self.ids is not None else 0)


@dataclass(frozen=True)
class KnownColumn:
    """The batch column of a data file, as far as it was read."""

    rows: int
    """The number of rows of the file."""
    parts: tuple[KnownPart, ...] | None
    """All parts. None: the file has no such column."""

    def holds_all_of(self, values: Values) -> bool:
        """Whether every part that may hold one of the values was read and kept."""
        return all(p.ids is not None or not p.bounds.might_hold(values) for p in self.parts or ())

    @property
    def memory(self) -> int:
        """About the bytes that it takes."""
        return _OVERHEAD + sum(p.memory for p in self.parts or ())


class ColumnCache:
    """Keeps the batch columns that were used last. Safe to use from several threads.

    Args:
        bytes_at_most: About the bytes of memory that they take together.
    """

    def __init__(self, bytes_at_most: int) -> None:
        self.bytes_at_most = bytes_at_most
        self.memory = 0
        self._columns: OrderedDict[Hashable, KnownColumn] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> KnownColumn | None:
        """The column of a file. None: it is not kept."""
        with self._lock:
            if key in self._columns:
                self._columns.move_to_end(key)
            return self._columns.get(key)

    def put(self, key: Hashable, column: KnownColumn) -> None:
        """Keep a column, and forget those that were used longest ago if there are too many."""
        with self._lock:
            before = self._columns.pop(key, None)
            self._columns[key] = column
            self.memory += column.memory - (before.memory if before is not None else 0)
            while self.memory > self.bytes_at_most:
                _, forgotten = self._columns.popitem(last=False)
                self.memory -= forgotten.memory


NO_CACHE: Final = ColumnCache(0)


def find_batches(
    searched: SearchedFile,
    field_id: int,
    ids: Collection[str],
    if_absent: str | None = None,
    must_have: bool = False,
    cache: ColumnCache = NO_CACHE,
    scope: Hashable = None,
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows of these batches. Opens the file only if the cache lacks a part that may hold some.

    It works for any order of rows. It is fastest for sorted files, which have one run of rows for each batch.

    Args:
        field_id: Of the batch column.
        if_absent: The batch of all rows if the file lacks that column, by the table's metadata; None: no batch, or unknown.
        must_have: Raise `Unsure` for a file without that column if `if_absent` is None and there are ids to find.
        scope: What tells the file from files of other tables that have the same path, in the cache.

    Returns:
        Positions by batch id; only batches with rows.

    Raises:
        Unsure: The file cannot be searched with certainty.
        Exception: What the storage raises.
    """
    sorted_ids = sorted(ids)
    values, array = Values(_TEXT, tuple(sorted_ids)), pa.array(sorted_ids, pa.string())
    found: dict[str, BitMap64] = {}

    def search(part: KnownPart) -> None:
        if part.ids is not None and part.bounds.might_hold(values):
            for index, first, end in part.ids.runs_of(array):
                found.setdefault(sorted_ids[index], BitMap64()).add_range(part.start + first, part.start + end)

    named = None if searched.names is None else tuple(sorted(n for n, i in searched.names.items() if i == field_id))
    key = (scope, searched.path, field_id, named)
    known = cache.get(key)
    if known is not None and known.holds_all_of(values):
        for part in known.parts or ():
            search(part)
    else:
        with searched.open() as (file, columns):
            parts: tuple[KnownPart, ...] | None = None
            if field_id in columns:
                before = {p.start: p for p in (known.parts or () if known is not None else ())}
                parts = tuple(_read(file.parts(columns[field_id]), values, before, search, cache.bytes_at_most))
        known = KnownColumn(file.rows, parts)
        cache.put(key, known)
    if known.parts is None and if_absent is None and must_have and sorted_ids:
        raise Unsure(f"{searched.path}: the file lacks the batch column")
    if known.parts is None and if_absent in sorted_ids and known.rows:
        found[str(if_absent)] = BitMap64(range(known.rows))
    return {i: frozen(positions) for i, positions in found.items()}


def _read(
    parts: Iterator[Part],
    values: Values,
    before: Mapping[int, KnownPart],
    search: Callable[[KnownPart], None],
    bytes_at_most: int,
) -> Iterator[KnownPart]:
    """Read and search the parts that may hold the values, one at a time. They are kept while there is room.

    Args:
        before: Those that were kept before, by their first row.
    """
    room = bytes_at_most - _OVERHEAD
    for part in parts:
        known = before.get(part.start, KnownPart(part.start, part.bounds))
        if known.ids is None and part.bounds.might_hold(values):
            known = replace(known, ids=EncodedIds.of(part.read()))
        search(known)
        kept = known if known.memory <= room else replace(known, ids=None)
        room -= kept.memory
        yield kept
