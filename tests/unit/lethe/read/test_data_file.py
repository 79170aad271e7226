"""Which deletes by position a scan applies to a data file."""

from pathlib import Path

import pytest
from lethe.iceberg.native_deletes import PositionDeletes
from lethe.iceberg.position_deletes import to_blob
from lethe.iceberg.snapshot_files import PlannedFile
from lethe.read.data_file import deleted_rows
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyroaring import FrozenBitMap64

from tests.support.builders import a_file


def delete_file(path: str, file_format: FileFormat) -> DataFile:
    return DataFile.from_args(content=DataFileContent.POSITION_DELETES, file_path=path, file_format=file_format)


@pytest.mark.parametrize("is_named", [True, False])
def test_of_a_puffin_file_only_the_vector_that_a_manifest_names_hides_rows(tmp_path: Path, is_named: bool) -> None:
    """It replaces all other deletes of the data file, which are not even opened."""
    old, new = (to_blob(FrozenBitMap64(p)) for p in ([1], [0, 5]))
    (tmp_path / "f").write_bytes(b"PFA1" + old + new)
    puffin = f"file://{tmp_path}/f"
    path = puffin if is_named else "file:///other"
    vector = PositionDeletes(path, FileFormat.PUFFIN, 4 + len(old), len(new))
    bounds = a_file("A", "A")
    deletes = {delete_file(puffin, FileFormat.PUFFIN), delete_file("file:///not-there", FileFormat.PARQUET)}
    file = PlannedFile(bounds, DataFile.from_args(file_path=bounds.path), frozenset(deletes), frozenset({vector}))

    found = deleted_rows(PyArrowFileIO(), [file])

    assert {p: positions.tolist() for p, positions in found.items()} == ({bounds.path: [0, 5]} if is_named else {})
