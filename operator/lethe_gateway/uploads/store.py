"""Opens, checks, completes and abandons uploads. I/O: the object store of the buffer.

Invariants: nothing that exists is overwritten; a batch becomes complete by one request (`_SUCCESS`, or the copy of a batch that
is one file), and only after all its files were found as announced; an upload is `Complete` only after that request (see
`finishing`); nothing of an upload that was decided to be complete is removed before.
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
from lethe.base.objects import ListedObject
from lethe.buffer.upload import Known, judge_entry
from lethe.storage.s3 import S3Uploads, part_bytes_of, part_sizes
from lethe.uri import Backend, backend_of

from lethe_gateway.problems import FieldError, Kind, Problem, field_error, not_found
from lethe_gateway.settings import UploadSettings
from lethe_gateway.uploads import check, opening
from lethe_gateway.uploads.buffers import Buffer
from lethe_gateway.uploads.manifest import (
    DATA,
    OUTCOME,
    PUBLISHED,
    FileEntry,
    FileState,
    FileView,
    PartUrl,
    UploadOutcome,
    UploadState,
    UploadView,
    expires,
    record_folder,
)
from lethe_gateway.uploads.opening import Checksums, OpenUploads, UploadRecord, differing_digest, finish

log = logging.getLogger(__name__)

# The uploads of one buffer are searched for old ones at most this often, by each replica.
SWEPT_SECONDS: Final = 600.0
REMOVED_AT_ONCE: Final = 10_000
SWEEPERS: Final = 4
CLIENTS_AT_MOST: Final = 32


class Uploads:
    """The uploads of all buffers. Threads may share it."""

    def __init__(self, settings: UploadSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._lock = threading.Lock()
        self._clients: dict[tuple[str, frozenset[tuple[str, str]]], S3Uploads] = {}
        self._swept: dict[str, float] = {}  # when the uploads of a buffer were last searched for old ones
        # Several: the store of one tenant may not respond, and each request waits for it.
        self._sweeper = ThreadPoolExecutor(SWEEPERS, "old uploads")
        self._checksums = Checksums()
        self._counts = OpenUploads(settings.open_per_dataset, settings.open_per_caller, clock)

    # --- opening ---

    def open(
        self, buffer: Buffer, batch_id: str, files: Sequence[FileEntry], caller: str = "", reference: str = ""
    ) -> tuple[UploadView, bool]:
        """Open the upload of a batch, or return the one of the same files. Returns also: whether it is new.

        Args:
            caller: Whose limit of open uploads counts.
            reference: The id of the run that delivers the batch; "": none.

        Raises:
            Problem: `batch-id-used`, `upload-conflict`, `invalid-request`, `too-many-requests`.
            StoreError: A store refused a request or did not answer.
        """
        self._sweep(buffer)
        entries = [self._announced(buffer, f) for f in files]
        self._require_hashable(entries)
        opened_by = hashlib.sha256(caller.encode()).hexdigest()[:16] if caller else ""
        record, new = opening.begin(buffer, batch_id, entries, opened_by, reference)
        if new:
            try:
                self._require_unused(record)
                self._counts.enter(record)
            except Problem:
                opening.remove(record)
                raise
            return self._view(record, UploadState.OPEN), True
        state = self._settled(record)
        if state is UploadState.ABANDONED:
            self._remove(record)  # the request that abandoned it was interrupted
            return self.open(buffer, batch_id, files, caller, reference)
        if not record.manifest.announces(entries, reference):
            is_open = state is UploadState.OPEN
            raise Problem(
                Kind.UPLOAD_CONFLICT,
                f"An upload of this batch with other files or another reference is {'open' if is_open else 'complete'}. "
                "Choose another id" + (", or abandon that upload first." if is_open else "."),
            )
        return self._view(record, state), False

    def _require_hashable(self, files: Sequence[FileEntry]) -> None:
        """The store cannot compare a file that is sent in parts with the checksum of the whole, so it is read to compare it.

        Raises:
            Problem: `invalid-request`.
        """
        size = sum(f.size for f in files if f.part_bytes and f.sha256)
        if size > self._settings.hashed_bytes:
            raise Problem(
                Kind.INVALID_REQUEST,
                f"The files with a SHA-256 that are sent in parts have {size} bytes. Of up to {self._settings.hashed_bytes} "
                "bytes, the gateway compares the checksum of the whole file. Announce the SHA-256 of each part instead.",
            )

    def _announced(self, buffer: Buffer, file: FileEntry) -> FileEntry:
        """How a file is to be sent.

        Raises:
            Problem: `invalid-request`, if it is too large for this store.
        """
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

    def find(self, buffer: Buffer, upload: str) -> UploadRecord:
        """Find it.

        Raises:
            Problem: `not-found`.
        """
        self._sweep(buffer)
        record = opening.read(buffer, upload)
        if record is None:
            raise not_found()
        return record

    def view(self, buffer: Buffer, upload: str) -> UploadView:
        """An upload as its callers see it, after an outcome that was found is finished.

        Raises:
            Problem: `not-found`.
        """
        record = self.find(buffer, upload)
        return self._view(record, self._settled(record))

    def page(self, buffer: Buffer, after: str, limit: int) -> tuple[list[UploadView], bool]:
        """The uploads after this id, without their files. Returns also: whether there are more."""
        ids = sorted(i for i, listed in opening.known(buffer).items() if i > after and listed.opened is not None)
        records = [r for i in ids[:limit] if (r := opening.read(buffer, i)) is not None]
        return [self._summary(r, r.state()) for r in records], len(ids) > limit

    def _settled(self, record: UploadRecord) -> UploadState:
        """How far an upload is, after what an interrupted request left was finished. `COMPLETING`: it cannot be finished."""
        state = record.state()
        if state is not UploadState.COMPLETING:
            return state
        try:
            finish(record)
        except Problem as e:
            if e.kind is not Kind.UPLOAD_INCOMPLETE:
                raise
            return state
        return UploadState.COMPLETE

    def _summary(self, record: UploadRecord, state: UploadState) -> UploadView:
        after = timedelta(seconds=self._settings.open_seconds)
        manifest = record.manifest
        return UploadView(record.id, manifest.batch_id, state, manifest.opened_time, expires(manifest, after))

    def _view(self, record: UploadRecord, state: UploadState, checked: bool | None = None) -> UploadView:
        """With a URL for each file that is missing, if the upload is open."""
        ended = state in (UploadState.COMPLETE, UploadState.ABANDONED)
        there = {} if ended else opening.objects(record)
        of = self._s3(record.buffer) if state is UploadState.OPEN else None
        files = [
            self._file(record, index, entry, of, done=ended or not opening.missing(record, index, entry, there))
            for index, entry in enumerate(record.manifest.files)
        ]
        return replace(self._summary(record, state), files=files, checked=checked)

    def _file(self, record: UploadRecord, index: int, entry: FileEntry, of: S3Uploads | None, done: bool) -> FileView:
        if done:
            return FileView(index, entry, FileState.UPLOADED)
        if of is None:
            return FileView(index, entry, FileState.MISSING)
        uri = record.places.uris[index]
        if not entry.part_bytes:
            request = of.put(uri, entry.size, entry.sha256, self._settings.url_seconds)
            return FileView(index, entry, FileState.MISSING, request.url, request.headers)
        parts = len(list(part_sizes(entry.size, entry.part_bytes)))
        multipart = opening.multipart_of(record, index)
        there = (of.parts(uri, multipart) or []) if multipart else []
        return FileView(index, entry, FileState.MISSING, parts=parts, parts_uploaded=[p.number for p in there])

    # --- sending ---

    def put(self, buffer: Buffer, upload: str, index: int, content: bytes, headers: Mapping[str, str] = {}) -> None:
        """Write a file that was sent through the gateway.

        Args:
            headers: Of the request, by names in lower case, of which the digests of the content are compared.

        Raises:
            Problem: `not-found`, `upload-ended`, `content-differs`, `upload-conflict`, `invalid-request`.
            StoreError: A store refused a request or did not answer.
        """
        record = self._open(buffer, upload)
        entry = opening.entry_of(record, index)
        if len(content) != entry.size:
            raise _differs(entry, f"has {len(content)} bytes, announced were {entry.size}")
        if entry.sha256 and hashlib.sha256(content).hexdigest() != entry.sha256:
            raise _differs(entry, "has another SHA-256 than announced")
        if header := differing_digest(headers, content):
            raise _differs(entry, f"has another checksum than the field {header} says")
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

        Raises:
            Problem: `not-found`, `upload-ended`, `invalid-request`.
            StoreError: A store refused a request or did not answer.
        """
        record = self._open(buffer, upload)
        entry = opening.entry_of(record, index)
        of = self._s3(buffer)
        if of is None or not entry.part_bytes:
            raise Problem(Kind.INVALID_REQUEST, f"The file {entry.path} is sent whole, not in parts.")
        sizes = list(part_sizes(entry.size, entry.part_bytes))
        if any(not 1 <= number <= len(sizes) for number, _ in wanted):
            raise Problem(Kind.INVALID_REQUEST, f"The file {entry.path} has the parts 1 to {len(sizes)}.")
        uri = record.places.uris[index]
        multipart = opening.multipart_of(record, index) or opening.begin_multipart(record, index, of)
        urls = []
        for number, sha256 in wanted:
            size = sizes[number - 1]
            request = of.part(uri, multipart, number, size, sha256, self._settings.url_seconds)
            urls.append(PartUrl(number, (number - 1) * entry.part_bytes, size, request.url, request.headers))
        return urls

    # --- ending ---

    def complete(self, buffer: Buffer, upload: str, sha256: Mapping[str, str] = {}) -> UploadView:
        """Check all files, and let Lethe see the batch. Completing it again changes nothing.

        Args:
            sha256: The SHA-256 of files in hex, by path, besides those that were announced.

        Raises:
            Problem: `not-found`, `upload-ended`, `upload-incomplete`, `upload-conflict`, `content-differs`, `batch-id-used`,
                `batch-refused`, `invalid-request`, `catalog-away`, `timed-out`.
            StoreError: A store refused a request or did not answer.
        """
        record = self.find(buffer, upload)
        outcome = record.outcome()
        if outcome is UploadOutcome.ABANDONED:
            raise _ended(outcome)
        if outcome is UploadOutcome.COMPLETE:  # the request that decided it may have been interrupted
            finish(record)
            return self._view(record, UploadState.COMPLETE)
        if self._require_unused(record):
            outcome, _ = record.decide(UploadOutcome.COMPLETE)
            if outcome is UploadOutcome.ABANDONED:
                raise _ended(outcome)
            record.note_published()  # and promoted
            self._counts.leave(record)
            return self._view(record, UploadState.COMPLETE, True)
        self._join_parts(record)
        there = opening.objects(record)
        self._require_all(record, there)
        self._require_same(record, there, sha256)
        of = {uri: (there[uri].size, there[uri].etag) for uri in record.places.uris.values()}
        refusal, checked = check.rejection(buffer, record.manifest.batch_id, of)
        if refusal is not None:
            raise Problem(Kind.BATCH_REFUSED, str(refusal.verdict))
        outcome, decided_here = record.decide(UploadOutcome.COMPLETE)
        if outcome is UploadOutcome.ABANDONED:
            raise _ended(outcome)
        finish(record, decided_here)
        self._counts.leave(record)
        return self._view(record, UploadState.COMPLETE, checked)

    def _require_all(self, record: UploadRecord, there: Mapping[str, ListedObject]) -> None:
        """Require that all files are there.

        Raises:
            Problem: `upload-incomplete`, `upload-conflict`.
        """
        problems = [
            FieldError(field=entry.path, message=why)
            for index, entry in enumerate(record.manifest.files)
            if (why := opening.missing(record, index, entry, there))
        ]
        if problems:
            first = f"{problems[0].field} {problems[0].message}"
            raise Problem(
                Kind.UPLOAD_INCOMPLETE,
                f"{len(problems)} of {len(record.manifest.files)} files are not there as announced. The first: {first}.",
                errors=tuple(problems[:100]),
            )
        if others := opening.others(record, there):
            raise Problem(
                Kind.UPLOAD_CONFLICT,
                f"The buffer has {len(others)} files of this batch that are not of this upload, so another producer uses the id. "
                f"The first: {others[0]}.",
            )

    def _require_same(self, record: UploadRecord, there: Mapping[str, ListedObject], given: Mapping[str, str]) -> None:
        """Compare the content of files with their checksums.

        Args:
            given: With the request that completes the upload, in hex, by path.

        Raises:
            Problem: `content-differs`, `invalid-request`, `timed-out`.
            StoreError: A store refused a request or did not answer.
        """
        unknown = sorted(given.keys() - {entry.path for entry in record.manifest.files})
        if unknown:
            errors = tuple(field_error(("body", "files"), f"the upload has no file {path}") for path in unknown)
            raise Problem(
                Kind.INVALID_REQUEST,
                f"The upload has no file {unknown[0]}. Name files of the upload.",
                errors=errors[:100],
            )
        wanted = [
            (entry, there[record.places.uris[index]], sha256)
            for index, entry in enumerate(record.manifest.files)
            for sha256 in sorted({entry.sha256, given.get(entry.path, "")} - {""})
        ]
        until = self._clock() + self._settings.seconds

        def in_time() -> None:
            if self._clock() > until:
                raise Problem(
                    Kind.TIMED_OUT,
                    f"Comparing the checksums of the files took longer than {self._settings.seconds:g} s. Complete the upload "
                    "again: what was compared is not read again.",
                    retry_after_seconds=1,
                )

        differing = self._checksums.differing(record.buffer.store, self._s3(record.buffer), wanted, in_time)
        if differing:
            raise Problem(
                Kind.CONTENT_DIFFERS,
                f"{len(differing)} of {len(record.manifest.files)} files have another content than announced. The first: "
                f"{differing[0].field} {differing[0].message}. Nothing is overwritten: abandon the upload, and upload the batch "
                "again.",
                errors=differing[:100],
            )

    def abandon(self, buffer: Buffer, upload: str) -> None:
        """Delete the files of an open upload, and forget it.

        Raises:
            Problem: `not-found`, `upload-ended`.
            StoreError: A store refused a request or did not answer.

        An upload that was decided to be complete, and that cannot be because somebody deleted its files, is deleted, too.
        """
        record = self.find(buffer, upload)
        outcome, _ = record.decide(UploadOutcome.ABANDONED)
        if outcome is UploadOutcome.COMPLETE and self._settled(record) is UploadState.COMPLETE:
            raise _ended(UploadOutcome.COMPLETE)
        self._remove(record)
        self._counts.leave(record)

    def _remove(self, record: UploadRecord) -> None:
        """Delete the files of an upload that ended without a batch, then its record.

        Two requests may do that at the same time, and a third one may open the upload of the batch again as soon as the first one
        has removed the record. So before each deletion the record must still be there.
        """
        of = self._s3(record.buffer)
        for index, entry in enumerate(record.manifest.files):
            if not record.is_current():
                return
            if entry.part_bytes and of is not None and (multipart := opening.multipart_of(record, index)):
                of.abort(record.places.uris[index], multipart)
            record.buffer.store.remove(record.places.uris[index])
        opening.remove(record)

    def _join_parts(self, record: UploadRecord) -> None:
        """Create the objects whose parts are all there. What is missing is found afterwards."""
        of = self._s3(record.buffer)
        if of is None:
            return
        for index, entry in enumerate(record.manifest.files):
            multipart = opening.multipart_of(record, index) if entry.part_bytes else ""
            if not multipart:
                continue
            parts = of.parts(record.places.uris[index], multipart)
            if parts and [p.size for p in parts] == list(part_sizes(entry.size, entry.part_bytes)):
                of.complete(record.places.uris[index], multipart, parts)

    def _require_unused(self, record: UploadRecord) -> bool:
        """Whether the batch is promoted with these very files.

        Raises:
            Problem: `batch-id-used`.
        """
        table = record.buffer.table
        if table is None:
            return False
        try:
            return judge_entry(record.places.target, table.entry(record.manifest.batch_id)) is Known.SAME
        except InputError as e:
            raise Problem(Kind.BATCH_ID_USED, e.message) from None

    def _open(self, buffer: Buffer, upload: str) -> UploadRecord:
        """Open it.

        Raises:
            Problem: `not-found`, `upload-ended`.
        """
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
        """Finish what was decided, and remove what is old.

        Returns:
            How many open uploads were removed, at most `REMOVED_AT_ONCE`.
        """
        seconds = min(self._settings.open_seconds, self._settings.remembered_seconds)
        old = now - timedelta(seconds=seconds)
        known = opening.known(buffer)
        removed = 0
        for upload, listed in known.items():
            self._remove_leftovers(buffer, upload, listed, now)
            is_old = listed.opened is not None and listed.opened < old
            if removed >= REMOVED_AT_ONCE or not (is_old or listed.is_unfinished):
                continue
            record = opening.read(buffer, upload)
            if record is not None:
                removed += self._removed_if_old(record, now)
        return removed

    def _removed_if_old(self, record: UploadRecord, now: datetime) -> bool:
        """Whether it was an open upload that is removed now."""
        age = (now - record.manifest.opened_time).total_seconds()
        match self._settled(record):
            case UploadState.COMPLETE if age > self._settings.remembered_seconds:
                opening.remove(record)
            case (
                UploadState.COMPLETING
            ):  # somebody deleted its files: what is left of them, and its record, stay for a day
                log.warning("the upload of a batch is complete, and its files were deleted: %s", record.places.folder)
                if age > max(self._settings.open_seconds, self._settings.remembered_seconds):
                    opening.remove(record)
            case UploadState.ABANDONED:  # the request that abandoned it was interrupted
                self._remove(record)
            case UploadState.OPEN if age > self._settings.open_seconds:
                outcome, _ = record.decide(UploadOutcome.ABANDONED)
                if outcome is UploadOutcome.ABANDONED:
                    self._remove(record)
                    self._counts.leave(record)
                    return True
        return False

    def _remove_leftovers(self, buffer: Buffer, upload: str, listed: opening.UploadListing, now: datetime) -> None:
        """Remove objects of earlier openings: their removal was interrupted, or a URL of the store was used after it.

        The data of an upload that was decided to be complete and never reached the buffer stays.
        """
        before = now - timedelta(seconds=max(self._settings.open_seconds, self._settings.remembered_seconds))
        old = {name for name, written in listed.parts.items() if written < before}
        if not old:
            return
        record = opening.read(buffer, upload)
        if record is None and listed.opened is not None:
            return  # a damaged manifest
        folder = record_folder(buffer.uri, upload)
        for opened in {name.partition(".")[0] for name in old} - ({record.manifest.opening} if record else set()):
            names = {name for name in listed.parts if name.startswith(f"{opened}.")}
            promised = f"{opened}{DATA}" in names and f"{opened}{PUBLISHED}" not in names
            if promised and _is_complete(buffer, f"{folder}/{opened}{OUTCOME}"):
                continue
            for name in sorted(names & old, key=opening.removal_order):
                buffer.store.remove(f"{folder}/{name}")


def _is_complete(buffer: Buffer, outcome: str) -> bool:
    content = buffer.store.read(outcome)
    return content is not None and content.data == UploadOutcome.COMPLETE.encode()


def _differs(entry: FileEntry, why: str) -> Problem:
    return Problem(Kind.CONTENT_DIFFERS, f"The file {entry.path} {why}. Send it again.")


def _ended(outcome: UploadOutcome) -> Problem:
    if outcome is UploadOutcome.COMPLETE:
        return Problem(
            Kind.UPLOAD_ENDED,
            "The upload is complete, so its files stay as they are. To take the batch back, use a Restatement.",
        )
    return Problem(Kind.UPLOAD_ENDED, "The upload is being removed. Open it again.", retry_after_seconds=2)
