"""Reads which rows of data files are deleted by position, in delete files and deletion vectors. I/O."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.utils.concurrent import ExecutorFactory

from lethe.iceberg.native_deletes import Vector
from lethe.iceberg.snapshot_files import PlannedFile

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Deleted: TypeAlias = Mapping[str, Positions]
_PATH: Final = "file_path"
_POSITION: Final = "pos"
_REFERENCED: Final = "referenced-data-file"


def read_deletes(io: FileIO, files: Sequence[PlannedFile]) -> Deleted:
    """The sorted positions of deleted rows of some data files, by path, for those that have any."""
    # The delete files, each with the data files to which it may apply.
    applied: dict[str, tuple[DataFile, list[PlannedFile]]] = {}
    for file in files:
        for delete in file.delete_files:
            # A deletion vector replaces all other deletes by position of its data file.
            if file.vectors and delete.file_format != FileFormat.PUFFIN:
                continue
            applied.setdefault(delete.file_path, (delete, []))[1].append(file)
    found: dict[str, list[Positions]] = {}
    for of_file in ExecutorFactory.get_or_create().map(lambda of: _read(io, *of), applied.values()):
        for path, positions in of_file.items():
            found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


def _read(io: FileIO, file: DataFile, to: Sequence[PlannedFile]) -> dict[str, Positions]:
    wanted = frozenset(f.bounds.path for f in to)
    with io.new_input(file.file_path).open() as stream:
        match file.file_format:
            case FileFormat.PUFFIN:
                live = {(f.bounds.path, v) for f in to for v in f.vectors}
                return _vectors(file.file_path, PuffinFile(stream.read()), live)
            case FileFormat.AVRO:
                rows = list(fastavro.reader(stream))
                table = pa.table({name: pa.array([r[name] for r in rows]) for name in (_PATH, _POSITION)})
            case FileFormat.ORC:
                table = _scanned(ds.OrcFileFormat(), stream)
            case _:
                table = _scanned(ds.ParquetFileFormat(dictionary_columns=(_PATH,), pre_buffer=True), stream)
    return dict(_by_path(table, wanted))


def _scanned(form: ds.FileFormat, stream: Any) -> pa.Table:
    return ds.Scanner.from_fragment(form.make_fragment(stream), columns=[_PATH, _POSITION]).to_table()


def _by_path(table: pa.Table, wanted: frozenset[str]) -> Iterable[tuple[str, Positions]]:
    for batch in table.combine_chunks().to_batches():
        paths = batch.column(_PATH)
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        numbers, positions = encoded.indices.to_numpy(), batch.column(_POSITION).to_numpy()
        for number, path in enumerate(encoded.dictionary.to_pylist()):
            if path in wanted:
                yield path, positions[numbers == number].astype(np.int64)


def _vectors(path: str, puffin: PuffinFile, live: Collection[tuple[str, Vector]]) -> dict[str, Positions]:
    """Args:
    path: Of the Puffin file.
    live: The paths of data files, each with a vector that applies to it.
    """
    found: dict[str, Positions] = {}
    for blob in puffin.footer.blobs:
        data_file = blob.properties.get(_REFERENCED)
        if data_file is None or (data_file, (path, blob.offset)) not in live:
            continue
        bitmaps = DeletionVector._deserialize_bitmap(_extract_vector_payload(puffin.get_blob_payload(blob)))
        parts = [(key << 32) + np.array(bitmap, np.int64) for key, bitmap in enumerate(bitmaps)]
        found[data_file] = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return found
