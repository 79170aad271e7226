"""Folders in which a file can be created only if there is none of its name, whole or not at all. I/O.

That, and listing, is all that a table without a catalog service needs of its storage. A rename will not do: on a local
file system it replaces, in an object store it is a copy and a delete.
"""

import errno
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from botocore.exceptions import ClientError, ParamValidationError

from lethe.base.errors import InputError, TransientError
from lethe.erasure.retention_lock import Retention
from lethe.storage.s3 import s3_client
from lethe.uri import is_local, is_s3, local_path, scheme_of

# What link(2) says on a file system that has no hard links.
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV)


class Folder(Protocol):
    """Files directly in one folder, by name."""

    @property
    def uri(self) -> str: ...

    def names(self, prefix: str) -> list[str]:
        """The names that begin with `prefix`, those of all files that were there when the listing began and still are."""
        ...

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Whether the file was made; False: there is one of that name. Nobody ever sees a part of the content.

        Raises: InputError (UnsupportedStorage), TransientError: nothing was made; anything else: nobody knows.
        """
        ...

    def replace(self, name: str, content: bytes) -> None: ...

    def delete(self, name: str) -> None: ...


class LocalFolder:
    """A folder of a POSIX file system, a mounted one included if it has hard links."""

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._path = Path(local_path(self.uri))

    def names(self, prefix: str) -> list[str]:
        try:
            return [name for name in os.listdir(self._path) if name.startswith(prefix)]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> bool:
        try:
            draft = self._draft(name, content)
        except OSError as e:
            raise _not_made(self.uri, name, type(e).__name__) from e
        try:
            os.link(draft, self._path / name)
        except FileExistsError:
            return False
        except OSError as e:
            if e.errno not in _NO_LINKS:
                raise
            raise InputError(
                "UnsupportedStorage",
                f"{self.uri}: the file system has no hard links ({errno.errorcode.get(e.errno or 0, e.errno)}), so a version "
                "of a table cannot be created there without the danger of overwriting another. Use a catalog of type sql "
                "or rest, or another file system.",
            ) from e
        finally:
            draft.unlink(missing_ok=True)
        self._sync()
        return True

    def replace(self, name: str, content: bytes) -> None:
        draft = self._draft(name, content)
        # Hadoop keeps a checksum beside each file that it writes; the old one would make it refuse the new file.
        (self._path / f".{name}.crc").unlink(missing_ok=True)
        draft.replace(self._path / name)

    def delete(self, name: str) -> None:
        (self._path / name).unlink(missing_ok=True)
        (self._path / f".{name}.crc").unlink(missing_ok=True)

    def _draft(self, name: str, content: bytes) -> Path:
        """The content on disk, under a hidden name of its own: one that a crash leaves behind is nobody's version."""
        self._path.mkdir(parents=True, exist_ok=True)
        draft = self._path / f".{name}.{uuid.uuid4().hex}"
        try:
            with draft.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft

    def _sync(self) -> None:
        """Let the new name survive a loss of power. Not every file system can; then it does what it does."""
        with suppress(OSError):
            handle = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class S3Folder:
    """A prefix of a bucket in a store that keeps to `If-None-Match`. Whether it does is tried before the first creation."""

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        self.uri = uri.rstrip("/")
        parts = urlsplit(self.uri)
        self._bucket, self._prefix = parts.netloc, parts.path.strip("/")
        self._s3: Any = s3_client(properties)
        # A creation that was sent again because its answer was lost would be told that the file is there, or, once that
        # was cleaned up, make it a second time.
        self._once: Any = s3_client(properties, attempts=1)

    def names(self, prefix: str) -> list[str]:
        pages = self._s3.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._key(prefix), Delimiter="/"
        )
        return [o["Key"].rpartition("/")[2] for page in pages for o in page.get("Contents", ())]

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._s3.get_object(Bucket=self._bucket, Key=self._key(name))["Body"].read())
        except ClientError as e:
            if e.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise

    def create(
        self, name: str, content: bytes, retention: Retention | None = None, now: datetime | None = None
    ) -> bool:
        """As of any folder.

        Args:
            retention: How long the store has to keep the object from `now` on; None: as it keeps everything.
        """
        self._require_conditions()
        if retention is None or now is None:
            return self._create(name, content)
        return self._create(
            name, content, ObjectLockMode=retention.mode, ObjectLockRetainUntilDate=retention.until(now)
        )

    def kept_until(self, name: str) -> datetime | None:
        """Until when its newest version cannot be deleted, by its object lock; None: it has none."""
        try:
            found = self._s3.get_object_retention(Bucket=self._bucket, Key=self._key(name))
        except ClientError as e:
            if 400 <= int(e.response["ResponseMetadata"]["HTTPStatusCode"]) < 500:
                return None
            raise
        until: datetime | None = found.get("Retention", {}).get("RetainUntilDate")
        return until

    def replace(self, name: str, content: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=self._key(name), Body=content)

    def delete(self, name: str) -> None:
        self._s3.delete_object(Bucket=self._bucket, Key=self._key(name))

    def _create(self, name: str, content: bytes, **lock: Any) -> bool:
        try:
            self._once.put_object(Bucket=self._bucket, Key=self._key(name), Body=content, IfNoneMatch="*", **lock)
        except ParamValidationError as e:
            raise InputError(
                "UnsupportedStorage",
                f"{self.uri}: this version of boto3 knows no conditional writes, so that writers of a table would overwrite each "
                "other's commits. Install boto3 1.36 or newer.",
            ) from e
        except ClientError as e:
            status = int(e.response["ResponseMetadata"]["HTTPStatusCode"])
            if status in (409, 412):  # there is one, or another creation of it is under way: this one made nothing
                return False
            if lock and status == 400:  # of which InvalidRequest says that the bucket has no lock
                raise not_retained(f"{self.uri}/{name}", f"the store answers {e.response['Error']['Code']}") from e
            if 400 <= status < 500 or status == 501:
                raise _not_made(self.uri, name, str(e.response["Error"]["Code"])) from e
            raise
        return True

    def _require_conditions(self) -> None:
        """A store that does not know the condition overwrites and says nothing: no table would be safe in it."""
        store = (str(self._s3.meta.endpoint_url), self._bucket)
        if store in _KEEPS_TO_CONDITIONS:
            return
        name = f".lethe-{uuid.uuid4().hex}"
        try:
            refused = not (self._create(name, b"1") and self._create(name, b"2"))
        finally:
            self.delete(name)
        if not refused:
            raise InputError(
                "UnsupportedStorage",
                f"{self.uri}: the store overwrites an object that a request asked it not to (If-None-Match: *), so writers "
                "of a table would overwrite each other's commits. Use a catalog of type sql or rest, or a store that keeps "
                "to conditional writes.",
            )
        _KEEPS_TO_CONDITIONS.add(store)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def not_retained(uri: str, why: str) -> InputError:
    """What is said of a file that was to be written with an object lock and was not."""
    return InputError(
        "RecordNotRetained",
        f"{uri} has to be kept by an object lock (the chart's value erase.record.retention), and {why}. Its erasure stays "
        "open. Keep the table in an S3 bucket that was made with object lock, or set the value to 0 days.",
    )


def _not_made(uri: str, name: str, why: str) -> TransientError:
    return TransientError(
        "StorageRefused",
        f"{uri}: creating {name} was refused ({why}). Nothing was committed; see to the storage's rights.",
    )


_KEEPS_TO_CONDITIONS: Final[set[tuple[str, str]]] = set()


def open_folder(uri: str, properties: Mapping[str, str]) -> Folder:
    """Args:
    properties: The catalog's, as PyIceberg names them (`s3.endpoint`…).
    Raises: InputError (UnsupportedStorage).
    """
    if is_local(uri):
        return LocalFolder(uri)
    if is_s3(uri):
        return S3Folder(uri, properties)
    raise InputError(
        "UnsupportedStorage",
        f"{uri}: tables of a catalog of type hadoop can be kept in file:// and s3:// folders, found {scheme_of(uri)}://. Where a "
        "rename refuses to replace a file, as in HDFS, Iceberg's own Hadoop catalog is safe; Lethe does not speak to it.",
    )
