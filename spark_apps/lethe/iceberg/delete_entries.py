"""Finds the delete files of a snapshot, and those that delete nothing any more. I/O: reads manifests."""

from collections.abc import Iterable
from typing import Any, Final

import fastavro
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from lethe.iceberg.facts import live_entries
from lethe.iceberg.native_deletes import DELETED, is_unpartitioned, may_contain_values

_Partition = tuple[int, str]  # spec id, and the values as text
_EQUALITY: Final = DataFileContent.EQUALITY_DELETES


def added_by(io: FileIO, manifest: ManifestFile) -> dict[tuple[str, int | None], int]:
    """The snapshot that added each live delete file of a manifest, by path and, for a deletion vector, the offset in the file."""
    with io.new_input(manifest.manifest_path).open() as stream:
        entries = [e for e in fastavro.reader(stream) if e["status"] != DELETED]
    found: dict[tuple[str, int | None], int] = {}
    for entry in entries:
        file, snapshot = entry["data_file"], entry.get("snapshot_id")
        key = (str(file["file_path"]), file.get("content_offset"))
        found[key] = int((manifest.added_snapshot_id if snapshot is None else snapshot) or 0)
    return found


def dangling(table: Table, snapshot_id: int | None) -> list[tuple[str, int]]:
    """The delete files with values of rows that delete nothing any more. Returns paths with sequence numbers.

    By the sequence numbers, all data files that they might apply to are newer or removed.

    By Iceberg's rules, equality deletes apply to older rows of their partition or, without partitions, of the whole table.
    Position deletes also apply to rows of the same commit. Iceberg's scan has the last word (`deletes_in_use`).
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    entries = [
        (m, e) for m in manifests if m.content == ManifestContent.DELETES for e in m.fetch_manifest_entry(table.io)
    ]
    deletes = [(_number(m, e), _partition(m, e.data_file), e.data_file) for m, e in entries if _has_values(e.data_file)]
    if not deletes:
        return []
    oldest: dict[_Partition, int] = {}
    for m in manifests:
        for e in live_entries(table.io, m):
            at, number = _partition(m, e.data_file), _number(m, e)
            oldest[at] = min(number, oldest.get(at, number))
    of_table = {i for i, spec in table.specs().items() if is_unpartitioned(spec)}
    return [
        (f.file_path, number) for number, at, f in deletes if not _deletes(f, number, at, oldest, at[0] in of_table)
    ]


def _deletes(file: DataFile, number: int, at: _Partition, oldest: dict[_Partition, int], of_table: bool) -> bool:
    """Whether a data file is old enough for deletes of this sequence number and partition.

    Args:
        of_table: The partition spec of the deletes has no partitions.
    """
    if file.content == _EQUALITY:
        known = oldest.values() if of_table else [oldest[at]] if at in oldest else []
        return any(n < number for n in known)
    return at in oldest and oldest[at] <= number


def _has_values(file: DataFile) -> bool:
    columns = {*(file.value_counts or {}), *(file.lower_bounds or {})}
    return may_contain_values(int(file.content), columns)


def _number(manifest: ManifestFile, entry: ManifestEntry) -> int:
    """The data sequence number. Entries of the manifest's own snapshot inherit it from the manifest."""
    return int((manifest.sequence_number if entry.sequence_number is None else entry.sequence_number) or 0)


def _partition(manifest: ManifestFile, file: DataFile) -> _Partition:
    return manifest.partition_spec_id, _text(file.partition[n] for n in range(len(file.partition)))


def _text(values: Iterable[Any]) -> str:
    return repr([str(v) for v in values])
