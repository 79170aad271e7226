"""Reads from an object which rows of a table it holds, without the table's metadata. I/O: reads a footer, or a small file.

The first and the last bytes say what an object is, not its name. Only a few formats are read; all others are unknown. Anyone may
have written an object, so a decoder reads it (`lethe.decoder`).
"""

import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from lethe.decoder.objects import ObjectWork, Open, Unreadable, read_objects
from lethe.decoder.supervisor import limits_here
from lethe.erasure.strays import DATA_FILES, OTHER, UNKNOWN, StrayContent
from lethe.search.own_documents import BYTES_AT_MOST, is_checksum, is_own

NO_ROWS: Final = StrayContent(no_rows=True)
_PARQUET: Final = (b"PAR1", b"PARE")
_AVRO: Final = b"Obj\x01"
_ORC: Final = b"ORC"
_PUFFIN: Final = b"PFA1"
_POSITIONS: Final = ["file_path", "pos"]
_FIELD_ID: Final = b"PARQUET:field_id"
_HEADER_BYTES: Final = 4 * 2**20
_DELETION_VECTOR: Final = "deletion-vector-v1"


@dataclass(frozen=True)
class StrayWork(ObjectWork):
    """What a decoder does with objects that no snapshot names."""

    field_id: int  # of the batch column
    schema: Schema

    def bytes_read(self, size: int) -> int:
        return min(size, BYTES_AT_MOST)

    def read(self, stream: BinaryIO, path: str) -> Any:
        try:
            return asdict(content_of(stream, path, self.field_id, self.schema))
        except MemoryError:
            raise
        except Exception:  # of any kind: the bytes are someone else's
            return asdict(UNKNOWN)


def contents_of(
    paths: Iterable[str], open_object: Open, field_id: int, schema: Schema
) -> Iterator[tuple[str, StrayContent | None]]:
    """What objects contain; None: an object could not be fetched.

    Args:
        field_id: Of the batch column.
        schema: Of the table.
    Raises: NoDecoder; what `open_object` raises, unless it is an OSError.
    """
    for path, found in read_objects(StrayWork(limits_here(), field_id, schema), paths, open_object):
        if not isinstance(found, Unreadable):
            yield path, StrayContent(**found)
        else:
            yield path, StrayContent(costly=found.why) if found.why else None


def content_of(stream: BinaryIO, path: str, field_id: int, schema: Schema | None = None) -> StrayContent:
    """Args:
        field_id: Of the batch column.
        schema: Of the table, to know files without field ids by the names of their columns; None: such files are unknown.

    Returns: `UNKNOWN` for a data file that is incomplete, or whose format is not read; `OTHER` for anything else.
    """
    start = stream.read(8)
    if not start:
        return NO_ROWS
    if start[:4] in _PARQUET:
        return _of_parquet(stream, field_id, schema)
    if start[:4] == _AVRO:
        return _of_avro(stream, path, field_id)
    if start[:4] == _PUFFIN:
        return NO_ROWS if _has_only_positions(stream) else OTHER
    if start[:3] == _ORC or path.endswith(DATA_FILES):
        return UNKNOWN
    return NO_ROWS if is_own(path, _whole(stream)) else OTHER


def checksum_content(stream: BinaryIO, file: BinaryIO) -> StrayContent:
    """The content of an object with the name of a checksum file.

    Args:
        file: The file beside it whose checksum it may be.
    """
    return NO_ROWS if is_checksum(_whole(stream), file.seek(0, io.SEEK_END)) else OTHER


def _whole(stream: BinaryIO) -> bytes:
    """The content; empty, if it is large."""
    stream.seek(0)
    content = stream.read(BYTES_AT_MOST + 1)
    return content if len(content) <= BYTES_AT_MOST else b""


def _of_parquet(stream: BinaryIO, field_id: int, schema: Schema | None) -> StrayContent:
    stream.seek(0)
    try:
        file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
        return _content(file.metadata, file.schema_arrow, field_id, schema)
    except (pa.ArrowException, OSError, ValueError):
        return UNKNOWN


def _content(metadata: Any, schema: pa.Schema, field_id: int, of_table: Schema | None) -> StrayContent:
    if metadata.num_rows == 0 or schema.names == _POSITIONS:
        return NO_ROWS
    wanted = str(field_id).encode()
    ids = {f.name: (f.metadata or {}).get(_FIELD_ID) for f in schema}
    name = next((n for n, i in ids.items() if i == wanted), None)
    by_name = name is None
    if by_name:
        name = _named(ids, field_id, of_table)
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
            return StrayContent(of_table=True, by_name=by_name)
        if not isinstance(statistics.min, str) or not isinstance(statistics.max, str):
            return StrayContent(of_table=True, by_name=by_name)
        bounds.append((statistics.min, statistics.max))
    if not bounds:
        return StrayContent(of_table=True, lower="", upper="", by_name=by_name)  # rows without a batch
    return StrayContent(True, min(b[0] for b in bounds), max(b[1] for b in bounds), by_name=by_name)


def _named(ids: dict[str, bytes | None], field_id: int, of_table: Schema | None) -> str | None:
    """The batch column of a file without field ids, if all its columns are of the table; None: it is not of the table."""
    column = of_table.find_column_name(field_id) if of_table is not None else None
    known = {f.name for f in of_table.fields} if of_table is not None else set()
    return column if column in ids and not any(ids.values()) and ids.keys() <= known else None


def _of_avro(stream: BinaryIO, path: str, field_id: int) -> StrayContent:
    """An Avro file has its schema in its first bytes. The values are not read."""
    stream.seek(0)
    header = stream.read(_HEADER_BYTES)
    try:
        schema: Any = fastavro.reader(io.BytesIO(header)).writer_schema
        fields = schema["fields"]
    except Exception:
        return UNKNOWN
    if is_own(path, header):
        return NO_ROWS
    return StrayContent(of_table=any(f.get("field-id") == field_id for f in fields))


def _has_only_positions(stream: BinaryIO) -> bool:
    """Whether all blobs of a Puffin file are deletion vectors."""
    try:
        end = stream.seek(0, io.SEEK_END)
        stream.seek(end - 12)
        tail = stream.read(12)
        size, flags = int.from_bytes(tail[:4], "little"), tail[4]
        if tail[8:] != _PUFFIN or flags or size > _HEADER_BYTES:
            return False
        stream.seek(end - 12 - size)
        blobs = json.loads(stream.read(size))["blobs"]
        return all(b["type"] == _DELETION_VECTOR for b in blobs)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
