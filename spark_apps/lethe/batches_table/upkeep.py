"""A table of batches keeps its history short by itself: it is written at each run, and nobody travels back in it. I/O.

PyIceberg expires snapshots without their files, so that these are found and deleted here: what only expired snapshots name.
"""

import logging
from collections.abc import Iterable
from typing import Final

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

log = logging.getLogger(__name__)

# Cut to the second number once there are more than the first. A reader has as many commits as that to finish in.
SNAPSHOTS_AT_MOST: Final = 40
SNAPSHOTS_KEPT: Final = 20


def keep_short(table: Table) -> int:
    """Expire the oldest snapshots of a table that Lethe alone writes. Returns how many went. Never raises: the next update
    tries again. Those that a tag or a branch names stay."""
    try:
        return _expire(table)
    except Exception as e:
        log.warning("%s: its old snapshots stay until the next update: %s", ".".join(table.name()), type(e).__name__)
        return 0


def _expire(table: Table) -> int:
    snapshots = sorted(table.metadata.snapshots, key=lambda s: s.timestamp_ms, reverse=True)
    if len(snapshots) <= SNAPSHOTS_AT_MOST:
        return 0
    named = {r.snapshot_id for r in table.metadata.refs.values()}
    going = [s for s in snapshots[SNAPSHOTS_KEPT:] if s.snapshot_id not in named]
    if not going:
        return 0
    ids = {s.snapshot_id for s in going}
    staying = [s for s in snapshots if s.snapshot_id not in ids]
    table.maintenance.expire_snapshots().by_ids(sorted(ids)).commit()
    for uri in _only_of(table, going, staying):
        try:
            table.io.delete(uri)
        except FileNotFoundError:
            continue
    return len(going)


def _only_of(table: Table, going: Iterable[Snapshot], staying: Iterable[Snapshot]) -> list[str]:
    """The files that only snapshots which went had. What is left of them by a crash, Iceberg's remove_orphan_files finds."""
    kept = _manifests(table, staying)
    kept_files = {f for m in kept.values() for f in _data_files(table, m)}
    gone = {path: m for path, m in _manifests(table, going).items() if path not in kept}
    data = {f for m in gone.values() for f in _data_files(table, m)} - kept_files
    return [*data, *gone, *(s.manifest_list for s in going if s.manifest_list)]


def _manifests(table: Table, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    return {m.manifest_path: m for s in snapshots for m in s.manifests(table.io)}


def _data_files(table: Table, manifest: ManifestFile) -> list[str]:
    return [e.data_file.file_path for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]
