"""Native deletes by position: read existing ones, and write new ones, by Iceberg, without committing them.

A data file has at most one deletion vector. So a new vector contains all deleted rows of its file, and replaces the old one.
Iceberg would accept a commit that leaves the old one in place, and the table would then be unreadable. Of position deletes
(format version 2) a data file may have any number. Lethe writes at most one file of them for each data file.
"""

import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base import names
from lethe.files.native_deletes import NO_POSITIONS, DeletedPositions
from pyroaring import FrozenBitMap64

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import as_interface, each, getter, java_list, method
from lethe_spark.jvm.table import IcebergTable, writing_as

# The format of a deletion vector: its length, these bytes, a portable 64-bit Roaring bitmap, a checksum.
_MAGIC: Final = b"\xd1\xd3\x39\x64"


@dataclass(frozen=True)
class DeleteChanges:
    """Native deletes that were written and not yet committed, and those that they replace."""

    paths: tuple[str, ...] = ()
    """The written files."""
    of: tuple[str, ...] = ()
    """The data files of the deletes by position."""
    added: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files to add."""
    replaced: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files to remove."""

    def along_with(self, other: "DeleteChanges") -> "DeleteChanges":
        """Both together, for one commit."""
        return DeleteChanges(
            self.paths + other.paths, self.of + other.of, self.added + other.added, self.replaced + other.replaced
        )


@dataclass(frozen=True)
class HiddenRows:
    """The rows of a data file that native deletes hide."""

    by_position: DeletedPositions
    others: bool = False
    """Whether equality deletes may hide further rows."""
    ours: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files of `by_position.ours`."""
    theirs: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files of `by_position.theirs`, in their order."""

    @property
    def positions(self) -> FrozenBitMap64:
        return self.by_position.all

    def replaced_by(self, taken_over: Collection[int]) -> tuple[Any, ...]:
        """Iceberg's delete files that Lethe's next one replaces (`PositionsAfter.taken_over`)."""
        return (*self.ours, *(self.theirs[n] for n in sorted(taken_over)))


@reading("reading native deletes")
def deleted_of(table: IcebergTable, tasks: Iterable[Any]) -> dict[str, HiddenRows]:
    """The rows that native deletes hide, by the path of the data file of each scan task."""
    newer = method(table.jvm, "org.apache.iceberg.io.FileIO", "newInputFile", "org.apache.iceberg.DeleteFile")
    opened = as_interface(table.jvm, "java.util.function.Function", newer.bindTo(table.java.io()))
    loader = table.jvm.org.apache.iceberg.data.BaseDeleteLoader(opened)
    rows_by_file: dict[str, HiddenRows] = {}
    for task in tasks:
        path = str(task.file().location())
        deletes = list(each(task.deletes()))
        by_position = [d for d in deletes if _is_positional(d)]

        def positions(files: Iterable[Any], path: str = path) -> FrozenBitMap64:
            listed = java_list(table.jvm, files)
            index = loader.loadPositionDeletes(listed, path) if listed.size() else None
            return NO_POSITIONS if index is None or index.isEmpty() else of_blob(bytes(index.serialize().array()))

        of_this_file = [d for d in by_position if is_of_one_file(table, d)]
        ours = tuple(d for d in of_this_file if is_by_lethe(d))
        theirs = tuple(d for d in of_this_file if not is_by_lethe(d))
        shared = [d for d in by_position if not is_of_one_file(table, d)]
        rows_by_file[path] = HiddenRows(
            DeletedPositions(positions(ours), tuple(positions([d]) for d in theirs), positions(shared)),
            len(by_position) < len(deletes),
            ours,
            theirs,
        )
    return rows_by_file


def position_deletes_of(table: IcebergTable, tasks: Iterable[Any]) -> tuple[Any, ...]:
    """Iceberg's files of position deletes that apply to one data file of these scan tasks, and to no other.

    A commit that removes the data file must remove them too: Iceberg itself only removes deletion vectors.
    """
    deletes = (d for task in tasks for d in each(task.deletes()) if _is_positional(d))
    return tuple(d for d in deletes if is_of_one_file(table, d) and not _is_vector(d))


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

    Files that were written by then stay in storage.

    Raises:
        TransientError: A dependency is temporarily unavailable.
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
        replaced += [d for d in each(task.deletes()) if _is_positional(d) and is_of_one_file(table, d)]
    paths = tuple(sorted({str(d.location()) for d in added}))
    return DeleteChanges(paths, tuple(positions), tuple(added), tuple(replaced))


@reading("writing position deletes")
def write_position_deletes(
    table: IcebergTable,
    tasks: Iterable[Any],
    positions: Mapping[str, FrozenBitMap64],
    replaced: Iterable[Any],
    run_id: str,
) -> DeleteChanges:
    """Write a Parquet file of position deletes for each data file, without committing them.

    Args:
        tasks: Scan tasks of these files.
        positions: The positions that Lethe's delete file of each data file contains, by path. A file without positions gets none.
        replaced: Iceberg's delete files that the new ones replace.
        run_id: A folder in the paths of the files.

    Files that were written by then stay in storage.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    api = table.jvm.org.apache.iceberg
    target = writing_as(table, run_id)
    parquet = api.FileFormat.PARQUET
    files = api.io.OutputFileFactory.builderFor(target, 0, 0)
    files = files.format(parquet).suffix(names.POSITION_DELETES_SUFFIX).build()
    writers = api.data.GenericFileWriterFactory.Builder(target).deleteFileFormat(parquet).build()
    specs = table.java.specs()
    added: list[Any] = []
    for file in (task.file() for task in tasks):
        path = str(file.location())
        if positions[path]:
            spec = specs.get(file.specId())
            output = files.newOutputFile(spec, file.partition())
            writer = writers.newPositionDeleteWriter(output, spec, file.partition())
            (made,) = _written(table, writer, path, positions[path])
            # Iceberg's writer leaves this to the bounds, which not every reader looks at.
            added.append(api.FileMetadata.deleteFileBuilder(spec).copy(made).withReferencedDataFile(path).build())
    return DeleteChanges(
        tuple(sorted(str(d.location()) for d in added)), tuple(positions), tuple(added), tuple(replaced)
    )


def _written(table: IcebergTable, writer: Any, path: str, positions: FrozenBitMap64) -> list[Any]:
    """Write the positions of one data file with Iceberg's writer, and close it.

    Iceberg takes one position per call, and each call from Python takes a millisecond. So Python passes the first one. Iceberg
    merges the others itself, as it merges previous deletes of the same data file.
    """
    api, java = table.jvm.org.apache.iceberg, table.jvm.java
    get = getter(table.jvm, "java.util.concurrent.atomic.AtomicReference", "get")
    open_it = get.bindTo(java.util.concurrent.atomic.AtomicReference(writer))
    previous = java.util.HashMap()
    previous.put(path, _index(table, positions))
    load = method(table.jvm, "java.util.Map", "get", "java.lang.Object").bindTo(previous)
    sorting = api.deletes.SortingPositionOnlyDeleteWriter(
        as_interface(table.jvm, "java.util.function.Supplier", open_it),
        api.deletes.DeleteGranularity.FILE,
        as_interface(table.jvm, "java.util.function.Function", load),
    )
    sorting.write(api.deletes.PositionDelete.create().set(path, positions[0]))
    sorting.close()
    return list(each(sorting.result().deleteFiles()))


def _is_positional(deletes: Any) -> bool:
    return str(deletes.content().toString()) == "POSITION_DELETES"


def _is_vector(deletes: Any) -> bool:
    return str(deletes.format().toString()) == "PUFFIN"


def is_by_lethe(deletes: Any) -> bool:
    """Whether Lethe's next delete file replaces these: deletion vectors, and position deletes of Lethe."""
    return _is_vector(deletes) or str(deletes.location()).endswith(f"-{names.POSITION_DELETES_SUFFIX}.parquet")


def is_of_one_file(table: IcebergTable, deletes: Any) -> bool:
    return bool(table.jvm.org.apache.iceberg.util.ContentFileUtil.isFileScoped(deletes))


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
