"""Writes a data file without the rows of some batches. Runs in Spark's Python workers, without Spark. I/O.

A purge only filters: the order, the partition and the columns of a file stay. So a file needs no sort and no shuffle, and its
rows need not become objects. Row groups without such rows are copied as bytes (`lethe.purge.splicing`), and Arrow encodes the
others again. Only files for which that is certain are written. For others `Unsuitable` says why, and Spark rewrites them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO, load_file_io

from lethe.files.bounds import IdIndex
from lethe.ingest.parquet_types import FIELD_ID, misfit
from lethe.ingest.registrable import Target, by_field_id, columns_of, data_file_document
from lethe.purge.footer import Unreadable
from lethe.purge.splicing import Splice, footer_of, groups_of

_ROWS_AT_ONCE: Final = 131_072
# An encoded row group has about so many bytes in memory before it is encoded.
_GROUP_BYTES: Final = 128 * 1024**2
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
_UNORDERED: Final = "its rows are not in the order of batches"


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
    # Bytes of row groups that were copied, and of those that were encoded again.
    copied: int = 0
    encoded: int = 0
    # Why there is no new file.
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
            return self._filtered(io, file)
        except Unsuitable as e:
            return Filtered(file.path, unsuitable=str(e))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as e:
            # Of the file's content. The text may contain a value.
            return Filtered(file.path, unsuitable=type(e).__name__)

    def _filtered(self, io: FileIO, file: FileToFilter) -> Filtered:
        """Raises: Unsuitable."""
        given = io.new_input(file.path)
        with given.open() as stream:
            source = Source(stream, len(given), self.target)
            try:
                with io.new_output(file.to).create(overwrite=True) as sink:
                    rewrite = _Rewrite(source, sink, file.loss.ids)
                    rewrite.run()
                if rewrite.left_out != file.loss.rows or rewrite.kept + rewrite.left_out != file.records:
                    raise Unsuitable("the number of its rows is not the one that was found before")
                return Filtered(file.path, self._document(io, file, rewrite), rewrite.copied, rewrite.encoded)
            except BaseException:
                with suppress(Exception):
                    io.delete(file.to)
                raise

    def _document(self, io: FileIO, file: FileToFilter, rewrite: "_Rewrite") -> str:
        """Iceberg's JSON of the new file."""
        written = io.new_input(file.to)
        with written.open() as stream:
            metadata = pq.read_metadata(stream)
        columns = columns_of(metadata, self.target)
        found = data_file_document(metadata, file.to, len(written), columns, self.target)
        before = json.loads(file.document)
        kept = {k: before[k] for k in ("spec-id", "partition", "sort-order-id") if k in before}
        return json.dumps(found | kept | {"nan-value-counts": by_field_id(rewrite.nans_after(nans_of(before)))})


@dataclass(frozen=True)
class GroupBounds:
    """The bounds of the batch column in a row group. None: unknown."""

    lower: str | None
    upper: str | None


class Source:
    """An open data file that may be filtered. Raises: Unsuitable."""

    def __init__(self, stream: Any, size: int, target: Target) -> None:
        self.stream = stream
        self.parquet = pq.ParquetFile(stream)
        self.batch_column = target.name(target.field_id)
        self.schema = suitable_schema(self.parquet, target)
        self.options = writer_options(target.properties, self.parquet)
        require_same_schema(self.parquet, self.schema, self.options)
        try:
            self.footer = footer_of(stream, size)
        except Unreadable as e:
            raise Unsuitable(str(e)) from None

    def bounds_of(self, group: int) -> GroupBounds:
        """Known only if every row of the row group has a batch."""
        of_group = self.parquet.metadata.row_group(group)
        columns = (of_group.column(n) for n in range(of_group.num_columns))
        statistics = next(c.statistics for c in columns if c.path_in_schema == self.batch_column)
        if statistics is None or not statistics.has_min_max or statistics.null_count != 0:
            return GroupBounds(None, None)
        return GroupBounds(str(statistics.min), str(statistics.max))


class _Rewrite:
    """Writes the rows of a file that stay, in their order."""

    def __init__(self, source: Source, sink: Any, ids: frozenset[str]) -> None:
        self._source, self._index = source, IdIndex(ids)
        self._wanted = pa.array(sorted(ids), pa.string())
        self._groups = groups_of(source.footer)
        self._splice = Splice(sink, source.footer)
        self._last: str | None = None  # the batch of the last row
        self._floats = dict(_floats(source.schema))
        # NaNs of encoded row groups, by field id: of the rows that stay, and of the others.
        self._nans, self._nans_left_out = dict.fromkeys(self._floats, 0), dict.fromkeys(self._floats, 0)
        # Numbers of rows.
        self.kept = self.left_out = 0
        # Numbers of bytes.
        self.copied = self.encoded = 0

    def run(self) -> None:
        """Raises: Unsuitable, if the rows are not in the order of batches: then Spark sorts them."""
        try:
            for number, group in enumerate(self._groups):
                bounds = self._source.bounds_of(number)
                if bounds.lower is None or bounds.upper is None or self._index.might_hold(bounds):
                    self._encode(number)
                else:
                    self._require_order(bounds.lower, bounds.upper)
                    self.copied += self._splice.add(self._source.stream, group)
                    self.kept += self._source.parquet.metadata.row_group(number).num_rows
            self._splice.close()
        except Unreadable as e:
            raise Unsuitable(str(e)) from None

    def nans_after(self, before: Mapping[int, int]) -> dict[int, int]:
        """NaNs of the new file, by field id, as far as they are known.

        Args:
            before: Of the old one.
        """
        if not self.copied:
            return self._nans
        return {i: before[i] - n for i, n in self._nans_left_out.items() if i in before}

    def _encode(self, group: int) -> None:
        waiting: list[pa.RecordBatch] = []
        for rows in self._rows(group):
            waiting.append(rows)
            if sum(w.nbytes for w in waiting) >= _GROUP_BYTES:
                self._write(waiting)
                waiting = []
        if waiting:
            self._write(waiting)

    def _write(self, rows: Sequence[pa.RecordBatch]) -> None:
        made = BytesIO()
        table = pa.Table.from_batches(rows)
        pq.write_table(table, made, row_group_size=table.num_rows, **self._source.options)
        for group in groups_of(footer_of(made, made.tell())):
            self.encoded += self._splice.add(made, group)

    def _rows(self, group: int) -> Iterator[pa.RecordBatch]:
        for batch in self._source.parquet.iter_batches(_ROWS_AT_ONCE, row_groups=[group], use_threads=False):
            of_batch = batch.column(self._source.batch_column)
            self._require_rows_in_order(of_batch)
            goes = pc.is_in(of_batch, value_set=self._wanted)
            out = goes.true_count
            rows = batch.filter(pc.invert(goes)) if out else batch
            self.left_out += out
            self.kept += rows.num_rows
            for field_id, path in self._floats.items():
                nans = _nans_in(rows, path)
                self._nans[field_id] += nans
                self._nans_left_out[field_id] += _nans_in(batch, path) - nans if out else 0
            if rows.num_rows:
                yield rows.cast(self._source.schema)

    def _require_rows_in_order(self, ids: pa.Array) -> None:
        """Rows without a batch are first. Raises: Unsuitable."""
        known = ids.drop_null()
        nulls_first = self._last is None and ids.slice(0, ids.null_count).null_count == ids.null_count
        if ids.null_count and not nulls_first:
            raise Unsuitable(_UNORDERED)
        if not len(known):
            return
        if not pc.all(pc.less_equal(known.slice(0, len(known) - 1), known.slice(1)), min_count=0).as_py():
            raise Unsuitable(_UNORDERED)
        self._require_order(known[0].as_py(), known[-1].as_py())

    def _require_order(self, lower: str, upper: str) -> None:
        if self._last is not None and lower < self._last:
            raise Unsuitable(_UNORDERED)
        self._last = upper


def nans_of(document: Mapping[str, Any]) -> dict[int, int]:
    """The NaNs of a data file by field id, of Iceberg's JSON."""
    found = document.get("nan-value-counts") or {"keys": [], "values": []}
    return dict(zip(found["keys"], found["values"], strict=True))


def _nans_in(rows: pa.RecordBatch, path: tuple[str, ...]) -> int:
    values = rows.column(path[0])
    values = pc.struct_field(values, list(path[1:])) if len(path) > 1 else values
    return int(pc.is_nan(values).true_count)


def _floats(fields: Iterable[pa.Field], at: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The columns, and fields of structs, whose NaNs Iceberg counts: their ids, and the names on the way to them."""
    for field in fields:
        path = (*at, field.name)
        if pa.types.is_floating(field.type):
            yield int(field.metadata[FIELD_ID]), path
        elif pa.types.is_struct(field.type):
            yield from _floats(field.type, path)


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
