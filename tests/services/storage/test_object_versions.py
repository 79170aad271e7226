"""What is left of objects in a bucket: a real S3 server that keeps versions and locks objects. No Spark."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError
from lethe.base.errors import TransientError
from lethe.ledger.tombstone import BlockerKind
from lethe.search.object_versions import S3Objects, SurvivingObject, VersionsDenied

from tests.support.servers.s3 import READER, S3, running

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running() as started:
        yield started


@pytest.fixture
def bucket(server: S3, request: pytest.FixtureRequest) -> str:
    """A bucket of the test's own, which keeps versions."""
    name = request.node.name.replace("_", "-")[:63].strip("-")
    server.client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)
    return name


@pytest.fixture
def objects(server: S3) -> S3Objects:
    return S3Objects(server.properties())


def test_objects_of_a_bucket_without_versions_are_found_deleted_and_gone(server: S3, objects: S3Objects) -> None:
    """Those whose names begin alike are others."""
    server.bucket("plain", **{"d/f": b"1", "d/f.crc": b"2"})
    path, other = "s3://plain/d/f", "s3://plain/d/f.crc"
    found = objects.find([path, "s3://plain/d/gone"])

    kept = objects.remove(found[path], every_version=False)

    assert (list(found), found[path].current, kept) == ([path], True, None)
    assert (list(objects.find([path, other])), [p for p, _ in objects.list_below("s3://plain/d")]) == ([other], [other])
    assert objects.calls["DeleteObject"] == 1


def test_an_object_that_was_deleted_lives_on_in_its_versions_until_each_is_deleted(
    server: S3, bucket: str, objects: S3Objects
) -> None:
    path = f"s3://{bucket}/d/f"
    server.put(bucket, "d/f", b"1")
    server.put(bucket, "d/f", b"2")
    server.client.delete_object(Bucket=bucket, Key="d/f")
    remain = objects.find([path])[path]

    hidden, why = objects.remove(remain, every_version=False), objects.find_blocker(remain)
    still, listed = objects.find([path]), [p for p, _ in objects.list_below(f"s3://{bucket}/d")]
    kept = objects.remove(remain, every_version=True)

    assert (remain.current, len(remain.versions), len(remain.markers)) == (False, 2, 1)
    assert (hidden, why.kind, why.name, why.why) == (
        None,
        BlockerKind.OBJECT_VERSION,
        path,
        "the bucket keeps versions",
    )
    assert (still, listed) == ({path: remain}, [path])
    assert (kept, objects.find([path])) == (None, {})
    assert "DeleteMarkers" not in server.client.list_object_versions(Bucket=bucket)


def test_a_lock_is_named_with_its_end_and_a_legal_hold_without(server: S3, bucket: str, objects: S3Objects) -> None:
    until = (datetime.now(UTC) + DAY).replace(microsecond=0)
    for key in ("locked", "held"):
        server.put(bucket, key, b"1")
    lock = {"Mode": "COMPLIANCE", "RetainUntilDate": until}
    server.client.put_object_retention(Bucket=bucket, Key="locked", Retention=lock)
    server.client.put_object_legal_hold(Bucket=bucket, Key="held", LegalHold={"Status": "ON"})
    found = objects.find([f"s3://{bucket}/{key}" for key in ("locked", "held")])

    kept = {path: objects.remove(remain, every_version=True) for path, remain in found.items()}

    assert [(b.kind, b.name, b.until) for b in kept.values() if b is not None] == [
        (BlockerKind.OBJECT_LOCK, f"s3://{bucket}/locked", until),
        (BlockerKind.LEGAL_HOLD, f"s3://{bucket}/held", None),
    ]
    assert objects.find(found) == found


def test_without_the_right_to_list_versions_their_deletion_cannot_be_verified(server: S3, bucket: str) -> None:
    server.put(bucket, "f", b"1")
    server.allow(bucket, ("s3:GetObject", "*"))
    reader = S3Objects(server.properties(READER))

    with pytest.raises(VersionsDenied) as denied:
        reader.find([f"s3://{bucket}/f"])

    assert denied.value.bucket == bucket


def test_without_the_right_to_delete_the_message_names_the_missing_rights(server: S3, bucket: str) -> None:
    server.put(bucket, "f", b"1")
    server.allow(bucket, ("s3:GetObject", "*"), ("s3:ListBucketVersions", ""))
    reader = S3Objects(server.properties(READER))
    path = f"s3://{bucket}/f"

    kept = reader.remove(reader.find([path])[path], every_version=True)

    assert kept is not None
    assert (kept.kind, kept.until) == (BlockerKind.OBJECT_VERSION, None)
    assert "s3:DeleteObjectVersion" in kept.why


def test_a_path_that_names_a_partition_is_named_without_its_value(server: S3, bucket: str, objects: S3Objects) -> None:
    """Whoever reads a status is not told whose rows they were."""
    server.put(bucket, "data/name=somebody/f", b"1")
    server.client.put_object_legal_hold(Bucket=bucket, Key="data/name=somebody/f", LegalHold={"Status": "ON"})
    path = f"s3://{bucket}/data/name=somebody/f"

    kept = objects.remove(objects.find([path])[path], every_version=True)

    assert kept is not None
    assert str(kept) == f"legal hold on s3://{bucket}/data/name=*/f"


class Without:
    """A server that answers a call with an error; which one no server at hand can be made to do."""

    def __init__(self, client: Any, code: str) -> None:
        self._client, self._code = client, code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_paginator(self, name: str) -> Any:
        if name == "list_object_versions":
            raise ClientError({"Error": {"Code": self._code, "Message": ""}}, "ListObjectVersions")
        return self._client.get_paginator(name)


def test_a_store_that_knows_no_versions_is_asked_for_the_objects(server: S3, bucket: str) -> None:
    server.put(bucket, "d/f", b"1")
    plain = S3Objects({}, Without(server.client, "NotImplemented"))
    path = f"s3://{bucket}/d/f"

    found = plain.find([path, f"s3://{bucket}/d/g"])

    assert (found, plain.supports_versions) == ({path: SurvivingObject(path, True)}, False)
    assert [p for p, _ in plain.list_below(f"s3://{bucket}/d")] == [path]
    assert (plain.remove(found[path], every_version=True), plain.find([path])) == (None, {})
    assert set(plain.calls) == {"HeadObject", "ListObjectsV2", "DeleteObject"}


def test_a_store_that_is_away_is_no_proof_of_anything(server: S3, bucket: str) -> None:
    with pytest.raises(TransientError, match="it is asked again"):
        S3Objects({}, Without(server.client, "SlowDown")).find([f"s3://{bucket}/f"])


def test_an_unfinished_upload_is_found_below_its_folder_and_gone_once_it_is_aborted(
    server: S3, bucket: str, objects: S3Objects
) -> None:
    """Its parts are on the storage, and no listing of objects shows them."""
    begun = server.client.create_multipart_upload(Bucket=bucket, Key="t/data/f.parquet")
    server.client.upload_part(
        Bucket=bucket, Key="t/data/f.parquet", UploadId=begun["UploadId"], PartNumber=1, Body=b"rows"
    )
    server.client.create_multipart_upload(Bucket=bucket, Key="t2/data/f.parquet")

    (found,), why = objects.uploads(f"s3://{bucket}/t")
    listed = list(objects.list_below(f"s3://{bucket}/t"))
    gone = [objects.abort(found), objects.abort(found)]

    assert (found.path, found.id, why, listed) == (f"s3://{bucket}/t/data/f.parquet", begun["UploadId"], "", [])
    assert datetime.now(UTC) - found.begun < DAY
    assert (gone, objects.uploads(f"s3://{bucket}/t")) == ([True, True], ([], ""))


def test_without_the_right_to_list_uploads_the_message_says_why(server: S3, bucket: str) -> None:
    found, why = S3Objects(server.properties(READER)).uploads(f"s3://{bucket}/t")

    assert (found, "s3:ListBucketMultipartUploads" in why) == ([], True)


def test_the_newest_version_of_a_deleted_object_is_read_in_ranges(server: S3, bucket: str, objects: S3Objects) -> None:
    content = bytes(range(256)) * 4096
    server.put(bucket, "d/f", b"older")
    server.put(bucket, "d/f", content)
    server.client.delete_object(Bucket=bucket, Key="d/f")

    stream = objects.open(f"s3://{bucket}/d/f")
    assert stream is not None
    with stream:
        size = stream.seek(0, 2)
        stream.seek(-300, 2)
        end = stream.read()
        stream.seek(5)
        middle = stream.read(10)

    assert (size, end, middle) == (len(content), content[-300:], content[5:15])
    assert objects.open(f"s3://{bucket}/d/gone") is None
