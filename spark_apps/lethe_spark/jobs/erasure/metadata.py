"""Removes values of erased rows from a table's metadata. I/O; `lethe.erasure.strays` decides which metadata may contain some.

Rewrites manifests with entries of files that held erased rows, drops delete files that delete nothing any more, removes
statistics, and deletes metadata files that the table does not use. Each step is safe to repeat.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from lethe.decoder.objects import UnreadableObject
from lethe.erasure.progress import OpenErasure, open_erasures_of
from lethe.erasure.strays import (
    TABLE_FILES,
    WRITTEN,
    Uncovered,
    blocker_if_young,
    clean_from,
    mentioned_in,
    names_partitions,
    with_versions_before,
)
from lethe.iceberg.delete_entries import added_by, dangling
from lethe.iceberg.locations import reached_by
from lethe.iceberg.metadata_file import documents_of, manifests_in
from lethe.iceberg.snapshot_files import Manifests
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker
from lethe.search.object_versions import Storage, VersionsDenied
from lethe.uri import Place, place, without_values
from pyiceberg.manifest import ManifestContent

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.erasure.close import CheckedErasures, for_erasures
from lethe_spark.jvm.commit import RewriteManifests, RowDelta
from lethe_spark.jvm.data_files import DeleteChanges, deletes_in_use, key_of_deletes
from lethe_spark.jvm.metadata import DeleteManifests, delete_files_at, forget_statistics, without_removed
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

log = logging.getLogger(__name__)
METADATA_PATH: Final = "write.metadata.path"


def drop_dangling_deletes(context: Run, table: IcebergTable) -> int | None:
    """Drop delete files that delete nothing any more, while an Erase by records is not verified.

    The values by which they delete, and those of their partitions, may be erased values. An erasure that was purged while they
    were in the head is opened again, so that snapshots that name them hold it.

    Returns:
        The id of the new snapshot; None: there were no such files.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """
    own = for_erasures(context, "dangling")

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        open_ = [c for c in open_erasures_of(base.ledger, base.facts.snapshots, base.field_id) if c.by_records]
        head = base.facts.head_id
        if head is None or not open_:
            return NothingToCommit(None)
        unused = dangling(base.iceberg, head)
        unused -= deletes_in_use(table, head) if unused else frozenset()
        if not unused:
            return NothingToCommit(None)
        found = delete_files_at(table, head, {path for path, _ in unused})
        files = tuple(f for f in found if key_of_deletes(f) in unused)
        reopened = tuple(c.erasure.reopened() for c in open_ if c.erasure.is_purged)
        delta = Delta(own.run_id, set_erasures=reopened)
        return Intent(delta, RowDelta(DeleteChanges(replaced=files), (), head), None)

    return commit_on_ledger(own, table, plan).snapshot_id


def rewrite_manifests_of_erasures(context: Run, table: IcebergTable, manifests: Manifests) -> int | None:
    """Rewrite the manifests of the head with entries of removed files that may have held rows of an erasure.

    Returns:
        The id of the new snapshot; None: there were no such manifests.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        TransientError: A dependency is temporarily unavailable.
        LedgerError: A ledger file is unusable.
    """
    own, attempts = for_erasures(context, "manifests"), Attempts()
    written: list[DeleteManifests] = []

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        claimed = [c for c in open_erasures_of(base.ledger, base.facts.snapshots, base.field_id) if c.erasure.is_purged]
        head = base.facts.head_id
        if not claimed or head is None:
            return NothingToCommit(None)
        history = manifests.history(base.iceberg, base.facts, base.field_id)
        naming = mentioned_in(claimed, history).keys() & set(history.manifests[head])
        if not naming:
            return NothingToCommit(None)
        listed = [m for m in base.manifests() if m.manifest_path in naming]
        data = [m.manifest_path for m in listed if m.content == ManifestContent.DATA]
        of_deletes = {
            m.manifest_path: added_by(base.iceberg.io, m) for m in listed if m.content == ManifestContent.DELETES
        }
        deletes = without_removed(table, head, of_deletes) if of_deletes else DeleteManifests()
        written.append(deletes)
        # Files of one manifest stay in one manifest.
        manifest_of = {path: n for n, manifest in enumerate(data) for path in history.named[manifest]}
        return Intent(Delta(own.run_id), RewriteManifests(frozenset(data), manifest_of, deletes), None)

    landed: int | None = None
    try:
        landed = commit_on_ledger(own, table, plan, attempts).snapshot_id
    finally:
        unused = written[:-1] if landed is not None else written
        discard(table, [path for w in unused for path in w.paths], attempts)
    return landed


def clear_metadata(context: Run, table: IcebergTable, seen: CheckedErasures, storage: Storage, due: set[str]) -> None:
    """Remove old metadata and statistics for erasures that no known blocker keeps open.

    These are the table's statistics and the metadata files that the table does not use. Files that cannot be deleted
    yet become blockers. Does nothing if there are no such erasures.

    Args:
        due: The keys of erasures for which older object versions are deleted too.
    """
    free = set(seen.free)
    if not free:
        return
    statistics = forget_statistics(table)
    try:
        listed = dict(_listed(table, storage, seen.metadata_folders))
    except VersionsDenied as e:
        seen.block(free, _unseen(e))
        return
    # Read the table after the listing: then its metadata names the files of commits in between.
    base = observe_base(context, table)
    # Data files, too: a table may have its metadata in a folder above them.
    named = metadata_files(base) | {place(path) for path in (*seen.history.files, *seen.files)}
    files = {path: modified_time for path, modified_time in listed.items() if place(path) not in named}
    files |= {path: datetime.min.replace(tzinfo=UTC) for path in statistics if place(path) not in named}
    try:
        there = storage.find(files)
    except VersionsDenied as e:
        seen.block(free, _unseen(e))
        return
    modified = {place(path): modified_time for path, modified_time in listed.items()}
    documents = documents_of(base.iceberg.io, [p for p, r in there.items() if r.current and p.endswith(TABLE_FILES)])
    states = {
        path: None if isinstance(document, UnreadableObject) else document for path, document in documents.items()
    }
    check = _MetadataCheck(base, seen, modified, states, frozenset(statistics))
    going: dict[str, set[str]] = {}
    for path, remain in there.items():
        if check.belongs_to_another(path):
            seen.uncovered.add(str(Uncovered(path, "metadata of another table")))
            continue
        keys = check.erasures_in(path, files[path], remain.current)
        if not keys and not path.endswith(TABLE_FILES):
            seen.uncovered.add(str(Uncovered(path, "no snapshot names it, and it was written later than the purge")))
        blocker = check.kept(path, files[path], remain.current) if keys else None
        if blocker is not None:
            seen.block(keys, blocker)
        elif keys:
            going[path] = keys
    going = with_versions_before(going, [path for path in there if not check.is_of_another(path)])
    kept = {p: b for p, keys in going.items() if (b := storage.remove(there[p], not due.isdisjoint(keys))) is not None}
    left = storage.find(p for p in going if p not in kept)
    kept |= {path: storage.find_blocker(remain) for path, remain in left.items()}
    for path, blocker in sorted(kept.items()):
        seen.block(going[path], blocker)


@dataclass(frozen=True)
class _MetadataCheck:
    """Assesses metadata files that the table's current metadata does not name."""

    base: Base
    seen: CheckedErasures
    modified: Mapping[Place, datetime]
    """When each listed file was written."""
    states: Mapping[str, Mapping[str, Any] | None]
    """The parsed metadata.json files among them, of this table or another one, by path. None: the file cannot be read."""
    statistics: frozenset[str]
    """Paths of the statistics files that were just removed from the table's metadata."""

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset(self.seen.free)

    @cached_property
    def _before(self) -> frozenset[Place]:
        """The earlier metadata files in the table's metadata log."""
        return frozenset(place(entry.metadata_file) for entry in self.base.iceberg.metadata.metadata_log)

    @cached_property
    def _published(self) -> frozenset[Place]:
        """What the snapshots of these earlier metadata files name: it was committed, and its snapshots have expired since.

        An expiry that ends between its commit and its last deletion leaves such files.
        """
        earlier = [state for path, state in self.states.items() if state is not None and place(path) in self._before]
        lists = {str(s.get("manifest-list")) for state in earlier for s in state.get("snapshots") or ()}
        in_use = {s.manifest_list for s in self.base.iceberg.metadata.snapshots}
        lists = {path for path in lists - in_use if place(path) in self.modified}
        return frozenset(place(path) for path in (*lists, *manifests_in(self.base.iceberg.io, lists)))

    @cached_property
    def _shared(self) -> frozenset[str]:
        """The folders that also contain metadata of another table."""
        return frozenset(path.rpartition("/")[0] for path in self.states if self.is_of_another(path))

    def is_of_another(self, path: str) -> bool:
        """Whether a file is the metadata of another table, by its UUID."""
        state = self.states.get(path)
        return state is not None and state.get("table-uuid") not in (None, self.base.facts.uuid)

    @cached_property
    def _of_others(self) -> frozenset[Place]:
        """The metadata files that the newest known metadata of other tables names."""
        newest: dict[str, Mapping[str, Any]] = {}
        for path, state in self.states.items():
            if state is not None and self.is_of_another(path):
                uuid = str(state["table-uuid"])
                newest[uuid] = max(state, newest.get(uuid, state), key=_age)
        return frozenset(place(f) for s in newest.values() for f in reached_by(self.base.iceberg.io, s))

    def belongs_to_another(self, path: str) -> bool:
        """Whether a file is metadata of another table in the same folder."""
        return self.is_of_another(path) or (bool(self._shared) and place(path) in self._of_others)

    def erasures_in(self, path: str, modified: datetime, current: bool) -> set[str]:
        """The keys of the erasures of which a file may contain values.

        Args:
            modified: When it was written.
            current: False: it was deleted and older versions are left. All erasures count then, because some stores report the
                time of the deletion instead.
        """
        if not current:
            return set(self.free)
        if path.endswith(TABLE_FILES):
            state = self.states.get(path)
            if state is None or state.get("table-uuid") != self.base.facts.uuid:
                return set(self.free)  # it is no metadata of a table, so nothing says what it contains
            return {k for k in self.free if names_partitions(state, self.seen.claims[k])}
        return {k for k in self.free if self._is_before(self.seen.claims[k], modified)}

    def _is_before(self, claim: OpenErasure, modified: datetime) -> bool:
        """Whether a file was written before the first snapshot after the purge.

        A writer that started after that snapshot has seen no erased rows. Both times are by the storage's clock.
        """
        first = clean_from(claim, self.seen.history)
        snapshot = self.base.iceberg.metadata.snapshot_by_id(first) if first is not None else None
        list_time = self.modified.get(place(snapshot.manifest_list)) if snapshot is not None else None
        return list_time is None or modified <= list_time

    def kept(self, path: str, modified: datetime, current: bool) -> ErasureBlocker | None:
        """What blocks deleting a file now; None: nothing."""
        if place(path) in self._before or path in self.statistics:
            return None
        if path.rpartition("/")[0] in self._shared:
            why = "it may belong to the other table with metadata in the same folder; move or delete that metadata"
            return ErasureBlocker(BlockerKind.OBJECT, without_values(path), None, why)
        blocker = blocker_if_young(path, modified, datetime.now(UTC)) if current else None
        return None if blocker is not None and place(path) in self._published else blocker


def _age(metadata: Mapping[str, Any]) -> tuple[int, int]:
    return int(metadata.get("last-sequence-number") or 0), int(metadata.get("last-updated-ms") or 0)


def _listed(table: IcebergTable, storage: Storage, known_folders: Iterable[str]) -> Iterable[tuple[str, datetime]]:
    """The files that Iceberg's writers have written to the table's metadata folders, and when they were written.

    Args:
        known_folders: The folders of all its metadata files, earlier ones too.
    """
    folders = {
        *known_folders,
        f"{table.location}/metadata",
        (table.properties.get(METADATA_PATH) or f"{table.location}/metadata").rstrip("/"),
        table.metadata_location.rpartition("/")[0],
    }
    by_place = {place(f): f for f in sorted(folders)}
    for folder in by_place.values():
        for path, modified in storage.list_below(folder):
            if path.endswith(WRITTEN):
                yield path, modified


def metadata_files(base: Base) -> set[Place]:
    """The places of all metadata files that the table's current state names, except earlier metadata.json files."""
    metadata, io = base.iceberg.metadata, base.iceberg.io
    files = {place(base.iceberg.metadata_location)}
    files |= {place(s.statistics_path) for s in (*metadata.statistics, *metadata.partition_statistics)}
    for snapshot in metadata.snapshots:
        files.add(place(snapshot.manifest_list))
        files |= {place(m.manifest_path) for m in snapshot.manifests(io)}
    return files


def _unseen(error: VersionsDenied) -> ErasureBlocker:
    why = "it is unknown whether older versions of objects are deleted: grant s3:ListBucketVersions"
    return ErasureBlocker(BlockerKind.OBJECT_VERSION, f"s3://{error.bucket}", None, why)
