"""A file that is written once: the same content again is fine, another is an error, and the first one stays."""

import threading
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.base.retention_lock import LockMode, Retention
from lethe.storage.write_once import write_once
from pyiceberg.io.pyarrow import PyArrowFileIO

IO = PyArrowFileIO()


def test_the_same_content_again_is_fine_and_another_is_refused(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/_erasures/r.json"
    write_once(uri, b"1", IO, {})
    write_once(uri, b"1", IO, {})

    with pytest.raises(InputError, match="another content") as refused:
        write_once(uri, b"2", IO, {})

    assert (refused.value.reason, Path(tmp_path, "_erasures/r.json").read_bytes()) == ("RecordTaken", b"1")


def test_of_writers_that_race_with_other_contents_one_wins(tmp_path: Path) -> None:
    uri, start = f"file://{tmp_path}/r.json", threading.Barrier(4)
    ends: list[str] = []

    def write(number: int) -> None:
        start.wait(10)
        try:
            write_once(uri, str(number).encode(), IO, {})
        except InputError as e:
            ends.append(e.reason)
        else:
            ends.append("written")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(30)

    assert sorted(ends) == ["RecordTaken"] * 3 + ["written"]


class Elsewhere:
    """A store that PyIceberg knows and Lethe does not, as FileIO has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_output(self, uri: str) -> Any:
        return IO.new_output(self._path(uri))

    def new_input(self, uri: str) -> Any:
        return IO.new_input(self._path(uri))

    def _path(self, uri: str) -> str:
        return f"{self._folder}/{uri.rpartition('/')[2]}"


def test_on_other_storage_existence_is_checked_first(tmp_path: Path) -> None:
    io: Any = Elsewhere(tmp_path)
    write_once("oss://lake/r.json", b"1", io, {})
    write_once("oss://lake/r.json", b"1", io, {})

    with pytest.raises(InputError) as refused:
        write_once("oss://lake/r.json", b"2", io, {})

    assert (refused.value.reason, Path(tmp_path, "r.json").read_bytes()) == ("RecordTaken", b"1")


def test_storage_without_an_object_lock_keeps_nothing_for_certain(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"erase\.record\.retention") as refused:
        write_once(f"file://{tmp_path}/r.json", b"1", IO, {}, Retention(LockMode.COMPLIANCE, 7))

    assert (refused.value.reason, list(tmp_path.iterdir())) == ("RecordNotRetained", [])
