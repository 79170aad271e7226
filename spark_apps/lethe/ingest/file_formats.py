"""Opens buffered files of the formats in `spec.buffer.format`, as a schema and rows in pieces. I/O on an open file.

Types of the table's columns are never inferred. Formats with declared types are read with these types; JSON and CSV are read with
the types of the table. A damaged file raises BadFile, or an error of the decoder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc as orc
import pyarrow.parquet as pq

from lethe.contract.settings import RFC_4180, CsvDialect, FileFormat
from lethe.decoder.limits import Limits
from lethe.ingest import exact_values
from lethe.ingest.avro_format import open_avro
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.csv_format import join_csv, open_csv
from lethe.ingest.exact_values import (
    HybridCalendar,
    calendar_of,
    calendar_of_orc,
    first_flaw,
    holds_times,
    is_bytes,
    is_list,
    leaves,
)
from lethe.ingest.json_format import join_json, open_json
from lethe.ingest.text_blocks import (
    BOM,
    COMPRESSIONS,
    HEAD_BYTES,
    ROWS_PER_BATCH,
    JoinedFiles,
    OpenedFile,
    TextFile,
    compression_of,
)

_described: list[pa.Schema] = []
"""The last schema that Arrow's types describe completely. Most files of a producer have the same."""

_MAGIC: Final = {b"PAR1\x15": FileFormat.PARQUET, b"ORC": FileFormat.ORC, b"Obj\x01": FileFormat.AVRO}
"""The first bytes of files. The fifth byte of a Parquet file is the first of a page header or of the footer."""


class _WholeParquetFile(pq.ParquetFile):
    """A file of which all columns are read."""

    def _build_nested_paths(self) -> dict[str, list[int]]:
        return {}  # they take a tenth of the time of a small file, and are for reading some columns


def open_parquet(file: Any, table: pa.Schema) -> OpenedFile:
    """Open a Parquet file. Checksums of pages are verified, if there are any.

    What Parquet knows and Arrow's types do not say is kept: an INT96 is an instant, and an ENUM is text.
    """
    # Bytes in memory need no reading ahead.
    ahead = not isinstance(file, pa.BufferReader)
    parquet = _WholeParquetFile(file, page_checksum_verification=True, pre_buffer=ahead)
    schema, calendar = parquet.schema_arrow, calendar_of(parquet.metadata.metadata)
    if _described and schema.equals(_described[0]):
        shown, nanos = schema, False
    elif all(map(_is_described, schema.types)):
        _described[:] = [schema]
        shown, nanos = schema, False
    else:
        columns = [parquet.schema.column(n) for n in range(len(parquet.schema))]
        nanos = any(c.physical_type == "INT96" for c in columns)
        shown = _shown(schema, iter(columns), table)
    tables = _int96_tables(file, schema) if nanos else _tables(parquet)
    if calendar is not None and (calendar.datetimes or nanos):
        tables = _checked(tables, calendar)
    footer = parquet.metadata
    expanded = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    return OpenedFile(shown, tables, footer.num_rows, expanded)


def _tables(parquet: pq.ParquetFile) -> Iterator[pa.Table]:
    if parquet.metadata.num_rows <= ROWS_PER_BATCH:
        # Without threads: for a small file they cost more than reading.
        yield parquet.read(use_threads=False)
        return
    for batch in parquet.iter_batches(ROWS_PER_BATCH):
        yield pa.Table.from_batches([batch])


def _checked(tables: Iterator[pa.Table], calendar: HybridCalendar) -> Iterator[pa.Table]:
    row = 0
    for rows in tables:
        calendar.check(rows, row)
        yield rows
        row += rows.num_rows


# --- What Arrow's types do not say ------------------------------------------------------------------------------------


def _is_described(t: pa.DataType) -> bool:
    """Whether an Arrow type says all of the Parquet type.

    Arrow shows an INT96 as nanoseconds without a " "zone, and an ENUM as bytes.
    """
    if isinstance(t, pa.BaseExtensionType):
        return True
    if pa.types.is_nested(t):
        return all(_is_described(t.field(n).type) for n in range(t.num_fields))
    if pa.types.is_dictionary(t):
        return _is_described(t.value_type)
    return not (is_bytes(t) or (pa.types.is_timestamp(t) and t.unit == "ns" and t.tz is None))


def _shown(schema: pa.Schema, columns: Iterator[Any], table: pa.Schema) -> pa.Schema:
    """The columns with their meaning. `columns`: of pyarrow's `ParquetSchema`, in their order."""
    names = set(table.names)
    return pa.schema(
        [f.with_type(_meaning(f.type, columns, table.field(f.name).type if f.name in names else None)) for f in schema]
    )


def _meaning(t: pa.DataType, columns: Iterator[Any], target: pa.DataType | None) -> pa.DataType:
    if pa.types.is_struct(t):
        inner = {f.name: f.type for f in target} if target is not None and pa.types.is_struct(target) else {}
        return pa.struct([f.with_type(_meaning(f.type, columns, inner.get(f.name))) for f in t])
    if is_list(t):
        inner_type = target.value_type if target is not None and is_list(target) else None
        return pa.list_(t.value_field.with_type(_meaning(t.value_type, columns, inner_type)))
    if pa.types.is_map(t):
        key, item = (
            (target.key_type, target.item_type) if target is not None and pa.types.is_map(target) else (None, None)
        )
        return pa.map_(_meaning(t.key_type, columns, key), t.item_field.with_type(_meaning(t.item_type, columns, item)))
    column = next(columns)
    if column.physical_type == "INT96":
        # An instant for Spark, Impala and Trino. Hive writes local times.
        local = target is not None and pa.types.is_timestamp(target) and target.tz is None
        return pa.timestamp("us", None if local else "UTC")
    return pa.string() if column.logical_type.type == "ENUM" else t


def _int96_tables(file: Any, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of a file with columns of the type INT96, as microseconds.

    Raises:
        BadFile: These do not hold a value exactly.

    Arrow cuts off digits and lets the number overflow. So the columns are also read as nanoseconds and as seconds:
    microseconds are exact if they are the same nanoseconds (of which an overflow is the same in both), and do not overflow
    if the seconds do not.
    """
    names = [f.name for f in schema if not _is_described(f.type)]
    files = [
        pq.ParquetFile(file, page_checksum_verification=True, coerce_int96_timestamp_unit=unit)
        for unit in ("us", "ns", "s")
    ]
    batches = zip(
        files[0].iter_batches(ROWS_PER_BATCH),
        *(f.iter_batches(ROWS_PER_BATCH, columns=names) for f in files[1:]),
        strict=True,
    )
    row = 0
    for micros, nanos, seconds in batches:
        for name in names:
            of_units = [batch.column(name) for batch in (micros, nanos, seconds)]
            if _int96_problem(pa.StructArray.from_arrays(of_units, ["us", "ns", "s"]), name):
                joined = pa.chunked_array([pa.StructArray.from_arrays(of_units, ["us", "ns", "s"])])
                flaw = first_flaw(joined, lambda some, name=name: _int96_problem(some, name))  # type: ignore[misc]
                raise BadFile("SchemaMismatch", f"row {flaw.row + row}: column {flaw.path} {flaw.problem}")
        yield pa.Table.from_batches([micros])
        row += micros.num_rows


def _int96_problem(units: pa.Array, name: str) -> tuple[str, str] | None:
    """Whether a column, read in three units, is exact in microseconds."""
    micros, nanos, seconds = units.flatten()
    for (path, us), (_, ns), (_, s) in zip(*(list(leaves(a, name)) for a in (micros, nanos, seconds)), strict=True):
        if not pa.types.is_timestamp(us.type) or us.type.unit != "us":
            continue
        limits = pc.min_max(s.cast(pa.int64())).as_py()
        if limits["min"] is not None and not exact_values.allow_seconds(limits["min"], limits["max"]):
            return path, "holds a timestamp outside the years 1 to 9999"
        if (
            ns.type.unit == "ns"
            and not pc.all(pc.equal(pc.multiply(us.cast(pa.int64()), 1000), ns.cast(pa.int64())), min_count=0).as_py()
        ):
            return path, "holds a timestamp with nanoseconds, which cannot be converted to microseconds without loss"
    return None


@dataclass(frozen=True)
class Format:
    """How to open a file of one format."""

    name: str
    open: Callable[[Any, pa.Schema], OpenedFile]
    """Takes the file and the table's columns, which only text formats use."""
    typed: bool = True
    """Files declare the types of their columns."""
    null_is_absent: bool = False
    """True: a missing column and a column of nulls look the same."""
    finite: bool = False
    """True: it has no NaN and no infinite numbers."""


def open_orc(file: Any, _: pa.Schema) -> OpenedFile:
    """Open an ORC file. Arrow reads all ORC timestamps as nanoseconds, so those before 1677 and after 2262 cannot be read."""
    opened = orc.ORCFile(file)
    return OpenedFile(opened.schema, _orc_tables(opened), opened.nrows)


def _orc_tables(opened: Any) -> Iterator[pa.Table]:
    times = any(holds_times(f.type) for f in opened.schema)
    calendar = calendar_of_orc(opened.reader.serialized_file_tail()) if times else None
    row = 0
    for number in range(opened.nstripes):
        rows = pa.Table.from_batches([opened.read_stripe(number)])
        if calendar is not None:
            calendar.check(rows, row)
        yield rows
        row += rows.num_rows


FORMATS: Final[Mapping[FileFormat, Format]] = MappingProxyType(
    {
        FileFormat.PARQUET: Format("Parquet", open_parquet),
        FileFormat.ORC: Format("ORC", open_orc),
        FileFormat.AVRO: Format("Avro", open_avro),
        FileFormat.JSON: Format("JSON", open_json, typed=False, null_is_absent=True, finite=True),
        FileFormat.CSV: Format("CSV", open_csv, typed=False),
    }
)


def opened(
    file: Any,
    format_: FileFormat,
    table: pa.Schema,
    csv: CsvDialect = RFC_4180,
    batch_column: str = "",
    on_text: Callable[[int], object] = lambda _: None,
    nesting: int = Limits.nesting,
) -> OpenedFile:
    """Open a file of this format. JSON and CSV may be compressed.

    Args:
        csv: How CSV files are written.
        batch_column: Not in CSV files without a header.
        on_text: Called with the number of bytes of each block of JSON and CSV, decompressed, before it is decoded.
        nesting: The levels of objects and arrays that JSON may have.

    Raises:
        BadFile: The first bytes are those of another format.
        Exception: Errors of the decoder.
    """
    expected = FORMATS[format_]
    head = file.read(HEAD_BYTES)
    file.seek(0)
    magic_format = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), format_)
    # A CSV file may begin with the letters ORC, but contains no control characters.
    is_text = format_ is FileFormat.CSV and magic_format is FileFormat.ORC and min(head[:8]) >= ord("\t")
    if magic_format is not format_ and not is_text:
        raise BadFile("UnreadableFile", f"it is a file of {FORMATS[magic_format].name}, expected {expected.name}")
    compression = compression_of(head)
    if expected.typed:
        if compression is not None:
            raise BadFile("UnreadableFile", f"it is compressed by {compression.name}, expected {expected.name}")
        return expected.open(file, table)
    text = TextFile(file, compression, on_text, nesting)
    if format_ is FileFormat.CSV:
        positional: Sequence[str] = [n for n in table.names if n != batch_column]
        return open_csv(text, table, csv, positional)
    return expected.open(text, table)


def joined(
    files: Sequence[bytes], format_: FileFormat, table: pa.Schema, csv: CsvDialect, nesting: int
) -> JoinedFiles | None:
    """Read small files of text with one call of Arrow.

    Returns:
        None, if they have to be opened one by one.

    Raises:
        BadFile: Any of them cannot be used.
        Exception: Errors of the decoder.
    """
    found = None
    # Files of CSV are read together if they begin with the same header.
    begins = (BOM, *_MAGIC, *(c.magic for c in COMPRESSIONS))
    if format_ is FileFormat.JSON:
        found = join_json(files, table, nesting)
    elif format_ is FileFormat.CSV and not files[0].startswith(begins):
        found = join_csv(files, table, csv)
    return found if found is not None and found.rows.num_rows == sum(found.counts) else None
