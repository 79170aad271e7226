"""Finds the delete files of a snapshot, and those that delete nothing any more. I/O: reads manifests."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table

from lethe.base.avro import reader
from lethe.iceberg.facts import live_entries
from lethe.iceberg.native_deletes import DELETED, is_unpartitioned, referenced

DeletesKey: TypeAlias = tuple[str, int | None]
"""The path of a delete file and, for a deletion vector, the offset in the file, which may contain several."""
_Partition = tuple[int, str]
"""A spec id, and the values of a partition as text."""
_EQUALITY: Final = DataFileContent.EQUALITY_DELETES


def added_by(io: FileIO, manifest: ManifestFile) -> dict[DeletesKey, int]:
    """The snapshot that added each live delete file of a manifest."""
    numbers: dict[DeletesKey, int] = {}
    for entry in _live(io, manifest):
        snapshot = entry.get("snapshot_id")
        numbers[_key(entry["data_file"])] = int((manifest.added_snapshot_id if snapshot is None else snapshot) or 0)
    return numbers


def dangling(table: Table, snapshot_id: int | None) -> frozenset[DeletesKey]:
    """The delete files that delete nothing any more.

    By the sequence numbers, all data files that they might apply to are newer or removed. They may still contain values of rows:
    equality deletes do, and in a partition the paths of delete files, the paths in them, and their manifests name the values of
    the partition.

    By Iceberg's rules, equality deletes apply to older rows of their partition or, without partitions, of the whole table.
    Position deletes also apply to rows of the same commit: to one data file, if they name only one, otherwise to those of their
    partition. Iceberg's scan has the last word (`deletes_in_use`).
    """
    snapshot = table.metadata.snapshot_by_id(snapshot_id) if snapshot_id is not None else None
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    of_deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
    deletes = [(m, e, raw["data_file"]) for m in of_deletes for e, raw in _entries(table.io, m)]
    if not deletes:
        return frozenset()
    oldest: dict[_Partition, int] = {}
    numbers: dict[str, int] = {}
    for m in manifests:
        for e in live_entries(table.io, m):
            partition, number = _partition(m, e.data_file), _number(m, e)
            oldest[partition] = min(number, oldest.get(partition, number))
            numbers[e.data_file.file_path] = number
    of_table = {i for i, spec in table.specs().items() if is_unpartitioned(spec)}

    def has_effect(manifest: ManifestFile, entry: ManifestEntry, raw: Mapping[str, Any]) -> bool:
        partition, number = _partition(manifest, entry.data_file), _number(manifest, entry)
        if entry.data_file.content == _EQUALITY:
            sequence_numbers = (
                oldest.values() if partition[0] in of_table else [oldest[partition]] if partition in oldest else []
            )
            return any(n < number for n in sequence_numbers)
        path = referenced(raw)
        first = oldest.get(partition) if path is None else numbers.get(path)
        return first is not None and first <= number

    return frozenset(_key(raw) for m, e, raw in deletes if not has_effect(m, e, raw))


def _entries(io: FileIO, manifest: ManifestFile) -> Iterator[tuple[ManifestEntry, Mapping[str, Any]]]:
    """The live entries of a manifest of deletes, each also as it is stored: PyIceberg leaves out what format version 3 added."""
    return zip(manifest.fetch_manifest_entry(io), _live(io, manifest), strict=True)


def _live(io: FileIO, manifest: ManifestFile) -> list[Mapping[str, Any]]:
    with io.new_input(manifest.manifest_path).open() as stream:
        return [e for e in reader(stream) if e["status"] != DELETED]


def _key(file: Mapping[str, Any]) -> DeletesKey:
    return str(file["file_path"]), file.get("content_offset")


def _number(manifest: ManifestFile, entry: ManifestEntry) -> int:
    """The data sequence number. Entries of the manifest's own snapshot inherit it from the manifest."""
    return int((manifest.sequence_number if entry.sequence_number is None else entry.sequence_number) or 0)


def _partition(manifest: ManifestFile, file: DataFile) -> _Partition:
    return manifest.partition_spec_id, _text(file.partition[n] for n in range(len(file.partition)))


def _text(values: Iterable[Any]) -> str:
    return repr([str(v) for v in values])
