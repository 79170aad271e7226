"""Reads and writes the records of uploads. I/O: the object store.

Everything is written with put-if-absent, so replicas need no lock, and a second client sees what the first one has written.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.uploads.buffers import Buffer
from lethe_gateway.uploads.manifest import (
    MANIFEST,
    OUTCOME,
    FileEntry,
    Manifest,
    Outcome,
    Places,
    places_of,
    record_folder,
    upload_id,
    uploads_folder,
)


@dataclass(frozen=True)
class Record:
    """An upload as the store knows it."""

    buffer: Buffer
    manifest: Manifest
    places: Places

    @property
    def id(self) -> str:
        return upload_id(self.manifest.batch_id)

    def outcome(self) -> Outcome | None:
        """None: it is open."""
        content = self.buffer.store.read(self.places.outcome(self.manifest))
        if content is None:
            return None
        return Outcome.COMPLETE if content.data == Outcome.COMPLETE.encode() else Outcome.ABANDONED

    def decide(self, wanted: Outcome) -> Outcome:
        """End the upload, unless it has ended already. Returns: how it has ended.

        Raises: Problem (`not-found`), if it was removed meanwhile.
        """
        place = self.places.outcome(self.manifest)
        if self.buffer.store.put_if_absent(place, wanted.encode()):
            # An abandoned upload loses its manifest first, then its outcome. If both are gone, this outcome is of nothing.
            current = read(self.buffer, self.id)
            if current is None or current.manifest.opening != self.manifest.opening:
                self.buffer.store.remove(place)
                raise not_found()
            return wanted
        decided = self.outcome()
        if decided is None:  # whose outcome it was is unknown, and nothing was decided here
            raise not_found()
        return decided


def read(buffer: Buffer, upload: str) -> Record | None:
    """None: there is no such upload, or its manifest is damaged."""
    content = buffer.store.read(f"{record_folder(buffer.uri, upload)}/{MANIFEST}")
    manifest = Manifest.decode(content.data) if content is not None else None
    if manifest is None or upload_id(manifest.batch_id) != upload:
        return None
    return _record(buffer, manifest)


def begin(buffer: Buffer, batch_id: str, files: Sequence[FileEntry]) -> tuple[Record, bool]:
    """Open an upload, or find the one that is open. Returns also: whether it is new.

    Raises: Problem (`upload-conflict`), if one of other files is open.
    """
    manifest = Manifest(
        opening=secrets.token_hex(8), batch_id=batch_id, opened_time=datetime.now(UTC), files=tuple(files)
    )
    record = _record(buffer, manifest)
    if buffer.store.put_if_absent(record.places.manifest, manifest.encode()):
        return record, True
    found = read(buffer, upload_id(batch_id))
    if found is None:
        raise Problem(
            Kind.UPLOAD_CONFLICT,
            "The upload of this batch is being removed, or its record is damaged. Try again soon; if that does not help, remove "
            f"{record.places.folder}.",
            retry_after_seconds=2,
        )
    return found, False


def known(buffer: Buffer) -> dict[str, datetime]:
    """When the manifest of each upload of a buffer was written, by the id of the upload."""
    folder = uploads_folder(buffer.uri)
    return {
        listed.key.removeprefix(f"{folder}/").partition("/")[0]: listed.modified
        for listed in buffer.store.list(folder)
        if listed.key.endswith(f"/{MANIFEST}")
    }


def remove(record: Record) -> None:
    """Remove the record: the manifest first and the outcome last, see `Record.decide`."""
    store, places = record.buffer.store, record.places
    store.remove(places.manifest)
    own = [o.key for o in store.list(places.folder) if o.key.startswith(f"{places.folder}/{record.manifest.opening}.")]
    for key in sorted(own, key=lambda k: k.endswith(OUTCOME)):
        store.remove(key)


def _record(buffer: Buffer, manifest: Manifest) -> Record:
    """Raises: InputError (`NoDataFiles`, `SeveralFiles`)."""
    spec = buffer.dataset.spec
    return Record(buffer, manifest, places_of(buffer.uri, spec.buffer.layout, spec.batch_column, manifest))
