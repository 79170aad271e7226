"""Presigned URLs and multipart uploads of S3. I/O: boto3. Presigning itself sends no request.

A URL is valid for one object, one size and, if given, one checksum: the store rejects other content. It creates the object and
never overwrites one (`If-None-Match: *`).
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lethe.storage import aws
from lethe.storage.object_store import StoreError
from lethe.storage.s3 import code_of, store_error_of
from lethe.uri import bucket_and_key

# Limits of S3.
PARTS_AT_MOST: Final = 10_000
_MIB: Final = 1024 * 1024
PART_BYTES_AT_LEAST: Final = 5 * _MIB
_GONE: Final = ("NoSuchUpload", "404", "NoSuchKey")
_EXISTS: Final = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")


@dataclass(frozen=True)
class Presigned:
    """A request that a client without credentials may send."""

    url: str
    headers: Mapping[str, str]  # must be sent as they are, and Content-Length, which every client sends


@dataclass(frozen=True)
class Part:
    """A part that the store has."""

    number: int  # from 1
    size: int  # in bytes
    etag: str


class S3Uploads:
    """Uploads to the buckets of one server. Methods raise StoreError."""

    def __init__(self, properties: Mapping[str, str], public_endpoint: str = "") -> None:
        """Args:
        public_endpoint: How clients reach the server; "": as `s3.endpoint` says.
        """
        self._client = _client(properties)
        self._public = _client({**properties, "s3.endpoint": public_endpoint}) if public_endpoint else self._client

    def put(self, uri: str, size: int, sha256: str, seconds: int) -> Presigned:
        """A PUT that creates the object.

        Args:
            sha256: Of the content, in hex; "": any content of this size.
            seconds: How long the URL is valid.
        """
        checksum = {"ChecksumSHA256": _base64(sha256)} if sha256 else {}
        bucket, key = bucket_and_key(uri)
        asked = {"Bucket": bucket, "Key": key, "ContentLength": size, "IfNoneMatch": "*", **checksum}
        return self._presigned("put_object", asked, {"If-None-Match": "*"}, sha256, seconds)

    def begin(self, uri: str) -> str:
        """Begin a multipart upload. Returns: its id."""
        bucket, key = bucket_and_key(uri)
        try:
            return str(self._client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"])
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(uri, e) from None

    def part(self, uri: str, upload: str, number: int, size: int, sha256: str, seconds: int) -> Presigned:
        """A PUT of one part. As `put`; a part may be sent again, and the last one counts."""
        bucket, key = bucket_and_key(uri)
        checksum = {"ChecksumSHA256": _base64(sha256)} if sha256 else {}
        asked = {
            "Bucket": bucket,
            "Key": key,
            "UploadId": upload,
            "PartNumber": number,
            "ContentLength": size,
            **checksum,
        }
        return self._presigned("upload_part", asked, {}, sha256, seconds)

    def parts(self, uri: str, upload: str) -> list[Part] | None:
        """The parts that the store has, by number; None: there is no such upload, because it was completed or aborted."""
        bucket, key = bucket_and_key(uri)
        try:
            pages = self._client.get_paginator("list_parts").paginate(Bucket=bucket, Key=key, UploadId=upload)
            return [Part(p["PartNumber"], p["Size"], p["ETag"]) for page in pages for p in page.get("Parts", ())]
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _GONE:
                return None
            raise store_error_of(uri, e) from None

    def complete(self, uri: str, upload: str, parts: Sequence[Part]) -> bool:
        """Create the object from its parts. False: the object exists already, or the upload does not."""
        bucket, key = bucket_and_key(uri)
        of = [{"PartNumber": p.number, "ETag": p.etag} for p in parts]
        try:
            self._client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": of}, IfNoneMatch="*"
            )
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in (*_GONE, *_EXISTS):
                return False
            raise store_error_of(uri, e) from None
        return True

    def abort(self, uri: str, upload: str) -> None:
        bucket, key = bucket_and_key(uri)
        try:
            self._client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)
        except (ClientError, BotoCoreError) as e:
            if code_of(e) not in _GONE:
                raise store_error_of(uri, e) from None

    def sha256(self, uri: str, etag: str) -> str | None:
        """The SHA-256 of an object, in hex, if the store knows it: it was sent with the object, and the store compared it.

        Args:
            etag: Of the object that is meant, without quotes.
        """
        bucket, key = bucket_and_key(uri)
        try:
            found = self._client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in (*_GONE, "NotFound"):
                return None
            raise store_error_of(uri, e) from None
        known = str(found.get("ChecksumSHA256", ""))
        # That of an object with parts is a checksum of checksums, like `<base64>-3`.
        if (
            found["ETag"].strip('"') != etag
            or found.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT"
            or "-" in known
        ):
            return None
        return base64.b64decode(known).hex() or None

    def _presigned(
        self, method: str, asked: Mapping[str, Any], headers: dict[str, str], sha256: str, seconds: int
    ) -> Presigned:
        if sha256:
            headers["x-amz-checksum-sha256"] = _base64(sha256)
        try:
            url = self._public.generate_presigned_url(method, Params=dict(asked), ExpiresIn=seconds)
        except BotoCoreError as e:
            raise StoreError(f"s3://{asked['Bucket']}/{asked['Key']}", type(e).__name__) from None
        return Presigned(url, headers)


def _client(properties: Mapping[str, str]) -> Any:
    style = {"addressing_style": "path" if properties.get("s3.endpoint") else "auto"}
    return aws.client(
        "s3",
        properties,
        attempts=4,
        read_timeout_seconds=20,
        s3=style,
        signature_version="s3v4",
        request_checksum_calculation="when_required",  # a client that gets a URL sends no other checksum than the announced one
    )


def part_sizes(size: int, part_bytes: int) -> Iterator[int]:
    """The sizes of the parts of an object, in bytes. Pure."""
    for begin in range(0, size, part_bytes):
        yield min(part_bytes, size - begin)


def part_bytes_of(size: int, wanted: int) -> int:
    """The size of each part but the last: `wanted`, or more, so that there are not too many. Pure."""
    needed = -(-size // PARTS_AT_MOST)
    return max(wanted, PART_BYTES_AT_LEAST, -(-needed // _MIB) * _MIB)


def _base64(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()
