"""Writes the rows of partitions as data files: rows in order, files of about the target size. I/O."""

import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import load_file_io
from pyiceberg.table.locations import load_location_provider

from lethe.guards.properties import without_location_providers
from lethe.ingest.exact_values import writable
from lethe.ingest.registrable import by_field_id, columns_of, data_file_document
from lethe.writing.dictionaries import without_unused
from lethe.writing.layout import GROUP_BYTES, TableLayout, float_columns, parquet_options, row_group_bytes
from lethe.writing.order import in_order
from lethe.writing.partitions import Partition, partitions_of, split

# Bytes in a file for each byte in memory, until the first row group of a file shows it.
_FIRST_RATIO: Final = 0.25


class DataFileWriter:
    """Writes rows of a table in one task. After an error it has deleted its files."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._io = load_file_io(dict(layout.io_properties), layout.location)
        self._paths: list[str] = []

    def write(self, parts: Iterable[pa.Table]) -> Iterator[str]:
        """Write the rows of some partitions, and return Iceberg's JSON of each data file.

        Args:
            parts: Rows. Those of a part come before those of the next one in the sort order.
        """
        files: dict[Partition, _PartitionFiles] = {}
        try:
            for rows in parts:
                for partition, part in self._parts(rows):
                    if partition not in files:
                        files[partition] = _PartitionFiles(self._layout, partition, self._create)
                    files[partition].add(in_order(part, self._layout.sort_keys))
            for one in files.values():
                yield from one.close()
        except BaseException:
            for one in files.values():
                one.abort()
            for path in self._paths:
                with suppress(Exception):
                    self._io.delete(path)
            raise

    def _parts(self, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        if not rows.num_rows:
            return
        found = partitions_of(rows, self._layout)
        if found.index is None:
            yield found.partitions[0], rows
            return
        yield from zip(found.partitions, split(rows, found.index, len(found.partitions)), strict=True)

    def _create(self, partition: Partition) -> tuple[str, Any]:
        layout, name = self._layout, f"00000-{uuid.uuid4()}.parquet"
        path = data_location(layout, partition, name)
        stream = self._io.new_output(path).create(overwrite=True)
        self._paths.append(path)
        return path, stream


def data_location(layout: TableLayout, partition: Partition, name: str) -> str:
    """The URI of a new data file, as the table's properties say."""
    properties = {**without_location_providers(layout.target.properties), "write.data.path": layout.folder}
    properties.setdefault("write.object-storage.enabled", "false")
    key = _Key(partition.path(layout)) if partition.values else None
    return load_location_provider(layout.location, properties).new_data_location(name, key)  # type: ignore[arg-type]


class _Key:
    """A partition as location providers take it. PyIceberg's own accepts only one field per column."""

    def __init__(self, path: str) -> None:
        self._path = path

    def to_path(self) -> str:
        return self._path


class _PartitionFiles:
    """The files of one partition, one open at a time."""

    def __init__(
        self, layout: TableLayout, partition: Partition, create: Callable[[Partition], tuple[str, Any]]
    ) -> None:
        self._layout, self._partition, self._create = layout, partition, create
        self._options = parquet_options(layout.target.properties)
        self._group_bytes = row_group_bytes(layout.target.properties)
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._ratio = _FIRST_RATIO
        self._file: _OpenFile | None = None
        self._documents: list[str] = []
        self._last_batch = ""

    def add(self, rows: pa.Table) -> None:
        """Add rows that come after all earlier ones."""
        self._check_order(rows)
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        while self._waiting_bytes >= self._group_size():
            self._write_group()

    def _check_order(self, rows: pa.Table) -> None:
        if self._layout.sort_keys and self._layout.batches_first:
            ids = rows.column(self._layout.batch_column)
            if ids[0].as_py() < self._last_batch:
                raise RuntimeError("rows of a later batch were written first")
            self._last_batch = ids[-1].as_py()

    def close(self) -> list[str]:
        """Write the rest. Returns: Iceberg's JSON of each file."""
        while self._waiting:
            self._write_group()
        self._close_file()
        return self._documents

    def abort(self) -> None:
        """Close the open file without its rows."""
        if self._file is not None:
            self._file.abort()
            self._file = None

    def _group_size(self) -> int:
        """Bytes in memory."""
        return min(int(self._group_bytes / self._ratio), GROUP_BYTES)

    def _write_group(self) -> None:
        """Write one row group of the waiting rows."""
        table = pa.concat_tables(self._waiting)
        count = max(1, min(table.num_rows, table.num_rows * self._group_size() // max(self._waiting_bytes, 1)))
        rows, rest = table.slice(0, count), table.slice(count)
        if self._file is None:
            self._file = _OpenFile(*self._create(self._partition), self._layout.file_schema, self._options)
        before, size = self._file.bytes, rows.nbytes
        self._file.write(rows)
        if size:
            self._ratio = max((self._file.bytes - before) / size, 0.01)
        self._waiting, self._waiting_bytes = ([rest], rest.nbytes) if rest.num_rows else ([], 0)
        if self._file.bytes >= self._layout.target_file_size:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._documents.append(file.close(self._layout, self._partition))


class _OpenFile:
    """A data file that is being written."""

    def __init__(self, path: str, stream: Any, columns: pa.Schema, options: dict[str, Any]) -> None:
        self._path, self._columns = path, columns
        self._sink = stream if isinstance(stream, pa.NativeFile) else pa.PythonFile(stream, mode="w")
        self._metadata: list[Any] = []
        self._parquet = pq.ParquetWriter(self._sink, columns, metadata_collector=self._metadata, **options)
        self._nans = dict.fromkeys((i for i, _ in float_columns(columns)), 0)

    @property
    def bytes(self) -> int:
        return int(self._sink.tell())

    def write(self, rows: pa.Table) -> None:
        """Write one row group."""
        rows = without_unused(rows)
        columns = [
            pa.chunked_array([writable(chunk, f.type) for chunk in rows.column(f.name).chunks], f.type)
            for f in self._columns
        ]
        table = pa.Table.from_arrays(columns, schema=self._columns)
        for field_id, path in float_columns(self._columns):
            self._nans[field_id] += nans_in(table, path)
        self._parquet.write_table(table, row_group_size=table.num_rows)

    def close(self, layout: TableLayout, partition: Partition) -> str:
        """Returns: Iceberg's JSON of the file."""
        self._parquet.close()
        size = self.bytes
        self._sink.close()
        metadata, target = self._metadata[0], layout.target
        document = data_file_document(metadata, self._path, size, columns_of(metadata, target))
        counted = document["value-counts"]["keys"]
        document |= {
            "spec-id": target.spec.spec_id,
            "partition": partition.json(layout),
            "sort-order-id": layout.sort_order.order_id,
            "nan-value-counts": by_field_id({i: n for i, n in self._nans.items() if i in counted}),
        }
        return json.dumps(document)

    def abort(self) -> None:
        with suppress(Exception):
            self._parquet.close()
        with suppress(Exception):
            self._sink.close()


def nans_in(rows: pa.Table | pa.RecordBatch, path: tuple[str, ...]) -> int:
    """The NaNs of a column, or of a field of structs."""
    values = rows.column(path[0])
    values = pc.struct_field(values, list(path[1:])) if len(path) > 1 else values
    return int(pc.sum(pc.is_nan(values)).as_py() or 0)
