"""A new data file made of the rows of others. I/O."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from lethe.ingest.registrable import Target
from lethe.purge import footer
from lethe.purge.groups import GroupWriter
from lethe.purge.row_ids import options_for
from lethe.purge.sinks import Sink
from lethe.purge.source import Source, Unsuitable
from lethe.purge.splicing import groups_of
from lethe.writing.data_files import nans_in
from lethe.writing.layout import GROUP_BYTES, SortKey, float_columns, row_group_bytes
from lethe.writing.order import in_order

# A row group is copied if it has at least this fraction of the table's row-group size.
_COPIED_FROM: Final = 0.5


class MergedFile:
    """Takes files in the order of their rows. `close` ends it.

    Row groups that are large enough are copied. The rows of others are decoded, and encoded in row groups of the table's size.

    Args:
        keys: Of the table's sort order.
        sorted_bytes: Sort all rows in memory, if they have at most so many bytes there. None: they are in order.
    """

    def __init__(self, sink: Sink, target: Target, keys: Sequence[SortKey], sorted_bytes: int | None) -> None:
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

    def add(self, source: Source, nans: Mapping[int, int]) -> None:
        """Add the rows of an open file.

        Args:
            nans: Of the file, by field id, as its entry has them.
        Raises: Unsuitable, Unreadable.
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
        """Write the rest. Raises: Unreadable."""
        assert self._writer is not None
        if self._sorted_bytes is not None and self._waiting.tables:
            self._waiting.tables = [in_order(self._waiting.whole(), self._keys)]
        self._write_waiting(self._writer)
        self._writer.close()

    def _begin(self, source: Source) -> GroupWriter:
        """Raises: Unsuitable, if a file is not like the first one."""
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

    def _may_copy(self, source: Source, group: int, size: int) -> bool:
        """Whether a row group of so many bytes is copied."""
        if self._sorted_bytes is not None or size < _COPIED_FROM * self._group_bytes:
            return False
        return _writer_of(source) == self._written_by and source.may_copy(group)

    def _count(self, nans: Mapping[int, int]) -> None:
        for i, known in self._nans.items():
            self._nans[i] = None if known is None or i not in nans else known + nans[i]

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


def _writer_of(source: Source) -> tuple[object, object]:
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
        rows, rest = table.slice(0, count), table.slice(count)
        self.in_file *= rest.num_rows / table.num_rows
        self.in_memory = rest.nbytes
        self.tables = [rest] if rest.num_rows else []
        return rows
