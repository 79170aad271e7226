"""Decides which data files that no snapshot names may hold rows of an erasure, and whether to remove them. Pure.

The caller must list the storage before it reads the table's metadata: then the metadata names files committed in between.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Final

from lethe.base import names
from lethe.erasure.progress import OpenErasure
from lethe.erasure.writers import Writer
from lethe.files.bounds import IdIndex
from lethe.ledger.erasure import BlockerKind, ErasureBlocker
from lethe.uri import Place, contains, place, surely_contains, without_values
from lethe.vacuum.ledger_files import UNPUBLISHED_FOR

DATA_FILES: Final = (".parquet", ".orc", ".avro")
TABLE_FILES: Final = (".metadata.json", ".metadata.json.gz")
# The minimum age at which Iceberg's own clean-up removes files of other writers.
OTHERS_FOR: Final = timedelta(days=3)
_RECORD_FOLDERS: Final = (names.RUNS_FOLDER, names.LEDGER_FOLDER, names.ERASURES_FOLDER, names.EVENTS_FOLDER)
_RUN: Final = re.compile(r"[0-9a-f]{32}")  # `lethe.base.ids.run_id`


@dataclass(frozen=True)
class Locations:
    """The URIs of all folders that a table's files may be in."""

    own: tuple[str, ...]  # current and earlier table locations: only its files, except where another table is below
    shared: tuple[str, ...]  # data folders elsewhere, which tables may share
    metadata: tuple[str, ...]
    data: tuple[str, ...]  # each within `own` or `shared`

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders to list; none contains another."""
        every = sorted({*self.own, *self.shared}, key=lambda uri: len(place(uri).names))
        found: list[str] = []
        for uri in every:
            if not any(surely_contains(outer, uri) for outer in found):
                found.append(uri)
        return tuple(found)


@dataclass(frozen=True)
class Stray:
    """A data file that no snapshot names."""

    path: str
    modified: datetime
    run: str = ""  # the id of the run of Lethe in whose folder it is; empty: none


@dataclass(frozen=True)
class StrayContent:
    """What the footer of a file says."""

    of_table: bool = False  # it was written for the table: it has the batch column, by field id
    lower: str | None = None  # the smallest batch id; None: unknown
    upper: str | None = None  # the greatest batch id; None: unknown
    no_rows: bool = False  # it has no rows of the table: it is empty, or holds positions of deletes


UNKNOWN: Final = StrayContent()


def find_strays(
    listed: Collection[tuple[str, datetime]],
    needed: Collection[Place],
    locations: Locations,
    buffer: str,
    writers: Iterable[Writer],
) -> list[Stray]:
    """Find the listed data files that no snapshot names.

    Args:
        listed: Paths below the roots of the locations, with the time of writing by the storage's clock.
        needed: All files that retained snapshots name.
        buffer: Of the Dataset; its batches are not files of the table.
        writers: The runs whose notes say where they write.
    """
    others = _of_others([path for path, _ in listed], locations)
    folders = {place(w.folder): w.run for w in writers if w.folder}
    data, shared, hidden_below = (
        [place(u) for u in uris] for uris in (locations.data, locations.shared, locations.roots)
    )
    metadata = [place(u) for u in locations.metadata]
    found: list[Stray] = []
    for path, modified in listed:
        at = place(path)
        if not path.endswith(DATA_FILES) or at in needed or any(_below(m, at) for m in metadata):
            continue
        if any(_below(o, at) for o in others) or contains(buffer, path) or _is_hidden(at, hidden_below):
            continue
        run = next((run for folder, run in folders.items() if _below(folder, at)), "") or _run_of(at, data)
        if run not in folders.values() and any(_below(s, at) for s in shared) and not _is_own(at, locations):
            continue  # it may belong to another table: the record lists it as not covered
        found.append(Stray(path, modified, run))
    return found


def may_hold(stray: Stray, content: StrayContent, open_erasure: OpenErasure, writers: Sequence[Writer]) -> bool:
    """Whether a file may hold a row of the erasure.

    Args:
        writers: The notes of its run; empty: the run has ended, or Lethe did not write the file.
    """
    if content.no_rows or (writers and not any(_may_have_written(w, open_erasure) for w in writers)):
        return False
    if not open_erasure.by_records and content.of_table and content.lower is not None and content.upper is not None:
        return IdIndex(open_erasure.result.batch_ids).might_hold(content)
    purged = open_erasure.erasure.purged_time
    # No writer takes longer from loading the table to writing its last file.
    return purged is None or stray.modified <= purged + UNPUBLISHED_FOR


def assess_stray(stray: Stray, content: StrayContent, now: datetime) -> ErasureBlocker | None:
    """What blocks the removal of a file that may hold rows of an erasure; None: remove it."""
    young = stray.modified + UNPUBLISHED_FOR
    name = without_values(stray.path)
    if young > now:
        why = (
            "a run wrote it and may still commit it"
            if stray.run
            else "no snapshot names it; its writer may still commit it"
        )
        return ErasureBlocker(BlockerKind.OBJECT, name, young.replace(microsecond=0), why)
    if stray.run:
        return None
    until = stray.modified + OTHERS_FOR
    if not content.of_table:
        why = "no snapshot names it, and its content is unknown. Delete it, or remove orphan files"
        return ErasureBlocker(BlockerKind.OBJECT, name, None, why)
    if until > now:
        return ErasureBlocker(
            BlockerKind.OBJECT, name, until.replace(microsecond=0), "no snapshot names it; it will be removed then"
        )
    return None


@dataclass(frozen=True)
class Upload:
    """An unfinished multipart upload: the storage has its parts, but no reader can read them."""

    path: str
    id: str
    begun: datetime


class UploadOrigin(Enum):
    """Who began an upload, by its path."""

    RUN = "a data file of a run of Lethe"
    # The notes of runs, ledger files and erasure records: none of them contains rows.
    RECORD = "a file of Lethe about the table"
    OTHER = "another writer"


def assess_upload(
    upload: Upload, open_erasure: OpenErasure, origin: UploadOrigin, now: datetime
) -> ErasureBlocker | bool:
    """A blocker keeps the erasure open; True: abort the upload; False: it does not concern this erasure."""
    purged = open_erasure.erasure.purged_time
    if purged is not None and upload.begun > purged + UNPUBLISHED_FOR:
        return False
    until = upload.begun + (OTHERS_FOR if origin is UploadOrigin.OTHER else UNPUBLISHED_FOR)
    if until <= now:
        return True
    if origin is UploadOrigin.RECORD:
        return False
    why = "an unfinished upload; it will be aborted then"
    return ErasureBlocker(BlockerKind.OBJECT, without_values(upload.path), until.replace(microsecond=0), why)


def upload_origin(path: str, locations: Locations, writers: Iterable[Writer]) -> UploadOrigin:
    """Who began the upload of a file, by its path."""
    at = place(path)
    if any(w.folder and _below(place(w.folder), at) for w in writers) or _run_of(at, map(place, locations.data)):
        return UploadOrigin.RUN
    folders = (Place(own.root, (*own.names, name)) for own in map(place, locations.own) for name in _RECORD_FOLDERS)
    return UploadOrigin.RECORD if any(_below(folder, at) for folder in folders) else UploadOrigin.OTHER


def _may_have_written(writer: Writer, open_erasure: OpenErasure) -> bool:
    """As `Writer.may_write`; for records, also any run that began before they were purged."""
    purged = open_erasure.erasure.purged_at
    before = purged is None or writer.since < purged
    return writer.may_write(open_erasure) or (open_erasure.by_records and before)


def _of_others(paths: Iterable[str], locations: Locations) -> list[Place]:
    """The folders below the locations that do not belong to this table: batches, and other tables."""
    found: list[Place] = []
    own, metadata = {place(u) for u in locations.own}, [place(u) for u in locations.metadata]
    for path in paths:
        at = place(path)
        if not at.names:
            continue
        if at.names[-1] == names.SUCCESS_MARKER:
            found.append(Place(at.root, at.names[:-1]))
        elif path.endswith(TABLE_FILES) and not any(_below(m, at) for m in metadata):
            found.append(Place(at.root, at.names[:-2]))
    return [f for f in found if f not in own and not any(_below(f, o) for o in own)]


def _run_of(at: Place, data: Iterable[Place]) -> str:
    for folder in data:
        rest = at.names[len(folder.names) :]
        if _below(folder, at) and len(rest) > 1 and _RUN.fullmatch(rest[0]):
            return rest[0]
    return ""


def _is_own(at: Place, locations: Locations) -> bool:
    return any(_below(place(u), at) for u in locations.own)


def _is_hidden(at: Place, roots: Iterable[Place]) -> bool:
    rests = [at.names[len(r.names) :] for r in roots if _below(r, at)]
    # A partition folder may be called `_x=1`.
    return any(part.startswith(("_", ".")) and "=" not in part for rest in rests for part in rest)


def _below(outer: Place, inner: Place) -> bool:
    return outer.root == inner.root and inner.names[: len(outer.names)] == outer.names
