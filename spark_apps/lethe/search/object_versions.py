"""Finds and removes what a storage still has of erased files, and names what prevents a removal. I/O.

If the storage keeps versions, an object is gone only when no version of it exists: a delete only hides it.
"""

import io
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, cast

from botocore.exceptions import ClientError
from pyiceberg.io import FileIO

from lethe.base.errors import TransientError
from lethe.base.ranged_file import RangedFile
from lethe.erasure.strays import UnfinishedUpload
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.storage.s3 import s3_client
from lethe.uri import bucket_and_key, bucket_and_prefix, is_local, is_s3, is_utf8, local_path, without_values

ASKED_AT_ONCE: Final = 16
_RANGE_BYTES: Final = 256 * 1024
_UNKNOWN_CALL: Final = ("NotImplemented", "MethodNotAllowed", "UnsupportedOperation", "501", "405")
_GONE: Final = ("404", "NoSuchKey", "NoSuchVersion", "NotFound")
_AGAIN: Final = "it was deleted and is there again"
_DENIED: Final = ("AccessDenied", "403", "Forbidden")


class VersionsDenied(Exception):
    """The credentials may not list the versions of objects, so it cannot be verified that they are gone."""

    def __init__(self, bucket: str) -> None:
        super().__init__(bucket)
        self.bucket = bucket


@dataclass(frozen=True)
class SurvivingObject:
    """An object that still exists."""

    path: str
    current: bool
    """False: only older versions exist, so readers do not find the object."""
    versions: tuple[str, ...] = ()
    """Ids of all versions with bytes; empty: the store does not list versions."""
    markers: tuple[str, ...] = ()
    """Ids of delete markers."""


class Storage(Protocol):
    """The storage of a table's files."""

    calls: Counter[str]
    """The number of requests, by operation."""

    @property
    def supports_versions(self) -> bool:
        """Whether `find` looks for all versions of an object. May become False with the first request."""
        ...

    @property
    def lists_folders(self) -> bool:
        """Whether `list_below` can list folders."""
        ...

    def find(self, paths: Iterable[str]) -> dict[str, SurvivingObject]:
        """The objects that still exist, by path.

        Raises:
            VersionsDenied: The credentials may not list the versions of objects, so it cannot be verified that they are gone.
            TransientError: A dependency is temporarily unavailable.
            Exception: Errors of the storage.
        """
        ...

    def remove(self, remain: SurvivingObject, every_version: bool) -> ErasureBlocker | None:
        """Delete an object. Return what prevents it; None: nothing, but this does not prove that the object is gone.

        Args:
            every_version: Delete older versions as well; False: delete only the current one.
        """
        ...

    def find_blocker(self, remain: SurvivingObject) -> ErasureBlocker:
        """What keeps an object that still exists although the storage accepted the deletion."""
        ...

    def list_below(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """All objects below a folder, whatever their names, and when each was written.

        Includes deleted objects that still have versions, links to folders, and folders that cannot be read.
        """
        ...

    def cannot_list(self, folder: str) -> str | None:
        """Why `under` cannot list this folder; None: it can."""
        ...

    def open(self, path: str) -> BinaryIO | None:
        """Open an object, or the newest version of a deleted one. None: it does not exist, or may not be read."""
        ...

    def uploads(self, folder: str) -> tuple[list[UnfinishedUpload], str]:
        """The unfinished multipart uploads below a folder, and why they cannot be listed; "": they can."""
        ...

    def abort(self, upload: UnfinishedUpload) -> bool:
        """Abort an upload. Return whether its parts are gone."""
        ...


def open_storage(location: str, file_io: FileIO, properties: Mapping[str, str]) -> Storage:
    """The storage of a table at this location, configured by the properties of its catalog."""
    if is_s3(location):
        return S3Objects(properties)
    return UnversionedFiles(file_io, listable=is_local(location))


class UnversionedFiles:
    """Any storage that PyIceberg supports. Only local folders can be listed."""

    def __init__(self, file_io: FileIO, listable: bool) -> None:
        self.calls: Counter[str] = Counter()
        self._io = file_io
        self._listable = listable

    @property
    def supports_versions(self) -> bool:
        """Always False: PyIceberg's FileIO shows only current files."""
        return False

    @property
    def lists_folders(self) -> bool:
        """True only for a table in a local folder."""
        return self._listable

    def find(self, paths: Iterable[str]) -> dict[str, SurvivingObject]:
        """Ask for each path in turn whether the file exists. Older versions are not looked for."""
        return {path: SurvivingObject(path, True) for path in paths if self._exists(path)}

    def remove(self, remain: SurvivingObject, every_version: bool) -> ErasureBlocker | None:  # noqa: ARG002 - there are no older versions
        """Delete a file, and beside a local one its checksum file. A file that does not exist is not an error."""
        self.calls["delete"] += 1
        try:
            if (odd := self._odd(remain.path)) is not None:
                odd.unlink()
            else:
                self._io.delete(remain.path)
            if self._listable:  # the checksum that Hadoop writes beside a local file
                path = Path(local_path(remain.path))
                path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        except FileNotFoundError:
            return None
        except PermissionError:
            return ErasureBlocker(
                BlockerKind.OBJECT, without_values(remain.path), None, "the file system refuses to delete it"
            )
        return None

    def find_blocker(self, remain: SurvivingObject) -> ErasureBlocker:
        """Always a blocker that says that the file was deleted and is there again: nothing else is known."""
        return ErasureBlocker(BlockerKind.OBJECT, without_values(remain.path), None, _AGAIN)

    def list_below(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Walk through a local folder and the folders in it, but not through links. Of other storage, list nothing."""
        if not self._listable:
            return
        self.calls["list"] += 1
        root = Path(local_path(folder))
        unread: list[str] = []
        for current_folder, folders, files in os.walk(root, onerror=lambda e: unread.append(str(e.filename))):
            links = [f for f in folders if Path(current_folder, f).is_symlink()]
            for name in (*files, *links):
                path = Path(current_folder, name)
                try:
                    modified = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
                except FileNotFoundError:  # deleted since its folder was read
                    continue
                yield f"{folder.rstrip('/')}/{path.relative_to(root).as_posix()}", modified
        for path in map(Path, unread):
            if path != root and path.is_dir():
                modified = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                yield f"{folder.rstrip('/')}/{path.relative_to(root).as_posix()}", modified

    def cannot_list(self, folder: str) -> str | None:
        """None only for a local folder, if the table is local too."""
        return None if is_local(folder) and self._listable else "it is not known how to list it"

    def open(self, path: str) -> BinaryIO | None:
        """Open a file with the table's FileIO. Deleted files have no versions to open."""
        try:
            if (odd := self._odd(path)) is not None:
                return odd.open("rb")
            return cast(BinaryIO, self._io.new_input(path).open())
        except (FileNotFoundError, PermissionError):
            return None

    def uploads(self, folder: str) -> tuple[list[UnfinishedUpload], str]:
        """Always none. The text is empty for a local folder; of others, it says that none can be listed."""
        return [], "" if self.cannot_list(folder) is None else "it is not known how to list them"

    def abort(self, upload: UnfinishedUpload) -> bool:  # noqa: ARG002 - there are none
        """Always True and without an effect, because `uploads` never finds any."""
        return True

    def _exists(self, path: str) -> bool:
        self.calls["exists"] += 1
        odd = self._odd(path)
        return bool(self._io.new_input(path).exists()) if odd is None else os.path.lexists(odd)

    def _odd(self, path: str) -> Path | None:
        """A local file whose name has bytes that are not UTF-8, which the FileIO cannot name; None: another file."""
        return Path(local_path(path)) if self._listable and not is_utf8(path) else None


class S3Objects:
    """The buckets of any S3 server, configured by PyIceberg's `s3.*` properties.

    Without support for versions, only current objects are found.
    """

    def __init__(self, properties: Mapping[str, str], client: Any = None) -> None:
        self.calls: Counter[str] = Counter()
        self._s3 = client if client is not None else s3_client(properties)
        self._versions = True
        self._lock = threading.Lock()

    @property
    def supports_versions(self) -> bool:
        """True until the store answers that it does not support listing the versions of objects."""
        return self._versions

    @property
    def lists_folders(self) -> bool:
        """Always True: every S3 server lists objects by a prefix of their keys."""
        return True

    def find(self, paths: Iterable[str]) -> dict[str, SurvivingObject]:
        """Look for all versions of 16 objects at once, or only for current objects if the store lists no versions.

        Raises:
            VersionsDenied: The credentials may not list the versions of objects.
            TransientError: The store did not answer as expected.
        """
        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            return {r.path: r for r in pool.map(self._find, paths) if r is not None}

    def remove(self, remain: SurvivingObject, every_version: bool) -> ErasureBlocker | None:
        """Delete each known version, then its delete markers. Without `every_version`, send one plain deletion.

        Raises:
            TransientError: The store did not answer as expected.
        """
        bucket, key = bucket_and_key(remain.path)
        versions = remain.versions if every_version else ()
        try:
            for version in versions:
                self._call("DeleteObject", "delete_object", Bucket=bucket, Key=key, VersionId=version)
            if not versions and remain.current:
                self._call("DeleteObject", "delete_object", Bucket=bucket, Key=key)
        except ClientError as e:
            return self._kept(remain, e)
        if every_version:
            with suppress(ClientError):  # delete markers contain no bytes
                for marker in remain.markers:
                    self._call("DeleteObject", "delete_object", Bucket=bucket, Key=key, VersionId=marker)
        return None

    def find_blocker(self, remain: SurvivingObject) -> ErasureBlocker:
        """Ask for the legal hold and the object lock of each version until one is found: two requests per version."""
        return self._kept(remain, None)

    def list_below(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """List all versions before the first result. The time of an object is that of its newest version.

        Raises:
            VersionsDenied: The credentials may not list the versions of objects.
            TransientError: The store did not answer as expected.
        """
        scheme = folder.partition("://")[0]
        bucket, prefix = bucket_and_prefix(folder)
        written: dict[str, datetime] = {}
        for o in self._pages(bucket, prefix):
            written[o["Key"]] = max(o["LastModified"], written.get(o["Key"], o["LastModified"]))
        for key, modified in written.items():
            yield f"{scheme}://{bucket}/{key}", modified

    def cannot_list(self, folder: str) -> str | None:
        """None for every folder in S3, whatever its bucket and the rights of the credentials."""
        return None if is_s3(folder) else "it is not in S3, as the table is"

    def open(self, path: str) -> BinaryIO | None:
        """Find the newest version with a listing. Its bytes are read in ranges of 256 KiB, as they are needed.

        Raises:
            VersionsDenied: The credentials may not list the versions of objects.
            TransientError: The store did not answer as expected.
        """
        bucket, key = bucket_and_key(path)
        try:
            newest = next((o for o in self._pages(bucket, key) if o["Key"] == key), None)
        except ClientError:
            return None
        if newest is None:
            return None
        version = newest.get("VersionId")
        named = {"Bucket": bucket, "Key": key, **({"VersionId": version} if version not in (None, "null") else {})}
        return io.BufferedReader(_Ranged(self._s3, named, int(newest["Size"])), _RANGE_BYTES)

    def uploads(self, folder: str) -> tuple[list[UnfinishedUpload], str]:
        """List the uploads. The text says if the rights are missing or the server does not know the request.

        Raises:
            TransientError: The store did not answer as expected.
        """
        scheme = folder.partition("://")[0]
        bucket, prefix = bucket_and_prefix(folder)
        unfinished: list[UnfinishedUpload] = []
        try:
            pages = self._s3.get_paginator("list_multipart_uploads")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                self._count("ListMultipartUploads")
                for u in page.get("Uploads", ()):
                    unfinished.append(
                        UnfinishedUpload(f"{scheme}://{bucket}/{u['Key']}", u["UploadId"], u["Initiated"])
                    )
        except ClientError as e:
            if _code(e) in (*_DENIED, *_UNKNOWN_CALL):
                return [], f"the store answers {_code(e)}; grant s3:ListBucketMultipartUploads if it knows them"
            raise _unanswered(e, folder) from e
        return unfinished, ""

    def abort(self, upload: UnfinishedUpload) -> bool:
        """Abort an upload. An upload that does not exist any more counts as aborted. False: the store refuses."""
        bucket, key = bucket_and_key(upload.path)
        try:
            self._call("AbortMultipartUpload", "abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)
        except ClientError as e:
            return _code(e) == "NoSuchUpload"
        return True

    def _pages(self, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        if self._versions:
            try:
                yield from (o for o in self._listed(bucket, prefix) if "ETag" in o)
                return
            except ClientError as e:
                self._no_versions(e, bucket)
        for page in self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            self._count("ListObjectsV2")
            yield from page.get("Contents", ())

    def _find(self, path: str) -> SurvivingObject | None:
        bucket, key = bucket_and_key(path)
        if self._versions:
            try:
                found = [o for o in self._listed(bucket, key) if o["Key"] == key]
            except ClientError as e:
                self._no_versions(e, bucket)
            else:
                versions = tuple(o["VersionId"] for o in found if "ETag" in o)
                markers = tuple(o["VersionId"] for o in found if "ETag" not in o)
                current = any(o["IsLatest"] for o in found if "ETag" in o)
                return SurvivingObject(path, current, versions, markers) if versions else None
        try:
            self._call("HeadObject", "head_object", Bucket=bucket, Key=key)
        except ClientError as e:
            if _code(e) in _GONE:
                return None
            raise _unanswered(e, without_values(path)) from e
        return SurvivingObject(path, True)

    def _listed(self, bucket: str, prefix: str) -> Iterator[Mapping[str, Any]]:
        """Versions and delete markers. Only versions have an ETag."""
        for page in self._s3.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix):
            self._count("ListObjectVersions")
            yield from page.get("Versions", ())
            yield from page.get("DeleteMarkers", ())

    def _no_versions(self, error: ClientError, bucket: str) -> None:
        """Remember that the store does not support versions.

        Raises:
            VersionsDenied: For other errors.
            TransientError: For other errors.
        """
        if _code(error) in _DENIED:
            raise VersionsDenied(bucket) from error
        if _code(error) not in _UNKNOWN_CALL:
            raise _unanswered(error, f"s3://{bucket}") from error
        self._versions = False

    def _kept(self, remain: SurvivingObject, error: ClientError | None) -> ErasureBlocker:
        """What keeps an object, as far as the store shows it."""
        bucket, key = bucket_and_key(remain.path)
        name = without_values(remain.path)
        for version in remain.versions:
            named = {"Bucket": bucket, "Key": key, **({} if version == "null" else {"VersionId": version})}
            if self._lock_of("GetObjectLegalHold", "get_object_legal_hold", "LegalHold", named).get("Status") == "ON":
                return ErasureBlocker(BlockerKind.LEGAL_HOLD, name)
            until = self._lock_of("GetObjectRetention", "get_object_retention", "Retention", named).get(
                "RetainUntilDate"
            )
            if until is not None:
                return ErasureBlocker(BlockerKind.OBJECT_LOCK, name, until.astimezone(UTC).replace(microsecond=0))
        if error is not None and _code(error) not in _DENIED:
            raise _unanswered(error, name) from error
        if error is not None:
            why = "the store refuses to delete it; grant s3:DeleteObject and s3:DeleteObjectVersion"
            return ErasureBlocker(
                BlockerKind.OBJECT_VERSION if remain.versions else BlockerKind.OBJECT, name, None, why
            )
        if remain.current:
            return ErasureBlocker(BlockerKind.OBJECT, name, None, _AGAIN)
        return ErasureBlocker(BlockerKind.OBJECT_VERSION, name, None, "the bucket keeps versions")

    def _lock_of(self, name: str, method: str, what: str, named: Mapping[str, str]) -> Mapping[str, Any]:
        try:
            return dict(self._call(name, method, **named)[what])
        except ClientError:  # there is none, or the store does not support the request
            return {}

    def _call(self, name: str, method: str, **arguments: str) -> Any:
        self._count(name)
        return getattr(self._s3, method)(**arguments)

    def _count(self, name: str) -> None:
        with self._lock:
            self.calls[name] += 1


class _Ranged(RangedFile):
    """A version of an object, read in ranges, because callers need only the end of a large file."""

    def __init__(self, client: Any, named: Mapping[str, str], size: int) -> None:
        super().__init__(size)
        self._client, self._named = client, named

    def read_part(self, start: int, size: int) -> bytes:
        try:
            answer = self._client.get_object(**self._named, Range=f"bytes={start}-{start + size - 1}")
        except ClientError as e:
            raise OSError(_code(e)) from e
        return bytes(answer["Body"].read())


def _unanswered(error: ClientError, what: str) -> TransientError:
    return TransientError("StorageUnavailable", f"{what}: the store answers {_code(error)}; it is asked again.")


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
