"""Checks the open erasures. I/O; `lethe.erasure` decides.

It expires snapshots that name files of due erasures, searches the storage for every file that may have held a row, and records
and closes the erasures that nothing blocks any more. Each step is safe to repeat, by this run or the next. Only the ledger says
which erasures are closed: an erasure is closed after its record is written.

It also finds what no snapshot names and may hold rows of an erasure. These are objects, unfinished uploads, and the notes of
runs that may still write such files. `lethe.erasure.strays` decides what to remove.
"""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import BinaryIO, Final, TypeVar

from lethe.base.errors import ConflictError, LetheError, TransientError
from lethe.contract.result import ErasureCheckResult, Phase, RunOutcome, VacuumResult
from lethe.contract.run import RunKind, SnapshotLimits
from lethe.decoder.process import NoDecoder
from lethe.erasure.progress import Writer, hold_blockers, open_erasures_of, writer_blockers
from lethe.erasure.record import holders, losing_ledger, property_blocker, snapshot_blockers, to_expire
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
from lethe.iceberg.snapshot_files import Manifests, refs_of
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.search.object_versions import Storage, VersionsDenied, open_storage
from lethe.search.strays import NO_ROWS, checksum_content, contents_of
from lethe.storage.object_store import open_store
from lethe.uri import place, without_values
from lethe.vacuum.housekeeping import keeps_files
from lethe.vacuum.plan import KeptFile

from lethe_spark.commit.ledger_commit import Intent, commit_on_ledger, forget_old, safe_text, writers_of
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.clean_up import anchor_head, expired
from lethe_spark.jobs.erasure.close import CheckedErasures, close, for_erasures, note_purged, verification_of
from lethe_spark.jobs.erasure.metadata import (
    clear_metadata,
    drop_dangling_deletes,
    metadata_files,
    rewrite_manifests_of_erasures,
)
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.metadata import expire
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


V = TypeVar("V", VacuumResult, ErasureCheckResult)
ROUNDS: Final = 3
"""How often a run checks, if others add snapshots in the meantime."""


def run(context: Run, table: IcebergTable, result: ErasureCheckResult) -> ErasureCheckResult:
    """Carry out a run that only checks erasures. Expires old snapshots first, if the policy enables it.

    Raises:
        Exception: As `settle`.
    """
    spec = context.spec.vacuum
    assert spec is not None
    if spec.expire_snapshots:
        result = expired(context, table, result, spec.snapshots)
    return settle(context, table, result)


def settled(context: Run, table: IcebergTable, result: VacuumResult, kept: Collection[KeptFile] = ()) -> VacuumResult:
    """Check the erasures at the end of a vacuum. Never raises: the vacuum's commits stay, and the next check continues.

    Args:
        kept: The files that the vacuum left because of holds.

    Returns:
        The vacuum's result with the erasures.
    """
    spec = context.spec.vacuum
    if spec is not None and spec.plan_only:
        return result
    try:
        return settle(context, table, result, kept)
    except Exception as e:
        log.warning("the erasures of %s were not checked; a later run tries again: %s", table.full_name, safe_text(e))
        return result


def settle(context: Run, table: IcebergTable, result: V, kept: Collection[KeptFile] | None = None) -> V:
    """Check the erasures and close those that are verified.

    Args:
        kept: The files that the run left because of holds. None: it purged nothing, so it does not know.

    Returns:
        The run's result with the erasures.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: `ReadingFailed` among them.
        LedgerError: A ledger file is unusable.
        Exception: What the storage raises.
    """
    try:
        return _settle(context, table, result, kept)
    except NoDecoder as e:
        raise TransientError("ReadingFailed", f"{e}. The erasures were not checked.") from e


def _settle(context: Run, table: IcebergTable, result: V, kept: Collection[KeptFile] | None) -> V:
    ledger = observe_base(context, table).ledger
    count = len(ledger.open_erasures)
    if not count and not len(ledger.purged_files):
        return result
    context.reporter.phase(Phase.EXPIRING, f"checking {count} erasures")
    manifests = Manifests()
    committed: list[int | None] = []
    due: tuple[int, ...] = ()
    for _ in range(ROUNDS):
        anchor_head(context, table)  # the new ledger accounts for rows that another writer has added
        committed.append(drop_dangling_deletes(context, table))
        committed.append(note_purged(context, table, manifests))
        context.step("after-purged-noted")
        committed.append(rewrite_manifests_of_erasures(context, table, manifests))
        context.step("after-manifests-rewritten")
        due += _expire_due(context, table, manifests)
        storage = open_storage(table.location, observe_base(context, table).iceberg.io, table_properties(context))
        seen = _check_snapshots(context, table, manifests)
        if kept is not None:
            seen.holds = hold_blockers(seen.claims.values(), kept, context.spec.holds)
        if seen.free:
            holds = seen.holds
            seen = _check_storage(context, table, manifests, storage)
            seen.holds = holds
            clear_metadata(context, table, seen, storage, _due(context, seen))
        context.step("after-storage-asked")
        verification = verification_of(context, seen, storage)
        outcomes, snapshot_id = close(context, table, seen, verification, due)
        committed.append(snapshot_id)
        if not seen.is_outdated:
            break
    still_open = [o for o in outcomes if o.verified_time is None]
    own = (
        next((i for i in reversed(committed) if i is not None), None)
        if context.spec.kind is RunKind.ERASURE_CHECK
        else None
    )
    return result.model_copy(
        update={
            "erasures": outcomes,
            "erasures_open": len(still_open),
            "snapshots_expired": result.snapshots_expired + len(due),
            **({"snapshot_id": own, "outcome": RunOutcome.COMMITTED} if own is not None else {}),
        }
    )


def _due_by(context: Run) -> datetime:
    """The end of the lead time.

    Snapshots with files that must be deleted by then are expired whatever the limits, so that time is left to verify the
    deletion.
    """
    lead = context.spec.vacuum.evict_by_lead_seconds if context.spec.vacuum is not None else 0
    return datetime.now(UTC) + timedelta(seconds=lead)


def _due(context: Run, seen: CheckedErasures) -> set[str]:
    """The keys of the erasures for which older object versions are deleted too."""
    return {k for k in seen.free if seen.claims[k].erasure.is_due(_due_by(context))}


def _expire_due(context: Run, table: IcebergTable, manifests: Manifests) -> tuple[int, ...]:
    """Expire the snapshots that name files of due erasures.

    Returns:
        Their ids.
    """
    if keeps_files(table.properties):
        return ()
    own = for_erasures(context, "carriers")
    for anchored in (False, True):
        base = observe_base(context, table)
        history = manifests.history(base.iceberg, base.facts, base.field_id)
        due = {e.restatement for e in base.ledger.open_erasures if e.is_purged and e.is_due(_due_by(context))}
        if not due:
            return ()
        held = holders(
            history, base.ledger.purged_files, open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)
        )
        ids = to_expire(history, held, refs_of(base.iceberg, base.facts), due, datetime.now(UTC))
        if not losing_ledger(history, ids, base.ledger.carriers):
            break
        if anchored:
            raise ConflictError(
                "HeadMoved",
                f"{table.full_name}: another writer keeps committing snapshots without a ledger. A later run "
                "tries again.",
            )
        # Every ledger commit names the carriers of all snapshots without their own ledger.
        commit_on_ledger(own, table, lambda _: Intent(Delta(own.run_id), LedgerOnly(), None))
    context.step("before-erasure-expiry")
    try:
        expire(table, ids)
    except ConflictError as e:  # a tag or branch was just created; the check reports it as a blocker
        log.info("%s: %s", table.full_name, e)
        return ()
    context.step("after-erasure-expiry")
    return ids


def _check_snapshots(context: Run, table: IcebergTable, manifests: Manifests) -> CheckedErasures:
    """Check which erasures snapshots, tags and branches block now."""
    base = observe_base(context, table)
    history = manifests.history(base.iceberg, base.facts, base.field_id)
    files = dict(base.ledger.purged_files)
    refs = refs_of(base.iceberg, base.facts)
    claimed = {c.key: c for c in open_erasures_of(base.ledger, base.facts.snapshots, base.field_id)}
    spec = context.spec.vacuum
    limits = spec.snapshots if spec is not None else SnapshotLimits()
    now = datetime.now(UTC)
    blockers = snapshot_blockers(history, holders(history, files, claimed.values()), refs, limits.max_age_seconds, now)
    if keeps_files(base.facts.properties):
        blockers = {k: [property_blocker(), *blockers.get(k, ())] for k in claimed}
    return CheckedErasures(claimed, history, files, tuple(r.name for r in refs), base.facts.head_id, blockers)


def _check_storage(context: Run, table: IcebergTable, manifests: Manifests, storage: Storage) -> CheckedErasures:
    """Check which erasures running writers, snapshots and the storage block, and remove the files of the others.

    Lists the storage before it reads the snapshots, so that no file of a commit in between is missed.
    """
    try:
        listing = list_storage(context, table, storage)
    except VersionsDenied as e:
        seen = _check_snapshots(context, table, manifests)
        _block_unseen(seen, e)
        return seen
    context.step("after-storage-listed")
    seen = _check_snapshots(context, table, manifests)
    block_by_writers(seen, listing)
    free = set(seen.free)
    due = _due(context, seen)
    blockers_by_path = {
        f.path: free.intersection(f.restatements) for f in seen.files.values() if not free.isdisjoint(f.restatements)
    }
    named = {place(path) for path in seen.history.files}
    for path in [path for path in blockers_by_path if place(path) in named]:
        seen.block(
            blockers_by_path.pop(path),
            ErasureBlocker(BlockerKind.OBJECT, without_values(path), None, "a snapshot names it"),
        )
    try:
        blockers_by_path |= leftovers(context, observe_base(context, table), seen, storage, listing)
        uploads = end_uploads(seen, storage, listing)
        paths = storage.find(blockers_by_path)
        kept = {
            path: b for path, r in paths.items() if (b := storage.remove(r, not due.isdisjoint(blockers_by_path[path])))
        }
        there = storage.find(p for p in paths if p not in kept)
    except VersionsDenied as e:
        _block_unseen(seen, e)
        return seen
    kept |= {path: storage.find_blocker(r) for path, r in there.items()}
    for path, blocker in sorted(kept.items()):
        seen.block(blockers_by_path[path], blocker)
    seen.locations = listing.known_locations.locations.roots
    seen.metadata_folders = tuple(
        f for f in listing.known_locations.locations.metadata if storage.cannot_list(f) is None
    )
    seen.not_covered = (
        *not_covered(seen, storage, listing, uploads),
        *name_buffer(context, seen),
        *name_replacements(context, observe_base(context, table), seen),
    )
    return seen


def _block_unseen(seen: CheckedErasures, error: VersionsDenied) -> None:
    why = "it is unknown whether older versions of objects are deleted: grant s3:ListBucketVersions"
    seen.block(seen.free, ErasureBlocker(BlockerKind.OBJECT_VERSION, f"s3://{error.bucket}", None, why))
