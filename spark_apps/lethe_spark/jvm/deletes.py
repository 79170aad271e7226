"""Deletion vectors: read the positions of existing ones, and write new ones, by Iceberg, without committing them.

A data file has at most one deletion vector. So a new vector contains all deleted rows of its file, and replaces the old one.
Iceberg would accept a commit that leaves the old one in place, and the table would then be unreadable.
"""

import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyroaring import FrozenBitMap64

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each, java_list
from lethe_spark.jvm.handles import as_interface, method
from lethe_spark.jvm.run_folder import writing_as
from lethe_spark.jvm.table import IcebergTable

# The format of a deletion vector: its length, these bytes, a portable 64-bit Roaring bitmap, a checksum.
_MAGIC: Final = b"\xd1\xd3\x39\x64"
_EMPTY: Final = FrozenBitMap64()


@dataclass(frozen=True)
class DeleteChanges:
    """Native deletes that were written and not yet committed, and those that they replace."""

    # The written files.
    paths: tuple[str, ...] = ()
    # The data files of the deletion vectors.
    of: tuple[str, ...] = ()
    # Iceberg's delete files to add.
    added: tuple[Any, ...] = field(default=(), repr=False)
    # Iceberg's delete files to remove.
    replaced: tuple[Any, ...] = field(default=(), repr=False)

    def along_with(self, other: "DeleteChanges") -> "DeleteChanges":
        """Both together, for one commit."""
        return DeleteChanges(
            self.paths + other.paths, self.of + other.of, self.added + other.added, self.replaced + other.replaced
        )


@dataclass(frozen=True)
class Deleted:
    """The rows of a data file that native deletes hide."""

    positions: FrozenBitMap64
    # Whether equality deletes may hide further rows.
    others: bool


@reading("reading native deletes")
def deleted_of(table: IcebergTable, tasks: Iterable[Any]) -> dict[str, Deleted]:
    """The rows that native deletes hide, by the path of the data file of each scan task."""
    newer = method(table.jvm, "org.apache.iceberg.io.FileIO", "newInputFile", "org.apache.iceberg.DeleteFile")
    opened = as_interface(table.jvm, "java.util.function.Function", newer.bindTo(table.java.io()))
    loader = table.jvm.org.apache.iceberg.data.BaseDeleteLoader(opened)
    found: dict[str, Deleted] = {}
    for task in tasks:
        path = str(task.file().location())
        deletes = list(each(task.deletes()))
        by_position = [d for d in deletes if _is_positional(d)]
        positions = _EMPTY
        if by_position:
            index = loader.loadPositionDeletes(java_list(table.jvm, by_position), path)
            positions = _EMPTY if index.isEmpty() else of_blob(bytes(index.serialize().array()))
        found[path] = Deleted(positions, others=len(by_position) < len(deletes))
    return found


@reading("writing deletion vectors")
def write_vectors(
    table: IcebergTable, tasks: Iterable[Any], positions: Mapping[str, FrozenBitMap64], run_id: str
) -> DeleteChanges:
    """Write a deletion vector for each data file, each in its own Puffin file, without committing them.

    Several vectors in one file would need fewer files. But PyIceberg applies every vector of a file that is in use: after a
    vector is replaced by a smaller one, the old one would still apply while another vector of the same file is in use.

    Args:
        tasks: Scan tasks of these files, with their current deletes.
        positions: All deleted positions of each file by path, including those deleted before. A file without positions loses
            its vector.
        run_id: A folder in the paths of the files.
    Raises: TransientError. Files that were written by then stay in storage.
    """
    api = table.jvm.org.apache.iceberg
    target = writing_as(table, run_id)
    files = api.io.OutputFileFactory.builderFor(target, 0, 0).format(api.FileFormat.PUFFIN).build()
    # The positions are complete, so there are no previous ones to merge. The get of an empty map is a function returning null.
    nothing = method(table.jvm, "java.util.Map", "get", "java.lang.Object").bindTo(table.jvm.java.util.HashMap())
    previous = as_interface(table.jvm, "java.util.function.Function", nothing)
    added: list[Any] = []
    specs = table.java.specs()
    replaced: list[Any] = []
    for task in tasks:
        file = task.file()
        path = str(file.location())
        if positions[path]:
            writer = api.deletes.BaseDVFileWriter(files, previous)
            writer.delete(path, _index(table, positions[path]), specs.get(file.specId()), file.partition())
            writer.close()
            added += each(writer.result().deleteFiles())
        # Position deletes of several files stay for the other files. Readers ignore them for a file with a vector.
        own = (d for d in each(task.deletes()) if _is_positional(d))
        replaced += [d for d in own if api.util.ContentFileUtil.isFileScoped(d)]
    paths = tuple(sorted({str(d.location()) for d in added}))
    return DeleteChanges(paths, tuple(positions), tuple(added), tuple(replaced))


def _is_positional(deletes: Any) -> bool:
    return str(deletes.content().toString()) == "POSITION_DELETES"


def _index(table: IcebergTable, positions: FrozenBitMap64) -> Any:
    """The positions as Iceberg's index, which can only be read from the description of a delete file."""
    api = table.jvm.org.apache.iceberg
    content = to_blob(positions)
    described = (
        api.FileMetadata.deleteFileBuilder(api.PartitionSpec.unpartitioned())
        .ofPositionDeletes()
        .withFormat(api.FileFormat.PUFFIN)
        .withPath("none")
        .withFileSizeInBytes(len(content))
        .withRecordCount(len(positions))
        .withReferencedDataFile("none")
        .withContentOffset(0)
        .withContentSizeInBytes(len(content))
        .build()
    )
    return api.deletes.PositionDeleteIndex.deserialize(content, described)


def to_blob(positions: FrozenBitMap64) -> bytes:
    """A deletion vector as the blob of a Puffin file. Pure."""
    content = _MAGIC + positions.serialize()
    return struct.pack(">I", len(content)) + content + struct.pack(">I", zlib.crc32(content))


def of_blob(blob: bytes) -> FrozenBitMap64:
    """The positions of a deletion vector. Pure."""
    (length,) = struct.unpack(">I", blob[:4])
    return FrozenBitMap64.deserialize(blob[4 + len(_MAGIC) : 4 + length])
