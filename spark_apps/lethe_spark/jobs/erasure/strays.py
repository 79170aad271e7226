"""Finds what no snapshot names and may hold rows of an erasure. I/O.

These are objects, unfinished uploads, and the notes of runs that may still write such files. `lethe.erasure.strays`
decides what to remove.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import BinaryIO, Final

from lethe.base.errors import LetheError
from lethe.erasure.progress import Writer, writer_blockers
from lethe.erasure.strays import (
    CHECKSUM_SUFFIX,
    DATA_FILES,
    OTHER,
    SHARED,
    UNKNOWN,
    Locations,
    Stray,
    StrayContent,
    Uncovered,
    UploadOrigin,
    assess_stray,
    assess_upload,
    find_strays,
    late,
    may_hold,
    replacement_folders,
    upload_origin,
)
from lethe.files.hadoop_version import version_of
from lethe.iceberg.locations import KnownLocations, locations_of, of_this_table
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.search.object_versions import Storage
from lethe.search.strays import NO_ROWS, checksum_content, contents_of
from lethe.storage.object_store import open_store
from lethe.uri import place, without_values

from lethe_spark.commit.ledger_commit import forget_old, writers_of
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.erasure.close import CheckedErasures
from lethe_spark.jobs.erasure.metadata import metadata_files
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run, table_properties

log = logging.getLogger(__name__)
READ_AT_ONCE: Final = 8
VERSION_HINT: Final = "version-hint.text"


@dataclass(frozen=True)
class StorageListing:
    """The storage's files and the notes of runs, read before the table's metadata is read again."""

    known_locations: KnownLocations
    files: list[tuple[str, datetime]] = field(default_factory=list)
    """The path of each file, and when it was written."""
    writers: list[tuple[Writer, datetime, str]] = field(default_factory=list)
    """The runs with a note, the time of the note, and its path."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Why a root could not be listed, by root."""


def list_storage(context: Run, table: IcebergTable, storage: Storage) -> StorageListing:
    """Read the notes of runs, then list the files. In this order the listing contains all files of a run that ends in between.

    Raises:
        VersionsDenied: The credentials may not list the versions of objects, so it cannot be verified that they are gone.
        TransientError: A dependency is temporarily unavailable.
        Exception: What the storage raises.
    """
    base = observe_base(context, table)
    io = base.iceberg.io
    writers = writers_of(table, io, table_properties(context))
    known_locations = locations_of(base.iceberg, base.loaded.root.locations if base.loaded.root is not None else ())
    files: list[tuple[str, datetime]] = []
    unlisted: dict[str, str] = {}
    for root in known_locations.locations.roots:
        if (why := storage.cannot_list(root)) is not None:
            unlisted[root] = why
        else:
            files += storage.list_below(root)
    own = of_this_table(base.iceberg, io, known_locations.locations, files)
    forget_old(io, writers, datetime.now(UTC))
    return StorageListing(KnownLocations(own, known_locations.unread), files, writers, unlisted)


def block_by_writers(seen: CheckedErasures, listing: StorageListing) -> None:
    """Block the erasures whose rows a run may still write."""
    now, noted = datetime.now(UTC), [(w, noted_time) for w, noted_time, _ in listing.writers]
    for key in seen.free:
        for blocker in writer_blockers(noted, seen.claims[key], now):
            seen.block([key], blocker)


def leftovers(
    context: Run, base: Base, seen: CheckedErasures, storage: Storage, listing: StorageListing
) -> dict[str, set[str]]:
    """Find the objects that no snapshot names and that may hold rows of erasures.

    Objects that must not be removed yet block these erasures. Objects that are neither read nor removed are added to
    `seen.uncovered`.

    Returns:
        The objects to remove: by path, the keys of the erasures whose rows they may hold.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    locations = listing.known_locations.locations
    named = {place(p) for p in seen.history.files} | {place(p) for p in seen.files} | metadata_files(base)
    writers = [w for w, _, _ in listing.writers]
    free, now = set(seen.free), datetime.now(UTC)
    listed = find_strays(listing.files, named, locations, context.spec.buffer.uri, writers)
    uncovered = [*listed.uncovered]
    contents = _contents(storage, listed.strays, base, {path for path, _ in listing.files})
    keys_by_path: dict[str, set[str]] = {}
    for stray in listed.strays:
        content = contents[stray.path]
        if stray.shared:
            uncovered += [] if content.no_rows else [Uncovered(stray.path, SHARED)]
            continue
        own = [w for w in writers if w.run == stray.run]
        keys = {k for k in free if may_hold(stray, content, seen.claims[k], own)}
        if not keys:
            written_late = late(stray, content, [seen.claims[k] for k in free]) if not own else None
            uncovered += [written_late] if written_late is not None else []
            continue
        match assess_stray(stray, content, now):
            case None:
                keys_by_path[stray.path] = keys
            case Uncovered() as left:
                uncovered.append(left)
            case ErasureBlocker() as blocker:
                seen.block(keys, blocker)
    seen.uncovered.update(map(str, uncovered))
    seen.leftovers = len(keys_by_path)
    return keys_by_path


def _contents(
    storage: Storage, strays: Sequence[Stray], base: Base, listed: Collection[str]
) -> dict[str, StrayContent]:
    """The contents of the strays, by path.

    Raises:
        NoDecoder: No decoder can be started, or decoders end before they decode anything.
    """
    small_contents = {stray.path: _of_small_file(storage, stray.path, listed) for stray in strays}
    contents = {path: content for path, content in small_contents.items() if content is not None}
    unreadable = {s.path: UNKNOWN if s.path.endswith(DATA_FILES) or s.run else OTHER for s in strays}
    others = [path for path in small_contents if path not in contents]
    for path, content in contents_of(others, storage.open, base.field_id, base.iceberg.schema()):
        contents[path] = content if content is not None else unreadable[path]
    return contents


def _of_small_file(storage: Storage, path: str, listed: Collection[str]) -> StrayContent | None:
    """The content of a file with the name of a checksum file or of a version hint; None: it has neither."""
    folder, _, name = path.rpartition("/")
    is_checksum = name.startswith(".") and name.endswith(CHECKSUM_SUFFIX)
    if not is_checksum and name != VERSION_HINT:
        return None
    try:
        if (stream := storage.open(path)) is None:
            return OTHER
        with stream:
            if is_checksum:
                return _of_checksum(storage, stream, f"{folder}/{name[1:].removesuffix(CHECKSUM_SUFFIX)}")
            return _of_hint(stream, [f for f in listed if f.startswith(f"{folder}/")])
    except OSError as e:
        log.info("an object that no snapshot names cannot be read: %s", type(e).__name__)
        return OTHER


def _of_checksum(storage: Storage, stream: BinaryIO, file: str) -> StrayContent:
    checked = storage.open(file)
    if checked is None:
        return OTHER
    with checked:
        return checksum_content(stream, checked)


def _of_hint(stream: BinaryIO, beside: Iterable[str]) -> StrayContent:
    """A file that says which of the metadata files beside it is the newest in a Hadoop table."""
    versions = {str(version_of(path.rpartition("/")[2])) for path in beside}
    return NO_ROWS if stream.read(20).decode("ascii", errors="replace").strip() in versions else OTHER


def end_uploads(seen: CheckedErasures, storage: Storage, listing: StorageListing) -> dict[str, str]:
    """Abort old unfinished uploads. Recent ones, and those that cannot be aborted, block erasures.

    Returns:
        Why the uploads of a root cannot be listed, by root.
    """
    locations, unlisted = listing.known_locations.locations, dict[str, str]()
    writers, now = [w for w, _, _ in listing.writers], datetime.now(UTC)
    for root in locations.roots:
        if root in listing.unlisted:
            continue
        uploads, why = storage.uploads(root)
        if why:
            unlisted[root] = why
        for upload in uploads:
            origin = upload_origin(upload.path, locations, writers)
            if origin is UploadOrigin.OTHER and not any(_within(o, upload.path) for o in locations.own):
                continue
            assessed = {k: assess_upload(upload, seen.claims[k], origin, now) for k in seen.free}
            for key, blocker in assessed.items():
                if isinstance(blocker, ErasureBlocker):
                    seen.block([key], blocker)
            if any(t is True for t in assessed.values()) and not storage.abort(upload):
                name = without_values(upload.path)
                seen.block(
                    [k for k, t in assessed.items() if t is True],
                    ErasureBlocker(
                        BlockerKind.OBJECT, name, None, "an unfinished upload; grant s3:AbortMultipartUpload"
                    ),
                )
    return unlisted


def not_covered(
    seen: CheckedErasures, storage: Storage, listing: StorageListing, uploads: Mapping[str, str]
) -> tuple[str, ...]:
    """What this check could not see, as sentences for the erasure records."""
    texts = [f"files that no snapshot names below {without_values(r)}: {why}" for r, why in listing.unlisted.items()]
    texts += [
        f"locations that only the metadata file {uri} named: it cannot be read"
        for uri in listing.known_locations.unread
    ]
    texts += [f"unfinished uploads below {without_values(uri)}: {why}" for uri, why in uploads.items()]
    if not storage.supports_versions:
        texts.append("older versions of objects, because the storage cannot list them")
    folders = {
        _folder(f.path) for f in seen.files.values() if not _is_within(f.path, listing.known_locations.locations)
    }
    texts += [f"files that no snapshot names in {uri}, outside of the table's locations" for uri in sorted(folders)]
    return tuple(texts)


def _is_within(path: str, locations: Locations) -> bool:
    return any(_within(uri, path) for uri in (*locations.own, *locations.shared))


def _folder(path: str) -> str:
    return without_values(path).rpartition("/")[0]


def name_buffer(context: Run, seen: CheckedErasures) -> tuple[str, ...]:
    """Add the objects of the Dataset's buffer to `seen.uncovered`: its batches are the producers', and are not read.

    Returns:
        That the buffer cannot be listed, as a sentence; empty: it was listed.
    """
    return _name_objects(context, seen, context.spec.buffer.uri, "the buffer")


def name_replacements(context: Run, base: Base, seen: CheckedErasures) -> tuple[str, ...]:
    """Add the objects of replacement folders with rows of the erasures to `seen.uncovered`: they are users', and are not read.

    Returns:
        The folders that cannot be listed, as sentences.
    """
    results = (entry.result for entry in base.ledger.requests.values())
    folders = replacement_folders(results, [seen.claims[key] for key in seen.free])
    return tuple(s for uri in folders for s in _name_objects(context, seen, uri, "a replacement folder"))


def _name_objects(context: Run, seen: CheckedErasures, uri: str, what: str) -> tuple[str, ...]:
    try:
        objects = [o.key for o in open_store(uri, context.catalog_properties).list(uri) if o.size]
    except (LetheError, OSError) as e:
        log.info("%s cannot be listed: %s", what, type(e).__name__)
        return (f"the names of the objects in {what} {without_values(uri)}, which cannot be listed",)
    seen.uncovered.update(str(Uncovered(key, f"an object of {what}")) for key in objects)
    return ()


def _within(outer: str, path: str) -> bool:
    a, b = place(outer), place(path)
    return a.root == b.root and b.names[: len(a.names)] == a.names
