"""Writes a data file without the rows of some batches, with Arrow. Runs in Spark's Python workers, without Spark. I/O.

A purge only filters: the order, the partition and the columns of a file stay. So a file needs no sort and no shuffle, and its
rows need not become objects. Only files for which that is certain are written. For others `Unsuitable` says why, and Spark
rewrites them.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io

from lethe.ingest.parquet_types import FIELD_ID, misfit
from lethe.ingest.registrable import Target, by_field_id, columns_of, data_file_document

_ROWS_AT_ONCE: Final = 131_072
_PROPERTY: Final = "write.parquet."
# Iceberg's names of codecs, and Arrow's.
_CODECS: Final = {
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "brotli": "brotli",
    "lz4": "lz4",
    "uncompressed": "none",
}


class Unsuitable(Exception):
    """The file is not filtered. The text says why, and contains no values."""


@dataclass(frozen=True)
class Loss:
    """What a file loses."""

    # The batches whose rows are left out, and the number of these rows.
    ids: frozenset[str]
    rows: int


@dataclass(frozen=True)
class FileToFilter:
    """A data file, and what becomes of it."""

    path: str
    # Number of rows.
    records: int
    # URI of the new file. No other file has it.
    to: str
    loss: Loss
    # Iceberg's JSON of the file: its spec, partition and sort order are those of the new file.
    document: str


@dataclass(frozen=True)
class Filtered:
    """What became of a data file."""

    path: str
    # Iceberg's JSON of the new file; empty: there is none.
    document: str = ""
    # Why there is none.
    unsuitable: str = ""


@dataclass(frozen=True)
class Filter:
    """Filters files of one table. It is pickled and sent to the workers."""

    target: Target
    io_properties: dict[str, str]

    def __call__(self, file: FileToFilter) -> Filtered:
        """Raises: FileNotFoundError, and what the storage raises."""
        io = load_file_io(self.io_properties, file.path)
        try:
            return Filtered(file.path, self._filtered(io, file))
        except Unsuitable as e:
            return Filtered(file.path, unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the file's content. The text may contain a value.
            return Filtered(file.path, unsuitable=type(e).__name__)

    def _filtered(self, io: FileIO, file: FileToFilter) -> str:
        """Iceberg's JSON of the new file. Raises: Unsuitable."""
        with io.new_input(file.path).open() as stream:
            source = pq.ParquetFile(stream)
            schema = suitable_schema(source, self.target)
            options = writer_options(self.target.properties, source)
            require_same_schema(source, schema, options)
            try:
                rows = _Rows(source, schema, self.target, file.loss.ids)
                per_group = max(source.metadata.row_group(n).num_rows for n in range(source.num_row_groups))
                with (
                    io.new_output(file.to).create(overwrite=True) as sink,
                    pq.ParquetWriter(sink, schema, **options) as writer,
                ):
                    for batch in rows:
                        writer.write_batch(batch, row_group_size=per_group)
                    writer.add_key_value_metadata(_kept_metadata(source))
                if rows.left_out != file.loss.rows or rows.kept + rows.left_out != file.records:
                    raise Unsuitable("the number of its rows is not the one that was found before")
                return self._document(io, file, rows.nans)
            except BaseException:
                with suppress(Exception):
                    io.delete(file.to)
                raise

    def _document(self, io: FileIO, file: FileToFilter, nans: dict[int, int]) -> str:
        written = io.new_input(file.to)
        with written.open() as stream:
            metadata = pq.read_metadata(stream)
        columns = columns_of(metadata, self.target)
        found = data_file_document(metadata, file.to, len(written), columns, self.target)
        before = json.loads(file.document)
        kept = {k: before[k] for k in ("spec-id", "partition", "sort-order-id") if k in before}
        return json.dumps(found | kept | {"nan-value-counts": by_field_id(nans)})


class _Rows:
    """The rows that stay, in their order."""

    def __init__(self, source: pq.ParquetFile, schema: pa.Schema, target: Target, ids: frozenset[str]) -> None:
        self._source, self._schema = source, schema
        self._column = target.name(target.field_id)
        self._ids = pa.array(sorted(ids), pa.string())
        self.kept = self.left_out = 0
        self._floats = dict(_floats(schema))
        # NaNs of the rows that stay, by field id.
        self.nans = dict.fromkeys(self._floats, 0)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Raises: Unsuitable, if the rows are not in the order of batches: then Spark sorts them."""
        last: str | None = None
        for batch in self._source.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            of_batch = batch.column(self._column)
            last = _require_order(of_batch, last)
            goes = pc.is_in(of_batch, value_set=self._ids)
            out = goes.true_count
            rows = batch.filter(pc.invert(goes)) if out else batch
            self.left_out += out
            self.kept += rows.num_rows
            for field_id, path in self._floats.items():
                values = rows.column(path[0])
                values = pc.struct_field(values, list(path[1:])) if len(path) > 1 else values
                self.nans[field_id] += pc.is_nan(values).true_count
            if rows.num_rows:
                yield rows.cast(self._schema)


def _floats(fields: Iterable[pa.Field], at: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The columns, and fields of structs, whose NaNs Iceberg counts: their ids, and the names on the way to them."""
    for field in fields:
        path = (*at, field.name)
        if pa.types.is_floating(field.type):
            yield int(field.metadata[FIELD_ID]), path
        elif pa.types.is_struct(field.type):
            yield from _floats(field.type, path)


def _require_order(ids: pa.Array, last: str | None) -> str | None:
    """The last id. Raises: Unsuitable, if an id is less than the one before it. Nulls are first."""
    known = ids.drop_null()
    if not len(known):
        return last
    if len(known) < len(ids) and (last is not None or ids.slice(0, ids.null_count).null_count < ids.null_count):
        raise Unsuitable("its rows are not in the order of batches")
    before, after = known.slice(0, len(known) - 1), known.slice(1)
    if (last is not None and known[0].as_py() < last) or not pc.all(pc.less_equal(before, after), min_count=0).as_py():
        raise Unsuitable("its rows are not in the order of batches")
    return str(known[-1].as_py())


def suitable_schema(source: pq.ParquetFile, target: Target) -> pa.Schema:
    """The columns to write: those of the file. Raises: Unsuitable."""
    metadata, schema = source.metadata, source.schema_arrow
    if problem := misfit(metadata.schema, target.schema, target.ids, may_lack=True):
        raise Unsuitable(problem)
    if any(FIELD_ID not in (f.metadata or {}) for f in schema):
        raise Unsuitable("it has no field ids")
    if schema.names.count(target.name(target.field_id)) != 1:
        raise Unsuitable("it does not have the batch column")
    return schema.remove_metadata()


def _kept_metadata(source: pq.ParquetFile) -> dict[bytes, bytes]:
    """What the writer of a file says of it, such as Iceberg's schema, without what only Arrow reads."""
    return {k: v for k, v in (source.metadata.metadata or {}).items() if k != b"ARROW:schema"}


def writer_options(properties: Any, source: pq.ParquetFile) -> dict[str, Any]:
    """Arrow's options for what the table's properties say. Raises: Unsuitable."""
    if any(k.startswith(f"{_PROPERTY}bloom-filter-enabled.") and v == "true" for k, v in properties.items()):
        raise Unsuitable("the table has Bloom filters, which Arrow does not write")
    codec = _CODECS.get(properties.get(f"{_PROPERTY}compression-codec", "zstd").lower())
    if codec is None:
        raise Unsuitable("Arrow does not have the table's compression codec")
    level = properties.get(f"{_PROPERTY}compression-level")
    first = source.metadata.schema
    decimals = [c for c in (first.column(n) for n in range(len(first))) if c.logical_type.type == "DECIMAL"]
    return {
        "compression": codec,
        "compression_level": int(level) if level is not None and codec in ("zstd", "gzip", "brotli") else None,
        "data_page_size": int(properties.get(f"{_PROPERTY}page-size-bytes", 1 << 20)),
        "dictionary_pagesize_limit": int(properties.get(f"{_PROPERTY}dict-size-bytes", 2 << 20)),
        "store_decimal_as_integer": any(c.physical_type in ("INT32", "INT64") for c in decimals),
        "store_schema": False,
        "write_page_index": True,
    }


def require_same_schema(source: pq.ParquetFile, schema: pa.Schema, options: dict[str, Any]) -> None:
    """Raises: Unsuitable, if Arrow would write other types or field ids than those of the file."""
    sink = BytesIO()
    with pq.ParquetWriter(sink, schema, **options):
        pass
    written = pq.ParquetFile(sink)
    same_ids = written.schema_arrow.remove_metadata().equals(schema, check_metadata=True)
    if not same_ids or not written.schema.equals(source.schema):
        raise Unsuitable("Arrow writes some of its columns with another type")
