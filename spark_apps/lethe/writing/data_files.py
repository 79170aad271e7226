"""Writes the rows of partitions as data files: rows in the table's order, files of about the target size. I/O.

Arrow writes only what it certainly writes as Iceberg does. For other tables `Unsupported` says why, and Spark writes them.
"""

import json
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import to_json
from pyiceberg.partitioning import PartitionField
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from lethe.files.bounds import partition_text_of_json
from lethe.ingest.exact_values import writable
from lethe.ingest.parquet_types import FIELD_ID
from lethe.ingest.registrable import RegisterTarget, by_field_id, columns_of, data_file_document
from lethe.ingest.schema_fit import BATCH_IDS
from lethe.storage.file_io import file_io
from lethe.storage.properties import without_location_providers
from lethe.vacuum.plan import has_bloom_filters

GROUP_BYTES: Final = 128 * 1024**2
"""The rows of a row group have at most so many bytes in memory before they are encoded."""
_FORMAT: Final = "write.format.default"
_ENCRYPTED: Final = "encryption.key-id"
_PARQUET: Final = "write.parquet."
_CODECS: Final = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "brotli": "brotli",
    "lz4": "lz4",
    "uncompressed": "none",
}
_PLAIN: Final = (
    BooleanType,
    IntegerType,
    LongType,
    FloatType,
    DoubleType,
    DateType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
    DecimalType,
)

_FIRST_RATIO: Final = 0.25
"""Bytes in a file for each byte in memory, until the first row group of a file shows it."""


class Unsupported(Exception):
    """Arrow does not write this table. The text says why, and contains no values."""


@dataclass(frozen=True)
class SortKey:
    """A column of the sort order."""

    name: str
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class TableLayout:
    """A table to write. It is pickled and sent to the workers, so it contains JSON."""

    target: RegisterTarget
    columns: pa.Schema
    """The columns of the rows, as Spark reads the table."""
    sort_order_json: str
    location: str
    """URI of the table, and of the folder that all new files are in."""
    folder: str
    target_file_size: int
    """Bytes."""
    io_properties: Mapping[str, str] = field(repr=False)
    """PyIceberg's FileIO properties of the table."""

    def check(self) -> None:
        """Refuse a layout that cannot be written without Spark.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        properties = self.target.properties
        if properties.get(_FORMAT, "parquet").lower() != "parquet":
            raise Unsupported(f"its files are {properties[_FORMAT]}")
        if _ENCRYPTED in properties:
            raise Unsupported(f"it has the property {_ENCRYPTED}")
        parquet_options(properties)
        _ = self.file_schema, self.sort_keys
        for partition_field in self.target.spec.fields:
            self._check_partition(partition_field)

    @property
    def batch_column(self) -> str:
        """The current name of the column with the batch ids, which the table knows by its field id."""
        return self.target.name(self.target.field_id)

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns of a data file: those of the rows, with Iceberg's field ids. The ids of batches are a dictionary.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        fields = []
        for column in self.target.schema.fields:
            kind = self.columns.field(column.name).type
            kind = BATCH_IDS if column.name == self.batch_column else _type_with_ids(kind, column.field_type)
            fields.append(_field(column.name, kind, column))
        return pa.schema(fields)

    @cached_property
    def partition_types(self) -> tuple[IcebergType, ...]:
        """The types of the values of a partition, in the order of the spec's fields."""
        schema = self.target.schema
        return tuple(f.transform.result_type(schema.find_type(f.source_id)) for f in self.target.spec.fields)

    @cached_property
    def sort_order(self) -> SortOrder:
        """The sort order that new data files name. It is parsed at the first use."""
        return SortOrder.model_validate_json(self.sort_order_json)

    @cached_property
    def sort_keys(self) -> tuple[SortKey, ...]:
        """The keys of the table's sort order.

        Raises:
            Unsupported: Arrow does not write this table.
        """
        return sort_keys_of(self.target, self.sort_order)

    @property
    def batches_in_order(self) -> bool:
        """Whether rows are in order if their batches are: the table is sorted by nothing else."""
        return self.batches_first and len(self.sort_keys) <= 1

    @property
    def batches_first(self) -> bool:
        """Whether rows of one batch are before those of the next."""
        first = self.sort_keys[:1]
        return not first or (first[0].name == self.batch_column and not first[0].is_descending)

    def _check_partition(self, partition_field: PartitionField) -> None:
        name, kind = (
            self.target.name(partition_field.source_id),
            self.target.schema.find_type(partition_field.source_id),
        )
        if isinstance(partition_field.transform, VoidTransform):
            return
        if isinstance(partition_field.transform, UnknownTransform) or name not in self.columns.names:
            raise Unsupported("it has a partition that is not one of a plain column")
        if isinstance(kind, (FloatType, DoubleType)) or not isinstance(kind, _PLAIN):
            raise Unsupported(f"it is partitioned by a {kind}")


def _type_with_ids(kind: pa.DataType, column_type: IcebergType) -> pa.DataType:
    match column_type:
        case StructType(fields=fields):
            return pa.struct([_field(f.name, _type_with_ids(kind.field(f.name).type, f.field_type), f) for f in fields])
        case ListType(element_field=element):
            return pa.list_(_field("element", _type_with_ids(kind.value_type, element.field_type), element))
        case MapType(key_field=key, value_field=value):
            return pa.map_(
                _field("key", _type_with_ids(kind.key_type, key.field_type), key),
                _field("value", _type_with_ids(kind.item_type, value.field_type), value),
            )
        case FixedType():
            return pa.binary(len(column_type))
        case _ if isinstance(column_type, _PLAIN):
            return kind
    raise Unsupported(f"it has a column of type {column_type}")


def sort_keys_of(target: RegisterTarget, order: SortOrder) -> tuple[SortKey, ...]:
    """The columns of a sort order.

    Raises:
        Unsupported: Arrow does not write this table.
    """
    keys = []
    for sort_field in order.fields:
        name, kind = target.name(sort_field.source_id), target.schema.find_type(sort_field.source_id)
        if not isinstance(sort_field.transform, IdentityTransform) or "." in name:
            raise Unsupported("its sort order is not one of plain columns")
        if isinstance(kind, (FloatType, DoubleType)) or not isinstance(kind, _PLAIN):
            raise Unsupported(f"it is sorted by a {kind}")
        keys.append(
            SortKey(name, sort_field.direction is SortDirection.DESC, sort_field.null_order is NullOrder.NULLS_FIRST)
        )
    return tuple(keys)


def parquet_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """Arrow's options for what the table's properties say.

    Raises:
        Unsupported: Arrow does not write this table.
    """
    if has_bloom_filters(properties):
        raise Unsupported("it has Bloom filters")
    codec = _CODECS.get(properties.get(f"{_PARQUET}compression-codec", "zstd").lower())
    if codec is None:
        raise Unsupported("Arrow does not have its compression codec")
    level = properties.get(f"{_PARQUET}compression-level")
    return {
        "compression": codec,
        "compression_level": int(level) if level is not None and codec in ("zstd", "gzip", "brotli") else None,
        "data_page_size": int(properties.get(f"{_PARQUET}page-size-bytes", 1 << 20)),
        "dictionary_pagesize_limit": int(properties.get(f"{_PARQUET}dict-size-bytes", 2 << 20)),
        "store_decimal_as_integer": True,
        "store_schema": False,
        "write_page_index": True,
    }


def row_group_bytes(properties: Mapping[str, str]) -> int:
    """The size of a row group in a file, in bytes."""
    return int(properties.get(f"{_PARQUET}row-group-size-bytes", 128 << 20))


def _field(name: str, kind: pa.DataType, column: NestedField) -> pa.Field:
    return pa.field(name, kind, nullable=not column.required, metadata={FIELD_ID: str(column.field_id).encode()})


def float_columns(
    fields: pa.Schema | pa.StructType, parent_path: tuple[str, ...] = ()
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The columns, and fields of structs, whose NaNs Iceberg counts: their ids, and the names on the way to them."""
    for column in fields:
        path = (*parent_path, column.name)
        if pa.types.is_floating(column.type):
            yield int(column.metadata[FIELD_ID]), path
        elif pa.types.is_struct(column.type):
            yield from float_columns(column.type, path)


def without_unused(rows: pa.Table) -> pa.Table:
    """The rows, with dictionaries of nothing but their own values: a value of other rows must not be in a file.

    Arrow writes a dictionary as it is, also the values that no row has.
    """
    rows = rows.unify_dictionaries().combine_chunks()
    for index, column in enumerate(rows.schema):
        if pa.types.is_dictionary(column.type):
            rows = rows.set_column(index, column, _without_unused(rows.column(index)))
    return rows


def _without_unused(column: pa.ChunkedArray) -> Any:
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no rows
        return column
    values, indices = encoded.dictionary, encoded.indices
    present = indices.drop_null().to_numpy()
    used = np.zeros(len(values), np.bool_)
    used[present] = True
    if used.all():
        return column
    moved = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    kept = pa.DictionaryArray.from_arrays(moved.take(indices), values.filter(pa.array(used)))
    return kept.cast(column.type)


def in_order(rows: pa.Table, keys: Sequence[SortKey]) -> pa.Table:
    """The rows in this order; rows that are in it already are not moved. Equal rows stay in their order."""
    if not keys or rows.num_rows < 2:
        return rows
    ranks = [_ranks(rows.column(key.name), key) for key in keys]
    if _is_sorted(ranks):
        return rows
    return rows.take(pa.array(np.lexsort(ranks[::-1])))


def _ranks(column: pa.ChunkedArray, key: SortKey) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Integers in the order of the values."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    count = len(encoded.dictionary)
    sorting = pc.sort_indices(encoded.dictionary).to_numpy()
    rank_of = np.empty(count + 1, np.int64)
    rank_of[sorting] = np.arange(count)
    if key.is_descending:
        rank_of = -rank_of
    rank_of[count] = -count - 1 if key.nulls_first else count + 1
    return rank_of[encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)]


def _is_sorted(ranks: Sequence["np.ndarray[Any, np.dtype[np.int64]]"]) -> bool:
    equal: Any = True
    for values in ranks:
        before, after = values[:-1], values[1:]
        if bool(np.any(equal & (before > after))):
            return False
        equal = equal & (before == after)
    return True


@dataclass(frozen=True)
class TablePartition:
    """A partition of a table."""

    values: tuple[Any, ...]
    """Iceberg's physical values, in the order of the spec's fields: a day is the number of days since 1970."""

    @property
    def hash(self) -> int:
        """A number that is the same in each process."""
        return zlib.crc32(repr(self.values).encode())

    def path(self, layout: TableLayout) -> str:
        """The folder of its files, relative to the table's data."""
        return layout.target.spec.partition_to_path(Record(*self.values), layout.target.schema)

    def json(self, layout: TableLayout) -> list[Any]:
        """Iceberg's JSON of the values."""
        values = zip(layout.partition_types, self.values, strict=True)
        return [None if v is None else to_json(t, v) for t, v in values]  # type: ignore[arg-type]

    def text(self, layout: TableLayout) -> str | None:
        """The text by which the ledger knows it (`lethe.files.bounds`); None: it has none."""
        types = [str(t) for t in layout.partition_types]
        return partition_text_of_json(layout.target.spec.spec_id, types, self.json(layout))


@dataclass(frozen=True)
class PartitionedRows:
    """Which partition each row is in."""

    partitions: Sequence[TablePartition]
    index: "np.ndarray[Any, np.dtype[np.int64]] | None"
    """Indices of `partitions`, one per row. None: all rows are in the first one."""


def partitions_of(rows: pa.Table, layout: TableLayout) -> PartitionedRows:
    """Find the partition of each row. There must be rows.

    The transforms are those of `pyiceberg-core`, which computes whole columns.
    """
    index: np.ndarray[Any, np.dtype[np.int64]] | None = None
    values: list[tuple[Any, ...]] = [()]
    for partition_field in layout.target.spec.fields:
        if isinstance(partition_field.transform, VoidTransform):
            values = [(*v, None) for v in values]
            continue
        name, kind = (
            layout.target.name(partition_field.source_id),
            layout.target.schema.find_type(partition_field.source_id),
        )
        column = rows.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        of_rows = _physical(partition_field.transform.pyarrow_transform(kind)(column.combine_chunks()))
        encoded = of_rows.dictionary_encode(null_encoding="encode")
        texts = encoded.dictionary.to_pylist()
        if len(texts) == 1:
            values = [(*v, texts[0]) for v in values]
            continue
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if index is None:
            index, values = codes, [(*values[0], t) for t in texts]
            continue
        pairs, index = np.unique(index * len(texts) + codes, return_inverse=True)
        values = [(*values[pair // len(texts)], texts[pair % len(texts)]) for pair in pairs]
    return PartitionedRows([TablePartition(v) for v in values], index)


def batches_of(ids: pa.ChunkedArray, rows: PartitionedRows) -> dict[str, set[int]]:
    """Which partitions the rows of each batch are in.

    Args:
        ids: The batch of each row, as a dictionary (`lethe.ingest.schema_fit.BATCH_IDS`).

    Returns:
        Indices of `rows.partitions`, by batch id.
    """
    encoded = ids.unify_dictionaries().combine_chunks()
    names, codes = encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    count = len(rows.partitions)
    field_ids: dict[str, set[int]] = {}
    for pair in np.unique(codes if rows.index is None else codes * count + rows.index).tolist():
        code, partition = (pair, 0) if rows.index is None else divmod(pair, count)
        field_ids.setdefault(names[code], set()).add(partition)
    return field_ids


def _physical(values: pa.Array) -> pa.Array:
    """Values as integers where Iceberg's are."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_date32(values.type):
        return values.cast(pa.int32())
    if pa.types.is_timestamp(values.type):
        return values.cast(pa.int64())
    return values


def split(rows: pa.Table, index: "np.ndarray[Any, np.dtype[np.int64]]", count: int) -> list[pa.Table]:
    """The rows of each index from 0 to `count` - 1, in their order."""
    order = np.argsort(index.astype(np.uint16) if count <= 1 << 16 else index, kind="stable")
    ends = np.cumsum(np.bincount(index, minlength=count))
    moved = rows if bool(np.all(order[:-1] < order[1:])) else rows.take(pa.array(order))
    return [moved.slice(end - size, size) for end, size in zip(ends, np.diff(ends, prepend=0), strict=True)]


class DataFileWriter:
    """Writes rows of a table in one task. After an error it has deleted its files."""

    def __init__(self, layout: TableLayout) -> None:
        self._layout = layout
        self._io = file_io(layout.io_properties, layout.location)
        self._paths: list[str] = []

    def write(self, parts: Iterable[pa.Table]) -> Iterator[str]:
        """Write the rows of some partitions, and return Iceberg's JSON of each data file.

        Args:
            parts: Rows. Those of a part come before those of the next one in the sort order.
        """
        files: dict[TablePartition, _PartitionFiles] = {}
        try:
            for rows in parts:
                for partition, part in self._parts(rows):
                    if partition not in files:
                        files[partition] = _PartitionFiles(self._layout, partition, self._create)
                    files[partition].add(in_order(part, self._layout.sort_keys))
            for partition_files in files.values():
                yield from partition_files.close()
        except BaseException:
            for partition_files in files.values():
                partition_files.abort()
            for path in self._paths:
                with suppress(Exception):
                    self._io.delete(path)
            raise

    def _parts(self, rows: pa.Table) -> Iterator[tuple[TablePartition, pa.Table]]:
        if not rows.num_rows:
            return
        partitions = partitions_of(rows, self._layout)
        if partitions.index is None:
            yield partitions.partitions[0], rows
            return
        yield from zip(partitions.partitions, split(rows, partitions.index, len(partitions.partitions)), strict=True)

    def _create(self, partition: TablePartition) -> tuple[str, Any]:
        layout, name = self._layout, f"00000-{uuid.uuid4()}.parquet"
        path = data_location(layout, partition, name)
        stream = self._io.new_output(path).create(overwrite=True)
        self._paths.append(path)
        return path, stream


def data_location(layout: TableLayout, partition: TablePartition, name: str) -> str:
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
        self, layout: TableLayout, partition: TablePartition, create: Callable[[TablePartition], tuple[str, Any]]
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
        """Write the rest.

        Returns:
            Iceberg's JSON of each file.
        """
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
        """How many bytes in memory the next row group may have."""
        return max(1, min(int(self._group_bytes / self._ratio), GROUP_BYTES))

    def _write_group(self) -> None:
        """Write one row group of the waiting rows."""
        table = pa.concat_tables(self._waiting)
        count = max(1, min(table.num_rows, table.num_rows * self._group_size() // max(self._waiting_bytes, 1)))
        rows, remaining = table.slice(0, count), table.slice(count)
        if self._file is None:
            self._file = _OpenFile(*self._create(self._partition), self._layout.file_schema, self._options)
        before, size = self._file.bytes, rows.nbytes
        self._file.write(rows)
        if size:
            self._ratio = max((self._file.bytes - before) / size, 0.01)
        self._waiting, self._waiting_bytes = ([remaining], remaining.nbytes) if remaining.num_rows else ([], 0)
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

    def close(self, layout: TableLayout, partition: TablePartition) -> str:
        """Close the file.

        Returns:
            Iceberg's JSON of the file.
        """
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
    return int(pc.sum(pc.is_nan(_at(rows, path))).as_py() or 0)


def extremes_in(rows: pa.Table | pa.RecordBatch, path: tuple[str, ...]) -> tuple[float, float] | None:
    """The least and the greatest number of a column, or of a field of structs; None: it has no numbers but NaNs."""
    values = _at(rows, path)
    numbers = pc.min_max(values.filter(pc.invert(pc.is_nan(values))))
    least, greatest = numbers["min"].as_py(), numbers["max"].as_py()
    return None if least is None else (least, greatest)


def _at(rows: pa.Table | pa.RecordBatch, path: tuple[str, ...]) -> Any:
    values = rows.column(path[0])
    return pc.struct_field(values, list(path[1:])) if len(path) > 1 else values
