"""`lethe put` into a buffer on a real S3 server."""

import uuid
from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.buffer.upload import BufferUpload, LocalFile, plan_upload
from lethe.contract.settings import BufferLayout
from lethe.storage.object_store import StoreError, open_store
from lethe_kubectl.local_batches import LocalBatch
from lethe_kubectl.put import is_there, transfer

from tests.support.buffers import batches_in
from tests.support.servers.s3 import READER, S3

ID = "é /%2F"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "10%3A00").mkdir()  # as Spark writes a time
    (tmp_path / "part 0.csv").write_text("v\n1\n")
    (tmp_path / "10%3A00/part#1.csv").write_text("v\n2\n")
    return tmp_path


def an_upload(bucket: str, folder: Path) -> BufferUpload:
    files = [LocalFile(p.relative_to(folder).as_posix(), p.stat().st_size) for p in sorted(folder.rglob("*.csv"))]
    return plan_upload(f"s3://{bucket}/buffer", BufferLayout.DIRECTORY, "batch_id", ID, files)


def test_a_batch_is_whole_after_an_upload_and_a_repetition_writes_nothing(s3: S3, folder: Path) -> None:
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    upload, store = an_upload(bucket, folder), open_store(f"s3://{bucket}/buffer", s3.properties())
    before = is_there(store, upload)

    written = transfer(store, upload, LocalBatch(ID, folder).files(), lambda: None)

    (batch,) = batches_in(f"s3://{bucket}/buffer", s3.properties())
    assert (batch.id, batch.complete, len(batch.data_objects)) == (ID, True, 2)
    assert (before, written, is_there(store, upload)) == (False, 2, True)
    assert transfer(store, upload, LocalBatch(ID, folder).files(), lambda: None) == 0


def test_an_object_with_another_content_is_never_overwritten(s3: S3, folder: Path) -> None:
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    upload, store = an_upload(bucket, folder), open_store(f"s3://{bucket}/buffer", s3.properties())
    uri = next(u for u in upload.files if u.endswith("part 0.csv"))
    store.put(uri, b"v\n9\n")  # as long as ours

    with pytest.raises(InputError, match="OtherFiles"):
        transfer(store, upload, LocalBatch(ID, folder).files(), lambda: None)

    found = store.read(uri)
    assert found is not None
    assert found.data == b"v\n9\n"
    (batch,) = batches_in(f"s3://{bucket}/buffer", s3.properties())
    assert not batch.complete


def test_without_the_right_to_write_nothing_is_written(s3: S3, folder: Path) -> None:
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    upload, store = an_upload(bucket, folder), open_store(f"s3://{bucket}/buffer", s3.properties(READER))

    with pytest.raises(StoreError, match=bucket):
        transfer(store, upload, LocalBatch(ID, folder).files(), lambda: None)

    assert list(batches_in(f"s3://{bucket}/buffer", s3.properties())) == []
