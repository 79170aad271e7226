"""What is left of files: on a file system, and in a storage that PyIceberg reads and nobody lists."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from lethe.ledger.erasure import BlockerKind
from lethe.storage.object_versions import SurvivingObject, open_storage
from pyiceberg.io.pyarrow import PyArrowFileIO

IO = PyArrowFileIO()


@pytest.mark.parametrize("scheme", ["file://", "file:", ""])
def test_files_of_a_folder_are_found_listed_deleted_and_gone(tmp_path: Path, scheme: str) -> None:
    """However their paths are written, and whatever their names. What Hadoop writes beside a file goes with it."""
    folder = tmp_path / "data" / "r"
    folder.mkdir(parents=True)
    for name in ("f.parquet", "g.parquet", ".f.parquet.crc"):
        (folder / name).write_text("x")
    path = f"{scheme}{folder}/f.parquet"
    storage = open_storage(f"{scheme}{tmp_path}", IO, {})

    found = storage.find([path, f"{scheme}{folder}/gone.parquet"])
    listed = dict(storage.under(f"{scheme}{tmp_path}/data"))
    kept = storage.remove(found[path], every_version=True)

    assert found == {path: SurvivingObject(path, True)}
    assert set(listed) == {path, path.replace("f.parquet", "g.parquet"), f"{scheme}{folder}/.f.parquet.crc"}
    assert not (folder / ".f.parquet.crc").exists()
    assert all(abs((datetime.now(UTC) - at).total_seconds()) < 60 for at in listed.values())
    assert (kept, storage.find([path])) == (None, {})
    assert storage.remove(found[path], every_version=True) is None  # deleting twice does no harm
    assert (storage.lists_folders, storage.supports_versions) == (True, False)


def test_a_storage_that_cannot_be_listed_is_reported() -> None:
    storage = open_storage("gs://lake/t", IO, {})

    assert (list(storage.under("gs://lake/t/data")), storage.lists_folders) == ([], False)


def test_what_is_there_again_after_it_was_deleted_is_named_without_values() -> None:
    found = open_storage("/t", IO, {}).why(SurvivingObject("/t/data/name=somebody/f", True))

    assert (found.kind, found.name, found.why) == (
        BlockerKind.OBJECT,
        "/t/data/name=*/f",
        "it was deleted and is there again",
    )
