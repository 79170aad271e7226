"""Which of the rows that a commit would remove from data files are covered by holds. I/O: reads manifests and data files.

Files whose metadata proves that they have no covered row are not read. Whatever cannot be read with certainty counts as covered.
No error contains a value.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyroaring import FrozenBitMap64

from lethe.base.errors import InputError
from lethe.files.increment import SnapshotFiles
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.holds import Holds
from lethe.iceberg.position_deletes import PositionArray, as_array
from lethe.iceberg.snapshot_files import EQUALITY_DELETES, PlannedFile, SnapshotView
from lethe.read.data_file import Reading, deleted_rows
from lethe.search.batches import SearchError
from lethe.storage.file_io import file_io
from lethe.uri import without_values

NO_POSITIONS = FrozenBitMap64()
Covering: TypeAlias = Mapping[str, frozenset[str]]
"""By path, the names of the holds that cover rows. Only files with such rows."""


@dataclass(frozen=True)
class LeavingRows:
    """The rows that a commit would remove from a data file of the head."""

    path: str
    is_whole: bool = False
    """All rows of the file leave."""
    positions: FrozenBitMap64 = NO_POSITIONS
    """The rows at these positions leave."""
    hidden: bool = True
    """The rows that native deletes hide leave, as in each rewrite of a file."""
    matching: bool = False
    """The rows leave for which the condition of `Leaving` is true."""


@dataclass(frozen=True)
class Leaving:
    """Which rows leave from several files."""

    ids: frozenset[str] = frozenset()
    """The rows of these batches, from each of the files."""
    condition: RowCondition | None = field(default=None, repr=False)
    """The rows for which it is true, from those files that say so (`LeavingRows.matching`)."""
    copied: frozenset[str] = frozenset()
    """The rows of these batches that native deletes hide stay: the rewrite copies them, and hides them again."""


@dataclass(frozen=True)
class Question:
    """Rows of one file that may be covered."""

    file: PlannedFile
    leaving: LeavingRows


@dataclass(frozen=True)
class CoverageSearch:
    """Looks into data files. It can be sent to another process."""

    holds: Holds
    leaving: Leaving
    reading: Reading
    batch_column: str
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's properties to open files with."""

    def of_file(self, question: Question) -> tuple[str, frozenset[str]]:
        """The path of the file, and the names of the holds that cover leaving rows of it.

        Raises:
            SearchError: The file could not be read.
        """
        path = question.leaving.path
        try:
            return path, self._covering(file_io(self.io_properties, path), question)
        except (InputError, pa.ArrowException):  # not readable here, or only by Spark
            return path, self.holds.names
        except Exception as e:
            name = without_values(path)
            raise SearchError(f"{name} could not be searched for rows of holds ({type(e).__name__})") from None

    def _covering(self, io: FileIO, question: Question) -> frozenset[str]:
        leaving, hidden = question.leaving, _hidden(io, question)
        positions = np.sort(as_array(leaving.positions))
        left = list(self.holds.holds)
        found: set[str] = set()
        begin = 0
        for rows in self.reading.rows(io, question.file.data_file, None):
            gone = None if leaving.is_whole else self._gone(rows, leaving, (positions, hidden), begin)
            begin += rows.num_rows
            for hold in tuple(left):
                covered = hold.condition.true_in(rows)
                if pc.any(covered if gone is None else pc.and_(covered, gone)).as_py():
                    found.add(hold.name)
                    left.remove(hold)
            if not left:
                break
        return frozenset(found)

    def _gone(
        self, rows: pa.RecordBatch, of_file: LeavingRows, positions: tuple[PositionArray, PositionArray], begin: int
    ) -> pa.BooleanArray:
        """Whether each row leaves.

        Args:
            positions: Sorted, of rows that leave, and of rows that native deletes hide.
            begin: The position of the first row.
        """
        gone, hidden = (_mask(p, begin, rows.num_rows) for p in positions)
        if self.leaving.copied:
            hidden = pc.and_(hidden, pc.invert(self._is_of(rows, self.leaving.copied)))
        gone = pc.or_(gone, hidden)
        if self.leaving.ids:
            gone = pc.or_(gone, self._is_of(rows, self.leaving.ids))
        if of_file.matching and self.leaving.condition is not None:
            gone = pc.or_(gone, self.leaving.condition.true_in(rows))
        return gone

    def _is_of(self, rows: pa.RecordBatch, ids: frozenset[str]) -> pa.BooleanArray:
        """Whether each row is of one of these batches."""
        batches = rows.column(self.batch_column).cast(pa.string())
        return pc.fill_null(pc.is_in(batches, value_set=pa.array(sorted(ids), pa.string())), False)


def _mask(positions: PositionArray, begin: int, rows: int) -> pa.BooleanArray:
    """Whether each row is at one of the sorted positions."""
    low, high = np.searchsorted(positions, (begin, begin + rows))
    mask = np.zeros(rows, bool)
    mask[np.asarray(positions[low:high], np.int64) - begin] = True
    return pa.array(mask)


def _hidden(io: FileIO, question: Question) -> PositionArray:
    """The sorted positions of rows that native deletes hide, if they leave."""
    leaving = question.leaving
    deleted = deleted_rows(io, [question.file]) if leaving.hidden and not leaving.is_whole else {}
    return deleted.get(leaving.path, np.empty(0, np.int64))


Ask: TypeAlias = Callable[[CoverageSearch, Sequence[Question]], Iterable[tuple[str, frozenset[str]]]]
"""Asks about each of the files, here or in other processes."""


def ask_here(search: CoverageSearch, questions: Sequence[Question]) -> Iterable[tuple[str, frozenset[str]]]:
    """Look into the files one after another, in this process."""
    return map(search.of_file, questions)


@dataclass(frozen=True)
class HeldTable:
    """A snapshot of a table with holds."""

    table: Table
    snapshot_id: int
    batch_field_id: int
    holds: Holds

    def may_cover(self, paths: Iterable[str] | None = None) -> dict[str, PlannedFile] | None:
        """The data files that may have covered rows, by path, as bounds and partitions say. Reads manifests only.

        Args:
            paths: None: of all files.

        Returns:
            None: unknown, because equality deletes of another engine may hide covered rows. Any file may have some.
        """
        if not self.holds.holds:
            return {}
        wanted = None if paths is None else frozenset(paths)
        view = replace(SnapshotView.on(self.table, self.batch_field_id), condition=self.holds.condition)
        try:
            files = view.files(SnapshotFiles.LIVE, self.snapshot_id)
        except InputError as e:
            if e.reason != EQUALITY_DELETES:
                raise
            return None
        return {f.bounds.path: f for f in files if wanted is None or f.bounds.path in wanted}

    def count(self, paths: Collection[str]) -> int:
        """How many of these data files may have covered rows. Reads manifests only."""
        found = self.may_cover(paths)
        return len(paths) if found is None else len(found)

    def covering(
        self,
        files: Sequence[LeavingRows],
        leaving: Leaving,
        io_properties: Mapping[str, str],
        ask: Ask = ask_here,
    ) -> Covering:
        """Which holds cover rows that would leave.

        Args:
            files: Each another file of the snapshot.
            leaving: Which rows leave from all of them.
            ask: Looks into the files that metadata does not rule out.

        Raises:
            SearchError: A file could not be read.
        """
        if not self.holds.holds or not files:
            return {}
        concerned = self.may_cover(of.path for of in files)
        if concerned is None:
            return {of.path: self.holds.names for of in files}
        questions = [Question(concerned[of.path], of) for of in files if of.path in concerned]
        found = ask(self._search(leaving, io_properties), questions) if questions else ()
        return {path: names for path, names in found if names}

    def _search(self, leaving: Leaving, io_properties: Mapping[str, str]) -> CoverageSearch:
        schema, metadata = self.table.schema(), self.table.metadata
        batch_column = schema.find_column_name(self.batch_field_id) or ""
        by_name = {f.name: f for f in schema.fields}
        also = leaving.condition.columns if leaving.condition is not None else ()
        columns = tuple(by_name[name] for name in dict.fromkeys((batch_column, *self.holds.columns, *also)))
        reading = Reading(columns, RowCondition.of(schema, None), metadata.name_mapping(), metadata.specs())
        return CoverageSearch(self.holds, leaving, reading, batch_column, io_properties)
