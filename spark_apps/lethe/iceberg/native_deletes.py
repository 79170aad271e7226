"""Finds the native deletes that may apply to the data files of a snapshot. I/O: reads manifests, not the delete files.

Deletes are identified by name: if a data file has the same deletes twice, it has the same rows. All deletes that may apply to a
file count, even if they do not: whoever leaves out rows, or keeps them, asks the scan tasks of Iceberg which deletes do apply.
PyIceberg does not read to which file a deletion vector applies, so this module does.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform

from lethe.base.avro import reader

DELETED: Final = 2
"""The status of a deleted manifest entry."""
_EQUALITY: Final = 2
"""The content type of an equality delete file."""
FILE_PATH: Final = 2147483546
"""The field id, in a file of position deletes, of the data file's path."""
POSITION: Final = 2147483545
"""The field id, in a file of position deletes, of the row's position."""
_NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class PositionDeletes:
    """A file of position deletes, or a deletion vector in a Puffin file."""

    path: str
    format: FileFormat
    offset: int = 0
    """Of a deletion vector: its place in the file."""
    length: int = 0
    """Of a deletion vector, in bytes."""


@dataclass(frozen=True)
class NativeDeleteFiles:
    """The names of deletes, by the data files that they may apply to."""

    of_file: Mapping[str, frozenset[str]]
    """Path of the only data file -> deletes."""
    of_spec: Mapping[int, frozenset[str]]
    """Id of a partition spec -> deletes that may apply to all its files."""
    of_any: frozenset[str] = _NONE
    """Deletes that may apply to any file."""

    def on(self, path: str, spec_id: int) -> frozenset[str]:
        """The deletes that may apply to a data file."""
        return self.of_file.get(path, _NONE) | self.of_spec.get(spec_id, _NONE) | self.of_any


def native_deletes(io: FileIO, manifests: Iterable[ManifestFile]) -> NativeDeleteFiles:
    """Read the deletes in the manifests of a snapshot."""
    of_file: dict[str, set[str]] = {}
    of_spec: dict[int, set[str]] = {}
    of_any: set[str] = set()
    for manifest, files, of_table in _delete_files(io, manifests):
        for file in files:
            name, path = _name(file), referenced(file)
            if path is not None:
                of_file.setdefault(path, set()).add(name)
            elif file["content"] == _EQUALITY and of_table:
                of_any.add(name)  # equality deletes of a spec without partitions apply to the whole table
            else:
                of_spec.setdefault(manifest.partition_spec_id, set()).add(name)
    return NativeDeleteFiles(_frozen(of_file), _frozen(of_spec), frozenset(of_any))


@dataclass(frozen=True)
class DeletedRowCounts:
    """How many deleted rows the entries of delete files name. Rows that two of them delete count twice."""

    of_file: Mapping[str, int]
    """Path of the only data file -> rows."""
    of_several: int
    """Of delete files that may apply to several data files: rows, or values of equality deletes."""


def deleted_rows(io: FileIO, manifests: Iterable[ManifestFile]) -> DeletedRowCounts:
    """Count the deleted rows in the manifests of a snapshot."""
    of_file: dict[str, int] = {}
    of_several = 0
    for _, files, _ in _delete_files(io, manifests):
        for file in files:
            path, rows = referenced(file), int(file["record_count"])
            if path is None:
                of_several += rows
            else:
                of_file[path] = of_file.get(path, 0) + rows
    return DeletedRowCounts(of_file, of_several)


def _delete_files(
    io: FileIO, manifests: Iterable[ManifestFile]
) -> Iterator[tuple[ManifestFile, list[Mapping[str, Any]], bool]]:
    """The manifests of deletes, the live delete files in each, and whether its partition spec is unpartitioned."""
    for manifest in manifests:
        if manifest.content != ManifestContent.DELETES:
            continue
        with io.new_input(manifest.manifest_path).open() as stream:
            entries = reader(stream)
            files = [e["data_file"] for e in entries if e["status"] != DELETED]
            of_table = _is_of_unpartitioned_spec(entries.metadata)
        yield manifest, files, of_table


def _frozen(deletes: Mapping[Any, set[str]]) -> dict[Any, frozenset[str]]:
    return {key: frozenset(sequence_numbers) for key, sequence_numbers in deletes.items()}


def _name(file: Mapping[str, Any]) -> str:
    """A file may contain several deletion vectors, so its name includes the offset."""
    offset = file.get("content_offset")
    return str(file["file_path"]) if offset is None else f"{file['file_path']}#{offset}"


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether a partition spec has no partitions for Iceberg.

    In a table of format version 1, a partition field that was dropped stays in the specs, with the transform `void`.
    """
    return all(isinstance(f.transform, VoidTransform) for f in spec.fields)


def _is_of_unpartitioned_spec(header: Mapping[str, str]) -> bool:
    """Whether the spec that a manifest's header names is unpartitioned.

    An unknown one counts as unpartitioned, because then equality deletes may apply to any file.
    """
    try:
        fields = json.loads(header["partition-spec"])
        return all(f["transform"] == "void" for f in fields)
    except (KeyError, TypeError, ValueError):
        return True


def holds_values(file: Mapping[str, Any]) -> bool:
    """Whether a delete file, as read from a manifest, contains values of rows.

    Equality deletes do, and position deletes if they have a copy of each row.
    """
    metrics = (*(file.get("value_counts") or ()), *(file.get("lower_bounds") or ()))
    return file["content"] == _EQUALITY or not {FILE_PATH, POSITION}.issuperset(int(m["key"]) for m in metrics)


def vectors(io: FileIO, manifests: Iterable[ManifestFile]) -> dict[str, frozenset[PositionDeletes]]:
    """The deletion vectors in the manifests of a snapshot, by the path of their data file."""
    vectors_by_file: dict[str, set[PositionDeletes]] = {}
    for _, files, _ in _delete_files(io, manifests):
        for file in files:
            offset, path = file.get("content_offset"), referenced(file)
            if offset is not None and path is not None:
                place = int(offset), int(file["content_size_in_bytes"])
                vector = PositionDeletes(str(file["file_path"]), FileFormat.PUFFIN, *place)
                vectors_by_file.setdefault(path, set()).add(vector)
    return {path: frozenset(offsets) for path, offsets in vectors_by_file.items()}


def referenced(file: Mapping[str, Any]) -> str | None:
    """The only data file that deletes apply to, by their manifest entry; None: unknown, or several."""
    if file["content"] == _EQUALITY:
        return None
    if (path := file.get("referenced_data_file")) is not None:
        return str(path)
    lower, upper = _bound(file.get("lower_bounds")), _bound(file.get("upper_bounds"))
    return lower.decode() if lower is not None and lower == upper else None


def _bound(bounds: Iterable[Mapping[str, Any]] | None) -> bytes | None:
    return next((b["value"] for b in bounds or () if b["key"] == FILE_PATH), None)
