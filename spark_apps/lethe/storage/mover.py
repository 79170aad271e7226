"""Copying and deleting objects of a buffer one by one, each only if it is still what was listed.

I/O. Every act may be repeated: what is done already counts as done.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from botocore.exceptions import ClientError

from lethe.buffer.batch import file_etag
from lethe.ledger.ledger import BufferedObject
from lethe.storage.buffer import remove_if_empty
from lethe.storage.s3 import s3_client
from lethe.uri import is_local, local_path

_NOT_IT: Final = ("404", "412", "NoSuchKey", "NotFound", "PreconditionFailed")


class Mover(Protocol):
    """URIs name objects."""

    def copy(self, source: BufferedObject, target: str) -> bool:
        """Whether the object was there unchanged, and is now at the target too."""
        ...

    def put(self, target: str, content: bytes) -> None: ...

    def exists(self, uri: str) -> bool: ...

    def delete(self, source: BufferedObject) -> bool:
        """Whether the object is gone; False: it is not the one that was listed, and stays."""
        ...


class FileMover:
    """Of a local buffer, whose own folder stays, though it be empty."""

    def __init__(self, buffer: str) -> None:
        self._buffer = Path(local_path(buffer))

    def copy(self, source: BufferedObject, target: str) -> bool:
        path = Path(local_path(source.key))

        try:
            return self._write(target, lambda at: shutil.copyfile(path, at), lambda: _etag(path) == source.etag)
        except FileNotFoundError:
            return False

    def put(self, target: str, content: bytes) -> None:
        self._write(target, lambda at: at.write_bytes(content), lambda: True)

    def exists(self, uri: str) -> bool:
        return Path(local_path(uri)).exists()

    def delete(self, source: BufferedObject) -> bool:
        path = Path(local_path(source.key))
        with suppress(FileNotFoundError):
            if _etag(path) != source.etag:
                return False
            path.unlink()
        remove_if_empty(path.parent, self._buffer)
        return True

    def _write(self, target: str, write: Callable[[Path], object], holds: Callable[[], bool]) -> bool:
        """Write beside the target and take its place, if `holds` afterwards."""
        path = Path(local_path(target))
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{uuid.uuid4().hex}")
        try:
            write(beside)
            if not holds():
                return False
            os.replace(beside, path)
            return True
        finally:
            beside.unlink(missing_ok=True)


class S3Mover:
    """Of any S3 server. Conditions are asked of the server; where it does not know them, right before the act."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._s3 = s3_client(properties)

    def copy(self, source: BufferedObject, target: str) -> bool:
        (from_bucket, from_key), (bucket, key) = _split(source.key), _split(target)
        try:  # in parts, if it is large
            self._s3.copy(
                {"Bucket": from_bucket, "Key": from_key},
                bucket,
                key,
                ExtraArgs={"CopySourceIfMatch": f'"{source.etag}"'},
            )
        except ClientError as e:
            if _code(e) in _NOT_IT:
                return False
            raise
        return True

    def put(self, target: str, content: bytes) -> None:
        bucket, key = _split(target)
        self._s3.put_object(Bucket=bucket, Key=key, Body=content)

    def exists(self, uri: str) -> bool:
        return self._found(uri) is not None

    def delete(self, source: BufferedObject) -> bool:
        bucket, key = _split(source.key)
        found = self._found(source.key)
        if found is None:
            return True
        if found != source.etag:
            return False
        try:
            self._s3.delete_object(Bucket=bucket, Key=key, IfMatch=f'"{source.etag}"')
        except ClientError as e:
            if _code(e) in ("501", "NotImplemented"):
                self._s3.delete_object(Bucket=bucket, Key=key)
                return True
            if _code(e) in _NOT_IT:
                return False
            raise
        return True

    def _found(self, uri: str) -> str | None:
        """The ETag of an object, None when there is none."""
        bucket, key = _split(uri)
        try:
            return str(self._s3.head_object(Bucket=bucket, Key=key)["ETag"]).strip('"')
        except ClientError as e:
            if _code(e) in _NOT_IT:
                return None
            raise


def open_mover(uri: str, properties: Mapping[str, str]) -> Mover:
    """For a buffer that `lethe.storage.buffer.open_store` opens."""
    return FileMover(uri) if is_local(uri) else S3Mover(properties)


def _etag(path: Path) -> str:
    """As a listing has it. Raises: FileNotFoundError."""
    stat = path.stat()
    return file_etag(stat.st_size, stat.st_mtime_ns)


def _split(uri: str) -> tuple[str, str]:
    bucket, _, key = uri.partition("://")[2].partition("/")
    return bucket, key


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
