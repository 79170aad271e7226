"""Reads single columns of a data file, in row order, by Iceberg field ids. I/O: reads one data file.

Reads Parquet, ORC and Avro, which are all formats of Iceberg data files. Only top-level columns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import accumulate, islice
from typing import Any, Final
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq

from lethe.files.values import Values, ValueType

_ROWS_PER_PIECE: Final = 65_536


class Unsure(Exception):
    """The file cannot be searched with certainty. The text says why, and contains no values."""


@dataclass(frozen=True)
class Columns:
    """An open data file."""

    names: Mapping[int, str]  # of columns, by the field ids in the file; empty: the file has no field ids
    known: tuple[str, ...]  # the names of all top-level columns
    rows: int  # the number of rows
    # Pieces of the column of this name, each with the position of its first row. Leaves out pieces that hold none of the values,
    # by the statistics of the file.
    read: Callable[[str, Iterable[Values]], Iterator[tuple[int, pa.ChunkedArray]]]


def open_columns(stream: Any, format_name: str) -> Columns:
    """Open a file of the format `PARQUET`, `ORC` or `AVRO`. Raises: Unsure; what the decoder and the storage raise."""
    match format_name:
        case "PARQUET":
            return _parquet(stream)
        case "ORC":
            return _orc(stream)
        case "AVRO":
            return _avro(stream)
        case _:
            raise Unsure(f"Lethe does not read files of the format {format_name}")


def _ids(schema: pa.Schema, key: bytes) -> dict[int, str]:
    return {int(f.metadata[key]): f.name for f in schema if f.metadata and key in f.metadata}


# --- Parquet --------------------------------------------------------------------------------------------------------


def _parquet(stream: Any) -> Columns:
    opened = pq.ParquetFile(stream)
    schema = opened.schema_arrow
    paths = [opened.schema.column(n).path for n in range(len(opened.schema))]

    def read(name: str, wanted: Iterable[Values]) -> Iterator[tuple[int, pa.ChunkedArray]]:
        # Arrow selects columns by path: a column named `a.b` has the same path as the field `b` of `a`.
        if paths.count(name) != 1 or schema.names.count(name) != 1 or any(p.startswith(f"{name}.") for p in paths):
            raise Unsure("several columns have this name, or the column is nested")
        texts = [name] if pa.types.is_string(schema.field(name).type) else []
        parquet = pq.ParquetFile(stream, metadata=opened.metadata, read_dictionary=texts)
        return _row_groups(parquet, name, tuple(wanted))

    return Columns(_ids(schema, b"PARQUET:field_id"), tuple(schema.names), opened.metadata.num_rows, read)


def _row_groups(
    parquet: pq.ParquetFile, column: str, wanted: tuple[Values, ...]
) -> Iterator[tuple[int, pa.ChunkedArray]]:
    metadata = parquet.metadata
    sizes = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    for n, start in enumerate(accumulate(sizes[:-1], initial=0) if sizes else ()):
        if any(_might_hold(metadata.row_group(n), column, values) for values in wanted):
            yield start, parquet.read_row_group(n, columns=[column], use_threads=False).column(0)


def _might_hold(group: Any, column: str, values: Values) -> bool:
    at = next(n for n in range(group.num_columns) if group.column(n).path_in_schema == column)
    statistics = group.column(at).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    lower, upper = statistics.min, statistics.max
    match values.kind.type:
        case ValueType.STRING if isinstance(lower, str) and isinstance(upper, str):
            return values.might_lie_in(lower, upper)
        case ValueType.INT | ValueType.LONG if isinstance(lower, int) and isinstance(upper, int):
            return values.might_lie_in(lower, upper)
        case ValueType.DATE if isinstance(lower, date) and isinstance(upper, date) and not isinstance(lower, datetime):
            return values.might_lie_in(_day(lower), _day(upper))
        case _:
            return True


def _day(moment: date) -> int:
    return (moment - date(1970, 1, 1)).days


# --- ORC and Avro ---------------------------------------------------------------------------------------------------


def _orc(stream: Any) -> Columns:
    opened = orc.ORCFile(stream)

    def read(name: str, _: Iterable[Values]) -> Iterator[tuple[int, pa.ChunkedArray]]:
        start = 0
        for n in range(opened.nstripes):
            stripe = opened.read_stripe(n, columns=[name])
            yield start, pa.chunked_array([stripe.column(0)])
            start += stripe.num_rows

    return Columns(_ids(opened.schema, b"iceberg.id"), tuple(opened.schema.names), opened.nrows, read)


def _avro(stream: Any) -> Columns:
    rows = sum(block.num_records for block in fastavro.block_reader(stream))
    stream.seek(0)
    fields: list[dict[str, Any]] = fastavro.reader(stream).writer_schema["fields"]

    def read(name: str, _: Iterable[Values]) -> Iterator[tuple[int, pa.ChunkedArray]]:
        stream.seek(0)
        values = (_plain(record[name]) for record in fastavro.reader(stream))
        for start in range(0, rows, _ROWS_PER_PIECE):
            yield start, pa.chunked_array([pa.array(list(islice(values, _ROWS_PER_PIECE)))])

    names = {int(f["field-id"]): str(f["name"]) for f in fields if "field-id" in f}
    return Columns(names, tuple(str(f["name"]) for f in fields), rows, read)


def _plain(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value
