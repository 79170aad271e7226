"""Deletion vectors: those that files have, as positions, and new ones, written by Iceberg itself but not committed.

A data file has one deletion vector at the most. So what is written for a file is all that is deleted of it from then on, and
what it had is replaced: a commit that leaves the old one in its place lands, and makes the table unreadable.
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

# How a deletion vector is framed: its length, these bytes, a 64-bit Roaring bitmap in its portable form, a checksum.
_MAGIC: Final = b"\xd1\xd3\x39\x64"
_EMPTY: Final = FrozenBitMap64()


@dataclass(frozen=True)
class NativeDeletes:
    """Written, in the files of `paths`, and not committed. `added` and `replaced` are Iceberg's own delete files, `of` the paths
    of the data files that deletion vectors are of."""

    paths: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    added: tuple[Any, ...] = field(default=(), repr=False)
    replaced: tuple[Any, ...] = field(default=(), repr=False)

    def along_with(self, other: "NativeDeletes") -> "NativeDeletes":
        """Both, for one commit."""
        return NativeDeletes(
            self.paths + other.paths, self.of + other.of, self.added + other.added, self.replaced + other.replaced
        )


@dataclass(frozen=True)
class Deleted:
    """What native deletes take of a data file: the rows at `positions`, and, `others`, maybe more, that equality deletes name."""

    positions: FrozenBitMap64
    others: bool


@reading("reading native deletes")
def deleted_of(table: IcebergTable, tasks: Iterable[Any]) -> dict[str, Deleted]:
    """What native deletes take of the data files of scan tasks, by the files' paths."""
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
) -> NativeDeletes:
    """Write a deletion vector for each of the data files, in a Puffin file of its own, and commit nothing.

    Files of several would be fewer, but PyIceberg takes every vector in one for deletes of today: when the vector of a data file
    is replaced by a smaller one, what it was would go on deleting there for as long as that of another is in use.

    Args:
        tasks: Scan tasks of these files, with the deletes that they have now.
        positions: By the path of a file, all positions of it that are deleted from then on: those that were before, too. A file
            without any only loses the vector that it had.
        run_id: Becomes a folder in the files' path.
    Raises: TransientError. What was written by then stays in storage.
    """
    api = table.jvm.org.apache.iceberg
    target = writing_as(table, run_id)
    files = api.io.OutputFileFactory.builderFor(target, 0, 0).format(api.FileFormat.PUFFIN).build()
    # Nothing to merge with: the positions are whole. A map without entries is a function that answers null.
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
        # Position deletes of several files stay for the others; of a file with a vector, no reader looks at them.
        own = (d for d in each(task.deletes()) if _is_positional(d))
        replaced += [d for d in own if api.util.ContentFileUtil.isFileScoped(d)]
    paths = tuple(sorted({str(d.location()) for d in added}))
    return NativeDeletes(paths, tuple(positions), tuple(added), tuple(replaced))


def _is_positional(deletes: Any) -> bool:
    return str(deletes.content().toString()) == "POSITION_DELETES"


def _index(table: IcebergTable, positions: FrozenBitMap64) -> Any:
    """The positions as Iceberg holds them; it takes them for those of a file, whose description has to fit."""
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
