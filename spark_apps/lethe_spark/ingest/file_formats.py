"""The formats of buffered files: an open file as a schema and its rows in pieces, by the name in `spec.buffer.format`.

Invariant: nothing is inferred that the table says. A format that declares its types is read as it declares; JSON and CSV
are read with the table's. What is wrong with a file is raised as BadFile, or as whatever the decoder raises.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from lethe_spark.ingest.avro_format import open_avro
from lethe_spark.ingest.buffer_store import BadFile
from lethe_spark.ingest.opened_file import ROWS_PER_BATCH, OpenedFile
from lethe_spark.ingest.text_formats import open_csv, open_json


@dataclass(frozen=True)
class Format:
    """How to open a file of one format.

    Args:
        open: The file, and the columns of the table, which only text formats look at.
        typed: Files say the types of their columns.
        null_is_absent: A column that is missing and one without values look the same.
    """

    name: str
    open: Callable[[Any, pa.Schema], OpenedFile]
    typed: bool = True
    null_is_absent: bool = False


def open_parquet(file: Any, _: pa.Schema) -> OpenedFile:
    parquet = pq.ParquetFile(file)

    def tables() -> Iterator[pa.Table]:
        if parquet.metadata.num_rows <= ROWS_PER_BATCH:
            # No threads: for a file of a few rows they cost more than the reading.
            yield parquet.read(use_threads=False)
            return
        for batch in parquet.iter_batches(ROWS_PER_BATCH):
            yield pa.Table.from_batches([batch])

    return OpenedFile(parquet.schema_arrow, tables())


def open_orc(file: Any, _: pa.Schema) -> OpenedFile:
    """Times are nanoseconds to Arrow, whatever wrote them: those before 1677 and after 2262 cannot be read."""
    opened = orc.ORCFile(file)
    stripes = (pa.Table.from_batches([opened.read_stripe(n)]) for n in range(opened.nstripes))
    return OpenedFile(opened.schema, stripes)


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "parquet": Format("Parquet", open_parquet),
        "orc": Format("ORC", open_orc),
        "avro": Format("Avro", open_avro),
        "json": Format("JSON", open_json, typed=False, null_is_absent=True),
        "csv": Format("CSV", open_csv, typed=False),
    }
)
# How files begin. The fifth byte of a Parquet file begins its first header or its footer.
_MAGIC: Final = {b"PAR1\x15": "parquet", b"ORC": "orc", b"Obj\x01": "avro"}
_GZIP: Final = b"\x1f\x8b"


def opened(file: Any, format_name: str, table: pa.Schema) -> OpenedFile:
    """Open a file of one of `FORMATS`; JSON and CSV may be compressed by gzip.

    Raises: BadFile, if it is plainly a file of another format; what the decoder raises.
    """
    expected = FORMATS[format_name]
    head = file.read(8)
    file.seek(0)
    found = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), format_name)
    # A CSV file could begin with the letters ORC, but holds no control characters.
    if found != format_name and not (format_name == "csv" and found == "orc" and min(head) >= ord("\t")):
        raise BadFile("UnreadableFile", f"it is a file of {FORMATS[found].name}, expected {expected.name}")
    if head.startswith(_GZIP):
        if expected.typed:
            raise BadFile("UnreadableFile", f"it is compressed by gzip, expected {expected.name}")
        file = pa.CompressedInputStream(file, "gzip")
    return expected.open(file, table)
