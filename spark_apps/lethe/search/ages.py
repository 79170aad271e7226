"""Counts the rows of data files that are too old, where the metadata does not tell. I/O: reads the column with their times.

No error contains a value.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lethe.files.values import ValueKind, Values
from lethe.iceberg.column_path import ColumnName
from lethe.iceberg.time_column import TimeColumn
from lethe.search.batches import SearchError
from lethe.search.candidates import CandidateFile
from lethe.search.positions import SearchedFile, Unsure, as_arrow
from lethe.storage.file_io import file_io
from lethe.uri import without_values

AgeResult: TypeAlias = "tuple[str, int | str | None]"
"""A path, and how many of its rows are too old, or why the file cannot be searched. None: the file does not exist."""


@dataclass(frozen=True)
class AgeSearch:
    """A search for rows that are too old. It is pickled and sent to the workers."""

    column: TimeColumn
    cutoff: int
    """The first time that is not too old, as Iceberg stores it."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's properties to open files with."""
    names: Mapping[ColumnName, int] | None = None
    """The table's name mapping. None: it has none."""

    def search(self, files: Iterable[CandidateFile]) -> list[AgeResult]:
        """Search data files.

        Raises:
            SearchError: A file could not be read.
        """
        return [result_of(c, self._count) for c in files]

    def _count(self, file: CandidateFile) -> int:
        """The number of rows that are too old, rows that native deletes hide included.

        Raises:
            Unsure: The file cannot be searched with certainty.
        """
        searched = SearchedFile(file_io(self.io_properties, file.path), file.path, file.format_name, self.names)
        limit = as_arrow(Values(ValueKind(self.column.type), (self.cutoff,)))
        with searched.open() as (opened, columns):
            name = columns.get(self.column.field_id)
            if name is None:
                opened.require_ids()
                if self.column.has_default:
                    raise Unsure("its rows have the default of the column")
                return 0
            return sum(_earlier(part.read(), limit) for part in opened.parts(name))


def _earlier(times: pa.ChunkedArray, limit: pa.Array) -> int:
    """How many of the times are before the limit. Nulls are not."""
    return int(pc.sum(pc.less(times.cast(limit.type), limit[0])).as_py() or 0)


def result_of(file: CandidateFile, count: Callable[[CandidateFile], int]) -> AgeResult:
    """What a search finds in a data file.

    Raises:
        SearchError: The file could not be read.
    """
    try:
        return file.path, count(file)
    except FileNotFoundError:
        return file.path, None
    except Unsure as e:
        return file.path, str(e)
    except Exception as e:
        raise SearchError(f"{without_values(file.path)} could not be searched ({type(e).__name__})") from None
