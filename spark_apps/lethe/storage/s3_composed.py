"""Creates an object of S3 from bytes that are sent and from ranges of another object that the server copies. I/O: boto3.

The object is made of the parts of a multipart upload. A part is sent or copied, and each but the last has at least 5 MiB. So a
range that is too short is read and sent, and so is the beginning of a range that comes after too few bytes.
"""

import base64
import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lethe.storage import aws
from lethe.storage.object_store import StoreError
from lethe.storage.s3 import code_of, store_error_of
from lethe.storage.s3_uploads import PART_BYTES_AT_LEAST, PARTS_AT_MOST
from lethe.uri import bucket_and_key

log = logging.getLogger(__name__)
_MIB: Final = 1024 * 1024
_OTHER_SOURCE: Final = ("PreconditionFailed", "412")
# In a larger object there might be too many parts.
BYTES_AT_MOST: Final = PARTS_AT_MOST * PART_BYTES_AT_LEAST // 2


@dataclass(frozen=True)
class PartSizes:
    """How large parts are, in bytes."""

    # Each but the last.
    at_least: int = PART_BYTES_AT_LEAST
    # One that is sent while more follows. After it `at_least` bytes wait, so that they are a part if a range follows.
    sent: int = 16 * _MIB
    # A copy takes less time than the client waits for an answer.
    copied: int = 64 * _MIB


@dataclass(frozen=True)
class Source:
    """An object to copy from."""

    uri: str
    # In bytes.
    size: int
    # As the server gave it.
    etag: str
    # Reads so many bytes from a position, without the server's copies. It raises what it likes.
    read: Callable[[int, int], bytes]


class ComposedObject:
    """A new object. A context manager: the object exists when its block has ended, and if that fails, there is no upload either.

    Methods raise StoreError, and what `Source.read` raises.
    """

    def __init__(self, client: Any, uri: str, source: Source, sizes: PartSizes | None = None) -> None:
        """Args:
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

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        """Let the server copy a part. False: it refuses. Raises: StoreError, if the source is not the same any more."""
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

    Args:
        properties: PyIceberg's, of the FileIO of both objects.
        size: Of the source, in bytes.
        read: As `Source.read`.
    """
    bucket, key = bucket_and_key(source_uri)
    try:
        client = _client(properties)
        found = client.head_object(Bucket=bucket, Key=key)
        if found["ContentLength"] != size:
            log.warning("%s has %d bytes, expected %d: it is read and sent", source_uri, found["ContentLength"], size)
            return None
        # Without an ETag, the store cannot tell whether the source changes meanwhile. A gateway to a file system knows none of a
        # file that was put there beside it.
        if not (etag := found.get("ETag")):
            log.warning("%s has no ETag: it is read and sent", source_uri)
            return None
        return ComposedObject(client, uri, Source(source_uri, size, etag, read))
    except (ClientError, BotoCoreError, ValueError) as e:  # ValueError: boto3 does not understand the endpoint
        log.warning("%s: the store copies no ranges (%s)", source_uri, code_of(e))
    except StoreError as e:
        log.warning("%s: the store begins no upload (%s)", uri, e.code)
    return None


def _client(properties: Mapping[str, str]) -> Any:
    style = {"addressing_style": "path" if properties.get("s3.endpoint") else "auto"}
    # A checksum that the store requires of each part would be missing for those that it copies.
    return aws.client(
        "s3", properties, 4, read_timeout_seconds=60, s3=style, request_checksum_calculation="when_required"
    )


def _pieces(start: int, end: int, at_most: int) -> Iterator[tuple[int, int]]:
    """Divide a range into similar ones."""
    count = -(-(end - start) // at_most)
    for n in range(count):
        yield start + (end - start) * n // count, start + (end - start) * (n + 1) // count
