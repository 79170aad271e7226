"""A data file in S3 is filtered with the help of the server, which copies most bytes by itself (versitygw)."""

import json
import uuid
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.ingest.registrable import RegisterTarget
from lethe.purge import footer
from lethe.purge.filtering import FileToFilter, Filter, Filtered, Loss
from lethe.purge.footer import Splice
from lethe.purge.source import RowIds, with_row_ids
from lethe.storage.object_store import StoreError
from lethe.storage.s3 import ComposedObject, CopySource, compose, s3_client
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, LongType, NestedField, StringType

from tests.support.servers.faulty_proxy import Fault, before, forward_to
from tests.support.servers.s3 import READER, S3

COLUMNS = Schema(
    NestedField(1, "batch_id", StringType()), NestedField(2, "v", LongType()), NestedField(3, "blob", BinaryType())
)
TARGET = RegisterTarget(COLUMNS.model_dump_json(), PartitionSpec().model_dump_json(), {}, 1, may_lack=True)
ROWS, IN_GROUP = 4096, 1024  # rows of 8 KiB, so row groups of 8 MiB


@pytest.fixture(scope="module")
def content() -> bytes:
    """A file of 32 MiB: four row groups, each of a batch."""
    luck = np.random.default_rng(1)
    blobs = [luck.bytes(8192) for _ in range(ROWS)]
    batches = [f"B{n // IN_GROUP}" for n in range(ROWS)]
    schema = pa.schema(
        [
            pa.field(f.name, kind, metadata={"PARQUET:field_id": str(f.field_id)})
            for f, kind in zip(COLUMNS.fields, (pa.string(), pa.int64(), pa.binary()), strict=True)
        ]
    )
    made = BytesIO()
    rows = pa.table([pa.array(batches), pa.array(range(ROWS)), pa.array(blobs)], schema=schema)
    pq.write_table(rows, made, row_group_size=IN_GROUP, compression="none", write_page_index=True)
    return made.getvalue()


@pytest.fixture
def bucket(s3: S3, content: bytes) -> Iterator[str]:
    name = s3.bucket(f"b-{uuid.uuid4().hex[:8]}")
    s3.put(name, "old.parquet", content)
    yield name
    uploads = s3.client.list_multipart_uploads(Bucket=name).get("Uploads", [])
    assert uploads == []


def purge(properties: dict[str, str], bucket: str, ids: set[str], rows: int, row_ids: RowIds | None = None) -> Filtered:
    to = f"s3://{bucket}/new.parquet"
    file = FileToFilter(f"s3://{bucket}/old.parquet", ROWS, to, Loss(frozenset(ids), rows), "{}", row_ids)
    return Filter(TARGET if row_ids is None else with_row_ids(TARGET), properties)(file)


def found(s3: S3, bucket: str) -> pa.Table:
    return pq.read_table(BytesIO(s3.client.get_object(Bucket=bucket, Key="new.parquet")["Body"].read()))


def expected(content: bytes, *gone: str) -> pa.Table:
    rows = pq.read_table(BytesIO(content))
    return rows.filter(pa.array([b not in gone for b in rows["batch_id"].to_pylist()]))


def test_the_server_copies_the_row_groups_that_lose_no_rows(s3: S3, bucket: str, content: bytes) -> None:
    done = purge(s3.properties(), bucket, {"B2"}, IN_GROUP)

    assert found(s3, bucket).equals(expected(content, "B2"))
    size = s3.client.head_object(Bucket=bucket, Key="new.parquet")["ContentLength"]
    assert done.sent + done.by_store == size == json.loads(done.document)["file-size-in-bytes"]
    assert done.sent < 64 * 1024  # the end of the file alone


def test_the_server_also_copies_if_the_ids_of_rows_are_between_the_row_groups(
    s3: S3, bucket: str, content: bytes
) -> None:
    done = purge(s3.properties(), bucket, {"B2"}, IN_GROUP, RowIds(100, 7))

    rows = found(s3, bucket)
    assert rows["_row_id"].to_pylist() == [100 + v for v in rows["v"].to_pylist()]
    assert rows.drop_columns(["_row_id", "_last_updated_sequence_number"]).equals(expected(content, "B2"))
    assert done.by_store > 8 * 1024**2


def test_all_bytes_are_sent_if_the_store_refuses_to_copy(s3: S3, bucket: str, content: bytes) -> None:
    """This user may not read the source."""
    s3.allow(bucket, ("s3:PutObject", "*"), ("s3:AbortMultipartUpload", "*"))
    source = CopySource(
        f"s3://{bucket}/old.parquet", len(content), '"e"', lambda start, size: content[start : start + size]
    )

    with ComposedObject(s3_client(s3.properties(READER)), f"s3://{bucket}/new.parquet", source) as made:
        made.write(content[:4])
        made.copy(4, len(content) - 4)

    assert (made.copied, made.sent, made.refused) == (0, len(content), "AccessDenied")
    assert s3.client.get_object(Bucket=bucket, Key="new.parquet")["Body"].read() == content


def test_a_source_that_was_replaced_is_not_copied(s3: S3, bucket: str, content: bytes) -> None:
    source = CopySource(f"s3://{bucket}/old.parquet", len(content), '"other"', lambda *_: b"")

    with (
        pytest.raises(StoreError, match="PreconditionFailed"),
        ComposedObject(s3.client, f"s3://{bucket}/new.parquet", source) as made,
    ):
        made.copy(0, len(content))

    assert s3.keys(bucket) == ["old.parquet"]


def test_without_these_rights_or_with_another_size_nothing_is_begun_and_the_log_says_why(
    s3: S3, bucket: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    for properties, size, why in (
        (s3.properties(READER), len(content), "403"),
        (s3.properties(), 1, f"{len(content)} bytes, expected 1"),
        ({**s3.properties(), "s3.endpoint": "no endpoint"}, len(content), "ValueError"),
    ):
        caplog.clear()
        assert compose(properties, f"s3://{bucket}/new", f"s3://{bucket}/old.parquet", size, lambda *_: b"") is None
        assert why in caplog.text


def test_the_server_copies_nothing_of_a_file_that_was_put_beside_it_and_so_has_no_etag(
    s3: S3, bucket: str, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    s3.client.delete_object(Bucket=bucket, Key="old.parquet")
    (s3.folder / bucket / "old.parquet").write_bytes(content)
    assert "ETag" not in s3.client.head_object(Bucket=bucket, Key="old.parquet")

    done = purge(s3.properties(), bucket, {"B2"}, IN_GROUP)

    assert found(s3, bucket).equals(expected(content, "B2"))
    assert (done.by_store, done.sent) == (0, json.loads(done.document)["file-size-in-bytes"])
    assert "old.parquet has no ETag" in caplog.text


def test_then_the_file_is_written_by_pyiceberg(
    s3: S3, bucket: str, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer, "compose", lambda *_: None)

    done = purge(s3.properties(), bucket, {"B2"}, IN_GROUP)

    assert found(s3, bucket).equals(expected(content, "B2"))
    assert (done.by_store, done.sent) == (0, json.loads(done.document)["file-size-in-bytes"])


def test_a_failure_in_the_middle_leaves_neither_an_object_nor_an_upload(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads: list[Any] = []

    def fail(*_: Any) -> None:
        uploads.extend(s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
        raise ConnectionError("the worker's network is gone")

    monkeypatch.setattr(Splice, "close", fail)

    with pytest.raises(ConnectionError):
        purge(s3.properties(), bucket, {"B2"}, IN_GROUP)

    assert len(uploads) == 1
    assert s3.keys(bucket) == ["old.parquet"]


def test_a_file_with_other_rows_than_were_found_leaves_neither_an_object_nor_an_upload(s3: S3, bucket: str) -> None:
    assert "number of its rows" in purge(s3.properties(), bucket, {"B2"}, 1).unsuitable

    assert s3.keys(bucket) == ["old.parquet"]


@pytest.mark.parametrize(("fault", "method"), [(Fault.SLOW_DOWN, "PUT"), (Fault.LOST_ANSWER, "PUT")])
def test_a_server_that_fails_for_a_while_makes_the_same_file(
    s3: S3, bucket: str, content: bytes, fault: Fault, method: str
) -> None:
    with before(forward_to(s3.endpoint)) as proxy:
        proxy.arm(fault, method, times=2)
        purge({**s3.properties(), "s3.endpoint": proxy.endpoint}, bucket, {"B2"}, IN_GROUP)

    assert found(s3, bucket).equals(expected(content, "B2"))


def test_a_server_that_fails_for_long_leaves_neither_an_object_nor_an_upload(s3: S3, bucket: str) -> None:
    with before(forward_to(s3.endpoint)) as proxy:
        proxy.arm(Fault.SLOW_DOWN, "PUT", times=1000)
        with pytest.raises(StoreError):
            purge({**s3.properties(), "s3.endpoint": proxy.endpoint}, bucket, {"B2"}, IN_GROUP)

    assert s3.keys(bucket) == ["old.parquet"]
