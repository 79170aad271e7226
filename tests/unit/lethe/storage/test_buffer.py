"""The buffer lists and deletes exactly what is there."""

import re
from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.base.ids import batch_folder
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.storage.local_store import LocalStore
from lethe.storage.object_store import open_store
from lethe.storage.surroundings import open_buffer

from tests.support.buffers import batches_in, listing_of


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


def test_an_etag_changes_when_a_file_is_written_over(tmp_path: Path) -> None:
    put(tmp_path, "A", "p")
    (before,) = LocalStore().list(str(tmp_path))
    (tmp_path / "batch_id=A" / "p").write_text("q")

    (after,) = LocalStore().list(str(tmp_path))

    assert (before.key, before.size) == (after.key, after.size)
    assert before.etag != after.etag


def test_a_buffer_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert batches_in(f"file://{tmp_path}/nothing") == []


def test_folders_that_are_not_batches_are_reported_together_with_the_batches(tmp_path: Path) -> None:
    put(tmp_path, "A", "_SUCCESS")
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "x").write_text("x")
    buffer = open_buffer(str(tmp_path), "batch_id", {})

    listed = listing_of(buffer)
    assert [b.id for b in listed.batches] == ["A"]
    assert listed.invalid == {"stray": "the folder 'stray' is not named batch_id=<batch id>"}


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


def test_one_file_is_found_as_it_is_listed(tmp_path: Path) -> None:
    put(tmp_path, "A", "p")
    (listed,) = LocalStore().list(str(tmp_path))

    assert LocalStore().head(listed.key) == listed
    assert LocalStore().head(listed.key.rpartition("/")[0]) is None
    assert LocalStore().head(f"{tmp_path}/nothing") is None


def test_hidden_folders_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "A", "p")
    put(tmp_path / "_refused", "B", "p")

    def keys(**how: bool) -> list[str]:
        return [o.key.removeprefix(f"{tmp_path}/") for o in LocalStore().list(str(tmp_path), **how)]

    assert keys() == ["_refused/batch_id=B/p", "batch_id=A/p"]
    assert keys(hidden=False) == ["batch_id=A/p"]


def test_an_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match=re.escape("hdfs://lake/x: expected an s3://, gs://, abfss:// or file:// URI")
    ) as refused:
        open_store("hdfs://lake/x", {})

    assert refused.value.reason == "UnsupportedScheme"


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
