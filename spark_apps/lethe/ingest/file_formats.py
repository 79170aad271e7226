"""Opens buffered files of the formats in `spec.buffer.format`, as a schema and rows in pieces.

Invariant: types of the table's columns are never inferred. Formats with declared types are read with these types; JSON and CSV
are read with the types of the table. A damaged file raises BadFile, or an error of the decoder.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.orc as orc

from lethe.contract.csv_dialect import RFC_4180, CsvDialect
from lethe.contract.settings import FileFormat
from lethe.decoder.limits import Limits
from lethe.ingest.avro_format import open_avro
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.csv_format import open_csv
from lethe.ingest.hybrid_calendar import calendar_of_orc, holds_times
from lethe.ingest.json_format import open_json
from lethe.ingest.opened_file import OpenedFile
from lethe.ingest.parquet_format import open_parquet
from lethe.ingest.text_blocks import HEAD_BYTES, TextFile, compression_of


@dataclass(frozen=True)
class Format:
    """How to open a file of one format."""

    name: str
    open: Callable[[Any, pa.Schema], OpenedFile]  # takes the file and the table's columns, which only text formats use
    typed: bool = True  # files declare the types of their columns
    null_is_absent: bool = False  # True: a missing column and a column of nulls look the same
    finite: bool = False  # True: it has no NaN and no infinite numbers


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
# The first bytes of files. The fifth byte of a Parquet file is the first of a page header or of the footer.
_MAGIC: Final = {b"PAR1\x15": FileFormat.PARQUET, b"ORC": FileFormat.ORC, b"Obj\x01": FileFormat.AVRO}


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
    Raises: BadFile, if the first bytes are those of another format; errors of the decoder.
    """
    expected = FORMATS[format_]
    head = file.read(HEAD_BYTES)
    file.seek(0)
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), format_)
    # A CSV file may begin with the letters ORC, but contains no control characters.
    is_text = format_ is FileFormat.CSV and found is FileFormat.ORC and min(head[:8]) >= ord("\t")
    if found is not format_ and not is_text:
        raise BadFile("UnreadableFile", f"it is a file of {FORMATS[found].name}, expected {expected.name}")
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
