"""S3, Google Cloud Storage and Azure as object stores, through obstore, and boto3 for what obstore cannot do. I/O.

obstore's errors may contain signed URLs and answers of servers, so their text never leaves this module.
"""

import logging
import posixpath
import re
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject, ListedObject, Retention, hidden_folder
from lethe.base.ranged_file import RangedFile
from lethe.storage.clients import Client, client_of
from lethe.storage.object_store import (
    DENIED,
    NO_BUCKET,
    Content,
    ObjectReader,
    StoreError,
    WriteUnknown,
    not_created,
    not_retained,
)
from lethe.storage.s3 import S3Requests
from lethe.uri import Backend, bucket_and_key, bucket_and_prefix

log = logging.getLogger(__name__)

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")

PAGE: Final = 1000
"""Objects in a page of a listing."""
REQUESTS_AT_ONCE: Final = 10
_AGAIN_AT_MOST: Final = 4 * PAGE
"""Between objects to delete may be folders of others, such as `_refused`."""
_SKIPS_AT_MOST: Final = 10
"""Subfolders to skip in a listing of a limited number of names."""
_COPY_BYTES_AT_MOST: Final = 256 * 1024 * 1024
"""The most bytes that one request copies; Azure and GCS take more, S3 5 GiB."""
_PAST_END: Final = ("416", "InvalidRange")
"""The codes for a range past the end, also of any range of an empty object."""
_CHANGED: Final = ("412", "PreconditionFailed", "ConditionNotMet")
_RANGE_BYTES: Final = 8 * 1024 * 1024

_KEEPS_CONDITIONS: Final[set[tuple[str, str]]] = set()
"""Endpoints and buckets that support conditional writes."""


class UnsupportedName(InputError):
    """A key that obstore's paths exclude."""

    def __init__(self, uri: str) -> None:
        super().__init__(
            "UnsupportedName",
            f"{uri}: an object's name has an empty segment, a segment `.` or `..`, or a control character. Rename or delete it.",
        )


def is_nameable(uri: str) -> bool:
    """Whether obstore can express the key of a URI."""
    return _is_nameable_key(bucket_and_key(uri)[1])


def _is_nameable_key(key: str) -> bool:
    return not (any(p in ("", ".", "..") for p in key.split("/")) or _CONTROL.search(key))


@contextmanager
def store_errors(uri: str, missing: str = "") -> Iterator[None]:
    """Turn errors of obstore, its credential providers and boto3 into StoreErrors, without their text.

    Args:
        missing: The code for a 404 response; "": FileNotFoundError is not converted.
    """
    try:
        yield
    except FileNotFoundError as e:
        if not missing:
            raise
        raise StoreError(uri, code_of(e, missing)) from None
    except InvalidPathError:
        raise UnsupportedName(uri) from None
    except BaseError as e:
        raise StoreError(uri, code_of(e, missing)) from None
    except ValueError as e:
        if "path" not in str(e).lower():
            raise
        raise UnsupportedName(uri) from None


def code_of(error: Exception, missing: str = "") -> str:
    """What a StoreError says of an error: `DENIED`, `missing` for a 404, the store's code, a status, or what failed."""
    text, status = str(error), status_of(error)
    if isinstance(error, PermissionDeniedError):
        return DENIED
    if isinstance(error, UnauthenticatedError) and not status:
        return "nothing (no credentials were found)"
    if status in (401, 403):
        return DENIED
    if isinstance(error, FileNotFoundError) or status == 404:
        return missing or "404"
    match = _CODE.search(text)
    if match:
        return match[1]
    if status:
        return str(status)
    return "nothing (no connection, or no answer in time)"


def status_of(error: Exception) -> int:
    """The HTTP status that the text of an obstore error names; 0: none, because there was no response."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


class RemoteStore:
    """All buckets of one service, configured by the properties of a catalog."""

    def __init__(self, backend: Backend, properties: Mapping[str, str]) -> None:
        self._backend = backend
        self._properties = properties
        self._clients: dict[tuple[str, int], Client] = {}
        self._lock = threading.Lock()

    def list(self, uri: str, hidden: bool = True, after: str = "") -> Iterator[ListedObject]:
        """List in the order of keys, in pages of 1000. Empty objects that represent folders are left out.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        root, bucket, prefix = self._folder(uri)
        skipped: str | None = f"{prefix}{after}" if after else ""
        while skipped is not None:
            pages = self._pages(uri, bucket, prefix, skipped)
            skipped = None
            for page in pages:
                folder = ""
                for found in page:
                    folder = "" if hidden else hidden_folder(found.key, prefix)
                    if not folder and not self._is_marker(bucket, found):
                        yield ListedObject(root + found.key, found.size, found.etag, found.modified)
                if folder and len(page) == PAGE:
                    # Continue after the rest of that folder: "0" is the character that follows "/".
                    skipped = f"{prefix}{folder}0"
                    break

    def names(self, folder: str, prefix: str = "", at_most: int | None = None) -> Iterator[str]:
        """List names in order. With `at_most`, objects in subfolders count too, but up to 10 subfolders are skipped.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        _, bucket, root = self._folder(folder)
        skipped: str | None = f"{root}{_before(prefix)}" if _before(prefix) else ""
        seen = skips = 0
        while skipped is not None:
            pages = self._pages(folder, bucket, root, skipped)
            skipped = None
            for found in (o for page in pages for o in page):
                seen += 1
                if at_most is not None and seen > at_most:
                    return
                name, slash, _ = found.key.removeprefix(root).partition("/")
                if prefix and name > prefix and not name.startswith(prefix):
                    return
                if not slash:
                    if name.startswith(prefix) and not self._is_marker(bucket, found):
                        yield name
                elif at_most is not None and skips < _SKIPS_AT_MOST:
                    skips += 1
                    skipped = f"{root}{name}0"
                    break

    def head(self, uri: str) -> ListedObject | None:
        """Send one HEAD request. None: the store answers 404.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        client, _, key = self._at(uri)
        try:
            with store_errors(uri):
                return _listed(client.head(key), uri)
        except FileNotFoundError:
            return None

    def read(self, uri: str) -> Content | None:
        """Read a whole object with one request, so bytes and ETag belong together.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        client, _, key = self._at(uri)
        try:
            with store_errors(uri):
                answer = client.get(key)
                return Content(bytes(answer.bytes()), _unquoted(answer.meta["e_tag"]))
        except FileNotFoundError:
            return None

    def read_range(self, uri: str, start: int, size: int) -> bytes | None:
        """Read up to `size` bytes from offset `start`; empty bytes: the object ends before it.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        client, _, key = self._at(uri)
        try:
            with store_errors(uri):
                return _range(client, key, start, size)
        except FileNotFoundError:
            return None
        except StoreError as e:
            if e.code in _PAST_END:
                return b""
            raise

    def read_unchanged(self, listed: BufferedObject, start: int, size: int) -> bytes | None:
        """Send the listed ETag as a condition. None also for a listing without one, and for a range past the end.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        if not listed.etag or not is_nameable(listed.key):
            return None
        client, _, key = self._at(listed.key)
        try:
            with store_errors(listed.key):
                answer = client.get(key, options=_part(start, size, listed.etag))
                # Not every server knows the condition. All name the object that they send.
                same = (answer.meta["size"], _unquoted(answer.meta["e_tag"])) == (listed.size, listed.etag)
                return bytes(answer.bytes()) if same else None
        except FileNotFoundError:
            return None
        except StoreError as e:
            if e.code in (*_PAST_END, *_CHANGED):
                return None
            raise

    def open(self, uri: str) -> ObjectReader | None:
        """Send a HEAD request. Each range is then read on condition of the ETag that it returned.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        head = self.head(uri)
        client, _, key = self._at(uri)
        return _RemoteReader(client, uri, key, head) if head is not None else None

    def put(self, uri: str, content: bytes) -> None:
        """Write an object over an existing one. A request that fails in passing is repeated.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        client, _, key = self._at(uri)
        with store_errors(uri, missing=NO_BUCKET):
            client.put(key, content)

    def put_if_absent(self, uri: str, content: bytes, retention: Retention | None = None) -> bool:
        """Send one conditional request, which is never repeated.

        Raises:
            InputError: `RecordNotRetained`, for any `retention`.
            TransientError: `StorageRefused`: nothing was created.
            WriteUnknown: The store did not answer, so the object may exist now or later.
        """
        if retention is not None:
            raise not_retained(uri, f"{self._backend} storage has none")
        # Send it only once: a repeated request whose first response was lost would find its own object, or create the object
        # a second time after it was deleted.
        client, _, key = self._at(uri, attempts=1)
        try:
            client.put(key, content, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        except (BaseError, ValueError, FileNotFoundError) as e:
            code = code_of(e, missing=NO_BUCKET)
            status = status_of(e)
            if status in (409, 412):  # the object exists, or another request is creating it
                return False
            if 400 <= status < 500 or status == 501 or isinstance(e, ValueError | PermissionDeniedError):
                raise not_created(uri, code) from None
            raise WriteUnknown(uri, code) from None
        return True

    def retained_until(self, uri: str) -> datetime | None:  # noqa: ARG002 - only S3 has object locks
        """Always None: Lethe uses object locks only in S3."""
        return None

    def copy(self, source: BufferedObject, target: str) -> bool:
        """Let the store copy up to 256 MiB within a bucket; else send the bytes. A copy of a changed object is deleted.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        (client, bucket, key), (target_client, to_bucket, to_key) = self._at(source.key), self._at(target)
        if not self._is_same(source):
            return False
        try:
            with store_errors(source.key):
                if bucket == to_bucket and source.size <= _COPY_BYTES_AT_MOST:
                    client.copy(key, to_key)
                else:
                    options: Any = {"if_match": f'"{source.etag}"'}
                    target_client.put(to_key, client.get(key, options=options), chunk_size=_RANGE_BYTES)
        except FileNotFoundError:
            return False
        except StoreError as e:
            if e.code == "412":
                return False
            raise
        if not self._is_same(source):  # overwritten meanwhile: the copy may have the old or the new content
            self.remove(target)
            return False
        return True

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """List 1000 objects again, then delete the unchanged ones with one request, and so on.

        So little time is left in which an object can be overwritten and is deleted all the same. What is not listed between
        the first and the last of them is asked about with HEAD requests, 10 at once.

        An object that these credentials may not see stays, and keeps no other one.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        left, gone = iter(objects), 0
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="lethe-head") as pool:
            while some := list(islice(left, PAGE)):
                by_bucket: dict[str, list[BufferedObject]] = {}
                for o in some:
                    by_bucket.setdefault(bucket_and_key(o.key)[0], []).append(o)
                for bucket, listed in by_bucket.items():
                    current = self._again(bucket, listed)
                    unseen = [o for o in listed if o.key not in current]
                    may_go = dict(zip(unseen, pool.map(self._may_go, unseen), strict=True))
                    may_go |= {o: is_unchanged(current[o.key], o) for o in listed if o.key in current}
                    gone += self._remove_all([o.key for o in listed if may_go[o]])
        return gone

    def _again(self, bucket: str, listed: Sequence[BufferedObject]) -> dict[str, ListedObject]:
        """List the part of a bucket in which these objects are. Gives those that are found, by URI."""
        keys = {bucket_and_key(o.key)[1]: o.key for o in listed if is_nameable(o.key)}
        if len(keys) < 2:  # one HEAD request is as good
            return {}
        first, last = min(keys), max(keys)
        prefix = posixpath.commonpath((first, last))
        found: dict[str, ListedObject] = {}
        seen = 0
        after = first[:-1]  # sorts before it
        for page in self._pages(keys[first], bucket, prefix, after if _is_nameable_key(after) else ""):
            found |= {keys[o.key]: o for o in page if o.key in keys}
            seen += len(page)
            if seen >= _AGAIN_AT_MOST or any(o.key >= last for o in page[-1:]):
                break
        return found

    def delete_unchanged(self, listed: BufferedObject) -> bool:
        """Send a HEAD request, then delete. An object that is overwritten in between is deleted too.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        if not self._is_same_or_gone(listed):
            return False
        self.remove(listed.key)
        return True

    def remove(self, uri: str) -> None:
        """Send one unconditional request. In a bucket with versions, older versions stay.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        client, _, key = self._at(uri)
        try:
            with store_errors(uri):
                client.delete(key)
        except FileNotFoundError:
            return

    def _remove_all(self, uris: Sequence[str]) -> int:
        """Delete objects of one bucket. Return how many no longer exist."""
        gone = 0
        for i in range(0, len(uris), PAGE):
            some = uris[i : i + PAGE]
            try:
                client = self._at(some[0])[0]
                client.delete([bucket_and_key(u)[1] for u in some])
                gone += len(some)
            except (BaseError, ValueError, TypeError, FileNotFoundError):
                # A bulk request does not report which objects failed. obstore raises TypeError for a key that it cannot express.
                with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="lethe-delete") as pool:
                    gone += sum(pool.map(self._removed, some))
        return gone

    def _removed(self, uri: str) -> bool:
        try:
            self.remove(uri)
        except (StoreError, InputError) as e:
            log.warning("%s could not be deleted (%s)", uri, getattr(e, "code", e.reason))
            return False
        return True

    def _is_same(self, listed: BufferedObject) -> bool:
        head = self.head(listed.key)
        return head is not None and is_unchanged(head, listed)

    def _may_go(self, listed: BufferedObject) -> bool:
        try:
            return self._is_same_or_gone(listed)
        except (StoreError, InputError) as e:
            code = getattr(e, "code", e.reason)
            if isinstance(e, StoreError) and code != DENIED:
                raise  # the others would wait for the store, too
            log.warning("%s could not be deleted (%s)", listed.key, code)
            return False

    def _is_same_or_gone(self, listed: BufferedObject) -> bool:
        head = self.head(listed.key)
        return head is None or is_unchanged(head, listed)

    def _pages(self, uri: str, bucket: str, prefix: str, after: str) -> Iterator[Sequence[ListedObject]]:
        """List by keys in pages of `PAGE`, in the order of the keys."""
        client = self._client(bucket)
        with store_errors(uri):
            stream = client.list(prefix.rstrip("/") or None, offset=after or None, chunk_size=PAGE)
        while True:
            with store_errors(uri, missing=NO_BUCKET):
                page = next(stream, None)
            if page is None:
                return
            yield [_listed(o, o["path"]) for o in page]

    def _is_marker(self, bucket: str, listed: ListedObject) -> bool:
        """Whether this is `folder/`, an empty object that represents a folder. obstore lists it without its slash."""
        name = listed.key.rpartition("/")[2]
        if listed.size or name.startswith(("_", ".")):
            return False
        try:
            self._client(bucket).head(listed.key)
        except FileNotFoundError:
            return True
        except (BaseError, ValueError):
            return False
        return False

    def _folder(self, uri: str) -> tuple[str, str, str]:
        """`scheme://bucket/`, the bucket, and the prefix of all keys below a URI."""
        bucket, prefix = bucket_and_prefix(uri)
        return f"{uri.partition('://')[0]}://{bucket}/", bucket, prefix

    def _at(self, uri: str, attempts: int = 4) -> tuple[Client, str, str]:
        bucket, key = bucket_and_key(uri)
        return self._client(bucket, attempts), bucket, key

    def _client(self, bucket: str, attempts: int = 4) -> Client:
        with self._lock:
            if (bucket, attempts) not in self._clients:
                with store_errors(f"{self._backend}://{bucket}"):
                    self._clients[bucket, attempts] = client_of(self._backend, bucket, self._properties, attempts)
            return self._clients[bucket, attempts]


class _RemoteReader(RangedFile, ObjectReader):
    def __init__(self, client: Client, uri: str, key: str, found: ListedObject) -> None:
        super().__init__(found.size)
        self._client, self._uri, self._key, self.etag = client, uri, key, found.etag

    def read_part(self, start: int, size: int) -> bytes:
        with store_errors(self._uri):
            return _range(self._client, self._key, start, size, self.etag)


def _range(client: Client, key: str, start: int, size: int, etag: str = "") -> bytes:
    return bytes(client.get(key, options=_part(start, size, etag)).bytes())


def _part(start: int, size: int, etag: str) -> Any:
    """The options of a request for a range of an object. `etag`: the only version to send; empty: any."""
    return {"range": (start, start + size), **({"if_match": f'"{etag}"'} if etag else {})}


def is_unchanged(current: ListedObject, listed: BufferedObject) -> bool:
    """Whether an object is still the one that was listed."""
    return (current.size, current.etag) == (listed.size, listed.etag)


def _listed(meta: Any, key: str) -> ListedObject:
    return ListedObject(key, meta["size"], _unquoted(meta["e_tag"]), meta["last_modified"])


def _unquoted(etag: str | None) -> str:
    return (etag or "").strip('"')


def _before(prefix: str) -> str:
    """A name that sorts before all names with the prefix, and after most of the smaller names. "": there is no such name."""
    if not prefix:
        return ""
    before = chr(ord(prefix[-1]) - 1)
    return prefix[:-1] + before if before.isalnum() or before in ",-_" else ""


class S3Store(RemoteStore):
    """Buckets of any S3 server.

    boto3 makes the requests that obstore cannot: conditional copies and deletes, object locks, and keys that obstore's
    paths exclude (`a//b`, control characters).
    """

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
                yield from self._requests.pages(bucket, prefix, last, PAGE)

    def head(self, uri: str) -> ListedObject | None:
        """Send one HEAD request, with boto3 for a key that obstore cannot express.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        return super().head(uri) if is_nameable(uri) else self._requests.head(uri)

    def read(self, uri: str) -> Content | None:
        """Read a whole object with one request, with boto3 for a key that obstore cannot express.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        return super().read(uri) if is_nameable(uri) else self._requests.read(uri)

    def remove(self, uri: str) -> None:
        """Send one unconditional request, with boto3 for a key that obstore cannot express.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        if is_nameable(uri):
            super().remove(uri)
        else:
            with store_errors(uri):
                self._requests.delete(uri)

    def put_if_absent(self, uri: str, content: bytes, retention: Retention | None = None) -> bool:
        """Create an object, with boto3 if it gets an object lock. The first call per bucket tests conditional writes.

        Raises:
            InputError: `UnsupportedStorage`: the store ignores conditions. `RecordNotRetained`.
            TransientError: `StorageRefused`: nothing was created.
            WriteUnknown: The store did not answer, so the object may exist now or later.
        """
        self._require_conditions(uri)
        if retention is None:
            return super().put_if_absent(uri, content)
        return self._requests.put_locked(uri, content, retention, datetime.now(UTC))

    def retained_until(self, uri: str) -> datetime | None:
        """Ask with one request. None also if the store has no object locks.

        Raises:
            InputError: `RecordNotRetained`, if the store refuses to say.
            StoreError: The store did not answer.
        """
        return self._requests.retained_until(uri)

    def copy(self, source: BufferedObject, target: str) -> bool:
        """Let the server copy on condition of the listed ETag; the size is not compared. Overwrites the target.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        with store_errors(source.key):
            return self._requests.copy(source.key, source.etag, target)

    def delete_unchanged(self, listed: BufferedObject) -> bool:
        """Send a HEAD request, then a delete on condition of the listed ETag, where the server knows that.

        Raises:
            StoreError: The store refused a request or did not answer.
        """
        head = self.head(listed.key)
        if head is None:
            return True
        if not is_unchanged(head, listed):
            return False
        with store_errors(listed.key):
            return self._requests.delete_if_match(listed.key, listed.etag)

    def _require_conditions(self, uri: str) -> None:
        """Check that the server supports conditional writes. One that does not overwrites silently, so no table would be safe.

        Raises:
            InputError: UnsupportedStorage.
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
