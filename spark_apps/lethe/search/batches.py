"""Searches many data files for the rows of batches, here or in other processes. I/O: reads the batch column of data files.

No error contains a value.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from pyiceberg.io import load_file_io
from pyroaring import FrozenBitMap64

from lethe.base.errors import TransientError
from lethe.contract.run import SearchLimits
from lethe.iceberg.column_path import ColumnName
from lethe.search.batch_column import NO_CACHE, ColumnCache, find_batches
from lethe.search.candidates import CandidateFile
from lethe.search.positions import SearchedFile, Unsure

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
        io = load_file_io(dict(self.io_properties), file.path)
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
            raise SearchError(f"{file.path} could not be searched (FileNotFoundError)") from None
        return file.path, None
    except Unsure as e:
        return file.path, str(e)
    except Exception as e:
        raise SearchError(f"{file.path} could not be searched ({type(e).__name__})") from None
    return file.path, {key: positions.serialize() for key, positions in found.items()}
