"""The boto3 client of S3, and the requests that obstore cannot make. I/O."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from lethe.buffer.batch import ListedObject
from lethe.erasure.retention_lock import Retention
from lethe.storage import aws
from lethe.storage.object_store import DENIED, NO_BUCKET, Content, StoreError, WriteUnknown, not_created, not_retained
from lethe.uri import bucket_and_key

_NOT_THERE: Final = ("404", "412", "NoSuchKey", "NotFound", "PreconditionFailed")
_DENIED: Final = ("AccessDenied", "403", "Forbidden")


def s3_client(properties: Mapping[str, str], attempts: int = 4) -> Any:
    """A boto3 client with short timeouts, so that an unreachable store is detected in seconds.

    Args:
        attempts: How often a request is sent before it counts as failed.
    """
    style = "path" if properties.get("s3.endpoint") else "auto"
    return aws.client("s3", properties, attempts, read_timeout_seconds=20, s3={"addressing_style": style})


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
        try:
            found = self._client().head_object(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _NOT_THERE:
                return None
            raise store_error_of(uri, e) from None
        return ListedObject(uri, found["ContentLength"], _etag(found), found["LastModified"])

    def read(self, uri: str) -> Content | None:
        try:
            found = self._client().get_object(**_named(uri))
            return Content(found["Body"].read(), _etag(found))
        except (ClientError, BotoCoreError) as e:
            if code_of(e) in _NOT_THERE:
                return None
            raise store_error_of(uri, e) from None

    def delete(self, uri: str) -> None:
        try:
            self._client().delete_object(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            raise store_error_of(uri, e) from None

    def delete_if_match(self, uri: str, etag: str) -> bool:
        """Delete an object if it has this ETag. Return False if it has another, or does not exist. On a server without
        conditional deletes, the object is deleted unconditionally."""
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

        Raises: InputError (RecordNotRetained), StoreError: nothing was created; WriteUnknown.
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
        try:
            found = self._client().get_object_retention(**_named(uri))
        except (ClientError, BotoCoreError) as e:
            if 400 <= _status(e) < 500:
                return None
            raise store_error_of(uri, e) from None
        until: datetime | None = found.get("Retention", {}).get("RetainUntilDate")
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


def _etag(found: Mapping[str, Any]) -> str:
    """ "": a gateway to a file system knows none of a file that was put there beside it."""
    return str(found.get("ETag", "")).strip('"')


def store_error_of(uri: str, error: Exception) -> StoreError:
    """The same error of boto3 as one of a store."""
    code = code_of(error)
    if code in _DENIED:
        code = DENIED
    return StoreError(uri, NO_BUCKET if code == "NoSuchBucket" else code)
