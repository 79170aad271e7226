"""Writes a data file without the rows of some batches. Runs in Spark's Python workers, without Spark. I/O.

A purge only filters: the order, the partition and the columns of a file stay. So a file needs no sort and no shuffle, and its
rows need not become objects. Row groups without such rows are copied as bytes (`lethe.purge.footer`), and Arrow encodes the
others again. Only files for which that is certain are written. For others `Unsuitable` says why, and Spark rewrites them.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io
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
from lethe.writing.data_files import GROUP_BYTES, float_columns, nans_in, without_unused

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
    """Writes the rows of a file that stay, in their order.

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
        self._groups = groups_of(source.footer)
        self._writer = GroupWriter(sink, source.footer)
        self._last: str | None = None  # the batch of the last row
        self._floats = dict(float_columns(source.schema))
        # NaNs of encoded row groups, by field id: of the rows that stay, and of the others.
        self._nans, self._nans_left_out = dict.fromkeys(self._floats, 0), dict.fromkeys(self._floats, 0)
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
                if not self._hides(position, rows) and self._may_copy(number):
                    self._writer.copy(self._source, number, group, position)
                    self.kept += rows
                else:
                    self._encode(number, position)
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

    def _hides(self, start: int, rows: int) -> bool:
        return self._hidden.range_cardinality(start, start + rows) > 0

    def _may_copy(self, group: int) -> bool:
        """Whether a row group has no rows to leave out.

        Raises:
            Unsuitable: They are not in order.
        """
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
            self.of_batches += goes.true_count
            if self._hides(position, batch.num_rows):
                goes = pc.or_(goes, self._hidden_from(position, batch.num_rows))
            position += batch.num_rows
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

    def _hidden_from(self, start: int, rows: int) -> pa.BooleanArray:
        """Whether each of these rows is hidden."""
        mask = np.zeros(rows, np.bool_)
        within = self._hidden & FrozenBitMap64(range(start, start + rows))
        mask[np.fromiter(within, np.int64, len(within)) - start] = True
        return pa.array(mask)

    def _require_rows_in_order(self, ids: pa.DictionaryArray) -> None:
        """Rows without a batch are first.

        Raises:
            Unsuitable: The file is not filtered.
        """
        nulls_first = self._last is None and ids.slice(0, ids.null_count).null_count == ids.null_count
        if ids.null_count and not nulls_first:
            raise Unsuitable(_UNORDERED)
        indices = ids.indices.slice(ids.null_count).to_numpy()
        if not len(indices):
            return
        rank_of = np.empty(len(ids.dictionary), np.int64)
        rank_of[pc.sort_indices(ids.dictionary).to_numpy()] = np.arange(len(ids.dictionary))
        ranks = rank_of[indices]
        if np.any(ranks[:-1] > ranks[1:]):
            raise Unsuitable(_UNORDERED)
        self._require_order(*(ids.dictionary[indices[position]].as_py() for position in (0, -1)))

    def _require_order(self, lower: str, upper: str) -> None:
        if self._last is not None and lower < self._last:
            raise Unsuitable(_UNORDERED)
        self._last = upper


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
    """Positions of the rows that native deletes hide, as a serialized bitmap; empty: none. These rows are left out too."""


@dataclass(frozen=True)
class Filtered:
    """The result of filtering a data file."""

    path: str
    document: str = ""
    """Iceberg's JSON of the new file; empty: there is none."""
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
        io = load_file_io(self.io_properties, file.path)
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
            source = PurgeSource(stream, len(input_file), self.target, file.row_ids)
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
                document = describe(io, file.to, sink.size, self.target, kept, nans, before)
                by_store = sink.copied_by_store
                return Filtered(
                    file.path, document, rewrite.copied, rewrite.encoded, sent=sink.size - by_store, by_store=by_store
                )
            except BaseException:
                with suppress(Exception):
                    io.delete(file.to)
                raise


def describe(
    io: FileIO,
    path: str,
    size: int,
    target: RegisterTarget,
    kept: Mapping[str, Any],
    nans: Mapping[int, int],
    superset: Mapping[str, Any] = MappingProxyType({}),
) -> str:
    """Iceberg's JSON of a new file, by its footer.

    Args:
        size: Bytes that were written.
        kept: What the footer does not show: spec, partition and sort order.
        nans: By field id.
        superset: Iceberg's JSON of a file that has all rows of this one. Its bounds of floating-point columns hold, where the
            footer has none because of NaNs.

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
        which: by_field_id(_bounds(which, document, superset, counted_nans))
        for which in ("lower-bounds", "upper-bounds")
    }
    return json.dumps(document | bounds | dict(kept) | {"nan-value-counts": by_field_id(counted_nans)})


def _bounds(
    which: str, found: Mapping[str, Any], superset: Mapping[str, Any], nans: Mapping[int, int]
) -> dict[int, str]:
    """The bounds that a footer shows, and those of a larger file for floating-point columns that have numbers."""
    bounds, larger = of_field_id(found, which), of_field_id(superset, which)
    values, nulls = of_field_id(found, "value-counts"), of_field_id(found, "null-value-counts")
    numbers = {i: values[i] - nulls[i] - n for i, n in nans.items() if i in nulls}
    return bounds | {i: b for i, b in larger.items() if i not in bounds and numbers.get(i, 0) > 0}


def of_field_id(document: Mapping[str, Any], name: str) -> dict[int, Any]:
    """A map of Iceberg's JSON."""
    pairs = document.get(name) or {"keys": [], "values": []}
    return dict(zip(pairs["keys"], pairs["values"], strict=True))


def nans_of(document: Mapping[str, Any]) -> dict[int, int]:
    """The NaNs of a data file by field id, of Iceberg's JSON."""
    return of_field_id(document, "nan-value-counts")
