"""Buckets of an S3 server as an object store: obstore, and boto3 for the requests that obstore cannot make. I/O."""

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from lethe.base.errors import InputError
from lethe.buffer.batch import ListedObject
from lethe.erasure.retention_lock import Retention
from lethe.ledger.ledger import BufferedObject
from lethe.storage import remote_store
from lethe.storage.object_store import NO_BUCKET, Content
from lethe.storage.remote_errors import UnsupportedName, is_nameable, store_errors
from lethe.storage.remote_store import RemoteStore, is_unchanged
from lethe.storage.s3 import S3Requests
from lethe.uri import Backend, bucket_and_key

log = logging.getLogger(__name__)


class S3Store(RemoteStore):
    """Buckets of any S3 server. boto3 makes the requests that obstore cannot: conditional copies and deletes, object locks, and
    keys that obstore's paths exclude (`a//b`, control characters)."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(Backend.S3, properties)
        self._requests = S3Requests(properties)

    def _pages(self, uri: str, bucket: str, prefix: str, after: str) -> Iterator[Sequence[ListedObject]]:
        last = after
        try:
            for page in super()._pages(uri, bucket, prefix, after):
                yield page
                last = page[-1].key if page else last
        except UnsupportedName:
            log.info("%s: an object's name is outside of what obstore can express; listed by boto3", uri)
            with store_errors(uri, missing=NO_BUCKET):
                yield from self._requests.pages(bucket, prefix, last, remote_store.PAGE)

    def head(self, uri: str) -> ListedObject | None:
        return super().head(uri) if is_nameable(uri) else self._requests.head(uri)

    def read(self, uri: str) -> Content | None:
        return super().read(uri) if is_nameable(uri) else self._requests.read(uri)

    def remove(self, uri: str) -> None:
        if is_nameable(uri):
            super().remove(uri)
        else:
            with store_errors(uri):
                self._requests.delete(uri)

    def put_if_absent(self, uri: str, content: bytes, retention: Retention | None = None) -> bool:
        self._require_conditions(uri)
        if retention is None:
            return super().put_if_absent(uri, content)
        return self._requests.put_locked(uri, content, retention, datetime.now(UTC))

    def retained_until(self, uri: str) -> datetime | None:
        return self._requests.retained_until(uri)

    def copy(self, source: BufferedObject, target: str) -> bool:
        with store_errors(source.key):
            return self._requests.copy(source.key, source.etag, target)

    def delete_unchanged(self, listed: BufferedObject) -> bool:
        found = self.head(listed.key)
        if found is None:
            return True
        if not is_unchanged(found, listed):
            return False
        with store_errors(listed.key):
            return self._requests.delete_if_match(listed.key, listed.etag)

    def _require_conditions(self, uri: str) -> None:
        """Check that the server supports conditional writes. One that does not overwrites silently, so no table would be safe.

        Raises: InputError (UnsupportedStorage).
        """
        folder, _, _ = uri.rpartition("/")
        store = (self._properties.get("s3.endpoint", ""), bucket_and_key(uri)[0])
        if store in _KEEPS_CONDITIONS:
            return
        trial = f"{folder}/.lethe-{uuid.uuid4().hex}"
        created = super().put_if_absent(trial, b"1")
        try:
            refused = not (created and super().put_if_absent(trial, b"2"))
        finally:
            self.remove(trial)
        if not refused:
            raise InputError(
                "UnsupportedStorage",
                f"{folder}: the store overwrites an object that a request asked it not to (If-None-Match: *), so writers "
                "of a table would overwrite each other's commits. Use a catalog of type sql or rest, or a store that keeps "
                "to conditional writes.",
            )
        _KEEPS_CONDITIONS.add(store)


# Endpoints and buckets that support conditional writes.
_KEEPS_CONDITIONS: Final[set[tuple[str, str]]] = set()
