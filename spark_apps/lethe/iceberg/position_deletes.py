"""Files of deletes by position: writes deletion vectors and position deletes, and reads them. I/O."""

import io
import json
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat
from pyroaring import FrozenBitMap64

from lethe.base.avro import reader
from lethe.files.native_deletes import NO_POSITIONS
from lethe.iceberg.native_deletes import FILE_PATH, POSITION, PositionDeletes

PARALLEL_FILES: Final = 8
"""Files that are written or read at a time."""
_MAGIC: Final = b"\xd1\xd3\x39\x64"
"""The format of a deletion vector: its length, these bytes, a portable 64-bit Roaring bitmap, a checksum."""
PUFFIN: Final = b"PFA1"
"""The first and the last bytes of a Puffin file."""
_ROW_POSITION: Final = 2_147_483_645
"""Field id of Iceberg's metadata column `_pos`, which deletion vectors are about."""
_PATH: Final = "file_path"
_POS: Final = "pos"
_SCHEMA: Final = pa.schema(
    [
        pa.field(_PATH, pa.string(), nullable=False, metadata={"PARQUET:field_id": str(FILE_PATH)}),
        pa.field(_POS, pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(POSITION)}),
    ]
)
_ROWS_AT_ONCE: Final = 1_000_000
PositionArray: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Positions: TypeAlias = PositionArray | FrozenBitMap64
"""Positions of rows, as a file has them: a deletion vector is a bitmap, the others are columns."""


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
    with pq.ParquetWriter(made, _SCHEMA, compression="zstd", use_dictionary=[_PATH], store_schema=False) as writer:
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
    wanted = [(_described(document), data_file) for document, data_file in deletes]
    paths: dict[PositionDeletes, list[str]] = {}
    for of_deletes, data_file in wanted:
        paths.setdefault(of_deletes, []).append(data_file)
    found = read_deletes(files, paths)
    return [as_bitmap(found[of_deletes].get(data_file, NO_POSITIONS)) for of_deletes, data_file in wanted]


def _described(document: Mapping[str, Any]) -> PositionDeletes:
    place = document.get("content-offset") or 0, document.get("content-size-in-bytes") or 0
    return PositionDeletes(document["file-path"], FileFormat(document["file-format"].upper()), *place)


def read_deletes(
    files: FileIO, deletes: Mapping[PositionDeletes, Collection[str]]
) -> dict[PositionDeletes, dict[str, Positions]]:
    """Read the positions that files of deletes have for data files. Each file is read once, of a Puffin file only the vector.

    Args:
        deletes: With the paths of the data files, of which a deletion vector has one.

    Returns:
        By path, for the data files of which it has positions.

    Raises:
        Exception: What the storage and the decoder raise.
    """
    return dict(zip(deletes, _in_parallel(lambda d: _read(files, d, frozenset(deletes[d])), deletes), strict=True))


def as_bitmap(positions: Positions) -> FrozenBitMap64:
    """The positions as a bitmap."""
    if isinstance(positions, FrozenBitMap64):
        return positions
    return FrozenBitMap64(positions.astype(np.uint64)) if len(positions) else NO_POSITIONS


def as_array(positions: Positions) -> PositionArray:
    """The positions as an array, in any order."""
    if isinstance(positions, FrozenBitMap64):
        return np.array(positions.to_array(), np.int64)
    return positions


def _read(files: FileIO, deletes: PositionDeletes, data_files: frozenset[str]) -> dict[str, Positions]:
    with files.new_input(deletes.path).open() as stream:
        match deletes.format:
            case FileFormat.PUFFIN:
                stream.seek(deletes.offset)
                return dict.fromkeys(data_files, of_blob(stream.read(deletes.length)))
            case FileFormat.AVRO:
                rows = [r for r in reader(stream) if r[_PATH] in data_files]
                table = pa.table({_PATH: [r[_PATH] for r in rows], _POS: pa.array([r[_POS] for r in rows], pa.int64())})
            case FileFormat.ORC:
                table = _scanned(ds.OrcFileFormat(), stream, data_files)
            case _:
                form = ds.ParquetFileFormat(dictionary_columns=(_PATH,), pre_buffer=True)
                table = _scanned(form, stream, data_files)
    return _by_path(table)


def _scanned(form: ds.FileFormat, stream: Any, data_files: frozenset[str]) -> pa.Table:
    path = pc.field(_PATH)
    # Arrow skips row groups by `==`, and does not by `isin`.
    of_files = path == next(iter(data_files)) if len(data_files) == 1 else path.isin(sorted(data_files))
    return ds.Scanner.from_fragment(form.make_fragment(stream), columns=[_PATH, _POS], filter=of_files).to_table()


def _by_path(table: pa.Table) -> dict[str, Positions]:
    found: dict[str, list[PositionArray]] = {}
    for batch in table.to_batches():
        paths = batch.column(_PATH)
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        numbers, positions = encoded.indices.to_numpy(), batch.column(_POS).to_numpy()
        for number in np.unique(numbers):
            found.setdefault(encoded.dictionary[int(number)].as_py(), []).append(positions[numbers == number])
    return {path: np.concatenate(parts) for path, parts in found.items()}


def to_blob(positions: FrozenBitMap64) -> bytes:
    """A deletion vector as the blob of a Puffin file. Pure."""
    content = _MAGIC + positions.serialize()
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def of_blob(blob: bytes) -> FrozenBitMap64:
    """The positions of a deletion vector. Pure.

    Raises:
        ValueError: The bytes are none.
    """
    (length,) = struct.unpack(">I", blob[:4])
    if blob[4:8] != _MAGIC:
        raise ValueError("the bytes are no deletion vector")
    return FrozenBitMap64.deserialize(blob[4 + len(_MAGIC) : 4 + length])
