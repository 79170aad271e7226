"""The manifests of a snapshot with the data files that they list. I/O: reads all of them."""

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table

from lethe.iceberg.batch_column import BatchColumn
from lethe.iceberg.facts import bounds_of
from lethe.vacuum.manifests import Manifest


def data_manifests(table: Table, snapshot_id: int | None, field_id: int) -> list[Manifest]:
    """Those of data files, with bounds of the batch column."""
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    column = BatchColumn.of(table.specs(), field_id)
    found: list[Manifest] = []
    for m in snapshot.manifests(table.io) if snapshot is not None else ():
        if m.content is not ManifestContent.DATA:
            continue
        entries = m.fetch_manifest_entry(table.io, discard_deleted=False)
        live = tuple(bounds_of(e.data_file, column) for e in entries if e.status is not ManifestEntryStatus.DELETED)
        found.append(Manifest(m.manifest_path, m.partition_spec_id, m.manifest_length, len(entries), live))
    return found
