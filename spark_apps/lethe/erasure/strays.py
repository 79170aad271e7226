"""Decides which objects and which metadata may hold rows of an erasure, and what to do with them. Pure.

Under a location of the table, every object is read, removed, or named in the record as not covered. No name exempts an object:
neither a leading dot or underscore, nor a folder or a marker beside it, nor an unusual extension. The caller must list the
storage before it reads the table's metadata: then the metadata names files committed in between.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from lethe.base import names
from lethe.erasure.progress import DATA, HeldFile, History, OpenErasure, Writer
from lethe.files.bounds import IdIndex
from lethe.files.hadoop_version import version_of
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.uri import Place, contains, place, surely_contains, without_values
from lethe.vacuum.housekeeping import UNPUBLISHED_FOR

PARTITION_SUMMARY: Final = "partitions."
"""The prefix of the summary keys that name a partition."""
TABLE_FILES: Final = (".metadata.json", ".metadata.json.gz")
_STATISTICS: Final = (".stats", ".puffin", ".parquet", ".orc")
WRITTEN: Final = (*TABLE_FILES, ".avro", *_STATISTICS)
"""The files that Iceberg's writers put into a metadata folder."""

DATA_FILES: Final = (".parquet", ".orc", ".avro")
OTHERS_FOR: Final = timedelta(days=3)
"""The minimum age at which Iceberg's own clean-up removes files of other writers."""
_RECORD_FOLDERS: Final = (names.RUNS_FOLDER, names.LEDGER_FOLDER, names.ERASURES_FOLDER, names.EVENTS_FOLDER)
_RECORD_NAMES: Final = tuple((name,) for name in _RECORD_FOLDERS)
_MARKER: Final = (names.SUCCESS_MARKER,)
CHECKSUM_SUFFIX: Final = ".crc"
"""The suffix of the files that Hadoop writes beside local files."""
SHARED: Final = "other tables may use this folder"
_RUN: Final = re.compile(r"[0-9a-f]{32}")
"""The folder of a run's data files, which is its id (`lethe.base.names.run_id`)."""


def mentioned_in(open_erasures: Iterable[OpenErasure], history: History) -> dict[str, frozenset[str]]:
    """By manifest, the keys of the erasures of which it lists a removed file. Only erasures whose rows have left the head.

    A manifest contains bounds of each column, the partition and the path of a file, also of removed files until the manifest is
    rewritten. Lethe does not keep the erased values, so all metadata of a file that may have held one counts, whatever it
    contains.
    """
    keys_by_path: dict[str, set[str]] = {}
    for open_erasure in open_erasures:
        for manifest, files in history.gone.items():
            if any(_may_have_held(open_erasure, f) for f in files):
                keys_by_path.setdefault(manifest, set()).add(open_erasure.key)
    return {manifest: frozenset(keys) for manifest, keys in keys_by_path.items()}


def named_in_summaries(open_erasures: Iterable[OpenErasure], history: History) -> dict[int, frozenset[str]]:
    """By snapshot, the keys of the erasures whose rows may have been in a partition that the snapshot's summary names.

    A snapshot's summary may name partitions (`write.summary.partition-limit`).
    """
    purged = [(c.key, sequence_number) for c in open_erasures if (sequence_number := c.erasure.purged_at) is not None]
    keys_by_snapshot: dict[int, frozenset[str]] = {}
    for i, snapshot in history.snapshots.items():
        if any(key.startswith(PARTITION_SUMMARY) for key in snapshot.summary):
            keys = frozenset(key for key, sequence_number in purged if snapshot.sequence_number <= sequence_number)
            keys_by_snapshot |= {i: keys} if keys else {}
    return keys_by_snapshot


def _may_have_held(open_erasure: OpenErasure, file: HeldFile) -> bool:
    """Whether a removed file may have held a row of the erasure. Files added after the purge cannot."""
    purged = open_erasure.erasure.purged_at
    if purged is None or (file.sequence_number is not None and file.sequence_number > purged):
        return False
    # The time of an Erase by records is lost when its snapshot expires, so every file counts. Delete files contain paths of
    # files, or the values by which they delete.
    return open_erasure.ids.might_hold(file) if file.content == DATA and not open_erasure.by_records else True


def names_partitions(metadata: Mapping[str, Any], open_erasure: OpenErasure) -> bool:
    """Whether parsed table metadata contains a snapshot from before the purge whose summary names partitions."""
    purged = open_erasure.erasure.purged_at
    before = (s for s in metadata.get("snapshots") or () if purged is None or (s.get("sequence-number") or 0) <= purged)
    return any(key.startswith(PARTITION_SUMMARY) for s in before for key in s.get("summary") or ())


def with_versions_before(going: Mapping[str, Collection[str]], there: Iterable[str]) -> dict[str, set[str]]:
    """The files to delete, with the keys of their erasures, and all numbered metadata versions before the newest of them.

    In the order of deletion: no version is deleted before an older one (`lethe.files.hadoop_version`).

    Args:
        going: Files to delete, with the keys of their erasures.
        there: All files that may be deleted.
    """

    def number(path: str) -> int:
        return version_of(path.rpartition("/")[2]) or 0

    newest = max(map(number, going), default=0)
    keys_by_path = {path: set(keys) for path, keys in going.items()}
    every = set[str]().union(*keys_by_path.values())
    keys_by_path |= {path: set(every) for path in there if 0 < number(path) < newest and path not in keys_by_path}
    return dict(sorted(keys_by_path.items(), key=lambda item: (number(item[0]), item[0])))


def clean_from(open_erasure: OpenErasure, history: History) -> int | None:
    """The oldest retained snapshot of the head's lineage after the purge; None: there is none."""
    purged = open_erasure.erasure.purged_at
    after = [i for i in history.lineage() if purged is not None and history.snapshots[i].sequence_number > purged]
    return after[-1] if after else None


def blocker_if_young(path: str, modified: datetime, now: datetime) -> ErasureBlocker | None:
    """What blocks deleting a metadata file that no snapshot names; None: it is so old that no writer can commit it any more."""
    until = modified + UNPUBLISHED_FOR
    if until <= now:
        return None
    why = "no snapshot names it; its writer may still commit it"
    return ErasureBlocker(BlockerKind.OBJECT, without_values(path), until.replace(microsecond=0), why)


@dataclass(frozen=True)
class Locations:
    """The URIs of all folders that a table's files may be in."""

    own: tuple[str, ...]
    """Current and earlier table locations: only its files, except where another table is below."""
    shared: tuple[str, ...]
    """Data and metadata folders elsewhere, which tables may share."""
    metadata: tuple[str, ...]
    data: tuple[str, ...]

    @property
    def roots(self) -> tuple[str, ...]:
        """The folders to list; none contains another."""
        every = sorted({*self.own, *self.shared}, key=lambda uri: len(place(uri).names))
        folders: list[str] = []
        for uri in every:
            if not any(surely_contains(outer, uri) for outer in folders):
                folders.append(uri)
        return tuple(folders)


@dataclass(frozen=True)
class Stray:
    """An object that no snapshot names."""

    path: str
    modified: datetime
    run: str = ""
    """The id of the run of Lethe in whose folder it is; empty: none."""
    in_batch: bool = False
    """A marker lies beside it, as beside the files of a batch in a buffer."""
    shared: bool = False
    """It may belong to another table, so it is never removed."""


@dataclass(frozen=True)
class StrayContent:
    """What the content of an object says."""

    of_table: bool = False
    """It was written for the table: it has the batch column."""
    lower: str | None = None
    """The smallest batch id; None: unknown."""
    upper: str | None = None
    """The greatest batch id; None: unknown."""
    no_rows: bool = False
    """It has no rows of the table and no values of a partition: it is empty, holds positions of deletes, or what Lethe itself
    notes.
    """
    by_name: bool = False
    """It has no field ids, so only the names of its columns say that it was written for the table."""
    is_data: bool = True
    """It has the format or the extension of a data file."""
    costly: str = ""
    """How the object ends whatever reads it, so that nothing is known of it; empty: it can be read."""


UNKNOWN: Final = StrayContent()
OTHER: Final = StrayContent(is_data=False)


@dataclass(frozen=True)
class Uncovered:
    """An object that was neither read nor removed."""

    path: str
    why: str

    def __str__(self) -> str:
        return f"{without_values(self.path)}: {self.why}"


@dataclass(frozen=True)
class Strays:
    """The listed objects that no snapshot names."""

    strays: tuple[Stray, ...] = ()
    """The objects to read."""
    uncovered: tuple[Uncovered, ...] = ()
    """The objects of others."""


def find_strays(
    listed: Collection[tuple[str, datetime]],
    needed: Collection[Place],
    locations: Locations,
    buffer: str,
    writers: Iterable[Writer],
) -> Strays:
    """Find the listed objects that no snapshot names.

    Those that Iceberg's writers have put into a metadata folder are left to `lethe.erasure.strays`.

    Args:
        listed: Paths below the roots of the locations, with the time of writing by the storage's clock.
        needed: All files that retained snapshots name.
        buffer: Of the Dataset; its batches are not files of the table.
        writers: The runs whose notes say where they write.
    """
    others = _of_other_tables([path for path, _ in listed], locations)
    folders = {place(w.folder): w.run for w in writers if w.folder}
    data, shared, metadata = (
        [place(u) for u in uris] for uris in (locations.data, locations.shared, locations.metadata)
    )
    markers = {
        Place(object_place.root, object_place.names[:-1])
        for path, _ in listed
        if (object_place := place(path)).names[-1:] == _MARKER
    }
    strays: list[Stray] = []
    uncovered: list[Uncovered] = []
    for path, modified in listed:
        object_place = place(path)
        if object_place in needed or (path.endswith(WRITTEN) and any(object_place.is_in(m) for m in metadata)):
            continue
        run = next((run for folder, run in folders.items() if object_place.is_in(folder)), "") or _run_of(
            object_place, data
        )
        if contains(buffer, path):
            uncovered.append(Uncovered(path, "an object of the buffer"))
        elif any(object_place.is_in(o) for o in others):
            uncovered.append(Uncovered(path, "another table has its metadata in this folder"))
        elif (
            run not in folders.values()
            and any(object_place.is_in(s) for s in shared)
            and not _is_own(object_place, locations)
        ):
            if _is_small(object_place):
                strays.append(Stray(path, modified, shared=True))
            else:
                uncovered.append(Uncovered(path, SHARED))
        else:
            strays.append(Stray(path, modified, run, Place(object_place.root, object_place.names[:-1]) in markers))
    return Strays(tuple(strays), tuple(uncovered))


def _is_small(object_place: Place) -> bool:
    """Whether it is worth reading an object of a shared folder: most objects with such names contain nothing of a table."""
    return (
        object_place.names[-2:-1] in _RECORD_NAMES
        or object_place.names[-1].endswith(CHECKSUM_SUFFIX)
        or object_place.names[-1:] == _MARKER
    )


def _of_other_tables(paths: Iterable[str], locations: Locations) -> list[Place]:
    """The folders below the locations that belong to other tables: their metadata is in them."""
    own, metadata = {place(u) for u in locations.own}, [place(u) for u in locations.metadata]
    tables = (file_place for path in paths if path.endswith(TABLE_FILES) and (file_place := place(path)).names)
    places = {
        Place(file_place.root, file_place.names[:-2])
        for file_place in tables
        if not any(file_place.is_in(m) for m in metadata)
    }
    return [f for f in places if f not in own and not any(o.is_in(f) for o in own)]


def _is_own(object_place: Place, locations: Locations) -> bool:
    return any(object_place.is_in(place(u)) for u in locations.own)


def replacement_folders(
    requests: Iterable[Mapping[str, Any]], open_erasures: Collection[OpenErasure]
) -> tuple[str, ...]:
    """The URIs of the folders from which Replays have read rows of the erasures.

    Of records, of which nothing is kept, those of all Replays.

    Args:
        requests: The results of all requests, as the ledger has them.
    """
    erased = frozenset(i for e in open_erasures for i in e.result.batch_ids)
    all_ = any(e.by_records for e in open_erasures)
    folders = ((str(r.get("replacementUri") or ""), r.get("replacementBatchId")) for r in requests)
    return tuple(sorted({uri for uri, batch_id in folders if uri and (all_ or batch_id in erased)}))


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


def _may_have_written(writer: Writer, open_erasure: OpenErasure) -> bool:
    """Whether the writer may have written such rows; for records, also any run that began before they were purged."""
    purged = open_erasure.erasure.purged_at
    before = purged is None or writer.since < purged
    return writer.may_write(open_erasure) or (open_erasure.by_records and before)


def late(stray: Stray, content: StrayContent, open_erasures: Collection[OpenErasure]) -> Uncovered | None:
    """An object that holds no rows of the erasures only because of the time at which it was written; None: its content shows it.

    Args:
        open_erasures: Those of which it may hold no rows.
    """
    was_read = content.no_rows or (content.lower is not None and not any(c.by_records for c in open_erasures))
    return None if was_read else Uncovered(stray.path, "no snapshot names it, and it was written later than the purge")


def assess_stray(stray: Stray, content: StrayContent, now: datetime) -> ErasureBlocker | Uncovered | None:
    """What to do with an object that may hold rows of an erasure: it blocks the erasure, or the record names it.

    None: remove it.
    """
    if not content.is_data and not stray.run:
        return Uncovered(stray.path, "no snapshot names it, and it is not known what it contains")
    if content.by_name and stray.in_batch:
        return Uncovered(stray.path, "no snapshot names it, and it may be a batch: a marker of a batch lies beside it")
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
    if content.costly:
        return Uncovered(stray.path, f"no snapshot names it, and {content.costly}")
    until = stray.modified + OTHERS_FOR
    if not content.of_table:
        why = "no snapshot names it, and its content cannot be read. Delete it, or remove orphan files"
        return ErasureBlocker(BlockerKind.OBJECT, name, None, why)
    if until > now:
        return ErasureBlocker(
            BlockerKind.OBJECT, name, until.replace(microsecond=0), "no snapshot names it; it will be removed then"
        )
    return None


@dataclass(frozen=True)
class UnfinishedUpload:
    """An unfinished multipart upload: the storage has its parts, but no reader can read them."""

    path: str
    id: str
    begun: datetime


class UploadOrigin(Enum):
    """Who began an upload, by its path."""

    RUN = "a data file of a run of Lethe"
    RECORD = "a file of Lethe about the table"
    """The notes of runs, ledger files and erasure records: none of them contains rows."""
    OTHER = "another writer"


def assess_upload(
    upload: UnfinishedUpload, open_erasure: OpenErasure, origin: UploadOrigin, now: datetime
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
    object_place = place(path)
    if any(w.folder and object_place.is_in(place(w.folder)) for w in writers) or _run_of(
        object_place, map(place, locations.data)
    ):
        return UploadOrigin.RUN
    folders = (Place(own.root, (*own.names, name)) for own in map(place, locations.own) for name in _RECORD_FOLDERS)
    return UploadOrigin.RECORD if any(object_place.is_in(folder) for folder in folders) else UploadOrigin.OTHER


def _run_of(object_place: Place, data: Iterable[Place]) -> str:
    for folder in data:
        inner_names = object_place.names[len(folder.names) :]
        if object_place.is_in(folder) and len(inner_names) > 1 and _RUN.fullmatch(inner_names[0]):
            return inner_names[0]
    return ""
