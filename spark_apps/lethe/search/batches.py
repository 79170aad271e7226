"""Finds the rows of batches in data files, here or in other processes. I/O: reads the batch column of data files.

What was read of the column is kept: data files never change, and a table uses no path twice. No error contains a value.
"""

import threading
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64, FrozenBitMap64

from lethe.base.errors import TransientError
from lethe.contract.run import SearchLimits
from lethe.files.values import ValueKind, Values, ValueType
from lethe.iceberg.column_path import ColumnName
from lethe.search.candidates import CandidateFile
from lethe.search.positions import Bounds, Part, SearchedFile, Unsure, frozen
from lethe.storage.file_io import file_io
from lethe.uri import without_values

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]
_OVERHEAD: Final = 500
"""About the bytes of the objects of a kept part, without its arrays."""
_TEXT: Final = ValueKind(ValueType.STRING)


@dataclass(frozen=True)
class EncodedIds:
    """The batch ids of consecutive rows, in little memory: as runs of equal ids, or as one number for each row."""

    distinct: pa.Array
    codes: _Numbers = field(repr=False)
    """The index in `distinct` of each run or row. The number of distinct ids means null."""
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
        raise Unsure(f"{without_values(searched.path)}: the file lacks the batch column")
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


PARALLEL_FILES: Final = 4
"""Files that one process searches at a time."""
FileResult: TypeAlias = "tuple[str, dict[str, bytes] | str | None]"
"""A path, and the positions that were found, or why the file cannot be searched. None: the file does not exist."""


class SearchError(Exception):
    """A data file could not be read. The text names it, and contains no values."""


class TooMuchToSearch(TransientError):
    """There is more to search than this process may. A Job with Spark can search it.

    Args:
        files: Number of data files.
    """

    def __init__(self, why: str, files: int) -> None:
        super().__init__("NeedsSpark", f"{why}. Nothing was changed. A Job carries out the run.")
        self.files = files


@dataclass(frozen=True)
class Searched:
    """The result of a search."""

    found: Mapping[str, Mapping[str, FrozenBitMap64]]
    """Positions of rows by path, then by the key of the search."""
    unsure: Mapping[str, str]
    """Files that cannot be searched, and why."""
    missing: frozenset[str] = frozenset()
    """Files that do not exist."""

    @classmethod
    def of(cls, results: Iterable[FileResult]) -> "Searched":
        """Put together what the search of each file has found."""
        positions: dict[str, dict[str, FrozenBitMap64]] = {}
        unsure: dict[str, str] = {}
        missing: set[str] = set()
        for path, result in results:
            if result is None:
                missing.add(path)
            elif isinstance(result, str):
                unsure[path] = result
            else:
                positions[path] = {key: FrozenBitMap64.deserialize(blob) for key, blob in result.items()}
        return cls(positions, unsure, frozenset(missing))


@dataclass(frozen=True)
class BatchSearch:
    """A search for the rows of batches."""

    field_id: int
    """The field id of the batch column."""
    ids: frozenset[str]
    """The ids of the batches."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's properties to open files with."""
    names: Mapping[ColumnName, int] | None = None
    """The table's name mapping. None: it has none."""
    bounds: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    """Known lower and upper bounds of the batch column by path. Only batches within them are searched for."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """For files without the batch column: the batch of their rows, by path."""
    strict: bool = False
    """Report a missing file in `missing` instead of failing, and a file without the batch column in `unsure`."""
    table_uuid: str = ""
    """Tells files of this table from those of others, in a cache."""

    def of_file(self, file: CandidateFile, ids: Sequence[str], cache: ColumnCache = NO_CACHE) -> FileResult:
        """Search one data file.

        Args:
            ids: Those of the search, sorted.

        Raises:
            SearchError: The file could not be read.
        """
        return result_of(file, lambda c: self._find(c, ids, cache), self.strict)

    def _find(self, file: CandidateFile, ids: Sequence[str], cache: ColumnCache) -> Mapping[str, FrozenBitMap64]:
        lower, upper = self.bounds.get(file.path, (None, None))
        start = 0 if lower is None else bisect_left(ids, lower)
        end = len(ids) if upper is None else bisect_right(ids, upper)
        io = file_io(self.io_properties, file.path)
        searched = SearchedFile(io, file.path, file.format_name, self.names)
        absent, scope = self.absent.get(file.path), (self.table_uuid, file.size)
        return find_batches(searched, self.field_id, ids[start:end], absent, self.strict, cache, scope)


Search: TypeAlias = Callable[[BatchSearch, Sequence[CandidateFile]], Searched]


def is_few(limits: SearchLimits, files: Sequence[CandidateFile]) -> bool:
    """Whether a process without Spark may search the data files."""
    size = sum(c.bytes_to_search for c in files)
    return len(files) <= limits.max_files_per_commit and size <= limits.max_bytes_per_commit


def search_within(
    limits: SearchLimits, request: BatchSearch, files: Sequence[CandidateFile], cache: ColumnCache = NO_CACHE
) -> Searched:
    """Search the data files as `search_here` does, if they are few.

    Raises:
        TooMuchToSearch: There is too much to read.
        SearchError: A file could not be read.
    """
    if not is_few(limits, files):
        size = sum(c.bytes_to_search for c in files)
        raise TooMuchToSearch(
            f"the rows of {len(request.ids)} batches may be in {len(files)} files with {size} bytes to read, and a commit "
            f"searches at most {limits.max_files_per_commit} files and {limits.max_bytes_per_commit} bytes "
            "(spec.nativeDeletes of the Dataset)",
            len(files),
        )
    return search_here(request, files, cache)


def search_here(request: BatchSearch, files: Sequence[CandidateFile], cache: ColumnCache = NO_CACHE) -> Searched:
    """Search the data files in threads of this process.

    Raises:
        SearchError: A file could not be read.
    """
    ids = sorted(request.ids)
    with ThreadPoolExecutor(PARALLEL_FILES, "search") as pool:
        return Searched.of(pool.map(lambda c: request.of_file(c, ids, cache), files))


def result_of(
    file: CandidateFile, search: Callable[[CandidateFile], Mapping[str, FrozenBitMap64]], strict: bool = False
) -> FileResult:
    """What a search finds in a data file, in a form that can be sent to another process.

    Args:
        strict: As in `BatchSearch`.

    Raises:
        SearchError: The file could not be read.
    """
    try:
        found = search(file)
    except FileNotFoundError:
        if not strict:
            raise SearchError(f"{without_values(file.path)} could not be searched (FileNotFoundError)") from None
        return file.path, None
    except Unsure as e:
        return file.path, str(e)
    except Exception as e:
        raise SearchError(f"{without_values(file.path)} could not be searched ({type(e).__name__})") from None
    return file.path, {key: positions.serialize() for key, positions in found.items()}
