"""Reads and writes the records of uploads. I/O: the object store.

Everything is written with put-if-absent, so replicas need no lock, and a second client sees what the first one has written.

Limits the number of open uploads of a Dataset and of a caller. I/O: the object store, when a limit seems to be reached.

Each process counts what it opens and ends. Before it refuses an upload, it looks at the store, which shows what other processes
opened and ended. So counting costs one listing when a buffer is used for the first time, and when a limit is near.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from lethe.base.objects import BufferedObject

from lethe_gateway.problems import Kind, Problem, not_found
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
        return self.buffer.store.head(self.places.published(self.manifest)) is not None

    def note_published(self) -> None:
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


def begin(buffer: Buffer, batch_id: str, files: Sequence[FileEntry], opened_by: str = "") -> tuple[UploadRecord, bool]:
    """Open an upload, or find the one that is open. Returns also: whether it is new.

    Raises:
        Problem: `upload-conflict`, if one of other files is open.
    """
    manifest = UploadManifest(
        opening=secrets.token_hex(8),
        batch_id=batch_id,
        opened_time=datetime.now(UTC),
        files=tuple(files),
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
