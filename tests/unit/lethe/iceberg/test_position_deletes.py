"""Deletes by position are read by one reader, for a commit and for a scan: each file once, also those of other writers."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.iceberg.native_deletes import PositionDeletes
from lethe.iceberg.position_deletes import as_array, as_bitmap, read_deletes, read_positions, to_blob
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import FileFormat
from pyroaring import FrozenBitMap64

ROWS = pa.table({"file_path": ["s3://a", "s3://b", "s3://a", "s3://c", "s3://b"], "pos": [5, 2**33, 1, 0, 7]})
AVRO = {
    "type": "record",
    "name": "r",
    "fields": [{"name": "file_path", "type": "string"}, {"name": "pos", "type": "long"}],
}


def write_avro(table: pa.Table, path: Path) -> None:
    with path.open("wb") as stream:
        fastavro.writer(stream, AVRO, table.to_pylist())


def write_row_groups(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=2)


WRITERS: dict[FileFormat, Callable[[pa.Table, Path], Any]] = {
    FileFormat.PARQUET: write_row_groups,
    FileFormat.ORC: orc.write_table,
    FileFormat.AVRO: write_avro,
}


class CountingIO(PyArrowFileIO):
    """Counts the files that it opens, by path."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = Counter[str]()

    def new_input(self, location: str) -> InputFile:
        self.opened[location] += 1
        return super().new_input(location)


@pytest.mark.parametrize("file_format", WRITERS, ids=lambda f: f.value)
def test_a_file_for_several_data_files_is_read_once_by_a_commit_and_by_a_scan(
    tmp_path: Path, file_format: FileFormat
) -> None:
    WRITERS[file_format](ROWS, tmp_path / "f")
    uri, io = f"file://{tmp_path}/f", CountingIO()
    deletes, document = PositionDeletes(uri, file_format), {"file-path": uri, "file-format": file_format.value.lower()}

    for_commit = read_positions(io, [(document, path) for path in ("s3://b", "s3://d", "s3://a")])
    for_scan = read_deletes(io, {deletes: ["s3://a", "s3://b", "s3://d"]})
    of_one = read_deletes(io, {deletes: ["s3://b"]})

    assert for_commit == [FrozenBitMap64(p) for p in ([7, 2**33], [], [1, 5])]
    assert {path: sorted(as_array(p)) for path, p in for_scan[deletes].items()} == {
        "s3://a": [1, 5],
        "s3://b": [7, 2**33],
    }
    assert {path: as_bitmap(p) for path, p in of_one[deletes].items()} == {"s3://b": FrozenBitMap64([7, 2**33])}
    assert io.opened == {uri: 3}


def test_only_the_vector_that_the_manifest_names_is_read(tmp_path: Path) -> None:
    """Others in the file were replaced, or are for other data files."""
    old, new = (to_blob(FrozenBitMap64(p)) for p in ([1, 2], [3, 2**40]))
    (tmp_path / "f").write_bytes(b"PFA1" + old + new + b"no footer: it is not read")
    vector = PositionDeletes(f"file://{tmp_path}/f", FileFormat.PUFFIN, 4 + len(old), len(new))
    document = {
        "file-path": vector.path,
        "file-format": "puffin",
        "content-offset": vector.offset,
        "content-size-in-bytes": vector.length,
    }

    (positions,) = read_positions(PyArrowFileIO(), [(document, "s3://a")])
    of_scan = as_array(read_deletes(PyArrowFileIO(), {vector: ["s3://a"]})[vector]["s3://a"])

    assert (positions, of_scan.tolist()) == (FrozenBitMap64([3, 2**40]), [3, 2**40])
    assert of_scan.dtype == np.int64


def test_bytes_that_are_no_vector_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PFA1" + bytes(60))
    vector = PositionDeletes(f"file://{tmp_path}/f", FileFormat.PUFFIN, 4, 40)

    with pytest.raises(ValueError, match="no deletion vector"):
        read_deletes(PyArrowFileIO(), {vector: ["s3://a"]})
