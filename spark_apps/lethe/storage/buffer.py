"""The buffer: where producers put batches. Lists and deletes objects, in S3 or on a file system.

I/O. S3 is spoken through boto3, since a listing must come with ETags and PyIceberg's FileIO cannot list.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from botocore.exceptions import ClientError

from lethe.base.errors import InputError
from lethe.buffer.batch import BufferedBatch, ListedObject, NoBatch, file_etag, hidden_folder
from lethe.buffer.layout import DIRECTORY, Layout, folders_of, is_of_batch, layout_of
from lethe.ledger.ledger import BufferedObject
from lethe.storage.s3 import s3_client
from lethe.uri import is_local, is_s3, local_path, scheme_of

LOOKS_AT_ONCE: Final = 10  # as many connections as boto3 keeps


class Store(Protocol):
    """A place with objects; keys are full URIs."""

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        """The objects below a URI, those of a folder one after the other. `hidden`: also those in folders directly below it
        whose names begin with `_` or `.`; without them, such folders cost next to nothing."""
        ...

    def find(self, uri: str) -> ListedObject | None:
        """The object of exactly this URI."""
        ...

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete objects; how many are gone, those counted in that went before."""
        ...


class FileStore:
    """Local folders. The ETag is size and modification time. A folder that becomes empty goes, but not `place` itself: a
    buffer is its producers'."""

    def __init__(self, place: str = "") -> None:
        self._place = Path(local_path(place)) if place else None

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        root = Path(local_path(uri))
        for folder, folders, files in os.walk(root):
            shown = hidden or Path(folder) != root
            folders[:] = sorted(f for f in folders if shown or not hidden_folder(f"{f}/", ""))
            for name in sorted(files):
                path = Path(folder) / name
                if found := _listed(path, uri.rstrip("/") + "/" + path.relative_to(root).as_posix()):
                    yield found

    def find(self, uri: str) -> ListedObject | None:
        path = Path(local_path(uri))
        return _listed(path, uri) if path.is_file() else None

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        gone = 0
        for o in objects:
            path = Path(local_path(o.key))
            there = _listed(path, o.key)
            if there is not None and (there.size, there.etag) != (o.size, o.etag):
                continue  # written over since it was listed: nobody has promoted that
            path.unlink(missing_ok=True)
            gone += 1
            remove_if_empty(path.parent, self._place)
        return gone


def remove_if_empty(folder: Path, kept: Path | None) -> None:
    """Remove a folder, unless it is the one to be kept."""
    if folder != kept:
        with suppress(OSError):  # the folder is not empty, or gone already
            folder.rmdir()


def _listed(path: Path, key: str) -> ListedObject | None:
    try:
        stat = path.stat()
    except FileNotFoundError:  # deleted since its folder was read
        return None
    modified = datetime.fromtimestamp(stat.st_mtime, UTC)
    return ListedObject(key, stat.st_size, file_etag(stat.st_size, stat.st_mtime_ns), modified)


class S3Store:
    """A bucket of any S3 server, configured by PyIceberg's `s3.*` properties."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._s3 = s3_client(properties)

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        scheme, _, rest = uri.partition("://")
        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/") + "/"
        after: dict[str, str] | None = {}
        while after is not None:
            pages = self._s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, **after)
            after = None
            for page in pages:
                folder = ""
                for o in page.get("Contents", ()):
                    folder = "" if hidden else hidden_folder(o["Key"], prefix)
                    if not folder and not o["Key"].endswith("/"):
                        key = f"{scheme}://{bucket}/{o['Key']}"
                        yield ListedObject(key, o["Size"], o["ETag"].strip('"'), o["LastModified"])
                if folder and page.get("IsTruncated"):
                    # Behind the rest of that folder: "0" is the character that follows "/".
                    after = {"StartAfter": f"{prefix}{folder}0"}
                    break

    def find(self, uri: str) -> ListedObject | None:
        bucket, _, key = uri.partition("://")[2].partition("/")
        try:
            found = self._s3.head_object(Bucket=bucket, Key=key)
        except ClientError as e:
            if e.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound"):
                return None
            raise
        return ListedObject(uri, found["ContentLength"], found["ETag"].strip('"'), found["LastModified"])

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        by_bucket: dict[str, list[str]] = {}
        listed = list(objects)
        with ThreadPoolExecutor(LOOKS_AT_ONCE, thread_name_prefix="lethe-look") as pool:
            same = list(pool.map(self._is_same, listed))
        for o in (o for o, unchanged in zip(listed, same, strict=True) if unchanged):
            _, _, bucket, key = o.key.split("/", 3)
            by_bucket.setdefault(bucket, []).append(key)
        gone = 0
        for bucket, keys in by_bucket.items():
            for i in range(0, len(keys), 1000):
                wanted = [{"Key": k} for k in keys[i : i + 1000]]
                answer = self._s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": True})
                gone += len(wanted) - len(answer.get("Errors", ()))
        return gone

    def _is_same(self, listed: BufferedObject) -> bool:
        """Whether an object is what was listed, or is gone. A store that knows no conditional deletion is asked right before."""
        found = self.find(listed.key)
        return found is None or (found.size, found.etag) == (listed.size, listed.etag)


def open_store(uri: str, properties: Mapping[str, str]) -> Store:
    """The store of a URI. Raises: InputError (`UnsupportedScheme`)."""
    if is_local(uri):
        return FileStore(uri)
    if is_s3(uri):
        return S3Store(properties)
    raise InputError("UnsupportedScheme", f"{uri}: expected an s3:// or file:// URI, found {scheme_of(uri)}://.")


class Buffer:
    """The buffer of one Dataset."""

    def __init__(self, uri: str, layout: Layout, store: Store) -> None:
        self.uri = uri
        self._layout = layout
        self._store = store

    def folders(self, heard: Callable[[], None]) -> Iterator[BufferedBatch | NoBatch]:
        """Every batch, complete or not, and what is none, one by one as the store lists them. Two of one id are not looked for.

        Args:
            heard: Called for each object that the store tells of; what it raises ends the listing.
        """

        def objects() -> Iterator[ListedObject]:
            for found in self._store.list(self.uri, hidden=False):
                heard()
                yield found

        return folders_of(objects(), self.uri, self._layout)

    def folder(self, name: str) -> BufferedBatch | NoBatch | None:
        """What one folder holds, or the file of that name, None for nothing."""
        uri = f"{self.uri.rstrip('/')}/{name}"
        objects = filter(None, (self._store.find(uri),)) if self._layout.of_files else self._store.list(uri)
        return next(folders_of(objects, self.uri, self._layout), None)

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete these objects, as far as they are parts of batches and what was listed; how many went. One that is gone already
        counts."""
        return self._store.delete([o for o in objects if self.is_of_batch(o.key)])

    def is_of_batch(self, key: str) -> bool:
        """Whether an object's name is such as only a batch's has under the declared layout."""
        return is_of_batch(key, self.uri, self._layout)


def open_buffer(uri: str, batch_column: str, properties: Mapping[str, str], layout: str = DIRECTORY) -> Buffer:
    """Raises: InputError (`UnsupportedScheme`, `UnknownLayout`)."""
    return Buffer(uri, layout_of(layout, batch_column), open_store(uri, properties))
