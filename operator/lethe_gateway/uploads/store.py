"""Opens, checks, completes and abandons uploads. I/O: the object store of the buffer.

Invariants: nothing that exists is overwritten; a batch becomes complete by one request (`_SUCCESS`, or the copy of a batch that
is one file), and only after all its files were found as announced.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from lethe.base.errors import InputError
from lethe.buffer.batch import ListedObject
from lethe.buffer.upload import Known, judge_entry
from lethe.ledger.ledger import BufferedObject
from lethe.storage.s3_uploads import S3Uploads, part_bytes_of, part_sizes
from lethe.uri import Backend, backend_of

from lethe_gateway.problems import FieldError, Kind, Problem, not_found
from lethe_gateway.settings import UploadSettings
from lethe_gateway.uploads import check, opening, stored
from lethe_gateway.uploads.buffers import Buffer
from lethe_gateway.uploads.manifest import FileEntry, Outcome, expires
from lethe_gateway.uploads.opening import Record
from lethe_gateway.uploads.records import FileState, FileView, PartUrl, UploadState, UploadView

log = logging.getLogger(__name__)

# The uploads of one buffer are searched for old ones at most this often, by each replica.
SWEPT_SECONDS: Final = 600.0
REMOVED_AT_ONCE: Final = 10_000
CLIENTS_AT_MOST: Final = 32


class Uploads:
    """The uploads of all buffers. Threads may share it."""

    def __init__(self, settings: UploadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, frozenset[tuple[str, str]]], S3Uploads] = {}
        self._swept: dict[str, float] = {}  # when the uploads of a buffer were last searched for old ones
        self._sweeper = ThreadPoolExecutor(1, "old uploads")

    # --- opening ---

    def open(self, buffer: Buffer, batch_id: str, files: Sequence[FileEntry]) -> tuple[UploadView, bool]:
        """Open the upload of a batch, or return the one of the same files. Returns also: whether it is new.

        Raises: Problem (`batch-id-used`, `upload-conflict`, `invalid-request`); StoreError.
        """
        self._sweep(buffer)
        entries = [self._announced(buffer, f) for f in files]
        record, new = opening.begin(buffer, batch_id, entries)
        if new:
            try:
                self._require_unused(record)
            except Problem:
                opening.remove(record)
                raise
            return self._view(record, None), True
        outcome = record.outcome()
        if outcome is Outcome.ABANDONED:
            self._remove(record)  # the request that abandoned it was interrupted
            return self.open(buffer, batch_id, files)
        if not record.manifest.announces(entries):
            raise Problem(
                Kind.UPLOAD_CONFLICT,
                f"An upload of this batch with other files is {'complete' if outcome else 'open'}. Choose another id"
                + ("." if outcome else ", or abandon that upload first."),
            )
        return self._view(record, outcome), False

    def _announced(self, buffer: Buffer, file: FileEntry) -> FileEntry:
        """How a file is to be sent. Raises: Problem (`invalid-request`), if it is too large for this store."""
        if backend_of(buffer.uri) is Backend.S3:
            if file.size <= self._settings.whole_bytes:
                return file
            return file.model_copy(update={"part_bytes": part_bytes_of(file.size, self._settings.part_bytes)})
        if file.size > self._settings.through_bytes:
            detail = (
                f"The file {file.path} has {file.size} bytes. The store of {buffer.uri} has no presigned URLs, and through the "
                f"gateway a file may have {self._settings.through_bytes} bytes. Send smaller files, or use `lethe put`, which "
                "writes to the store."
            )
            raise Problem(Kind.INVALID_REQUEST, detail)
        return file

    # --- looking ---

    def find(self, buffer: Buffer, upload: str) -> Record:
        """Raises: Problem (`not-found`)."""
        found = opening.read(buffer, upload)
        if found is None:
            raise not_found()
        return found

    def view(self, buffer: Buffer, upload: str) -> UploadView:
        """Raises: Problem (`not-found`)."""
        record = self.find(buffer, upload)
        return self._view(record, record.outcome())

    def page(self, buffer: Buffer, after: str, limit: int) -> tuple[list[UploadView], bool]:
        """The uploads after this id, without their files. Returns also: whether there are more."""
        ids = sorted(i for i in opening.known(buffer) if i > after)
        found = [r for i in ids[:limit] if (r := opening.read(buffer, i)) is not None]
        return [self._summary(r, r.outcome()) for r in found], len(ids) > limit

    def _summary(self, record: Record, outcome: Outcome | None) -> UploadView:
        states = {
            None: UploadState.OPEN,
            Outcome.COMPLETE: UploadState.COMPLETE,
            Outcome.ABANDONED: UploadState.ABANDONED,
        }
        after = timedelta(seconds=self._settings.open_seconds)
        manifest = record.manifest
        return UploadView(record.id, manifest.batch_id, states[outcome], manifest.opened_time, expires(manifest, after))

    def _view(self, record: Record, outcome: Outcome | None, checked: bool | None = None) -> UploadView:
        """With a URL for each file that is missing."""
        there = {} if outcome else stored.objects(record)
        of = self._s3(record.buffer)
        files = [
            self._file(
                record, index, entry, of, done=outcome is not None or not stored.missing(record, index, entry, there)
            )
            for index, entry in enumerate(record.manifest.files)
        ]
        return replace(self._summary(record, outcome), files=files, checked=checked)

    def _file(self, record: Record, index: int, entry: FileEntry, of: S3Uploads | None, done: bool) -> FileView:
        if done:
            return FileView(index, entry, FileState.UPLOADED)
        if of is None:
            return FileView(index, entry, FileState.MISSING)
        uri = record.places.uris[index]
        if not entry.part_bytes:
            request = of.put(uri, entry.size, entry.sha256, self._settings.url_seconds)
            return FileView(index, entry, FileState.MISSING, request.url, request.headers)
        parts = len(list(part_sizes(entry.size, entry.part_bytes)))
        multipart = stored.multipart_of(record, index)
        there = (of.parts(uri, multipart) or []) if multipart else []
        return FileView(index, entry, FileState.MISSING, parts=parts, parts_uploaded=[p.number for p in there])

    # --- sending ---

    def put(self, buffer: Buffer, upload: str, index: int, content: bytes) -> None:
        """Write a file that was sent through the gateway.

        Raises: Problem (`not-found`, `upload-ended`, `content-differs`, `upload-conflict`); StoreError.
        """
        record = self._open(buffer, upload)
        entry = stored.entry_of(record, index)
        if len(content) != entry.size:
            raise _differs(entry, f"has {len(content)} bytes, announced were {entry.size}")
        if entry.sha256 and hashlib.sha256(content).hexdigest() != entry.sha256:
            raise _differs(entry, "has another SHA-256 than announced")
        uri = record.places.uris[index]
        if buffer.store.put_if_absent(uri, content):
            return
        there = buffer.store.read(uri)
        if there is None or there.data != content:
            raise Problem(
                Kind.UPLOAD_CONFLICT,
                f"The file {entry.path} is there already, with another content. Nothing was overwritten. Abandon the upload, and "
                "open it again.",
            )

    def part_urls(self, buffer: Buffer, upload: str, index: int, wanted: Sequence[tuple[int, str]]) -> list[PartUrl]:
        """Where to send parts of a large file.

        Args:
            wanted: The number of each part, from 1, and its SHA-256 in hex or "".
        Raises: Problem (`not-found`, `upload-ended`, `invalid-request`); StoreError.
        """
        record = self._open(buffer, upload)
        entry = stored.entry_of(record, index)
        of = self._s3(buffer)
        if of is None or not entry.part_bytes:
            raise Problem(Kind.INVALID_REQUEST, f"The file {entry.path} is sent whole, not in parts.")
        sizes = list(part_sizes(entry.size, entry.part_bytes))
        if any(not 1 <= number <= len(sizes) for number, _ in wanted):
            raise Problem(Kind.INVALID_REQUEST, f"The file {entry.path} has the parts 1 to {len(sizes)}.")
        uri = record.places.uris[index]
        multipart = stored.multipart_of(record, index) or stored.begin_multipart(record, index, of)
        found = []
        for number, sha256 in wanted:
            size = sizes[number - 1]
            request = of.part(uri, multipart, number, size, sha256, self._settings.url_seconds)
            found.append(PartUrl(number, (number - 1) * entry.part_bytes, size, request.url, request.headers))
        return found

    # --- ending ---

    def complete(self, buffer: Buffer, upload: str) -> UploadView:
        """Check all files, and let Lethe see the batch. Completing it again changes nothing.

        Raises: Problem (`not-found`, `upload-ended`, `upload-incomplete`, `upload-conflict`, `batch-id-used`, `batch-refused`,
            `catalog-away`); StoreError.
        """
        record = self.find(buffer, upload)
        outcome = record.outcome()
        if outcome is Outcome.ABANDONED:
            raise _ended(outcome)
        if outcome is Outcome.COMPLETE:
            self._publish(record, stored.objects(record))  # the request that completed it may have been interrupted
            return self._view(record, outcome)
        if self._require_unused(record):
            return self._view(record, record.decide(Outcome.COMPLETE), True)
        self._join_parts(record)
        there = stored.objects(record)
        problems = [
            FieldError(field=entry.path, message=why)
            for index, entry in enumerate(record.manifest.files)
            if (why := stored.missing(record, index, entry, there))
        ]
        if problems:
            first = f"{problems[0].field} {problems[0].message}"
            raise Problem(
                Kind.UPLOAD_INCOMPLETE,
                f"{len(problems)} of {len(record.manifest.files)} files are not there as announced. The first: {first}.",
                errors=tuple(problems[:100]),
            )
        if others := stored.others(record, there):
            raise Problem(
                Kind.UPLOAD_CONFLICT,
                f"The buffer has {len(others)} files of this batch that are not of this upload, so another producer uses the id. "
                f"The first: {others[0]}.",
            )
        of = {uri: (there[uri].size, there[uri].etag) for uri in record.places.uris.values()}
        refusal, checked = check.rejection(buffer, record.manifest.batch_id, of)
        if refusal is not None:
            raise Problem(Kind.BATCH_REFUSED, f"{refusal.reason}: {refusal.message}")
        outcome = record.decide(Outcome.COMPLETE)
        if outcome is Outcome.ABANDONED:
            raise _ended(outcome)
        self._publish(record, there)
        return self._view(record, outcome, checked)

    def abandon(self, buffer: Buffer, upload: str) -> None:
        """Delete the files of an open upload, and forget it. Raises: Problem (`not-found`, `upload-ended`); StoreError."""
        record = self.find(buffer, upload)
        if record.decide(Outcome.ABANDONED) is Outcome.COMPLETE:
            raise _ended(Outcome.COMPLETE)
        self._remove(record)

    def _publish(self, record: Record, there: Mapping[str, ListedObject]) -> None:
        """Write what makes the batch complete, unless it was promoted and removed since.

        Args:
            there: See `stored.objects`.
        """
        store, target = record.buffer.store, record.places.target
        if target.marker:
            if target.files.keys() <= there.keys():
                store.put_if_absent(target.marker, b"")
            return
        (uri,), staged = target.files, there.get(record.places.uris[0])
        if staged is None:
            return
        if store.head(uri) is None:
            store.copy(BufferedObject(staged.key, staged.size, staged.etag), uri)
        store.remove(staged.key)

    def _remove(self, record: Record) -> None:
        """Delete the files of an abandoned upload, then its record."""
        of = self._s3(record.buffer)
        for index, entry in enumerate(record.manifest.files):
            if entry.part_bytes and of is not None and (multipart := stored.multipart_of(record, index)):
                of.abort(record.places.uris[index], multipart)
            record.buffer.store.remove(record.places.uris[index])
        opening.remove(record)

    def _join_parts(self, record: Record) -> None:
        """Create the objects whose parts are all there. What is missing is found afterwards."""
        of = self._s3(record.buffer)
        if of is None:
            return
        for index, entry in enumerate(record.manifest.files):
            multipart = stored.multipart_of(record, index) if entry.part_bytes else ""
            if not multipart:
                continue
            parts = of.parts(record.places.uris[index], multipart)
            if parts and [p.size for p in parts] == list(part_sizes(entry.size, entry.part_bytes)):
                of.complete(record.places.uris[index], multipart, parts)

    def _require_unused(self, record: Record) -> bool:
        """Whether the batch is promoted with these very files. Raises: Problem (`batch-id-used`)."""
        table = record.buffer.table
        if table is None:
            return False
        try:
            return judge_entry(record.places.target, table.entry(record.manifest.batch_id)) is Known.SAME
        except InputError as e:
            raise Problem(Kind.BATCH_ID_USED, f"{e.message}") from None

    def _open(self, buffer: Buffer, upload: str) -> Record:
        """Raises: Problem (`not-found`, `upload-ended`)."""
        record = self.find(buffer, upload)
        if (outcome := record.outcome()) is not None:
            raise _ended(outcome)
        return record

    def _s3(self, buffer: Buffer) -> S3Uploads | None:
        """None: the store has no presigned URLs that create an object and overwrite none."""
        if backend_of(buffer.uri) is not Backend.S3:
            return None
        endpoint = self._settings.endpoints.get(buffer.dataset.spec.table.catalog, "")
        key = endpoint, frozenset(buffer.properties.items())
        with self._lock:
            if key not in self._clients:
                if len(self._clients) >= CLIENTS_AT_MOST:
                    self._clients.clear()
                self._clients[key] = S3Uploads(buffer.properties, endpoint)
            return self._clients[key]

    # --- removing old ones ---

    def _sweep(self, buffer: Buffer) -> None:
        """Remove uploads that were never completed, and forget those that were completed long ago, in a thread."""
        with self._lock:
            if self._swept.get(buffer.uri, -SWEPT_SECONDS) > self._clock() - SWEPT_SECONDS:
                return
            if len(self._swept) > 10_000:
                self._swept.clear()
            self._swept[buffer.uri] = self._clock()
        self._sweeper.submit(self._report_old, buffer)

    def _report_old(self, buffer: Buffer) -> None:
        name = buffer.dataset.meta.full_name
        try:
            removed = self.remove_old(buffer, datetime.now(UTC))
        except Exception as e:
            log.warning("%s: old uploads are not removed now (%s)", name, type(e).__name__)
            return
        if removed:
            log.warning("%s: removed %d uploads that were open for too long", name, removed)

    def remove_old(self, buffer: Buffer, now: datetime) -> int:
        """Returns: how many open uploads were removed, at most `REMOVED_AT_ONCE`."""
        seconds = min(self._settings.open_seconds, self._settings.remembered_seconds)
        old = [i for i, written in opening.known(buffer).items() if written + timedelta(seconds=seconds) < now]
        removed = 0
        for upload in old[:REMOVED_AT_ONCE]:
            record = opening.read(buffer, upload)
            if record is None:
                continue
            age = (now - record.manifest.opened_time).total_seconds()
            outcome = record.outcome()
            if outcome is Outcome.COMPLETE and age > self._settings.remembered_seconds:
                opening.remove(record)
            elif (
                outcome is not Outcome.COMPLETE
                and age > self._settings.open_seconds
                and record.decide(Outcome.ABANDONED) is Outcome.ABANDONED
            ):
                self._remove(record)
                removed += 1
        return removed


def _differs(entry: FileEntry, why: str) -> Problem:
    return Problem(Kind.CONTENT_DIFFERS, f"The file {entry.path} {why}. Send it again.")


def _ended(outcome: Outcome) -> Problem:
    if outcome is Outcome.COMPLETE:
        return Problem(
            Kind.UPLOAD_ENDED,
            "The upload is complete, so its files stay as they are. To take the batch back, use a Restatement.",
        )
    return Problem(Kind.UPLOAD_ENDED, "The upload is being removed. Open it again.", retry_after_seconds=2)
