"""Files of a buffer on a real S3 server, read as a run's workers read them: what is not there, not ours, not the same."""

import uuid

import pytest
from lethe.base.errors import TransientError
from lethe.buffer.layout import BufferedBatch
from lethe.contract.run import BufferRef, ConsolidationSpec, SeenObject
from lethe.ingest.buffer_store import BufferAway, BufferedFiles, Bytes, FileTask, Unread
from lethe.ingest.shared_folders import open_buffer
from lethe_spark.jobs.consolidation.gather import list_buffer
from lethe_spark.run.context import Run
from lethe_spark.run.progress import Reporter

from tests.support.buffers import batches_in, listing_of
from tests.support.builders import a_run
from tests.support.lake import Recorder
from tests.support.servers.s3 import OWNER, READER, S3

ID = "é /%2F"
KEY = "buffer/batch_id=%C3%A9%20%2F%252F/part 0%2F.parquet"


@pytest.fixture
def bucket(s3: S3) -> str:
    """A buffer with one batch, whose names are as odd as names can be."""
    name = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    s3.put(name, KEY, b"first content")
    s3.put(name, KEY.rpartition("/")[0] + "/_SUCCESS")
    return name


def listed(s3: S3, bucket: str) -> FileTask:
    (batch,) = batches_in(f"s3://{bucket}/buffer", s3.properties())
    (data,) = batch.data_objects
    assert (batch.id, batch.complete) == (ID, True)
    return FileTask(batch.id, data.key, data.size, data.etag)


def fetched(s3: S3, task: FileTask, user: tuple[str, str] = OWNER) -> Bytes | Unread:
    ((_, source),) = BufferedFiles(s3.properties(user)).opened([task])
    return source


def test_a_file_is_read_as_it_was_listed_whatever_its_name(s3: S3, bucket: str) -> None:
    source = fetched(s3, listed(s3, bucket))

    assert isinstance(source, Bytes)
    assert source.file.read() == b"first content"


@pytest.mark.parametrize("reason", ["ObjectChanged", "ObjectGone"])
def test_a_file_that_was_written_over_or_is_gone_since_is_noticed(s3: S3, bucket: str, reason: str) -> None:
    """Also if it is as long as before. Neither is a reason to doubt the store."""
    task = listed(s3, bucket)
    if reason == "ObjectChanged":
        s3.put(bucket, KEY, b"other content")
    else:
        s3.client.delete_object(Bucket=bucket, Key=KEY)

    source = fetched(s3, task)

    assert isinstance(source, Unread)
    assert source.reason == reason


def test_a_file_that_the_run_may_not_read_is_named_as_that(s3: S3, bucket: str) -> None:
    """The others of the bucket can be read."""
    s3.put(bucket, "buffer/batch_id=open/part-0.parquet", b"open")
    s3.allow(bucket, ("s3:ListBucket", ""), ("s3:GetObject", "buffer/batch_id=open/*"))
    task = FileTask("open", f"s3://{bucket}/buffer/batch_id=open/part-0.parquet", 4)
    closed = FileTask(ID, f"s3://{bucket}/{KEY}", 13)

    sources = [s for _, s in BufferedFiles(s3.properties(READER)).opened([task, closed])]

    assert isinstance(sources[0], Bytes)
    assert isinstance(sources[1], Unread)
    assert (sources[1].reason, "grant the run's credentials access" in sources[1].message) == ("AccessDenied", True)


def test_a_server_that_is_away_is_not_taken_for_a_file_that_is_gone(s3: S3, bucket: str) -> None:
    nobody = {**s3.properties(), "s3.endpoint": "http://127.0.0.1:9"}

    with pytest.raises(BufferAway):
        list(BufferedFiles(nobody).opened([listed(s3, bucket)]))


def test_a_buffer_of_files_is_listed_found_and_deleted_one_by_one(s3: S3) -> None:
    bucket = s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    for name in ("é %2F.csv", "A.csv.gz", "_under_way.csv", "folder/x.csv", "_refused/B.csv/0/B.csv"):
        s3.put(bucket, f"files/{name}", name.encode())
    buffer = open_buffer(f"s3://{bucket}/files", "batch_id", s3.properties(), "File")

    found = listing_of(buffer)

    assert [(b.id, b.complete) for b in found.batches] == [("A", True), ("é /", True)]
    assert list(found.invalid) == ["folder/"]
    assert buffer.delete(o for b in found.batches for o in b.objects) == 2
    assert s3.keys(bucket) == ["files/_refused/B.csv/0/B.csv", "files/_under_way.csv", "files/folder/x.csv"]


def listed_by_a_run(
    s3: S3, uri: str, user: tuple[str, str] = OWNER, seen: tuple[SeenObject, ...] = ()
) -> list[BufferedBatch]:
    spec = a_run(buffer=BufferRef(uri=uri), consolidation=ConsolidationSpec(seen_objects=seen))
    run = Run(spec, Reporter(spec, Recorder()), s3.properties(user))
    return [b for b in list_buffer(run) if isinstance(b, BufferedBatch)]


@pytest.mark.parametrize(("reported", "remembered"), [("", "0A"), ("same", "0A"), ("another", None)])
def test_a_listing_has_the_sequencers_of_the_notifications(
    s3: S3, bucket: str, reported: str, remembered: str | None
) -> None:
    """Of another write of the key it says nothing; and the object is the same, whatever was told."""
    (before,) = listed_by_a_run(s3, f"s3://{bucket}/buffer")
    (data,) = before.data_objects
    seen = SeenObject(key=data.key, etag=data.etag if reported == "same" else reported, sequencer="0A")

    (batch,) = listed_by_a_run(s3, f"s3://{bucket}/buffer", seen=(seen,))

    assert {o.key.rpartition("/")[2]: o.sequencer for o in batch.objects} == {
        "part 0%2F.parquet": remembered,
        "_SUCCESS": None,
    }
    assert batch == before


def test_a_bucket_that_is_not_there_is_named(s3: S3) -> None:
    with pytest.raises(
        TransientError, match=r"BufferNotFound: the buffer s3://nowhere/buffer: the bucket does not exist"
    ):
        listed_by_a_run(s3, "s3://nowhere/buffer")


def test_a_buffer_that_the_run_may_not_list_is_named(s3: S3, bucket: str) -> None:
    with pytest.raises(TransientError, match=r"AccessDenied: the buffer .*: the store does not let this run list it"):
        listed_by_a_run(s3, f"s3://{bucket}/buffer", READER)


def test_a_folder_of_a_bucket_that_is_not_there_is_an_empty_buffer(s3: S3, bucket: str) -> None:
    assert listed_by_a_run(s3, f"s3://{bucket}/elsewhere") == []
