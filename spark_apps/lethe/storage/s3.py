"""The boto3 clients of S3 and SQS, and the requests of S3 that obstore cannot make. I/O.

A received message of a queue is hidden from other receivers for a while. It is delivered again afterwards, unless it was deleted.
"""

import base64
import hashlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from lethe.base.errors import TransientError
from lethe.base.names import VENDED_FOR
from lethe.base.objects import ListedObject, Retention
from lethe.storage.object_store import DENIED, NO_BUCKET, Content, StoreError, WriteUnknown, not_created, not_retained
from lethe.uri import bucket_and_key

log = logging.getLogger(__name__)


_ONE_AT_A_TIME: Final = threading.Lock()
"""boto3 creates clients from a session that all threads share. Creating a client is not thread-safe."""

_NOT_THERE: Final = ("404", "412", "NoSuchKey", "NotFound", "PreconditionFailed")
_DENIED: Final = ("AccessDenied", "403", "Forbidden")

# Limits of S3.
PARTS_AT_MOST: Final = 10_000
_MIB: Final = 1024 * 1024
PART_BYTES_AT_LEAST: Final = 5 * _MIB
_GONE: Final = ("NoSuchUpload", "404", "NoSuchKey")
_EXISTS: Final = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")

_OTHER_SOURCE: Final = ("PreconditionFailed", "412")
BYTES_AT_MOST: Final = PARTS_AT_MOST * PART_BYTES_AT_LEAST // 2
"""In a larger object there might be too many parts."""


def client(service: str, properties: Mapping[str, str], attempts: int, read_timeout_seconds: int, **config: Any) -> Any:
    """A boto3 client. The connection timeout is 5 seconds.

    A property of the service (`sqs.region`) takes precedence over the one of S3 (`s3.region`). All access key properties are
    taken from the same service. Each service has its own endpoint property; without it, boto3's default applies.

    Args:
        service: "s3" or "sqs".
        attempts: How often a request is sent before it counts as failed.
        config: Further arguments of botocore's Config.
    """
    credentials = None
    if service == "s3" and VENDED_FOR in properties:
        from lethe.storage.vended import for_boto3  # imports PyIceberg's catalog, which few callers need

        properties, credentials = for_boto3(properties)
    keys = service if f"{service}.access-key-id" in properties else "s3"
    settings = Config(
        connect_timeout=5,
        read_timeout=read_timeout_seconds,
        retries={"total_max_attempts": attempts, "mode": "standard"},
        **config,
    )
    with _ONE_AT_A_TIME:
        if credentials is not None:
            session = botocore.session.get_session()
            session._credentials = credentials  # botocore has no public way to set refreshable credentials
            return boto3.Session(botocore_session=session).client(
                service,
                endpoint_url=properties.get(f"{service}.endpoint"),
                region_name=properties.get(f"{service}.region") or properties.get("client.region"),
                config=settings,
            )
        return boto3.client(
            service,
            endpoint_url=properties.get(f"{service}.endpoint"),
            region_name=properties.get(f"{service}.region") or properties.get("s3.region"),
            aws_access_key_id=properties.get(f"{keys}.access-key-id"),
            aws_secret_access_key=properties.get(f"{keys}.secret-access-key"),
            aws_session_token=properties.get(f"{keys}.session-token"),
            config=settings,
        )


def s3_client(properties: Mapping[str, str], attempts: int = 4) -> Any:
    """A boto3 client with short timeouts, so that an unreachable store is detected in seconds.

    Args:
        attempts: How often a request is sent before it counts as failed.
    """
    style = "path" if properties.get("s3.endpoint") else "auto"
    return client("s3", properties, attempts, read_timeout_seconds=20, s3={"addressing_style": style})


class S3Requests:
    """Conditional copies and deletes, object locks, and keys that obstore's paths exclude. Methods raise StoreError."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties
        self._clients: dict[int, Any] = {}

    def pages(self, bucket: str, prefix: str, after: str, size: int) -> Iterator[list[ListedObject]]:
        """List objects by key, without the empty objects that represent folders."""
        asked = {"Bucket": bucket, "Prefix": prefix, **({"StartAfter": after} if after else {})}
        try:
            for page in (
                self._client().get_paginator("list_objects_v2").paginate(**asked, PaginationConfig={"PageSize": size})
            ):
                yield [
                    ListedObject(o["Key"], o["Size"], _etag(o), o["LastModified"])
                    for o in page.get("Contents", ())
                    if not o["Key"].endswith("/")
                ]
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(f"s3://{bucket}/{prefix}", e) from None

    def head(self, uri: str) -> ListedObject | None:
        """Send one HEAD request. None: the object does not exist.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        try:
            answer = self._client().head_object(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _NOT_THERE:
                return None
            raise store_error_of(uri, e) from None
        return ListedObject(uri, answer["ContentLength"], _etag(answer), answer["LastModified"])

    def read(self, uri: str) -> Content | None:
        """Read a whole object into memory with one request. None: the object does not exist.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        try:
            answer = self._client().get_object(**_named(uri))
            return Content(answer["Body"].read(), _etag(answer))
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _NOT_THERE:
                return None
            raise store_error_of(uri, e) from None

    def delete(self, uri: str) -> None:
        """Send one unconditional request. In a bucket with versions, older versions stay.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        try:
            self._client().delete_object(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(uri, e) from None

    def delete_if_match(self, uri: str, etag: str) -> bool:
        """Delete an object if it has this ETag.

        Return False if it has another, or does not exist. On a server without conditional deletes, the object is deleted
        unconditionally.
        """
        try:
            self._client().delete_object(**_named(uri), IfMatch=f'"{etag}"')
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in ("501", "NotImplemented"):
                self.delete(uri)
                return True
            if code_of(e) in _NOT_THERE:
                return False
            raise store_error_of(uri, e) from None
        return True

    def copy(self, source: str, etag: str, target: str) -> bool:
        """Copy an object if it has this ETag, in parts if it is large. Return False if it has another, or does not exist."""
        to = _named(target)
        try:
            self._client().copy(_named(source), to["Bucket"], to["Key"], ExtraArgs={"CopySourceIfMatch": f'"{etag}"'})
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _NOT_THERE:
                return False
            raise store_error_of(source, e) from None
        return True

    def put_locked(self, uri: str, content: bytes, retention: Retention, now: datetime) -> bool:
        """Create an object with an object lock. Return False if the object exists.

        Raises:
            InputError: RecordNotRetained.
            StoreError: Nothing was created.
            WriteUnknown: The store did not answer a request to create an object, which may exist now or later.
        """
        lock = {"ObjectLockMode": retention.mode, "ObjectLockRetainUntilDate": retention.until(now)}
        try:
            self._client(attempts=1).put_object(**_named(uri), Body=content, IfNoneMatch="*", **lock)
        except (ClientError, BotoCoreError) as e:
            status = _status(e)
            if status in (409, 412):  # the object exists, or another request is creating it
                return False
            if status == 400:  # InvalidRequest: the bucket has no object lock
                raise not_retained(uri, f"the store answers {code_of(e)}") from e
            if 400 <= status < 500 or status == 501:
                raise not_created(uri, code_of(e)) from e
            raise WriteUnknown(uri, code_of(e)) from None
        return True

    def retained_until(self, uri: str) -> datetime | None:
        """Ask for the lock of the newest version. None: it has none, or the store has no locks.

        Raises:
            InputError: RecordNotRetained, if the store refuses to say.
            StoreError: The store did not answer.
        """
        try:
            answer = self._client().get_object_retention(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _DENIED:
                raise not_retained(uri, "the store does not show its lock: grant s3:GetObjectRetention") from None
            if 400 <= _status(e) < 500:
                return None
            raise store_error_of(uri, e) from None
        until: datetime | None = answer.get("Retention", {}).get("RetainUntilDate")
        return until

    def _client(self, attempts: int = 4) -> Any:
        if attempts not in self._clients:
            self._clients[attempts] = s3_client(self._properties, attempts)
        return self._clients[attempts]


def code_of(error: Exception) -> str:
    """The code of a boto3 error: the code of S3, or the name of the exception if there was no response."""
    response = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", "")) or type(error).__name__


def _status(error: Exception) -> int:
    response = getattr(error, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _named(uri: str) -> dict[str, str]:
    bucket, key = bucket_and_key(uri)
    return {"Bucket": bucket, "Key": key}


def _etag(answer: Mapping[str, Any]) -> str:
    """The ETag; "": a gateway to a file system knows none of a file that was put there beside it."""
    return str(answer.get("ETag", "")).strip('"')


def store_error_of(uri: str, error: Exception) -> StoreError:
    """The StoreError for an error of boto3."""
    code = code_of(error)
    if code in _DENIED:
        code = DENIED
    return StoreError(uri, NO_BUCKET if code == "NoSuchBucket" else code)


@dataclass(frozen=True)
class Presigned:
    """A request that a client without credentials may send."""

    url: str
    headers: Mapping[str, str]
    """Must be sent as they are, and Content-Length, which every client sends."""


@dataclass(frozen=True)
class UploadedPart:
    """A part that the store has."""

    number: int
    """From 1."""
    size: int
    """Size in bytes."""
    etag: str


class S3Uploads:
    """Uploads to the buckets of one server. Methods raise StoreError.

    Presigning itself sends no request. A URL is valid for one object, one size and, if given, one checksum: the store rejects
    other content. It creates the object and never overwrites one (`If-None-Match: *`).
    """

    def __init__(self, properties: Mapping[str, str], public_endpoint: str = "") -> None:
        """Create `S3Uploads`.

        Args:
            public_endpoint: How clients reach the server; "": as `s3.endpoint` says.
        """
        self._client = _uploads_client(properties)
        self._public = (
            _uploads_client({**properties, "s3.endpoint": public_endpoint}) if public_endpoint else self._client
        )

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
        """Begin a multipart upload.

        Returns:
            Its id.
        """
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

    def parts(self, uri: str, upload: str) -> list[UploadedPart] | None:
        """The parts that the store has, by number; None: there is no such upload, because it was completed or aborted."""
        bucket, key = bucket_and_key(uri)
        try:
            pages = self._client.get_paginator("list_parts").paginate(Bucket=bucket, Key=key, UploadId=upload)
            return [
                UploadedPart(p["PartNumber"], p["Size"], p["ETag"]) for page in pages for p in page.get("Parts", ())
            ]
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _GONE:
                return None
            raise store_error_of(uri, e) from None

    def complete(self, uri: str, upload: str, parts: Sequence[UploadedPart]) -> bool:
        """Create the object from its parts. False: the object exists already, or the upload does not."""
        bucket, key = bucket_and_key(uri)
        uploaded_parts = [{"PartNumber": p.number, "ETag": p.etag} for p in parts]
        try:
            self._client.complete_multipart_upload(
                Bucket=bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": uploaded_parts}, IfNoneMatch="*"
            )
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in (*_GONE, *_EXISTS):
                return False
            raise store_error_of(uri, e) from None
        return True

    def abort(self, uri: str, upload: str) -> None:
        """Delete the parts that were sent. An upload that was completed or aborted before is not an error.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
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
            head = self._client.head_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in (*_GONE, "NotFound"):
                return None
            raise store_error_of(uri, e) from None
        checksum = str(head.get("ChecksumSHA256", ""))
        # That of an object with parts is a checksum of checksums, like `<base64>-3`.
        if (
            head["ETag"].strip('"') != etag
            or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT"
            or "-" in checksum
        ):
            return None
        return base64.b64decode(checksum).hex() or None

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


def _uploads_client(properties: Mapping[str, str]) -> Any:
    style = {"addressing_style": "path" if properties.get("s3.endpoint") else "auto"}
    return client(
        "s3",
        properties,
        attempts=4,
        read_timeout_seconds=20,
        s3=style,
        signature_version="s3v4",
        request_checksum_calculation="when_required",  # a client that gets a URL sends no other checksum than the announced one
    )


def _base64(hexadecimal: str) -> str:
    return base64.b64encode(bytes.fromhex(hexadecimal)).decode()


def part_sizes(size: int, part_bytes: int) -> Iterator[int]:
    """The sizes of the parts of an object, in bytes. Pure."""
    for begin in range(0, size, part_bytes):
        yield min(part_bytes, size - begin)


def part_bytes_of(size: int, preferred: int) -> int:
    """The size of each part but the last: `preferred`, or more, so that there are not too many. Pure."""
    needed = -(-size // PARTS_AT_MOST)
    return max(preferred, PART_BYTES_AT_LEAST, -(-needed // _MIB) * _MIB)


@dataclass(frozen=True)
class PartSizes:
    """How large parts are, in bytes."""

    at_least: int = PART_BYTES_AT_LEAST
    """Each but the last."""
    sent: int = 16 * _MIB
    """One that is sent while more follows. After it `at_least` bytes wait, so that they are a part if a range follows."""
    copied: int = 64 * _MIB
    """A copy takes less time than the client waits for an answer."""


@dataclass(frozen=True)
class CopySource:
    """An object to copy from."""

    uri: str
    size: int
    """Size in bytes."""
    etag: str
    """The ETag, as the server gave it."""
    read: Callable[[int, int], bytes]
    """Reads so many bytes from a position, without the server's copies. It raises what it likes."""


class ComposedObject:
    """A new object. A context manager: the object exists when its block has ended, and if that fails, there is no upload either.

    Methods raise StoreError, and what `CopySource.read` raises.
    """

    def __init__(self, client: Any, uri: str, source: CopySource, sizes: PartSizes | None = None) -> None:
        """Create `ComposedObject`.

        Args:
            client: Of boto3, for both objects.
        """
        bucket, key = bucket_and_key(uri)
        self._client, self._uri, self._source, self._sizes = client, uri, source, sizes or PartSizes()
        self._to = {"Bucket": bucket, "Key": key}
        self._parts: list[dict[str, Any]] = []
        self._waiting = bytearray()
        self._range: tuple[int, int] | None = None  # the begin and the end of one that was not copied yet
        # Numbers of bytes.
        self.sent = self.copied = 0
        # Why the server copies nothing; empty: it does.
        self.refused = ""
        try:
            self._upload = str(client.create_multipart_upload(**self._to)["UploadId"])
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(uri, e) from None

    def write(self, content: bytes) -> None:
        """Append bytes. They wait in memory until they are enough for a part, and are then sent."""
        self._copy_range()
        self._wait(content)

    def copy(self, start: int, size: int) -> None:
        """Append a range of the source."""
        if self._range is not None and self._range[1] == start:
            self._range = (self._range[0], start + size)
        else:
            self._copy_range()
            self._range = (start, start + size)

    def __enter__(self) -> "ComposedObject":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            self._complete()
        except BaseException:
            self._abort()
            raise

    def _copy_range(self) -> None:
        if self._range is None:
            return
        (start, end), self._range = self._range, None
        before = max(0, self._sizes.at_least - len(self._waiting)) if self._waiting else 0
        if self.refused or end - start < before + self._sizes.at_least:
            self._read(start, end)
            return
        self._read(start, start + before)
        if self._waiting:
            self._send(len(self._waiting))
        for begin, until in _pieces(start + before, end, self._sizes.copied):
            if self.refused or not self._copied(begin, until):
                self._read(begin, until)

    def _copied(self, start: int, end: int) -> bool:
        """Let the server copy a part. False: it refuses.

        Raises:
            StoreError: The source is not the same any more.
        """
        bucket, key = bucket_and_key(self._source.uri)
        try:
            answer = self._client.upload_part_copy(
                **self._named(),
                CopySource={"Bucket": bucket, "Key": key},
                CopySourceIfMatch=self._source.etag,
                CopySourceRange=f"bytes={start}-{end - 1}",
            )
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _OTHER_SOURCE:
                raise store_error_of(self._source.uri, e) from None
            self.refused = code_of(e)
            log.warning("%s: the store copies no ranges (%s). They are read and sent.", self._uri, self.refused)
            return False
        self._add(answer["CopyPartResult"]["ETag"])
        self.copied += end - start
        return True

    def _read(self, start: int, end: int) -> None:
        step = self._sizes.sent // 2
        for begin in range(start, end, step):
            self._wait(self._source.read(begin, min(step, end - begin)))

    def _wait(self, content: bytes) -> None:
        self._waiting += content
        while len(self._waiting) >= self._sizes.sent + self._sizes.at_least:
            self._send(self._sizes.sent)

    def _send(self, size: int) -> None:
        """Send the first of what waits as a part."""
        body = bytes(self._waiting[:size])
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        try:
            answer = self._client.upload_part(**self._named(), Body=body, ContentMD5=digest)
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(self._uri, e) from None
        self._add(answer["ETag"])
        self.sent += len(body)
        del self._waiting[:size]

    def _complete(self) -> None:
        self._copy_range()
        if self._waiting or not self._parts:
            self._send(len(self._waiting))
        try:
            self._client.complete_multipart_upload(
                **self._to, UploadId=self._upload, MultipartUpload={"Parts": self._parts}
            )
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(self._uri, e) from None

    def _abort(self) -> None:
        try:
            self._client.abort_multipart_upload(**self._to, UploadId=self._upload)
        except (ClientError, BotoCoreError) as e:
            log.warning("%s: the store did not abort upload %s: %s", self._uri, self._upload, code_of(e))

    def _named(self) -> dict[str, Any]:
        """The next part."""
        return {**self._to, "UploadId": self._upload, "PartNumber": len(self._parts) + 1}

    def _add(self, etag: str) -> None:
        self._parts.append({"PartNumber": len(self._parts) + 1, "ETag": etag})


def compose(
    properties: Mapping[str, str], uri: str, source_uri: str, size: int, read: Callable[[int, int], bytes]
) -> ComposedObject | None:
    """Begin a new object. None: the store does not let this process do it with boto3.

    The object is made of the parts of a multipart upload. A part is sent or copied, and each but the last has at least 5 MiB. So
    a range that is too short is read and sent, and so is the beginning of a range that comes after too few bytes.

    Args:
        properties: PyIceberg's, of the FileIO of both objects.
        size: Of the source, in bytes.
        read: As `CopySource.read`.
    """
    bucket, key = bucket_and_key(source_uri)
    try:
        client = _client(properties)
        head = client.head_object(Bucket=bucket, Key=key)
        if head["ContentLength"] != size:
            log.warning("%s has %d bytes, expected %d: it is read and sent", source_uri, head["ContentLength"], size)
            return None
        # Without an ETag, the store cannot tell whether the source changes meanwhile. A gateway to a file system knows none of a
        # file that was put there beside it.
        if not (etag := head.get("ETag")):
            log.warning("%s has no ETag: it is read and sent", source_uri)
            return None
        return ComposedObject(client, uri, CopySource(source_uri, size, etag, read))
    except (ClientError, BotoCoreError, ValueError) as e:  # ValueError: boto3 does not understand the endpoint
        log.warning("%s: the store copies no ranges (%s)", source_uri, code_of(e))
    except StoreError as e:
        log.warning("%s: the store begins no upload (%s)", uri, e.code)
    return None


def _client(properties: Mapping[str, str]) -> Any:
    style = {"addressing_style": "path" if properties.get("s3.endpoint") else "auto"}
    # A checksum that the store requires of each part would be missing for those that it copies.
    return client("s3", properties, 4, read_timeout_seconds=60, s3=style, request_checksum_calculation="when_required")


def _pieces(start: int, end: int, at_most: int) -> Iterator[tuple[int, int]]:
    """Divide a range into similar ones."""
    count = -(-(end - start) // at_most)
    for n in range(count):
        yield start + (end - start) * n // count, start + (end - start) * (n + 1) // count


AT_A_TIME: Final = 10
"""Messages per request to receive or delete; a limit of SQS."""
LONGEST_POLL_SECONDS: Final = 20
_NOT_FOUND: Final = frozenset({"QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue", "NonExistentQueue"})
_QUEUE_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "ExpiredToken",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)


@dataclass(frozen=True)
class QueueMessage:
    """A received message."""

    id: str
    body: str
    receipt: str
    """Needed to delete the message; valid while the message is hidden."""
    receives: int
    """How often the message was received, including this time."""
    sent: datetime


class Queue:
    """One queue. Safe to use from one thread at a time."""

    def __init__(self, url: str, properties: Mapping[str, str]) -> None:
        self.url = url
        # A long poll without messages answers only after its whole wait time.
        self._sqs = client("sqs", properties, attempts=2, read_timeout_seconds=LONGEST_POLL_SECONDS + 10)

    def receive(self, at_most: int, wait_seconds: float, hidden_seconds: int) -> tuple[QueueMessage, ...]:
        """Receive messages. Returns as soon as there is one.

        Args:
            at_most: The maximum number of messages; values above 10 count as 10.
            wait_seconds: How long to wait for the first message, rounded down to whole seconds, at most 20.
            hidden_seconds: For how long other receivers do not get the messages.

        Raises:
            TransientError: QueueNotFound, QueueAccessDenied, QueueOverLimit, QueueUnavailable.
        """
        with self._said():
            answer = self._sqs.receive_message(
                QueueUrl=self.url,
                MaxNumberOfMessages=max(1, min(at_most, AT_A_TIME)),
                WaitTimeSeconds=max(0, min(int(wait_seconds), LONGEST_POLL_SECONDS)),
                VisibilityTimeout=hidden_seconds,
                AttributeNames=["ApproximateReceiveCount", "SentTimestamp"],
            )
        return tuple(_message(m) for m in answer.get("Messages", ()))

    def delete(self, receipts: Iterable[str]) -> int:
        """Delete messages and return how many were deleted. A message that is no longer hidden is delivered again.

        Raises:
            Exception: As `receive`.
        """
        gone = 0
        receipt_list = list(receipts)
        for i in range(0, len(receipt_list), AT_A_TIME):
            entries = [{"Id": str(n), "ReceiptHandle": r} for n, r in enumerate(receipt_list[i : i + AT_A_TIME])]
            with self._said():
                answer = self._sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
            gone += len(answer.get("Successful", ()))
        return gone

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Turn errors of boto3 into errors whose text may be shown to users."""
        try:
            yield
        except ClientError as e:
            raise _meaning(str(e.response.get("Error", {}).get("Code", "")), self.url) from e
        except BotoCoreError as e:
            raise TransientError(
                "QueueUnavailable", f"the queue {self.url} does not answer ({type(e).__name__})"
            ) from e


def _message(m: Mapping[str, Any]) -> QueueMessage:
    attributes = m.get("Attributes") or {}
    sent = datetime.fromtimestamp(int(attributes.get("SentTimestamp", 0)) / 1000, UTC)
    receives = int(attributes.get("ApproximateReceiveCount", 1))
    return QueueMessage(m["MessageId"], m["Body"], m["ReceiptHandle"], receives, sent)


def _meaning(code: str, url: str) -> TransientError:
    name = code.rpartition("#")[2]
    if name in _NOT_FOUND:
        return TransientError("QueueNotFound", f"there is no queue {url}")
    if name in _QUEUE_DENIED:
        needed = "the operator's credentials need sqs:ReceiveMessage and sqs:DeleteMessage on it"
        return TransientError("QueueAccessDenied", f"the queue {url} may not be read ({name}): {needed}")
    if "OverLimit" in name:
        return TransientError("QueueOverLimit", f"too many messages of the queue {url} are in flight")
    return TransientError("QueueUnavailable", f"the queue {url} answers {name or 'an error'}")
