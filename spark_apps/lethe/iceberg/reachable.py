"""Every file that a table's metadata leads to. I/O: reads the manifests of all retained snapshots, each once."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from lethe.vacuum.orphans import key_of

READ_AT_ONCE: Final = 8


def reachable(table: Table) -> set[str]:
    """The keys (`lethe.vacuum.orphans.key_of`) of all files that retained snapshots, of any branch or tag or staged, and the
    table's metadata itself name: data and delete files, manifests, their lists, statistics, the metadata of now and before.

    Raises: whatever a manifest that cannot be read does. What was found by then is not all.
    """
    metadata = table.metadata
    found = {key_of(table.metadata_location), *(key_of(entry.metadata_file) for entry in metadata.metadata_log)}
    found |= {key_of(s.statistics_path) for s in (*metadata.statistics, *metadata.partition_statistics)}
    found |= {key_of(s.manifest_list) for s in metadata.snapshots}
    with ThreadPoolExecutor(max_workers=READ_AT_ONCE) as pool:
        manifests: dict[str, ManifestFile] = {}
        for of_snapshot in pool.map(lambda s: s.manifests(table.io), metadata.snapshots):
            manifests |= {m.manifest_path: m for m in of_snapshot}
        found |= {key_of(path) for path in manifests}
        for files in pool.map(lambda m: _files(table, m), manifests.values()):
            found.update(files)
    return found


def _files(table: Table, manifest: ManifestFile) -> Iterable[str]:
    """Of entries that say that a file was removed, nothing: it is needed by who lists it as part of a snapshot."""
    return {key_of(e.data_file.file_path) for e in manifest.fetch_manifest_entry(table.io, discard_deleted=True)}
