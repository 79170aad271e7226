"""Writes a data file without some of its rows. Runs in Spark's Python workers, without Spark. I/O.

It only filters: the order, the partition and the columns of a file stay. So a file needs no sort and no shuffle, and its
rows need not become objects. Row groups that lose no rows are copied as bytes (`lethe.purge.footer`), and Arrow encodes the
others again. Only files for which that is certain are written. For others `Unsuitable` says why, and Spark rewrites them.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyroaring import FrozenBitMap64

from lethe.files.bounds import IdIndex
from lethe.files.native_deletes import NO_POSITIONS
from lethe.ingest.registrable import RegisterTarget, by_field_id, columns_of, data_file_document
from lethe.purge.footer import (
    FileSink,
    FooterUnreadable,
    Splice,
    Struct,
    footer_of,
    groups_of,
    narrow,
    new_file,
    path_of_attempt,
)
from lethe.purge.source import PurgeSource, RowIds, Unsuitable
from lethe.storage.file_io import file_io
from lethe.writing.data_files import GROUP_BYTES, extremes_in, float_columns, nans_in, without_unused

_Mask: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
"""A value for each row."""
_LOWER: Final = "lower-bounds"
_FLOAT_BYTES: Final = 4
_UNORDERED: Final = "its rows are not in the order of batches"


class GroupWriter:
    """Writes row groups one after the other. `close` ends the file.

    Args:
        sink: A new file.
        template: The footer of a file with the same columns. It is changed.
    """

    def __init__(self, sink: FileSink, template: Struct) -> None:
        self._splice = Splice(sink, template)
        # Bytes of row groups that were copied, and those that were encoded.
        self.copied = self.encoded = 0

    def copy(self, source: PurgeSource, number: int, group: Struct, position: int) -> None:
        """Copy a row group, but the row ids that its rows inherit: these are written.

        Args:
            number: Of the row group in its file.
            group: The row group in the footer of its file. It is changed.
            position: Of its first row in the file.

        Raises:
            FooterUnreadable: The bytes are not what the format says.
        """
        ids = source.ids_of(number, position)
        if ids is not None:
            narrow(group, source.ids_at)
        self.copied += self._splice.add(source.stream, group)
        if ids is not None:
            made = BytesIO()
            pq.write_table(ids, made, row_group_size=max(1, ids.num_rows), **source.options)
            (columns,) = groups_of(footer_of(made, made.tell()))
            self.encoded += self._splice.widen(made, columns)

    def encode(self, rows: pa.Table, options: Mapping[str, Any]) -> None:
        """Write rows as one row group.

        Raises:
            FooterUnreadable: The bytes are not what the format says.
        """
        made = BytesIO()
        pq.write_table(without_unused(rows), made, row_group_size=rows.num_rows, **options)
        for group in groups_of(footer_of(made, made.tell())):
            self.encoded += self._splice.add(made, group)

    def close(self) -> None:
        """Write the page indexes and the footer."""
        self._splice.close()


class FileRewrite:
    """Writes the rows of a file that stay, in their order. Row groups of which all rows stay are copied.

    Args:
        ids: The batches whose rows are left out.
        in_order: Whether the rows must be in the order of batches.
        hidden: Positions of rows that are left out too.
    """

    def __init__(
        self,
        source: PurgeSource,
        sink: FileSink,
        ids: frozenset[str],
        in_order: bool = True,
        hidden: FrozenBitMap64 = NO_POSITIONS,
    ) -> None:
        self._source, self._index, self._in_order, self._hidden = source, IdIndex(ids), in_order, hidden
        self._wanted = pa.array(sorted(ids), pa.string())
        # Without the column, the rows have no batch, or all the same one: they are in order.
        self._needs_batches = source.has_batches and (bool(ids) or in_order)
        self._groups = groups_of(source.footer)
        self._writer = GroupWriter(sink, source.footer)
        self._last: str | None = None  # the batch of the last row
        self._floats = dict(float_columns(source.schema))
        # NaNs of encoded row groups, by field id: of the rows that stay, and of the others.
        self._nans, self._nans_left_out = dict.fromkeys(self._floats, 0), dict.fromkeys(self._floats, 0)
        # The least and the greatest number of rows that are left out, by field id.
        self.extremes_left_out: dict[int, tuple[float, float]] = {}
        # Numbers of rows. Those of the batches are also left out.
        self.kept = self.left_out = self.of_batches = 0

    def run(self) -> None:
        """Write the rows that stay, group by group.

        Raises:
            Unsuitable: The rows must be in the order of batches and are not: then Spark sorts them.
        """
        try:
            position = 0
            for number, group in enumerate(self._groups):
                rows = self._source.parquet.metadata.row_group(number).num_rows
                goes = self._goes(number, position, rows)
                if goes.any() or not self._source.may_copy(number):
                    self._encode(number, position, goes)
                elif rows:
                    self._writer.copy(self._source, number, group, position)
                    self.kept += rows
                position += rows
            self._writer.close()
        except FooterUnreadable as e:
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

    def _goes(self, group: int, position: int, rows: int) -> _Mask:
        """Whether each row of a row group is left out.

        Args:
            position: Of its first row in the file.

        Raises:
            Unsuitable: Its rows are not in order.
        """
        goes = self._hidden_from(position, rows)
        if self._needs_batches and not self._has_none_of_the_batches(group, rows):
            of_batches = self._of_batches(group)
            self.of_batches += int(np.count_nonzero(of_batches))
            goes |= of_batches
        return goes

    def _hidden_from(self, start: int, rows: int) -> _Mask:
        """Whether each of these rows is hidden."""
        mask = np.zeros(rows, np.bool_)
        if self._hidden.range_cardinality(start, start + rows):
            within = self._hidden & FrozenBitMap64(range(start, start + rows))
            mask[np.fromiter(within, np.int64, len(within)) - start] = True
        return mask

    def _has_none_of_the_batches(self, group: int, rows: int) -> bool:
        """Whether the statistics of a row group prove that it has no row of the batches, and that it continues the order.

        Raises:
            Unsuitable: Its rows are not in order.
        """
        bounds = self._source.bounds_of(group)
        is_without_batches = bounds.nulls == rows
        if not is_without_batches and (bounds.lower is None or bounds.upper is None or self._index.might_hold(bounds)):
            return False
        if not self._in_order:
            return True
        if bounds.nulls != 0 and not is_without_batches:
            return False
        self._require_order(bounds.lower, bounds.upper, is_without_batches)
        return True

    def _of_batches(self, group: int) -> _Mask:
        """Whether each row of a row group is of one of the batches. Reads the batch column.

        Raises:
            Unsuitable: Its rows are not in order.
        """
        masks = [np.zeros(0, np.bool_)]
        for ids in self._source.batches_of(group):
            if self._in_order:
                self._require_rows_in_order(ids)
            of_batches = pc.is_in(ids.dictionary, value_set=self._wanted).take(ids.indices).fill_null(False)
            masks.append(of_batches.to_numpy(zero_copy_only=False))
        return np.concatenate(masks)

    def _encode(self, group: int, position: int, goes: _Mask) -> None:
        waiting: list[pa.RecordBatch] = []
        for rows in self._rows(group, position, goes):
            waiting.append(rows)
            if sum(w.nbytes for w in waiting) >= GROUP_BYTES:
                self._writer.encode(pa.Table.from_batches(waiting), self._source.options)
                waiting = []
        if waiting:
            self._writer.encode(pa.Table.from_batches(waiting), self._source.options)

    def _rows(self, group: int, position: int, goes: _Mask) -> Iterator[pa.RecordBatch]:
        """The rows of a row group that stay.

        Args:
            position: Of its first row in the file.
            goes: Whether each row is left out.
        """
        begin = 0
        for batch in self._source.rows_of(group, position):
            goes_here = goes[begin : begin + batch.num_rows]
            begin += batch.num_rows
            out = int(np.count_nonzero(goes_here))
            rows = batch.filter(pa.array(~goes_here)) if out else batch
            self.left_out += out
            self.kept += rows.num_rows
            for field_id, path in self._floats.items():
                nans = nans_in(rows, path)
                self._nans[field_id] += nans
                self._nans_left_out[field_id] += nans_in(batch, path) - nans if out else 0
                if out and (extremes := extremes_in(batch.filter(pa.array(goes_here)), path)) is not None:
                    known = self.extremes_left_out.get(field_id, extremes)
                    self.extremes_left_out[field_id] = min(known[0], extremes[0]), max(known[1], extremes[1])
            if rows.num_rows:
                yield rows

    def _require_rows_in_order(self, ids: pa.DictionaryArray) -> None:
        """Require that these rows continue the order.

        Raises:
            Unsuitable: The file is not filtered.
        """
        if ids.slice(0, ids.null_count).null_count != ids.null_count:  # rows without a batch are first
            raise Unsuitable(_UNORDERED)
        indices = ids.indices.slice(ids.null_count).to_numpy()
        lower = upper = None
        if len(indices):
            rank_of = np.empty(len(ids.dictionary), np.int64)
            rank_of[pc.sort_indices(ids.dictionary).to_numpy()] = np.arange(len(ids.dictionary))
            ranks = rank_of[indices]
            if np.any(ranks[:-1] > ranks[1:]):
                raise Unsuitable(_UNORDERED)
            lower, upper = (ids.dictionary[indices[place]].as_py() for place in (0, -1))
        self._require_order(lower, upper, ids.null_count > 0)

    def _require_order(self, lower: str | None, upper: str | None, has_nulls: bool) -> None:
        """Require that rows with these batches can follow the last row, or rows with none.

        Raises:
            Unsuitable: The file is not filtered.
        """
        if self._last is not None and (has_nulls or (lower is not None and lower < self._last)):
            raise Unsuitable(_UNORDERED)
        self._last = self._last if upper is None else upper


@dataclass(frozen=True)
class Loss:
    """What a file loses."""

    # The batches whose rows are left out, and the number of these rows.
    ids: frozenset[str]
    rows: int
    in_order: bool = True
    """Whether its rows must be in the order of batches. Then Spark sorts them if they are not."""


@dataclass(frozen=True)
class FileToFilter:
    """A data file, and what becomes of it."""

    path: str
    records: int
    """Number of rows."""
    to: str
    """URI of the new file, which no other file has."""
    loss: Loss
    document: str
    """Iceberg's JSON of the file: its spec, partition and sort order are those of the new file."""
    row_ids: RowIds | None = None
    """What its rows inherit. None: the table's rows have no ids."""
    hidden: bytes = field(default=b"", repr=False)
    """Positions of further rows that are left out, as a serialized bitmap; empty: none."""


@dataclass(frozen=True)
class Filtered:
    """The result of filtering a data file."""

    path: str
    document: str = ""
    """Iceberg's JSON of the new file; empty: there is none."""
    to: str = ""
    """URI of the new file; empty: there is none."""
    # Bytes of row groups that were copied, and those that were encoded.
    copied: int = 0
    encoded: int = 0
    # Bytes of the new file that the worker has sent, and those that the store has copied by itself.
    sent: int = 0
    by_store: int = 0
    unsuitable: str = ""
    """Why there is no new file."""


@dataclass(frozen=True)
class Filter:
    """Filters files of one table. It is pickled and sent to the workers."""

    target: RegisterTarget
    """In format version 3, a target `with_row_ids`."""
    io_properties: dict[str, str]

    def attempt(self, file: FileToFilter) -> Filtered:
        """Filter the file into a new file with a path that no other attempt of the task has."""
        return self(replace(file, to=path_of_attempt(file.to)))

    def __call__(self, file: FileToFilter) -> Filtered:
        """Write one data file without the deleted rows.

        Raises:
            FileNotFoundError: There is no such file.
            Exception: What the storage raises.
        """
        io = file_io(self.io_properties, file.path)
        try:
            return self._filtered(io, file)
        except Unsuitable as e:
            return Filtered(file.path, unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the file's content. The text may contain a value.
            return Filtered(file.path, unsuitable=type(e).__name__)

    def _filtered(self, io: FileIO, file: FileToFilter) -> Filtered:
        """Write an opened file without the deleted rows.

        Raises:
            Unsuitable: The file is not filtered.
        """
        input_file = io.new_input(file.path)
        with input_file.open() as stream:
            may_lack = not file.loss.ids
            source = PurgeSource(stream, len(input_file), self.target, file.row_ids, may_lack)
            try:
                with new_file(io, self.io_properties, file.to, file.path, stream, len(input_file)) as sink:
                    hidden = FrozenBitMap64.deserialize(file.hidden) if file.hidden else NO_POSITIONS
                    rewrite = FileRewrite(source, sink, file.loss.ids, file.loss.in_order, hidden)
                    rewrite.run()
                    if rewrite.of_batches != file.loss.rows or rewrite.kept + rewrite.left_out != file.records:
                        raise Unsuitable("the number of its rows is not the one that was found before")
                    if file.hidden and not rewrite.kept:
                        raise Unsuitable("none of its rows is left")
                before = json.loads(file.document)
                kept = {k: before[k] for k in ("spec-id", "partition", "sort-order-id") if k in before}
                nans = rewrite.nans_after(nans_of(before))
                superset = Superset(before, rewrite.extremes_left_out)
                document = describe(io, file.to, sink.size, self.target, kept, nans, superset)
                by_store = sink.copied_by_store
                return Filtered(
                    file.path,
                    document,
                    file.to,
                    rewrite.copied,
                    rewrite.encoded,
                    sent=sink.size - by_store,
                    by_store=by_store,
                )
            except BaseException:
                with suppress(Exception):
                    io.delete(file.to)
                raise


@dataclass(frozen=True)
class Superset:
    """A file that has all rows of another one."""

    document: Mapping[str, Any] = field(default_factory=dict)
    """Iceberg's JSON of the file."""
    extremes_of_others: Mapping[int, tuple[float, float]] = field(default_factory=dict, repr=False)
    """The least and the greatest number of the rows that only this file has, by field id."""

    def bounds(self, which: str) -> dict[int, str]:
        """Its bounds of floating-point columns, in hexadecimal, but those that may be values of the rows that only it has."""
        bounds = of_field_id(self.document, which)
        return {i: b for i, b in bounds.items() if not self._is_of_others(which, i, bytes.fromhex(b))}

    def _is_of_others(self, which: str, field_id: int, bound: bytes) -> bool:
        if field_id not in self.extremes_of_others:
            return False
        least, greatest = self.extremes_of_others[field_id]
        (number,) = struct.unpack("<f" if len(bound) == _FLOAT_BYTES else "<d", bound)
        return bool(least <= number if which == _LOWER else greatest >= number)


def describe(
    io: FileIO,
    path: str,
    size: int,
    target: RegisterTarget,
    kept: Mapping[str, Any],
    nans: Mapping[int, int],
    superset: Superset | None = None,
) -> str:
    """Iceberg's JSON of a new file, by its footer.

    Args:
        size: Bytes that were written.
        kept: What the footer does not show: spec, partition and sort order.
        nans: By field id.
        superset: A file that has all rows of this one. Its bounds of floating-point columns hold, where the footer has none
            because of NaNs.

    Raises:
        Unsuitable: The file is not filtered.
    """
    written = io.new_input(path)
    if len(written) != size:
        raise Unsuitable("the storage has copied other bytes than it should")
    with written.open() as stream:
        metadata = pq.read_metadata(stream)
    document = data_file_document(metadata, path, size, columns_of(metadata, target))
    counted = document["value-counts"]["keys"]
    counted_nans = {i: n for i, n in nans.items() if i in counted}
    bounds = {
        which: by_field_id(_bounds(which, document, superset or Superset(), counted_nans))
        for which in (_LOWER, "upper-bounds")
    }
    return json.dumps(document | bounds | dict(kept) | {"nan-value-counts": by_field_id(counted_nans)})


def _bounds(which: str, found: Mapping[str, Any], superset: Superset, nans: Mapping[int, int]) -> dict[int, str]:
    """The bounds that a footer shows, and those of a larger file for floating-point columns that have numbers."""
    bounds, values, nulls = (of_field_id(found, name) for name in (which, "value-counts", "null-value-counts"))
    has_numbers = {i for i, n in nans.items() if i in nulls and values[i] - nulls[i] - n > 0}
    return bounds | {i: b for i, b in superset.bounds(which).items() if i not in bounds and i in has_numbers}


def of_field_id(document: Mapping[str, Any], name: str) -> dict[int, Any]:
    """A map of Iceberg's JSON."""
    pairs = document.get(name) or {"keys": [], "values": []}
    return dict(zip(pairs["keys"], pairs["values"], strict=True))


def nans_of(document: Mapping[str, Any]) -> dict[int, int]:
    """The NaNs of a data file by field id, of Iceberg's JSON."""
    return of_field_id(document, "nan-value-counts")
