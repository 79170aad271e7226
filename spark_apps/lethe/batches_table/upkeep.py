"""Expires old snapshots of a table of batches, which gets a snapshot with each run. I/O.

PyIceberg expires snapshots without deleting their files, so this module deletes the files that only expired snapshots name.
"""

import logging
from collections.abc import Iterable
from typing import Final

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

# With more than MAX_SNAPSHOTS, expire all but KEPT_SNAPSHOTS. A reader may take as long as KEPT_SNAPSHOTS commits.
MAX_SNAPSHOTS: Final = 40
KEPT_SNAPSHOTS: Final = 20


def expire_old(table: Table) -> int:
    """Expire the oldest snapshots, except those that tags and branches name. Returns their number. Never raises: the next update
    tries again."""
    try:
        return _expire(table)
    except Exception as e:
        log.warning(
            "%s: old snapshots were not expired; the next update tries again: %s",
            ".".join(table.name()),
            type(e).__name__,
        )
        return 0


def _expire(table: Table) -> int:
    snapshots = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms, reverse=True)
    if len(snapshots) <= MAX_SNAPSHOTS:
        return 0
    named = {r.snapshot_id for r in table.metadata.refs.values()}
    expired = [s for s in snapshots[KEPT_SNAPSHOTS:] if s.snapshot_id not in named]
    if not expired:
        return 0
    ids = {s.snapshot_id for s in expired}
    kept = [s for s in snapshots if s.snapshot_id not in ids]
    table.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()
    for uri in _only_of(table, expired, kept):
        try:
            table.io.delete(uri)
        except FileNotFoundError:
            continue
    return len(expired)


def _only_of(table: Table, expired: Iterable[Snapshot], kept: Iterable[Snapshot]) -> list[str]:
    """The files that only expired snapshots name. After a crash, Iceberg's remove_orphan_files finds the rest."""
    kept_manifests = _manifests(table, kept)
    kept_files = {f for m in kept_manifests.values() for f in _data_files(table, m)}
    gone = {path: m for path, m in _manifests(table, expired).items() if path not in kept_manifests}
    data = {f for m in gone.values() for f in _data_files(table, m)} - kept_files
    return [*data, *gone, *(s.manifest_list for s in expired if s.manifest_list)]


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    return {m.manifest_path: m for s in snapshots for m in s.manifests(table.io)}


def _data_files(table: Table, manifest: ManifestFile) -> list[str]:
    return [e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
