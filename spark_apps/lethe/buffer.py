"""The buffer: where producers put batches. Lists and deletes objects, in S3 or on a file system.

I/O. S3 is spoken through boto3, since a listing must come with ETags and PyIceberg's FileIO cannot list.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from lethe.errors import InputError
from lethe.ledger.ledger import BufferedObject
from lethe.plan.batches import (
    BufferedBatch,
    Grouped,
    ListedObject,
    NoBatch,
    file_etag,
    folders_of,
    group,
    hidden_folder,
)
from lethe.plan.places import local_path
from lethe.s3 import s3_client


class Store(Protocol):
    """A place with objects; keys are full URIs."""

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        """The objects below a URI, those of a folder one after the other. `hidden`: also those in folders directly below it
        whose names begin with `_` or `.`; without them, such folders cost next to nothing."""
        ...

    def delete(self, objects: Iterable[BufferedObject]) -> int: ...


class FileStore:
    """A local folder. The ETag is size and modification time."""

    def list(self, uri: str, hidden: bool = True) -> Iterator[ListedObject]:
        root = Path(local_path(uri))
        for folder, folders, files in os.walk(root):
            shown = hidden or Path(folder) != root
            folders[:] = sorted(f for f in folders if shown or not hidden_folder(f"{f}/", ""))
            for name in sorted(files):
                path = Path(folder) / name
                try:
                    stat = path.stat()
                except FileNotFoundError:  # deleted since its folder was read
                    continue
                key = uri.rstrip("/") + "/" + path.relative_to(root).as_posix()
                modified = datetime.fromtimestamp(stat.st_mtime, UTC)
                yield ListedObject(key, stat.st_size, file_etag(stat.st_size, stat.st_mtime_ns), modified)

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        gone = 0
        for o in objects:
            path = Path(local_path(o.key))
            path.unlink(missing_ok=True)
            gone += 1
            with suppress(OSError):  # the folder is not empty, or gone already
                path.parent.rmdir()
        return gone


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

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        by_bucket: dict[str, list[str]] = {}
        for o in objects:
            _, _, bucket, key = o.key.split("/", 3)
            by_bucket.setdefault(bucket, []).append(key)
        gone = 0
        for bucket, keys in by_bucket.items():
            for i in range(0, len(keys), 1000):
                wanted = [{"Key": k} for k in keys[i : i + 1000]]
                answer = self._s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted, "Quiet": True})
                gone += len(wanted) - len(answer.get("Errors", ()))
        return gone


def open_store(uri: str, properties: Mapping[str, str]) -> Store:
    """The store of a URI. Raises: InputError (`UnsupportedScheme`)."""
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        return FileStore()
    if scheme in ("s3", "s3a", "s3n"):
        return S3Store(properties)
    raise InputError("UnsupportedScheme", f"{uri}: expected an s3:// or file:// URI, found {scheme}://.")


class Buffer:
    """The buffer of one Dataset."""

    def __init__(self, uri: str, batch_column: str, store: Store) -> None:
        self.uri = uri
        self._column = batch_column
        self._store = store

    def list(self) -> Grouped:
        """Every batch, complete or not, and what is none, in the order of the folders' names."""
        return group(self._store.list(self.uri, hidden=False), self.uri, self._column)

    def folders(self, heard: Callable[[], None]) -> Iterator[BufferedBatch | NoBatch]:
        """The same one by one as the store lists them, holding one at a time; two of one id are not looked for.

        Args:
            heard: Called for each object that the store tells of; what it raises ends the listing.
        """

        def objects() -> Iterator[ListedObject]:
            for found in self._store.list(self.uri, hidden=False):
                heard()
                yield found

        return folders_of(objects(), self.uri, self._column)

    def folder(self, name: str) -> BufferedBatch | NoBatch | None:
        """What one folder holds, None for nothing."""
        objects = self._store.list(f"{self.uri.rstrip('/')}/{name}")
        return next(folders_of(objects, self.uri, self._column), None)

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete these objects; how many went. One that is gone already counts."""
        return self._store.delete(objects)


def open_buffer(uri: str, batch_column: str, properties: Mapping[str, str]) -> Buffer:
    return Buffer(uri, batch_column, open_store(uri, properties))
