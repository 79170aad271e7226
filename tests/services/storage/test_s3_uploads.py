"""Presigned requests on a real S3 server: what a client without credentials can do, and what it cannot."""

import hashlib
import uuid

import httpx
import pytest
from lethe.storage.s3 import PART_BYTES_AT_LEAST, Presigned, S3Uploads

from tests.support.servers.s3 import S3

OLD, NEW = b"old", b"new"


@pytest.fixture
def bucket(s3: S3) -> str:
    return s3.bucket(f"lake-{uuid.uuid4().hex[:8]}")


def send(request: Presigned, content: bytes) -> int:
    return httpx.put(request.url, content=content, headers=dict(request.headers)).status_code


def content_of(s3: S3, bucket: str, key: str) -> bytes:
    return bytes(s3.client.get_object(Bucket=bucket, Key=key)["Body"].read())


@pytest.mark.parametrize("sha256", ["", hashlib.sha256(NEW).hexdigest()])
def test_a_presigned_put_never_overwrites_an_object(s3: S3, bucket: str, sha256: str) -> None:
    s3.put(bucket, "a.parquet", OLD)
    request = S3Uploads(s3.properties()).put(f"s3://{bucket}/a.parquet", len(NEW), sha256, 60)

    assert send(request, NEW) == 412

    assert content_of(s3, bucket, "a.parquet") == OLD


@pytest.mark.parametrize("omitted", ["If-None-Match", "x-amz-checksum-sha256"])
def test_a_client_cannot_leave_out_what_was_signed(s3: S3, bucket: str, omitted: str) -> None:
    """Without the condition, the URL would overwrite a file that was checked already."""
    request = S3Uploads(s3.properties()).put(f"s3://{bucket}/a.parquet", len(NEW), hashlib.sha256(NEW).hexdigest(), 60)
    assert omitted in request.headers
    without = Presigned(request.url, {k: v for k, v in request.headers.items() if k != omitted})

    assert send(without, NEW) in (400, 403)

    assert s3.keys(bucket) == []


def test_of_two_requests_with_one_url_one_creates_the_object(s3: S3, bucket: str) -> None:
    request = S3Uploads(s3.properties()).put(f"s3://{bucket}/a.parquet", len(NEW), "", 60)

    assert (send(request, NEW), send(request, OLD)) == (200, 412)

    assert content_of(s3, bucket, "a.parquet") == NEW


def test_joining_parts_never_overwrites_an_object(s3: S3, bucket: str) -> None:
    uploads, uri, content = S3Uploads(s3.properties()), f"s3://{bucket}/a.parquet", b"x" * PART_BYTES_AT_LEAST
    upload = uploads.begin(uri)
    assert send(uploads.part(uri, upload, 1, len(content), "", 60), content) == 200
    s3.put(bucket, "a.parquet", OLD)
    parts = uploads.parts(uri, upload)
    assert parts is not None

    assert uploads.complete(uri, upload, parts) is False

    assert content_of(s3, bucket, "a.parquet") == OLD


def test_the_store_knows_the_checksum_of_an_object_that_was_sent_with_one(s3: S3, bucket: str) -> None:
    uploads, sha256 = S3Uploads(s3.properties()), hashlib.sha256(NEW).hexdigest()
    sent, without = f"s3://{bucket}/a.parquet", f"s3://{bucket}/b.parquet"
    assert send(uploads.put(sent, len(NEW), sha256, 60), NEW) == 200
    assert send(uploads.put(without, len(NEW), "", 60), NEW) == 200
    etag = hashlib.md5(NEW).hexdigest()

    assert uploads.sha256(sent, etag) == sha256
    assert uploads.sha256(sent, "of-another-content") is None
    assert uploads.sha256(without, etag) is None
    assert uploads.sha256(f"s3://{bucket}/none", etag) is None
