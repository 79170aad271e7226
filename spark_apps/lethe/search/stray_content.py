"""Reads from the footer of a data file which rows it holds, without the table's metadata. I/O: reads the footer."""

from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lethe.erasure.strays import UNKNOWN, StrayContent

_POSITIONS: Final = ["file_path", "pos"]
_FIELD_ID: Final = b"PARQUET:field_id"


def content_of(stream: BinaryIO, path: str, field_id: int) -> StrayContent:
    """Args:
    field_id: Of the batch column.
    Returns: `UNKNOWN` for a file that is not Parquet, or is incomplete.
    """
    if not path.endswith(".parquet"):
        return UNKNOWN
    try:
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
        return _content(file.metadata, file.schema_arrow, field_id)
    except (pa.ArrowException, OSError, ValueError):
        return UNKNOWN


def _content(metadata: Any, schema: pa.Schema, field_id: int) -> StrayContent:
    if metadata.num_rows == 0 or schema.names == _POSITIONS:
        return StrayContent(no_rows=True)
    wanted = str(field_id).encode()
    name = next((f.name for f in schema if (f.metadata or {}).get(_FIELD_ID) == wanted), None)
    if name is None:
        return UNKNOWN
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == name)
    bounds: list[tuple[str, str]] = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(column)
        statistics = chunk.statistics
        if statistics is None or not statistics.has_min_max:
            if statistics is not None and statistics.has_null_count and statistics.null_count == chunk.num_values:
                continue  # no batch ids
            return StrayContent(of_table=True)
        if not isinstance(statistics.min, str) or not isinstance(statistics.max, str):
            return StrayContent(of_table=True)
        bounds.append((statistics.min, statistics.max))
    if not bounds:
        return StrayContent(of_table=True, lower="", upper="")  # rows without a batch
    return StrayContent(True, min(b[0] for b in bounds), max(b[1] for b in bounds))
