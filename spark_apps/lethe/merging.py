"""Merges the data files of one bin into one file. Runs in Spark's Python workers, without Spark. I/O.

Only files of which the footer proves that Arrow writes the same are merged. For others `Unsuitable` says why, and Spark merges
them. Files that are sorted and next to each other stay in their order. The rows of others are sorted in memory, if they fit.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.table.sorting import SortOrder

from lethe.base.ahead import ahead
from lethe.ingest.buffer_store import BYTES_AHEAD, FILES_AHEAD
from lethe.ingest.registrable import RegisterTarget
from lethe.purge import footer
from lethe.purge.filtering import GroupWriter, describe, nans_of
from lethe.purge.footer import FileSink, FooterUnreadable, groups_of, path_of_attempt
from lethe.purge.source import PurgeSource, RowIds, Unsuitable, options_for
from lethe.storage.file_io import file_io
from lethe.writing.data_files import (
    GROUP_BYTES,
    SortKey,
    float_columns,
    in_order,
    nans_in,
    row_group_bytes,
    sort_keys_of,
)

_WHOLE: Final = 8 * 1024**2
"""Files up to this size, in bytes, are fetched whole, because latency dominates."""

_COPIED_FROM: Final = 0.5
"""A row group is copied if it has at least this fraction of the table's row-group size."""

SORTED_BYTES: Final = 256 * 1024**2
"""Rows that are sorted in memory have at most this many bytes there."""


class NotInOrder(Exception):
    """It is not proven that the rows are in order."""


class Arrangement:
    """The files of a bin, one after the other.

    Args:
        keys: Of the table's sort order. None: any order is right.
        order_id: Of the table's sort order.
    """

    def __init__(self, keys: Sequence[SortKey], batch_column: str, order_id: int) -> None:
        self._keys, self._order_id = keys, order_id
        first = keys[0] if keys else None
        self._is_by_batch = first is not None and first.name == batch_column and not first.is_descending
        self._last: str | None = None  # the highest batch so far

    def add(self, source: PurgeSource, order_id: int | None) -> None:
        """Add a file.

        Args:
            order_id: Of the sort order that its entry names. Then its rows are in it. None: none.

        Raises:
            NotInOrder: It is not proven that the rows are in order.
        """
        if not self._keys:
            return
        if not self._is_by_batch:
            raise NotInOrder
        claimed = order_id == self._order_id
        if len(self._keys) > 1 and not claimed:
            raise NotInOrder
        begins = True
        for group in range(source.parquet.metadata.num_row_groups):
            if not source.parquet.metadata.row_group(group).num_rows:
                continue
            bounds = source.bounds_of(group)
            if bounds.nulls != 0 or bounds.lower is None or bounds.upper is None:
                raise NotInOrder
            if not claimed and bounds.lower != bounds.upper:
                raise NotInOrder
            # Rows of one batch in two files may have to be mixed, if there are more keys.
            shares = begins and len(self._keys) > 1 and bounds.lower == self._last
            if shares or (self._last is not None and bounds.lower < self._last):
                raise NotInOrder
            self._last, begins = bounds.upper, False


@dataclass(frozen=True)
class FileToMerge:
    """A data file of a bin."""

    path: str
    bytes: int
    records: int
    """Number of rows."""
    document: str
    """Iceberg's JSON of the file."""
    row_ids: RowIds | None = None
    """What its rows inherit. None: the table's rows have no ids."""


@dataclass(frozen=True)
class OpenFile:
    """A file that is open until the next one is."""

    file: FileToMerge
    stream: Any
    size: int
    """Size in bytes, as it is stored."""


def opened(io: FileIO, files: Sequence[FileToMerge]) -> Generator[OpenFile, None, None]:
    """Open the files in their order.

    Raises:
        FileNotFoundError: There is no such file.
        Exception: What the storage raises.
    """

    def whole(file: FileToMerge) -> bytes | None:
        if file.bytes > _WHOLE:
            return None
        with io.new_input(file.path).open() as stream:
            return bytes(stream.read())

    def bytes_of(file: FileToMerge) -> int:
        return file.bytes if file.bytes <= _WHOLE else 0

    for file, content in ahead(whole, files, FILES_AHEAD, bytes_of=bytes_of, bytes_at_most=BYTES_AHEAD):
        if content is not None:
            yield OpenFile(file, pa.BufferReader(content), len(content))
        else:
            input_file = io.new_input(file.path)
            with input_file.open() as stream:
                yield OpenFile(file, stream, len(input_file))


class MergedFile:
    """Takes files in the order of their rows. `close` ends it.

    Row groups that are large enough are copied. The rows of others are decoded, and encoded in row groups of the table's size.

    Args:
        keys: Of the table's sort order.
        sorted_bytes: Sort all rows in memory, if they have at most so many bytes there. None: they are in order.
    """

    def __init__(
        self, sink: FileSink, target: RegisterTarget, keys: Sequence[SortKey], sorted_bytes: int | None
    ) -> None:
        self._sink, self._keys, self._sorted_bytes = sink, keys, sorted_bytes
        self._group_bytes = row_group_bytes(target.properties)
        self._schema: pa.Schema | None = None
        self._options: dict[str, Any] = {}
        # What readers need to know of the writer of a row group, to understand it.
        self._written_by: tuple[object, object] = (None, None)
        self._writer: GroupWriter | None = None
        self._waiting = _Waiting()
        # By field id. None: unknown.
        self._nans: dict[int, int | None] = {}

    @property
    def copied(self) -> int:
        """Bytes of row groups that were copied."""
        return self._writer.copied if self._writer is not None else 0

    @property
    def encoded(self) -> int:
        """Bytes of row groups that were encoded."""
        return self._writer.encoded if self._writer is not None else 0

    @property
    def nans(self) -> dict[int, int]:
        """The NaNs by field id, where they are known."""
        return {i: n for i, n in self._nans.items() if n is not None}

    def add(self, source: PurgeSource, nans: Mapping[int, int]) -> None:
        """Add the rows of an open file.

        Args:
            nans: Of the file, by field id, as its entry has them.

        Raises:
            Unsuitable: The file is not filtered.
            FooterUnreadable: The bytes are not what the format says.
        """
        groups = groups_of(source.footer)
        writer = self._begin(source)
        floats = dict(float_columns(source.schema))
        counted: dict[int, int] | None = dict.fromkeys(floats, 0)
        position = 0
        for number, group in enumerate(groups):
            metadata = source.parquet.metadata.row_group(number)
            size = sum(metadata.column(n).total_compressed_size for n in range(metadata.num_columns))
            if self._may_copy(source, number, size):
                self._write_waiting(writer)
                writer.copy(source, number, group, position)
                counted = None
            else:
                for rows in source.rows_of(number, position, with_dictionaries=False):
                    for field_id, path in floats.items() if counted is not None else ():
                        counted[field_id] += nans_in(rows, path)  # type: ignore[index]
                    self._waiting.add(rows, size * rows.num_rows / metadata.num_rows)
                    self._write_large(writer)
            position += metadata.num_rows
        self._count(nans if counted is None else counted)

    def close(self) -> None:
        """Write the rest.

        Raises:
            FooterUnreadable: The bytes are not what the format says.
        """
        assert self._writer is not None
        if self._sorted_bytes is not None and self._waiting.tables:
            self._waiting.tables = [in_order(self._waiting.whole(), self._keys)]
        self._write_waiting(self._writer)
        self._writer.close()

    def _begin(self, source: PurgeSource) -> GroupWriter:
        """The writer of the new file, which the first source begins.

        Raises:
            Unsuitable: A file is not like the first one.
        """
        if self._writer is None:
            self._writer, self._written_by = GroupWriter(self._sink, source.footer), _writer_of(source)
            self._schema = source.schema
            self._nans = {i: 0 for i, _ in float_columns(source.schema)}
            self._options = {k: v for k, v in source.options.items() if k != "use_dictionary"}
            if source.ids is not None:
                self._options |= options_for(source.leaves)
            return self._writer
        same = source.schema.equals(self._schema, check_metadata=True)
        decimals = source.options["store_decimal_as_integer"] == self._options["store_decimal_as_integer"]
        if not same or not decimals:
            raise Unsuitable("the files have different columns")
        return self._writer

    def _may_copy(self, source: PurgeSource, group: int, size: int) -> bool:
        """Whether a row group of so many bytes is copied."""
        if self._sorted_bytes is not None or size < _COPIED_FROM * self._group_bytes:
            return False
        return _writer_of(source) == self._written_by and source.may_copy(group)

    def _count(self, nans: Mapping[int, int]) -> None:
        for i, nan_count in self._nans.items():
            self._nans[i] = None if nan_count is None or i not in nans else nan_count + nans[i]

    def _write_large(self, writer: GroupWriter) -> None:
        """Write the waiting rows that are enough for a row group."""
        if self._sorted_bytes is not None:
            if self._waiting.in_memory > self._sorted_bytes:
                raise Unsuitable("the rows are not in order, and too many to be sorted in memory")
            return
        while self._waiting.in_file >= self._group_bytes or self._waiting.in_memory >= GROUP_BYTES:
            writer.encode(self._waiting.take(self._group_bytes), self._options)

    def _write_waiting(self, writer: GroupWriter) -> None:
        while self._waiting.tables:
            writer.encode(self._waiting.take(self._group_bytes), self._options)


def _writer_of(source: PurgeSource) -> tuple[object, object]:
    return source.footer.get(footer.CREATED_BY), source.footer.get(footer.COLUMN_ORDERS)


class _Waiting:
    """Rows that are not written yet."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        # Bytes in memory, and as an estimate in a file: those that they had in theirs.
        self.in_memory = 0
        self.in_file = 0.0

    def add(self, rows: pa.RecordBatch, in_file: float) -> None:
        self.tables.append(pa.Table.from_batches([rows]))
        self.in_memory += rows.nbytes
        self.in_file += in_file

    def whole(self) -> pa.Table:
        return pa.concat_tables(self.tables)

    def take(self, group_bytes: int) -> pa.Table:
        """The first rows: as many as fit into a row group."""
        table = self.whole()
        share = min(1.0, group_bytes / max(self.in_file, 1), GROUP_BYTES / max(self.in_memory, 1))
        count = max(1, min(table.num_rows, int(table.num_rows * share)))
        rows, remaining = table.slice(0, count), table.slice(count)
        self.in_file *= remaining.num_rows / table.num_rows
        self.in_memory = remaining.nbytes
        self.tables = [remaining] if remaining.num_rows else []
        return rows


@dataclass(frozen=True)
class BinToMerge:
    """Data files of one partition that become one file."""

    files: tuple[FileToMerge, ...]
    """The files to merge, in the order of batches, by their bounds."""
    to: str
    """URI of the new file."""


@dataclass(frozen=True)
class Merged:
    """The result of merging a bin."""

    document: str = ""
    """Iceberg's JSON of the new file; empty: there is none."""
    path: str = ""
    """URI of the new file."""
    # Bytes of row groups that were copied, and those that were encoded.
    copied: int = 0
    encoded: int = 0
    unsuitable: str = ""
    """Why there is no new file."""


@dataclass(frozen=True)
class Merge:
    """Merges bins of one table. It is pickled and sent to the workers."""

    target: RegisterTarget
    """In format version 3 `with_row_ids`."""
    sort_order_json: str
    """The table's sort order. Its keys are columns (`sort_keys_of`)."""
    io_properties: dict[str, str]
    sorted_bytes: int = SORTED_BYTES
    """Bytes of rows in memory up to which they are sorted."""

    @cached_property
    def _order(self) -> SortOrder:
        return SortOrder.model_validate_json(self.sort_order_json)

    def attempt(self, bin_: BinToMerge) -> Merged:
        """Merge the files into a new file with a path that no other attempt of the task has."""
        return self(replace(bin_, to=path_of_attempt(bin_.to)))

    def __call__(self, bin_: BinToMerge) -> Merged:
        """Merge the bin into its new file. If an error is raised, there is no new file.

        Raises:
            FileNotFoundError: There is no such file.
            Exception: What the storage raises.
        """
        io = file_io(self.io_properties, bin_.to)
        try:
            kept = self._kept(bin_)
            try:
                return self._written(io, bin_, kept, in_memory=False)
            except NotInOrder:
                return self._written(io, bin_, kept, in_memory=True)
        except (Unsuitable, FooterUnreadable) as e:
            return Merged(unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the files' content. The text may contain a value.
            return Merged(unsuitable=type(e).__name__)

    def _kept(self, bin_: BinToMerge) -> dict[str, Any]:
        """What the entries of all files say in the same way.

        Raises:
            Unsuitable: The file is not filtered.
        """
        if not any(f.records for f in bin_.files):
            raise Unsuitable("the files have no rows")
        entries = [json.loads(f.document) for f in bin_.files]
        places = [(e.get("spec-id"), e.get("partition")) for e in entries]
        if any(place != places[0] for place in places):
            raise Unsuitable("the files are in different partitions")
        return {"spec-id": places[0][0], "partition": places[0][1], "sort-order-id": self._order.order_id}

    def _written(self, io: FileIO, bin_: BinToMerge, kept: Mapping[str, Any], in_memory: bool) -> Merged:
        """Write the merged rows of a bin into one file.

        Raises:
            Unsuitable: The file is not filtered.
            FooterUnreadable: The bytes are not what the format says.
            NotInOrder: Unless `in_memory`.
        """
        keys = sort_keys_of(self.target, self._order)
        arrangement = Arrangement(keys, self.target.name(self.target.field_id), self._order.order_id)
        try:
            with io.new_output(bin_.to).create(overwrite=True) as stream:
                sink = FileSink(stream)
                merged = MergedFile(sink, self.target, keys, self.sorted_bytes if in_memory else None)
                with closing(opened(io, bin_.files)) as files:
                    for open_file in files:
                        self._add(open_file, merged, None if in_memory else arrangement)
                merged.close()
            document = describe(io, bin_.to, sink.size, self.target, kept, merged.nans)
            return Merged(document, bin_.to, merged.copied, merged.encoded)
        except BaseException:
            with suppress(Exception):
                io.delete(bin_.to)
            raise

    def _add(self, open_file: OpenFile, merged: MergedFile, arrangement: Arrangement | None) -> None:
        """Add the rows of a file.

        Raises:
            Unsuitable: The file is not filtered.
            FooterUnreadable: The bytes are not what the format says.
            NotInOrder: It is not proven that the rows are in order.
        """
        entry = json.loads(open_file.file.document)
        source = PurgeSource(open_file.stream, open_file.size, self.target, open_file.file.row_ids)
        if source.parquet.metadata.num_rows != open_file.file.records:
            raise Unsuitable("the number of its rows is not that of its entry")
        if arrangement is not None:
            arrangement.add(source, entry.get("sort-order-id"))
        merged.add(source, nans_of(entry))
