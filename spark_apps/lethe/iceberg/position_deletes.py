"""Files of deletes by position: writes deletion vectors and position deletes, and reads those of one data file. I/O."""

import io
import json
import struct
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyroaring import FrozenBitMap64

from lethe.files.native_deletes import NO_POSITIONS
from lethe.iceberg.native_deletes import FILE_PATH, POSITION

PARALLEL_FILES: Final = 8
"""Files that are written or read at a time."""
_MAGIC: Final = b"\xd1\xd3\x39\x64"
"""The format of a deletion vector: its length, these bytes, a portable 64-bit Roaring bitmap, a checksum."""
PUFFIN: Final = b"PFA1"
"""The first and the last bytes of a Puffin file."""
_ROW_POSITION: Final = 2_147_483_645
"""Field id of Iceberg's metadata column `_pos`, which deletion vectors are about."""
_SCHEMA: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": str(FILE_PATH)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION)}),
    ]
)
_ROWS_AT_ONCE: Final = 1_000_000


@dataclass(frozen=True)
class DeletesOfFile:
    """Deletes by position of one data file, to be written."""

    path: str
    """URI of the new file. No other file has it."""
    data_file: str
    """Path of the data file, as Iceberg has it."""
    positions: FrozenBitMap64
    place: Mapping[str, Any]
    """`spec-id` and `partition` of the data file, as in Iceberg's JSON."""


def write_vectors(files: FileIO, deletes: Iterable[DeletesOfFile]) -> list[str]:
    """Write each as a deletion vector in a Puffin file of its own.

    Several vectors in one file would need fewer files. But PyIceberg applies every vector of a file that is in use: after a
    vector is replaced by a smaller one, the old one would still apply while another vector of the same file is in use.

    Returns:
        Iceberg's JSON of each file.

    Raises:
        Exception: What the storage raises.
    """
    return _in_parallel(lambda d: _write_vector(files, d), deletes)


def write_position_deletes(files: FileIO, deletes: Iterable[DeletesOfFile]) -> list[str]:
    """Write each as a Parquet file of position deletes.

    Returns:
        Iceberg's JSON of each file.

    Raises:
        Exception: What the storage raises.
    """
    return _in_parallel(lambda d: _write_positions(files, d), deletes)


def _in_parallel(act: Any, items: Iterable[Any]) -> list[Any]:
    with ThreadPoolExecutor(PARALLEL_FILES, "deletes") as pool:
        return list(pool.map(act, items))


def _write_vector(files: FileIO, deletes: DeletesOfFile) -> str:
    blob = to_blob(deletes.positions)
    footer = {
        "blobs": [
            {
                "type": "deletion-vector-v1",
                "fields": [_ROW_POSITION],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": len(PUFFIN),
                "length": len(blob),
                "properties": {"referenced-data-file": deletes.data_file, "cardinality": str(len(deletes.positions))},
            }
        ],
        "properties": {"created-by": "Lethe"},
    }
    text = json.dumps(footer).encode()
    end = struct.pack("<ii", len(text), 0) + PUFFIN
    content = b"".join((PUFFIN, blob, PUFFIN, text, end))
    known = {"content-offset": len(PUFFIN), "content-size-in-bytes": len(blob)}
    return _written(files, deletes, "puffin", content, known)


def _write_positions(files: FileIO, deletes: DeletesOfFile) -> str:
    made = io.BytesIO()
    with pq.ParquetWriter(
        made, _SCHEMA, compression="zstd", use_dictionary=["file_path"], store_schema=False
    ) as writer:
        positions = np.fromiter(deletes.positions, np.int64, len(deletes.positions))
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            piece = positions[start : start + _ROWS_AT_ONCE]
            paths = pa.repeat(deletes.data_file, len(piece))
            writer.write_table(pa.table([paths, pa.array(piece)], schema=_SCHEMA))
    bounds = {
        name: _bounds(deletes.data_file, p)
        for name, p in (("lower-bounds", positions[0]), ("upper-bounds", positions[-1]))
    }
    return _written(files, deletes, "parquet", made.getvalue(), bounds)


def _bounds(data_file: str, position: int) -> dict[str, Any]:
    """Bounds of the columns, as in Iceberg's JSON.

    Those of the path are exact: some readers know only by them to which file the deletes apply.
    """
    values = [data_file.encode().hex().upper(), struct.pack("<q", position).hex().upper()]
    return {"keys": [FILE_PATH, POSITION], "values": values}


def _written(files: FileIO, deletes: DeletesOfFile, format_name: str, content: bytes, known: Mapping[str, Any]) -> str:
    with files.new_output(deletes.path).create(overwrite=True) as stream:
        stream.write(content)
    described = {
        **deletes.place,
        "content": "position-deletes",
        "file-path": deletes.path,
        "file-format": format_name,
        "file-size-in-bytes": len(content),
        "record-count": len(deletes.positions),
        "referenced-data-file": deletes.data_file,
    }
    return json.dumps({**described, **known})


def read_positions(files: FileIO, deletes: Iterable[tuple[Mapping[str, Any], str]]) -> list[FrozenBitMap64]:
    """Read the positions that each file of deletes has for a data file.

    Args:
        deletes: Iceberg's JSON of a delete file, and the path of the data file.

    Raises:
        Exception: What the storage and the decoder raise.
    """
    return _in_parallel(lambda d: _read(files, *d), deletes)


def _read(files: FileIO, document: Mapping[str, Any], data_file: str) -> FrozenBitMap64:
    format_name = document["file-format"].lower()
    with files.new_input(document["file-path"]).open() as stream:
        match format_name:
            case "puffin":
                stream.seek(document["content-offset"])
                return of_blob(stream.read(document["content-size-in-bytes"]))
            case "avro":
                rows = fastavro.reader(stream)
                found = np.array([r["pos"] for r in rows if r["file_path"] == data_file], np.int64)
            case _:
                form = ds.OrcFileFormat() if format_name == "orc" else ds.ParquetFileFormat(pre_buffer=True)
                only = pc.field("file_path") == data_file
                rows = ds.Scanner.from_fragment(form.make_fragment(stream), columns=["pos"], filter=only).to_table()
                found = rows["pos"].to_numpy()
    return FrozenBitMap64(found.astype(np.uint64)) if len(found) else NO_POSITIONS


def to_blob(positions: FrozenBitMap64) -> bytes:
    """A deletion vector as the blob of a Puffin file. Pure."""
    content = _MAGIC + positions.serialize()
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def of_blob(blob: bytes) -> FrozenBitMap64:
    """The positions of a deletion vector. Pure."""
    (length,) = struct.unpack(">I", blob[:4])
    return FrozenBitMap64.deserialize(blob[4 + len(_MAGIC) : 4 + length])
