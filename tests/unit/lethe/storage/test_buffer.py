"""The buffer lists and deletes exactly what is there."""

import re
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber
from lethe.base.errors import InputError
from lethe.base.ids import batch_folder
from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.layout import Directories, folders_of
from lethe.ledger.ledger import BufferedObject
from lethe.storage.buffer import Buffer, FileStore, S3Store, open_buffer, open_store

from tests.support.buffers import Listing, batches_in, listing_of
from tests.support.builders import NOW, listed


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
    listing = FileStore().list(str(tmp_path))
    first = next(listing)
    (tmp_path / "batch_id=A" / "q").unlink()

    assert [o.key[-1] for o in (first, *listing)] == ["p", "r"]


def test_an_etag_changes_when_a_file_is_written_over(tmp_path: Path) -> None:
    put(tmp_path, "A", "p")
    (before,) = FileStore().list(str(tmp_path))
    (tmp_path / "batch_id=A" / "p").write_text("q")

    (after,) = FileStore().list(str(tmp_path))

    assert (before.key, before.size) == (after.key, after.size)
    assert before.etag != after.etag


def test_a_buffer_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    assert batches_in(f"file://{tmp_path}/nothing") == []


def test_folders_that_are_no_batch_are_told_beside_the_batches(tmp_path: Path) -> None:
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
    (listed,) = FileStore().list(str(tmp_path))

    assert FileStore().find(listed.key) == listed
    assert FileStore().find(listed.key.rpartition("/")[0]) is None
    assert FileStore().find(f"{tmp_path}/nothing") is None


def s3_store() -> tuple[S3Store, Stubber]:
    store = S3Store({"s3.region": "us-east-1", "s3.access-key-id": "k", "s3.secret-access-key": "s"})
    return store, Stubber(store._s3)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_a_bucket_is_listed_under_the_scheme_it_was_named_by(scheme: str) -> None:
    """`s3a://` is what Hadoop's users write; answered as `s3://`, no folder would be a batch."""
    store, stub = s3_store()
    root = f"{scheme}://lake/buffer"
    found = {"Key": "buffer/batch_id=A%20b/_SUCCESS", "Size": 0, "ETag": '"e"', "LastModified": NOW}
    stub.add_response("list_objects_v2", {"Contents": [found]}, {"Bucket": "lake", "Prefix": "buffer/"})

    with stub:
        (listed,) = store.list(root + "/")

    assert (listed.key, listed.etag) == (f"{root}/batch_id=A%20b/_SUCCESS", "e")
    assert [b.id for b in Listing.of(folders_of([listed], root, Directories("batch_id"))).batches] == ["A b"]


def test_a_batch_that_lies_on_two_pages_of_a_listing_is_one_batch() -> None:
    store, stub = s3_store()

    def page(*keys: str, token: str = "") -> dict[str, Any]:
        found = [{"Key": f"b/batch_id={k}", "Size": 1, "ETag": '"e"', "LastModified": NOW} for k in keys]
        return {"Contents": found, **({"IsTruncated": True, "NextContinuationToken": token} if token else {})}

    asked = {"Bucket": "lake", "Prefix": "b/"}
    stub.add_response("list_objects_v2", page("A/_SUCCESS", "A/p", "B/_SUCCESS", token="t"), asked)
    stub.add_response("list_objects_v2", page("B/p", "B/q", "C/p"), {**asked, "ContinuationToken": "t"})
    with stub:
        found = list(Buffer("s3://lake/b", Directories("batch_id"), store).folders(lambda: None))

    batches = [(f.id, len(f.objects), f.complete) for f in found if isinstance(f, BufferedBatch)]
    assert batches == [("A", 2, True), ("B", 3, True), ("C", 1, False)]


def test_a_hidden_folder_of_many_pages_is_passed_by_after_the_first() -> None:
    """What was refused may lie there for ever; the listing of what waits must not read all of it."""
    store, stub = s3_store()

    def page(*keys: str, **more: Any) -> dict[str, Any]:
        found = [{"Key": f"b/{k}", "Size": 1, "ETag": '"e"', "LastModified": NOW} for k in keys]
        return {"Contents": found, **more}

    asked = {"Bucket": "lake", "Prefix": "b/"}
    first = page(".x/p", "_a/p", "_refused/1", "_refused/2", IsTruncated=True, NextContinuationToken="t")
    stub.add_response("list_objects_v2", first, asked)
    behind = page("_refused1/p", "batch_id=A/_SUCCESS", "batch_id=A/_x/p", "batch_id=A/p")
    stub.add_response("list_objects_v2", behind, {**asked, "StartAfter": "b/_refused0"})
    with stub:
        found = [o.key for o in store.list("s3://lake/b", hidden=False)]

    assert found == [f"s3://lake/b/batch_id=A/{name}" for name in ("_SUCCESS", "_x/p", "p")]


def test_hidden_folders_are_listed_when_they_are_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "A", "p")
    put(tmp_path / "_refused", "B", "p")

    def keys(**how: bool) -> list[str]:
        return [o.key.removeprefix(f"{tmp_path}/") for o in FileStore().list(str(tmp_path), **how)]

    assert keys() == ["_refused/batch_id=B/p", "batch_id=A/p"]
    assert keys(hidden=False) == ["batch_id=A/p"]


def test_objects_are_deleted_in_their_own_buckets_if_they_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written over since it was listed stays; only deleted ones are counted."""
    store, stub = s3_store()
    answer = {"Errors": [{"Key": "b?#", "Code": "AccessDenied"}]}
    wanted = {"Objects": [{"Key": "a"}, {"Key": "b?#"}], "Quiet": True}
    stub.add_response("delete_objects", answer, {"Bucket": "lake", "Delete": wanted})
    objects = [BufferedObject(f"s3://lake/{key}", 1, "e") for key in ("a", "b?#", "changed")]
    monkeypatch.setattr(store, "find", lambda uri: listed(uri, 1, "later" if uri.endswith("changed") else "e"))

    with stub:
        gone = store.delete(objects)

    assert gone == 1


def test_a_scheme_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=re.escape("gs://lake/x: expected an s3:// or file:// URI")) as refused:
        open_store("gs://lake/x", {})

    assert refused.value.reason == "UnsupportedScheme"


def test_one_folder_is_looked_at_alone(tmp_path: Path) -> None:
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
