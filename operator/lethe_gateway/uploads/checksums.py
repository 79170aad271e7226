"""Compares the content of files with their checksums. I/O: the object store of the buffer.

A store that keeps the SHA-256 of an object, as S3 does for an object that was sent with one, is asked for it. Other objects are
read. What was found is remembered by URI and ETag, so a completion that took too long continues when it is repeated.
"""

import base64
import binascii
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lethe.buffer.batch import ListedObject
from lethe.storage.object_store import ObjectStore
from lethe.storage.s3_uploads import S3Uploads

from lethe_gateway.problems import FieldError, Kind, Problem
from lethe_gateway.uploads.manifest import FileEntry

REMEMBERED_AT_MOST: Final = 20_000
# Of one upload. All uploads that are completed at once may do that.
AT_ONCE: Final = 4
_PIECE_BYTES: Final = 2 * 1024 * 1024
# The algorithms of RFC 9530 that are safe against a client that chooses the content. Others are ignored, as the RFC says.
_ALGORITHMS: Final = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}
_MEMBER: Final = re.compile(r"\s*([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/=]*):\s*")
DIGEST_HEADERS: Final = ("content-digest", "repr-digest")


class Checksums:
    """The SHA-256 of objects. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: OrderedDict[tuple[str, str], str] = OrderedDict()  # in hex, by URI and ETag

    def differing(
        self,
        store: ObjectStore,
        s3: S3Uploads | None,
        files: Sequence[tuple[FileEntry, ListedObject, str]],
        check: Callable[[], None],
    ) -> tuple[FieldError, ...]:
        """The files that have another content than announced.

        Args:
            s3: Of the store; None: it keeps no checksums.
            files: Each with its object and the announced SHA-256 in hex.
            check: Called between pieces of a file. It raises when there is no time left.
        Raises: StoreError; what `check` raises.
        """

        def of(file: tuple[FileEntry, ListedObject, str]) -> FieldError | None:
            entry, listed, announced = file
            if self._sha256(store, s3, listed, check) == announced:
                return None
            return FieldError(field=entry.path, message="has another SHA-256 than announced")

        with ThreadPoolExecutor(min(AT_ONCE, max(len(files), 1)), "checksums") as pool:
            return tuple(found for found in pool.map(of, files) if found is not None)

    def _sha256(
        self, store: ObjectStore, s3: S3Uploads | None, listed: ListedObject, check: Callable[[], None]
    ) -> str | None:
        """In hex; None: the object changed or was deleted since it was listed."""
        key = listed.key, listed.etag
        with self._lock:
            if (known := self._of.get(key)) is not None:
                return known
        check()
        found = (s3.sha256(listed.key, listed.etag) if s3 is not None else None) or _read(store, listed, check)
        if found is not None:
            with self._lock:
                self._of[key] = found
                if len(self._of) > REMEMBERED_AT_MOST:
                    self._of.popitem(last=False)
        return found


def _read(store: ObjectStore, listed: ListedObject, check: Callable[[], None]) -> str | None:
    reader = store.open(listed.key)
    if reader is None:
        return None
    digest = hashlib.sha256()
    with reader:
        if (reader.size, reader.etag) != (listed.size, listed.etag):
            return None
        while piece := reader.read(_PIECE_BYTES):
            check()
            digest.update(piece)
    return digest.hexdigest()


def differing_digest(headers: Mapping[str, str], content: bytes) -> str:
    """Compare a body with the fields `Content-Digest` and `Repr-Digest` (RFC 9530). Pure.

    Returns: the field that differs; "": none does, or none was sent.
    Raises: Problem (`invalid-request`), if a field is not as the RFC says.
    """
    for name in DIGEST_HEADERS:
        if name in headers:
            for algorithm, expected in _digests(name, headers[name]).items():
                if algorithm in _ALGORITHMS and _ALGORITHMS[algorithm](content).digest() != expected:
                    return name.title()
    return ""


def _digests(name: str, field: str) -> dict[str, bytes]:
    found = {}
    for member in field.split(","):
        matched = _MEMBER.fullmatch(member)
        try:
            if matched is None:
                raise ValueError
            found[matched[1]] = base64.b64decode(matched[2], validate=True)
        except (ValueError, binascii.Error):
            raise Problem(
                Kind.INVALID_REQUEST,
                f"The field {name.title()} is not as RFC 9530 says. Send it like sha-256=:<base64>:, or leave it out.",
                errors=(FieldError(field=f"header.{name}", message="expected algorithm=:base64:"),),
            ) from None
    return found
