"""Local folders as stores: listed, created, deleted and written once, whatever happens beside it."""

import errno
import os
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lethe.base.errors import InputError
from lethe.base.names import batch_folder
from lethe.base.objects import LockMode, Retention
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.ingest.buffer_store import BufferedFiles, FileTask, Unread
from lethe.ingest.shared_folders import open_buffer
from lethe.ledger.tombstone import BlockerKind
from lethe.search.object_versions import SurvivingObject, open_storage
from lethe.storage.local_store import LocalStore
from lethe.storage.object_store import open_folder, open_store, write_once
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.buffers import listing_of


def put(root: Path, batch_id: str, *files: str) -> None:
    folder = root / batch_folder("batch_id", batch_id)
    folder.mkdir(parents=True)
    for f in files:
        (folder / f).write_text(f)


@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_a_local_buffer_is_listed_and_swept_file_by_file(tmp_path: Path, prefix: str) -> None:
    put(tmp_path, "a b/é", "p#1.parquet", "p", "_SUCCESS")
    put(tmp_path, "waits", "p.parquet")
    buffer = open_buffer(f"{prefix}{tmp_path}", "batch_id", {})

    done, waiting = listing_of(buffer).batches

    assert [(done.id, done.complete), (waiting.id, waiting.complete)] == [("a b/é", True), ("waits", False)]
    hashed = next(o for o in done.objects if "#" in o.key)
    assert buffer.delete([hashed]) == 1
    assert sorted(o.key.rpartition("/")[2] for o in listing_of(buffer).batches[0].objects) == ["_SUCCESS", "p"]
    assert buffer.delete(done.objects) == 3  # one is gone already, which is what was wanted
    assert buffer.delete(done.objects) == 3  # and so is the folder
    assert [b.id for b in listing_of(buffer).batches] == ["waits"]


def test_a_local_buffer_is_listed_folder_by_folder(tmp_path: Path) -> None:
    """As S3 lists, so that a batch is whole before the next one begins, whatever lies in it."""
    for id in ("C", "A", "B"):
        put(tmp_path, id, "p.parquet", "_SUCCESS")
        put(tmp_path / f"batch_id={id}", "nested", "q.parquet")
    heard: list[None] = []

    found = list(open_buffer(str(tmp_path), "batch_id", {}).folders(lambda: heard.append(None)))

    assert [(f.id, len(f.objects)) for f in found if isinstance(f, BufferedBatch)] == [("A", 3), ("B", 3), ("C", 3)]
    assert len(heard) == 9


def test_a_file_that_goes_while_its_folder_is_listed_is_passed_over(tmp_path: Path) -> None:
    """Retention deletes beside the listing."""
    put(tmp_path, "A", "p", "q", "r")
    listing = LocalStore().list(str(tmp_path))
    first = next(listing)
    (tmp_path / "batch_id=A" / "q").unlink()

    assert [o.key[-1] for o in (first, *listing)] == ["p", "r"]


def test_a_local_buffer_of_files_is_listed_and_swept_and_stays_when_it_is_empty(tmp_path: Path) -> None:
    """Its producers write into it."""
    for name in ("A.csv.gz", "b%2Fé.csv", "_under_way.csv", ".hidden.csv"):
        (tmp_path / name).write_text(name)
    buffer = open_buffer(f"file://{tmp_path}", "batch_id", {}, "File")

    batches = listing_of(buffer).batches

    assert [(b.id, b.complete, b.bytes) for b in batches] == [("A", True, 8), ("b/é", True, 10)]
    for hidden in ("_under_way.csv", ".hidden.csv"):
        (tmp_path / hidden).unlink()
    assert buffer.delete(o for b in batches for o in b.objects) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_local_file_that_was_written_over_since_its_listing_is_not_deleted(tmp_path: Path) -> None:
    """It is not what was promoted."""
    put(tmp_path, "A", "p", "q")
    buffer = open_buffer(str(tmp_path), "batch_id", {})
    (batch,) = listing_of(buffer).batches
    (tmp_path / "batch_id=A" / "p").write_text("P")

    assert buffer.delete(batch.objects) == 1
    assert [p.name for p in (tmp_path / "batch_id=A").iterdir()] == ["p"]


def test_a_file_that_may_not_be_deleted_does_not_keep_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes first in each sweep, so nothing of the buffer would ever be deleted."""
    put(tmp_path, "A", "locked", "p")
    put(tmp_path, "B", "p")
    buffer = open_buffer(str(tmp_path), "batch_id", {})
    objects = [o for batch in listing_of(buffer).batches for o in batch.objects]
    unlink = Path.unlink

    def refuse(path: Path, **options: Any) -> None:
        if path.name == "locked":
            raise PermissionError(path)
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", refuse)

    assert buffer.delete(objects) == 2
    assert [p.name for p in tmp_path.rglob("*")] == ["batch_id=A", "locked"]


def test_an_unknown_scheme_is_refused_by_name() -> None:
    expected = re.escape("hdfs://lake/x: expected an s3://, gs://, abfss:// or file:// URI")
    with pytest.raises(InputError, match=f"UnsupportedScheme: {expected}"):
        open_store("hdfs://lake/x", {})
    with pytest.raises(InputError, match=r"UnsupportedStorage: .*found hdfs://"):
        open_folder("hdfs://name/lake", {})


def test_one_folder_can_be_listed_alone(tmp_path: Path) -> None:
    """Not its neighbour, whose name begins alike."""
    for name in ("batch_id=A/p", "batch_id=A/x/_SUCCESS", "batch_id=AB/_SUCCESS", "other/p"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("rows")
    buffer = open_buffer(f"file://{tmp_path}/", "batch_id", {})

    found = buffer.folder("batch_id=A")

    assert isinstance(found, BufferedBatch)
    assert (found, found.complete, found.bytes) == (listing_of(buffer).batches[0], False, 4)
    assert buffer.folder("batch_id=nothing") is None
    assert isinstance(buffer.folder("other"), NoBatch)


ROUNDS, WRITERS = 50, 3


def test_of_many_that_create_one_file_at_once_one_does(tmp_path: Path) -> None:
    """And a reader never sees a part of it."""
    folder = open_folder(f"file://{tmp_path}/metadata", {})
    start, made = threading.Barrier(WRITERS), [list[bool]() for _ in range(ROUNDS)]
    whole: list[bool] = []
    contents = [str(w).encode() * 10_000 for w in range(WRITERS)]

    def create(writer: int) -> None:
        for n in range(ROUNDS):
            start.wait(10)
            won = folder.create(f"v{n}.metadata.json", contents[writer])
            seen = folder.read(f"v{n}.metadata.json")
            whole.append(seen == contents[writer] if won else seen in contents)
            made[n].append(won)

    writers = [threading.Thread(target=create, args=(w,)) for w in range(WRITERS)]
    for w in writers:
        w.start()
    for w in writers:
        w.join(60)

    assert [sorted(m) for m in made] == [[False] * (WRITERS - 1) + [True]] * ROUNDS
    assert all(whole)
    assert len(os.listdir(tmp_path / "metadata")) == ROUNDS


def test_a_file_system_without_hard_links_is_refused_and_left_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)

    with pytest.raises(InputError, match=r"no hard links \(EPERM\)") as refused:
        open_folder(f"file://{tmp_path}", {}).create("v1.metadata.json", b"1")

    assert (refused.value.reason, os.listdir(tmp_path)) == ("UnsupportedStorage", [])


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
    listed = dict(storage.list_below(f"{scheme}{tmp_path}/data"))
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

    assert (list(storage.list_below("gs://lake/t/data")), storage.lists_folders) == ([], False)


def test_what_is_there_again_after_it_was_deleted_is_named_without_values() -> None:
    found = open_storage("/t", IO, {}).find_blocker(SurvivingObject("/t/data/name=somebody/f", True))

    assert (found.kind, found.name, found.why) == (
        BlockerKind.OBJECT,
        "/t/data/name=*/f",
        "it was deleted and is there again",
    )


@pytest.mark.parametrize("scheme", ["file", "oss"])
def test_the_same_content_again_is_fine_and_another_is_refused(tmp_path: Path, scheme: str) -> None:
    """On storage that Lethe does not know, existence is checked first."""
    io: Any = IO if scheme == "file" else Elsewhere(tmp_path)
    uri = f"{scheme}://{tmp_path}/r.json"
    write_once(uri, b"1", io, {})
    write_once(uri, b"1", io, {})

    with pytest.raises(InputError, match=r"RecordTaken: .*another content"):
        write_once(uri, b"2", io, {})

    assert (tmp_path / "r.json").read_bytes() == b"1"


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


def test_storage_without_an_object_lock_keeps_nothing_for_certain(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"erase\.record\.retention") as refused:
        write_once(f"file://{tmp_path}/r.json", b"1", IO, {}, Retention(LockMode.COMPLIANCE, 7))

    assert (refused.value.reason, list(tmp_path.iterdir())) == ("RecordNotRetained", [])


def test_a_folder_within_a_batch_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its files the batch would be promoted as if it were whole."""
    put(tmp_path, "A_1", "_SUCCESS", "p.parquet")
    put(tmp_path, "B", "_SUCCESS", "p.parquet")
    for folder in ("batch_id=A_1/day=1", "batch_id=A_1/day=2", "lost+found"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "p.parquet").write_text("x")
    scandir = os.scandir

    def denied(path: Any) -> Any:
        if str(path).endswith(("day=2", "lost+found")):
            raise PermissionError(errno.EACCES, "denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    buffer = open_buffer(f"file://{tmp_path}", "batch_id", {})
    found = listing_of(buffer)

    folder = f"file://{tmp_path}/batch_id=A_1"
    assert {b.id: [o.key.removeprefix(f"{folder}/") for o in b.data_objects] for b in found.batches} == {
        "A_1": ["day=1/p.parquet", "day=2", "p.parquet"],
        "B": [f"file://{tmp_path}/batch_id=B/p.parquet"],
    }
    assert found.invalid == {}
    assert buffer.folder("batch_id=A_1") == found.batches[0]
    waits = BufferedFiles({}).open(FileTask("A_1", f"{folder}/day=2", 4096))
    assert isinstance(waits, Unread)
    assert waits.reason == "AccessDenied"
