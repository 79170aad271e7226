"""Data files and native deletes as objects of Iceberg: describes those of a table, makes new ones for a commit. I/O."""

import json
import struct
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import ConflictError
from lethe.files.bounds import partition_text_of_json
from lethe.files.native_deletes import NO_POSITIONS, DeletedPositions
from lethe.iceberg.delete_entries import DeletesKey
from pyroaring import FrozenBitMap64

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import as_interface, each, each_of, getter, java_list, method
from lethe_spark.jvm.table import IcebergTable, writing_as

CHARACTERS_AT_ONCE: Final = 1024 * 1024
"""Characters of JSON per call, unless one file alone has more.

A file has about two thousand; Java's parser needs ten times as much memory.
"""

_MAGIC: Final = b"\xd1\xd3\x39\x64"
"""The format of a deletion vector: its length, these bytes, a portable 64-bit Roaring bitmap, a checksum."""


@dataclass(frozen=True)
class DataFile:
    """A data file. The partition and bounds of scanned files are unknown, those of written and staged files are known."""

    path: str
    records: int
    """Number of rows."""
    bytes: int
    java: Any = field(repr=False, compare=False)
    """Iceberg's object, which a commit passes back to it."""
    partition: str | None = None
    """The text of the partition, as in `lethe.files.bounds`. None: unknown."""
    # Bounds of the batch column. None: unknown.
    lower: str | None = None
    upper: str | None = None

    @classmethod
    def of(cls, java: Any) -> "DataFile":
        """Read path, rows and size of Iceberg's object, in three calls into the JVM, and no partition or bounds."""
        return cls(str(java.location()), int(java.recordCount()), int(java.fileSizeInBytes()), java)


def described(table: IcebergTable, files: Iterable[Any]) -> tuple[DataFile, ...]:
    """Data files with their partitions and bounds. Costs one call into the JVM per file, for its JSON form."""
    field_id = table.java.properties().get(names.BATCH_COLUMN)
    specs = table.java.specs()
    types: dict[int, tuple[Any, list[str]]] = {}
    found: list[DataFile] = []
    for java in files:
        spec_id = int(java.specId())
        if spec_id not in types:
            spec = specs.get(spec_id)
            types[spec_id] = (spec, [str(f.type().toString()) for f in each(spec.partitionType().fields())])
        spec, names_of_types = types[spec_id]
        document = json.loads(json_of(table, java, spec))
        found.append(
            DataFile(
                path=document["file-path"],
                records=document["record-count"],
                bytes=document["file-size-in-bytes"],
                java=java,
                partition=partition_text_of_json(spec_id, names_of_types, document["partition"]),
                lower=_bound(document, "lower-bounds", field_id),
                upper=_bound(document, "upper-bounds", field_id),
            )
        )
    return tuple(found)


def json_of(table: IcebergTable, java: Any, spec: Any) -> str:
    """Iceberg's JSON of a data file.

    Args:
        spec: The partition spec of the file.
    """
    api = table.jvm.org.apache.iceberg
    fields = int(spec.fields().size())
    if not fields or not bool(spec.isUnpartitioned()):
        return str(api.ContentFileParser.toJson(java, spec))
    # In format version 1, a field that is dropped from a spec stays as `void`. A spec of such fields only counts as one without
    # fields, for which Iceberg's writer refuses the nulls of the file's partition.
    plain = api.DataFiles.builder(spec).copy(java).build()
    document = json.loads(api.ContentFileParser.toJson(plain, spec))
    return json.dumps(document | {"partition": [None] * fields})


def _bound(file: Mapping[str, Any], which: str, field_id: str | None) -> str | None:
    """A bound of a string column, which Iceberg writes as the hexadecimal of its UTF-8."""
    bounds = file.get(which)
    if bounds is None or field_id is None or int(field_id) not in bounds["keys"]:
        return None
    return bytes.fromhex(bounds["values"][bounds["keys"].index(int(field_id))]).decode()


def with_deletes(table: IcebergTable, task: Any, deletes: Collection[Any]) -> Any:
    """A scan task of the same rows of the same file, with other deletes.

    Args:
        deletes: Iceberg's delete files.
    """
    api = table.jvm.org.apache.iceberg
    array = table.gateway.new_array(api.DeleteFile, len(deletes))
    for n, delete_file in enumerate(deletes):
        array[n] = delete_file
    schema, spec = api.SchemaParser.toJson(task.schema()), api.PartitionSpecParser.toJson(task.spec())
    residual = api.expressions.ResidualEvaluator.unpartitioned(task.residual())
    return api.BaseFileScanTask(task.file(), array, schema, spec, residual)


@reading("planning a scan")
def deletes_in_use(table: IcebergTable, snapshot_id: int) -> frozenset[DeletesKey]:
    """The delete files that apply to data files of a snapshot.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    planned = each_of(table.java.newScan().useSnapshot(snapshot_id).ignoreResiduals().planFiles())
    return frozenset(key_of_deletes(d) for task in planned for d in each(task.deletes()))


def key_of_deletes(java: Any) -> DeletesKey:
    """The key of Iceberg's delete file."""
    offset = java.contentOffset()
    return str(java.location()), None if offset is None else int(offset)


@reading("planning a scan of named files")
def tasks_of(
    table: IcebergTable, paths: Iterable[str], snapshot_id: int, metrics_of: Collection[str] = ()
) -> list[Any]:
    """The scan tasks of exactly the named files of a snapshot, in planning order.

    Args:
        paths: As Iceberg records them (`DataFile.path`, or a manifest's `file_path`).
        metrics_of: Names of columns whose metrics the files keep. Planning reads those of all files of the table.

    Raises:
        ConflictError: `DataMoved`, if the snapshot does not hold one of them.
        TransientError: A dependency is temporarily unavailable.
    """
    path_set = set(paths)
    scan = table.java.newScan().useSnapshot(snapshot_id).ignoreResiduals()
    if metrics_of:
        scan = scan.includeColumnStats(java_list(table.jvm, metrics_of))
    planned = each_of(scan.planFiles())
    tasks = [task for task in planned if str(task.file().location()) in path_set]
    if len(tasks) < len(path_set):
        missing = sorted(path_set - {str(task.file().location()) for task in tasks})
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: snapshot {snapshot_id} does not hold {len(missing)} of the {len(path_set)} data files "
            f"of the plan, the first is {missing[0]}. Nothing was committed. The run plans again.",
        )
    return tasks


@reading("making data files")
def data_files(table: IcebergTable, documents: Sequence[str]) -> Any:
    """A Java list of data files.

    A call from Python into the JVM takes at least a tenth of a millisecond, and building one data file needs twenty calls. So the
    files are sent as JSON, in the format of Iceberg's REST protocol, and Java parses them.

    Args:
        documents: JSON objects, as `ContentFileParser` of Iceberg writes them.
    """
    api = table.jvm
    mapper = api.org.apache.iceberg.util.JsonUtil.mapper()
    specs = table.gateway.new_array(api.java.lang.Object, 1)
    specs[0] = table.java.specs()
    parse = method(api, "org.apache.iceberg.ContentFileParser", "fromJson", "java.util.Map")
    handles = api.java.lang.invoke.MethodHandles
    parser = as_interface(api, "java.util.function.Function", handles.insertArguments(parse, 1, specs))
    files = api.java.util.ArrayList(len(documents))
    for chunk in chunks(documents):
        nodes = mapper.readTree(f"[{','.join(chunk)}]")
        stream = api.java.util.stream.StreamSupport.stream(nodes.spliterator(), False)
        files.addAll(stream.map(parser).toList())
    return files


def append_all(table: IcebergTable, update: Any, files: Any) -> None:
    """Add each file of a Java list to Iceberg's pending append."""
    append = method(table.jvm, "org.apache.iceberg.AppendFiles", "appendFile", "org.apache.iceberg.DataFile")
    files.forEach(as_interface(table.jvm, "java.util.function.Consumer", append.bindTo(update)))


def chunks(documents: Sequence[str]) -> Iterator[list[str]]:
    """Divide documents, in their order, into chunks of up to CHARACTERS_AT_ONCE. Pure."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        if chunk and size + len(document) > CHARACTERS_AT_ONCE:
            yield chunk
            chunk, size = [], 0
        chunk.append(document)
        size += len(document)
    if chunk:
        yield chunk


@dataclass(frozen=True)
class DeleteChanges:
    """Native deletes that were written and not yet committed, and those that they replace."""

    paths: tuple[str, ...] = ()
    """The written files."""
    data_paths: tuple[str, ...] = ()
    """The data files of the deletes by position."""
    added: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files to add."""
    replaced: tuple[Any, ...] = field(default=(), repr=False)
    """Iceberg's delete files to remove."""

    def along_with(self, other: "DeleteChanges") -> "DeleteChanges":
        """Both together, for one commit."""
        return DeleteChanges(
            self.paths + other.paths,
            self.data_paths + other.data_paths,
            self.added + other.added,
            self.replaced + other.replaced,
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
        """All positions that deletes by position hide, of Lethe and of other writers. Equality deletes may hide others."""
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

    A data file has at most one deletion vector. So a new vector contains all deleted rows of its file, and replaces the old one.
    Iceberg would accept a commit that leaves the old one in place, and the table would then be unreadable.

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

    A data file may have any number of position deletes (format version 2). Lethe writes at most one file of them for each data
    file.

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
    """Whether these are position deletes, or a deletion vector, of a single data file."""
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
