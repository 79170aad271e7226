"""Opens buffered files of the formats in `spec.buffer.format`, as a schema and rows in pieces.

Invariant: types of the table's columns are never inferred. Formats with declared types are read with these types; JSON and CSV
are read with the types of the table. A damaged file raises BadFile, or an error of the decoder.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from lethe.contract.settings import FileFormat
from lethe.ingest.avro_format import open_avro
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.opened_file import ROWS_PER_BATCH, OpenedFile
from lethe.ingest.text_formats import open_csv, open_json


@dataclass(frozen=True)
class Format:
    """How to open a file of one format."""

    name: str
    open: Callable[[Any, pa.Schema], OpenedFile]  # takes the file and the table's columns, which only text formats use
    typed: bool = True  # files declare the types of their columns
    null_is_absent: bool = False  # True: a missing column and a column of nulls look the same


def open_parquet(file: Any, _: pa.Schema) -> OpenedFile:
    parquet = pq.ParquetFile(file)

    def tables() -> Iterator[pa.Table]:
        if parquet.metadata.num_rows <= ROWS_PER_BATCH:
            # Without threads: for a small file they cost more than reading.
            yield parquet.read(use_threads=False)
            return
        for batch in parquet.iter_batches(ROWS_PER_BATCH):
            yield pa.Table.from_batches([batch])

    footer = parquet.metadata
    expanded = sum(footer.row_group(n).total_byte_size for n in range(footer.num_row_groups))
    return OpenedFile(parquet.schema_arrow, tables(), footer.num_rows, expanded)


def open_orc(file: Any, _: pa.Schema) -> OpenedFile:
    """Open an ORC file. Arrow reads all ORC timestamps as nanoseconds, so those before 1677 and after 2262 cannot be read."""
    opened = orc.ORCFile(file)
    stripes = (pa.Table.from_batches([opened.read_stripe(n)]) for n in range(opened.nstripes))
    return OpenedFile(opened.schema, stripes, opened.nrows)


FORMATS: Final[Mapping[FileFormat, Format]] = MappingProxyType(
    {
        FileFormat.PARQUET: Format("Parquet", open_parquet),
        FileFormat.ORC: Format("ORC", open_orc),
        FileFormat.AVRO: Format("Avro", open_avro),
        FileFormat.JSON: Format("JSON", open_json, typed=False, null_is_absent=True),
        FileFormat.CSV: Format("CSV", open_csv, typed=False),
    }
)
# The first bytes of files. The fifth byte of a Parquet file is the first of a page header or of the footer.
_MAGIC: Final = {b"PAR1\x15": FileFormat.PARQUET, b"ORC": FileFormat.ORC, b"Obj\x01": FileFormat.AVRO}
_GZIP: Final = b"\x1f\x8b"


def opened(
    file: Any, format_: FileFormat, table: pa.Schema, text: Callable[[Any], Any] = lambda file: file
) -> OpenedFile:
    """Open a file of this format. JSON and CSV may be compressed with gzip.

    Args:
        text: What reads the decompressed text of JSON and CSV.
    Raises: BadFile, if the first bytes are those of another format; errors of the decoder.
    """
    expected = FORMATS[format_]
    head = file.read(8)
    file.seek(0)
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), format_)
    # A CSV file may begin with the letters ORC, but contains no control characters.
    is_text = format_ is FileFormat.CSV and found is FileFormat.ORC and min(head) >= ord("\t")
    if found is not format_ and not is_text:
        raise BadFile("UnreadableFile", f"it is a file of {FORMATS[found].name}, expected {expected.name}")
    if head.startswith(_GZIP):
        if expected.typed:
            raise BadFile("UnreadableFile", f"it is compressed by gzip, expected {expected.name}")
        file = pa.CompressedInputStream(file, "gzip")
    return expected.open(file if expected.typed else text(file), table)
