"""The records and files of uploads: opens and counts uploads, compares checksums, and completes batches. I/O: the buffer's store.

Records are written with put-if-absent, so replicas need no lock, and a second client sees what the first one has written.

The number of open uploads of a Dataset and of a caller is limited. Each process counts what it opens and ends. Before it refuses
an upload, it looks at the store, which shows what other processes opened and ended. So counting costs one listing when a buffer
is used for the first time, and when a limit is near.

A store that keeps the SHA-256 of an object, as S3 does for an object that was sent with one, is asked for it. Other objects are
read. What was found is remembered by URI and ETag, so a completion that took too long continues when it is repeated.

A caller that finds that an upload was decided to be complete calls `finish`: the request that decided it may have been
interrupted at any step. Only when the batch is complete in the buffer, or the ledger shows that it was, `finish` notes so, and
only then an upload is `Complete`.
"""

import base64
import binascii
import hashlib
import re
import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from lethe.base.objects import BufferedObject, ListedObject
from lethe.buffer.upload import has_files_of, strangers
from lethe.storage.object_store import ObjectStore
from lethe.storage.s3 import S3Uploads

from lethe_gateway.problems import FieldError, Kind, Problem, not_found
from lethe_gateway.uploads.buffers import Buffer
from lethe_gateway.uploads.manifest import (
    MANIFEST,
    OUTCOME,
    PUBLISHED,
    FileEntry,
    UploadManifest,
    UploadOutcome,
    UploadPlaces,
    UploadState,
    places_of,
    record_folder,
    upload_id,
    uploads_folder,
)


@dataclass(frozen=True)
class UploadRecord:
    """An upload as the store knows it."""

    buffer: Buffer
    manifest: UploadManifest
    places: UploadPlaces

    @property
    def id(self) -> str:
        """Identifies the upload in paths of the API. It is derived from the batch id."""
        return upload_id(self.manifest.batch_id)

    def state(self) -> UploadState:
        """What to say of it. It is `Complete` only once its batch is known to have been in the buffer."""
        match self.outcome():
            case None:
                return UploadState.OPEN
            case UploadOutcome.ABANDONED:
                return UploadState.ABANDONED
            case UploadOutcome.COMPLETE:
                return UploadState.COMPLETE if self.is_published() else UploadState.COMPLETING

    def is_published(self) -> bool:
        """Whether it was noted that the batch is in the buffer. Costs one request to the store."""
        return self.buffer.store.head(self.places.published(self.manifest)) is not None

    def note_published(self) -> None:
        """Note in the store that the batch is in the buffer. Safe to repeat."""
        self.buffer.store.put_if_absent(self.places.published(self.manifest), b"")

    def is_current(self) -> bool:
        """Whether this is still the upload of its batch: it was neither removed nor opened again."""
        upload = read(self.buffer, self.id)
        return upload is not None and upload.manifest.opening == self.manifest.opening

    def outcome(self) -> UploadOutcome | None:
        """None: it is open."""
        content = self.buffer.store.read(self.places.outcome(self.manifest))
        if content is None:
            return None
        return UploadOutcome.COMPLETE if content.data == UploadOutcome.COMPLETE.encode() else UploadOutcome.ABANDONED

    def decide(self, wanted: UploadOutcome) -> tuple[UploadOutcome, bool]:
        """End the upload, unless it has ended already.

        Returns:
            How it has ended, and whether that was decided here.

        Raises:
            Problem: `not-found`, if it was removed meanwhile.
        """
        place = self.places.outcome(self.manifest)
        if self.buffer.store.put_if_absent(place, wanted.encode()):
            # An abandoned upload loses its manifest first, then its outcome. If both are gone, this outcome is of nothing.
            if not self.is_current():
                self.buffer.store.remove(place)
                raise not_found()
            return wanted, True
        decided = self.outcome()
        if decided is None:  # whose outcome it was is unknown, and nothing was decided here
            raise not_found()
        return decided, False


def read(buffer: Buffer, upload: str) -> UploadRecord | None:
    """None: there is no such upload, or its manifest is damaged."""
    content = buffer.store.read(f"{record_folder(buffer.uri, upload)}/{MANIFEST}")
    manifest = UploadManifest.decode(content.data) if content is not None else None
    if manifest is None or upload_id(manifest.batch_id) != upload:
        return None
    return _record(buffer, manifest)


def begin(
    buffer: Buffer, batch_id: str, files: Sequence[FileEntry], opened_by: str = "", reference: str = ""
) -> tuple[UploadRecord, bool]:
    """Open an upload, or find the one that is open. Returns also: whether it is new.

    Raises:
        Problem: `upload-conflict`, if one of other files is open.
        InputError: As `places_of`.
    """
    manifest = UploadManifest(
        opening=secrets.token_hex(8),
        batch_id=batch_id,
        opened_time=datetime.now(UTC),
        files=tuple(files),
        reference=reference,
        opened_by=opened_by,
    )
    record = _record(buffer, manifest)
    if buffer.store.put_if_absent(record.places.manifest, manifest.encode()):
        return record, True
    upload = read(buffer, upload_id(batch_id))
    if upload is None:
        raise Problem(
            Kind.UPLOAD_CONFLICT,
            "The upload of this batch is being removed, or its record is damaged. Try again soon; if that does not help, remove "
            f"{record.places.folder}.",
            retry_after_seconds=2,
        )
    return upload, False


@dataclass
class UploadListing:
    """The objects of the record of one upload, as a listing shows them."""

    opened: datetime | None = None
    """When the manifest was written; None: there is none."""
    parts: dict[str, datetime] = field(default_factory=dict)
    """When each other object was written, by its name."""

    @property
    def is_open(self) -> bool:
        """Whether there is a manifest, and no outcome yet."""
        return self.opened is not None and not any(name.endswith(OUTCOME) for name in self.parts)

    @property
    def is_unfinished(self) -> bool:
        """Whether it ended, and a request that ended it may have been interrupted."""
        ended = any(name.endswith(OUTCOME) for name in self.parts)
        return self.opened is not None and ended and not any(name.endswith(PUBLISHED) for name in self.parts)


def known(buffer: Buffer) -> dict[str, UploadListing]:
    """The records of all uploads of a buffer, by the id of the upload."""
    folder = uploads_folder(buffer.uri)
    uploads: dict[str, UploadListing] = {}
    for listed in buffer.store.list(folder):
        upload, _, name = listed.key.removeprefix(f"{folder}/").partition("/")
        record = uploads.setdefault(upload, UploadListing())
        if name == MANIFEST:
            record.opened = listed.modified
        else:
            record.parts[name] = listed.modified
    return uploads


def remove(record: UploadRecord) -> None:
    """Remove the record: the manifest first and the outcome last, see `UploadRecord.decide`.

    A manifest that another request wrote since, for the next upload of the batch, stays.
    """
    store, places = record.buffer.store, record.places
    content = store.read(places.manifest)
    current = UploadManifest.decode(content.data) if content is not None else None
    if content is not None and current is not None and current.opening == record.manifest.opening:
        store.delete_unchanged(BufferedObject(places.manifest, len(content.data), content.etag))
    own = [o.key for o in store.list(places.folder) if o.key.startswith(f"{places.folder}/{record.manifest.opening}.")]
    for key in sorted(own, key=removal_order):
        store.remove(key)


def removal_order(name: str) -> int:
    """What says that the batch was published goes after its data, and the outcome goes last."""
    return 2 if name.endswith(OUTCOME) else 1 if name.endswith(PUBLISHED) else 0


def _record(buffer: Buffer, manifest: UploadManifest) -> UploadRecord:
    """The record.

    Raises:
        InputError: `NoDataFiles`, `SeveralFiles`, `UnusableName`, `NameTooLong`.
    """
    spec = buffer.dataset.spec
    return UploadRecord(buffer, manifest, places_of(buffer.uri, spec.buffer.layout, spec.batch_column, manifest))


# The store is looked at this often at most for one buffer, apart from the first time.
COUNTED_SECONDS: Final = 5.0
BUFFERS_AT_MOST: Final = 10_000
READ_AT_ONCE: Final = 16
RETRY_SECONDS: Final = 60.0


@dataclass
class _Counts:
    counted: float
    """When the store was looked at, by the clock."""
    of: Counter[str] = field(default_factory=Counter)
    """Open uploads, by who opened them."""


class OpenUploads:
    """The numbers of open uploads, by buffer. Threads may share it."""

    def __init__(self, per_dataset: int, per_caller: int, clock: Callable[[], float]) -> None:
        self._per_dataset = per_dataset
        self._per_caller = per_caller
        self._clock = clock
        self._lock = threading.Lock()
        self._buffers: dict[str, _Counts] = {}

    def enter(self, record: UploadRecord) -> None:
        """Count an upload that was just opened.

        Raises:
            Problem: `too-many-requests`: remove it.
            StoreError: A store refused a request or did not answer.
        """
        uri, caller = record.buffer.uri, record.manifest.opened_by
        with self._lock:
            counts = self._buffers.get(uri)
            if counts is not None:
                counts.of[caller] += 1
                near = self._excess(counts, caller) and counts.counted + COUNTED_SECONDS < self._clock()
        if counts is None or near:
            counts = self._counted(record.buffer)
        with self._lock:
            if why := self._excess(counts, caller):
                counts.of[caller] -= 1
                raise Problem(
                    Kind.TOO_MANY_REQUESTS,
                    f"{why} Complete or abandon some of them first: GET …/uploads lists them.",
                    retry_after_seconds=RETRY_SECONDS,
                )

    def leave(self, record: UploadRecord) -> None:
        """Count an upload as ended."""
        with self._lock:
            counts = self._buffers.get(record.buffer.uri)
            if counts is not None and counts.of[record.manifest.opened_by] > 0:
                counts.of[record.manifest.opened_by] -= 1

    def _excess(self, counts: _Counts, caller: str) -> str:
        if caller and counts.of[caller] > self._per_caller:
            return f"You have {self._per_caller} open uploads of this Dataset, the most that one caller may have."
        if counts.of.total() > self._per_dataset:
            return f"The Dataset has {self._per_dataset} open uploads, the most that it may have."
        return ""

    def _counted(self, buffer: Buffer) -> _Counts:
        """What the store shows, with the upload that is being opened."""
        uploads = [upload for upload, listed in known(buffer).items() if listed.is_open]
        some = uploads[: self._per_dataset]  # with more than these, nothing is opened, whoever asks
        with ThreadPoolExecutor(READ_AT_ONCE, "open uploads") as pool:
            callers = [r.manifest.opened_by for r in pool.map(lambda u: read(buffer, u), some) if r is not None]
        of = Counter(callers)
        of[""] += len(uploads) - len(callers)
        counts = _Counts(self._clock(), of)
        with self._lock:
            if len(self._buffers) >= BUFFERS_AT_MOST:
                self._buffers.clear()
            self._buffers[buffer.uri] = counts
        return counts


def objects(record: UploadRecord) -> dict[str, ListedObject]:
    """What is in the folder of the batch, or beside the manifest, by URI."""
    folder = record.places.target.folder if record.places.target.marker else record.places.folder
    return {o.key: o for o in record.buffer.store.list(folder)}


def others(record: UploadRecord, there: Mapping[str, ListedObject]) -> list[str]:
    """Files of the batch that somebody else wrote, as URIs."""
    target = record.places.target
    if target.marker:
        return strangers(target, there.values())
    return [uri for uri in target.files if record.buffer.store.head(uri) is not None]  # ours comes last


def missing(record: UploadRecord, index: int, entry: FileEntry, there: Mapping[str, ListedObject]) -> str:
    """Why a file is not there as announced; "": it is."""
    listed = there.get(record.places.uris[index])
    if listed is None:
        return "is missing"
    return "" if listed.size == entry.size else f"has {listed.size} bytes, announced were {entry.size}"


def multipart_of(record: UploadRecord, index: int) -> str:
    """The store's id of the multipart upload of a file; "": it has not begun."""
    content = record.buffer.store.read(record.places.multipart(record.manifest, index))
    return content.data.decode() if content is not None else ""


def begin_multipart(record: UploadRecord, index: int, of: S3Uploads) -> str:
    """Begin a multipart upload.

    Returns:
        The store's id of a new multipart upload, or of one that another request has begun.
    """
    uri = record.places.uris[index]
    own = of.begin(uri)
    if record.buffer.store.put_if_absent(record.places.multipart(record.manifest, index), own.encode()):
        return own
    of.abort(uri, own)  # another request was first
    return multipart_of(record, index)


def entry_of(record: UploadRecord, index: int) -> FileEntry:
    """The entry of a file in the manifest of an upload.

    Raises:
        Problem: `not-found`, if the upload has no such file.
    """
    if not 0 <= index < len(record.manifest.files):
        raise not_found()
    return record.manifest.files[index]


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

        Raises:
            StoreError: A store refused a request or did not answer.
            Exception: What `check` raises.
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
        digest = (s3.sha256(listed.key, listed.etag) if s3 is not None else None) or _read(store, listed, check)
        if digest is not None:
            with self._lock:
                self._of[key] = digest
                if len(self._of) > REMEMBERED_AT_MOST:
                    self._of.popitem(last=False)
        return digest


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

    Returns:
        The field that differs; "": none does, or none was sent.

    Raises:
        Problem: `invalid-request`, if a field is not as the RFC says.
    """
    for name in DIGEST_HEADERS:
        if name in headers:
            for algorithm, expected in _digests(name, headers[name]).items():
                if algorithm in _ALGORITHMS and _ALGORITHMS[algorithm](content).digest() != expected:
                    return name.title()
    return ""


def _digests(name: str, field: str) -> dict[str, bytes]:
    digests = {}
    for member in field.split(","):
        matched = _MEMBER.fullmatch(member)
        try:
            if matched is None:
                raise ValueError
            digests[matched[1]] = base64.b64decode(matched[2], validate=True)
        except (ValueError, binascii.Error):
            raise Problem(
                Kind.INVALID_REQUEST,
                f"The field {name.title()} is not as RFC 9530 says. Send it like sha-256=:<base64>:, or leave it out.",
                errors=(FieldError(field=f"header.{name}", message="expected algorithm=:base64:"),),
            ) from None
    return digests


def finish(record: UploadRecord, decided_here: bool = False) -> None:
    """Let consolidations see the batch, unless one has seen it already. Repeating it changes nothing.

    Args:
        decided_here: This request has just decided that the upload is complete, so no consolidation can have seen the batch.

    Raises:
        Problem: `upload-incomplete`, if somebody deleted files that were checked, so the batch cannot be completed.
        StoreError: A store refused a request or did not answer.
        Exception: What the catalog raises.
    """
    if record.is_published():
        return
    was_seen = not decided_here and _was_seen(record)
    if not was_seen and not _publish(record) and not _was_seen(record):
        raise _lost(record)
    record.note_published()
    if not record.places.target.marker:  # last: as long as nothing else has the content
        record.buffer.store.remove(record.places.uris[0])


def _was_seen(record: UploadRecord) -> bool:
    """Whether the ledger knows the batch with these files: it was in the buffer, and may have been moved away since."""
    table = record.buffer.reload()
    entry = table.entry(record.manifest.batch_id) if table is not None else None
    if entry is None or not has_files_of(entry, record.places.target):
        return False
    # A batch that was refused or held may be uploaded again under its id, even with files of the same sizes.
    return entry.blocks_promotion or entry.time >= record.manifest.opened_time


def _publish(record: UploadRecord) -> bool:
    """Write what makes the batch complete. False: not all of its files are there."""
    store, target = record.buffer.store, record.places.target
    there = objects(record)
    if target.marker:
        if any(missing(record, i, entry, there) for i, entry in enumerate(record.manifest.files)):
            return False
        store.put_if_absent(target.marker, target.marker_content)
        return True
    ((uri, file),) = target.files.items()
    existing, staged = store.head(uri), there.get(record.places.uris[0])
    if existing is None and staged is not None and staged.size == file.size:
        store.copy(BufferedObject(staged.key, staged.size, staged.etag), uri)
        existing = store.head(uri)
    return existing is not None and existing.size == file.size


def _lost(record: UploadRecord) -> Problem:
    there = objects(record)
    errors = tuple(
        FieldError(field=entry.path, message=why)
        for i, entry in enumerate(record.manifest.files)
        if (why := missing(record, i, entry, there))
    )
    return Problem(
        Kind.UPLOAD_INCOMPLETE,
        "All files were there and checked, and then somebody else deleted or replaced some of them, before the batch was in the "
        "buffer. Delete this upload, and upload the batch again.",
        errors=errors[:100],
    )
