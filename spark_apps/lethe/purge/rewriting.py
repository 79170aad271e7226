"""Writes the rows of a data file that stay: copies row groups, or encodes them again. I/O."""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.files.bounds import IdIndex
from lethe.purge.footer import Unreadable
from lethe.purge.groups import GroupWriter
from lethe.purge.sinks import Sink
from lethe.purge.source import Source, Unsuitable
from lethe.purge.splicing import groups_of
from lethe.writing.data_files import nans_in
from lethe.writing.layout import GROUP_BYTES, float_columns

_UNORDERED: Final = "its rows are not in the order of batches"


class Rewrite:
    """Writes the rows of a file that stay, in their order.

    Args:
        ids: The batches whose rows are left out.
        in_order: Whether the rows must be in the order of batches.
    """

    def __init__(self, source: Source, sink: Sink, ids: frozenset[str], in_order: bool = True) -> None:
        self._source, self._index, self._in_order = source, IdIndex(ids), in_order
        self._wanted = pa.array(sorted(ids), pa.string())
        self._groups = groups_of(source.footer)
        self._writer = GroupWriter(sink, source.footer)
        self._last: str | None = None  # the batch of the last row
        self._floats = dict(float_columns(source.schema))
        # NaNs of encoded row groups, by field id: of the rows that stay, and of the others.
        self._nans, self._nans_left_out = dict.fromkeys(self._floats, 0), dict.fromkeys(self._floats, 0)
        # Numbers of rows.
        self.kept = self.left_out = 0

    def run(self) -> None:
        """Raises: Unsuitable, if the rows must be in the order of batches and are not: then Spark sorts them."""
        try:
            position = 0
            for number, group in enumerate(self._groups):
                rows = self._source.parquet.metadata.row_group(number).num_rows
                if self._may_copy(number):
                    self._writer.copy(self._source, number, group, position)
                    self.kept += rows
                else:
                    self._encode(number, position)
                position += rows
            self._writer.close()
        except Unreadable as e:
            raise Unsuitable(str(e)) from None

    @property
    def copied(self) -> int:
        """Bytes of row groups that were copied."""
        return self._writer.copied

    @property
    def encoded(self) -> int:
        """Bytes of row groups that were encoded."""
        return self._writer.encoded

    def nans_after(self, before: Mapping[int, int]) -> dict[int, int]:
        """NaNs of the new file, by field id, as far as they are known.

        Args:
            before: Of the old one.
        """
        if not self.copied:
            return self._nans
        return {i: before[i] - n for i, n in self._nans_left_out.items() if i in before}

    def _may_copy(self, group: int) -> bool:
        """Whether a row group has no rows to leave out. Raises: Unsuitable, if they are not in order."""
        bounds = self._source.bounds_of(group)
        if bounds.lower is None or bounds.upper is None:
            return False
        if self._index.might_hold(bounds) or not self._source.may_copy(group):
            return False
        if self._in_order:
            self._require_order(bounds.lower, bounds.upper)
        return True

    def _encode(self, group: int, position: int) -> None:
        waiting: list[pa.RecordBatch] = []
        for rows in self._rows(group, position):
            waiting.append(rows)
            if sum(w.nbytes for w in waiting) >= GROUP_BYTES:
                self._writer.encode(pa.Table.from_batches(waiting), self._source.options)
                waiting = []
        if waiting:
            self._writer.encode(pa.Table.from_batches(waiting), self._source.options)

    def _rows(self, group: int, position: int) -> Iterator[pa.RecordBatch]:
        """The rows of a row group that stay.

        Args:
            position: Of its first row in the file.
        """
        for batch in self._source.rows_of(group, position):
            ids = batch.column(self._source.batch_column)
            ids = ids if pa.types.is_dictionary(ids.type) else ids.dictionary_encode()
            if self._in_order:
                self._require_rows_in_order(ids)
            goes = pc.is_in(ids.dictionary, value_set=self._wanted).take(ids.indices).fill_null(False)
            out = goes.true_count
            rows = batch.filter(pc.invert(goes)) if out else batch
            self.left_out += out
            self.kept += rows.num_rows
            for field_id, path in self._floats.items():
                nans = nans_in(rows, path)
                self._nans[field_id] += nans
                self._nans_left_out[field_id] += nans_in(batch, path) - nans if out else 0
            if rows.num_rows:
                yield rows

    def _require_rows_in_order(self, ids: pa.DictionaryArray) -> None:
        """Rows without a batch are first. Raises: Unsuitable."""
        nulls_first = self._last is None and ids.slice(0, ids.null_count).null_count == ids.null_count
        if ids.null_count and not nulls_first:
            raise Unsuitable(_UNORDERED)
        known = ids.indices.slice(ids.null_count).to_numpy()
        if not len(known):
            return
        rank_of = np.empty(len(ids.dictionary), np.int64)
        rank_of[pc.sort_indices(ids.dictionary).to_numpy()] = np.arange(len(ids.dictionary))
        ranks = rank_of[known]
        if np.any(ranks[:-1] > ranks[1:]):
            raise Unsuitable(_UNORDERED)
        self._require_order(*(ids.dictionary[known[at]].as_py() for at in (0, -1)))

    def _require_order(self, lower: str, upper: str) -> None:
        if self._last is not None and lower < self._last:
            raise Unsuitable(_UNORDERED)
        self._last = upper
