"""Data files and native deletes as objects of Iceberg: describes those of a table, makes new ones for a commit. I/O."""

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import ConflictError
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import partition_text_of_json
from lethe.files.native_deletes import DeletedPositions
from lethe.iceberg.delete_entries import DeletesKey
from lethe.iceberg.native_deletes import FILE_PATH
from lethe.iceberg.position_deletes import DeletesOfFile, read_positions, write_position_deletes, write_vectors
from lethe.uri import without_values
from pyiceberg.io import FileIO
from pyroaring import FrozenBitMap64

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import (
    FEW_MANIFESTS,
    as_interface,
    as_json,
    calling_thread,
    each,
    each_of,
    getter,
    java_class,
    java_list,
    json_mapper,
    method,
)
from lethe_spark.jvm.table import IcebergTable, writing_as

CHARACTERS_AT_ONCE: Final = 1024 * 1024
"""Characters of JSON per call, unless one file alone has more.

A file has about two thousand; Java's parser needs ten times as much memory.
"""

_ICEBERG: Final = "org.apache.iceberg"
_ONLY: Final = -1
"""Stands for the id of a table's only partition spec."""
_POSITIONAL: Final = "position-deletes"
_BOUNDS: Final = ("lower-bounds", "upper-bounds")


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
    is_data = str(java.content().toString()) == "DATA"
    builder = api.DataFiles.builder(spec) if is_data else api.FileMetadata.deleteFileBuilder(spec)
    plain = builder.copy(java).build()
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
    return list(tasks_by_path(table, paths, snapshot_id, metrics_of).values())


@reading("planning a scan of named files")
def tasks_by_path(
    table: IcebergTable, paths: Iterable[str], snapshot_id: int, metrics_of: Collection[str] = ()
) -> dict[str, Any]:
    """As `tasks_of`, by path. The tasks of other files stay in the JVM, and are forgotten there at once.

    Raises:
        ConflictError: `DataMoved`, if the snapshot does not hold one of the files.
        TransientError: A dependency is temporarily unavailable.
    """
    api, wanted = table.jvm, set(paths)
    if not wanted:
        return {}
    scan = table.java.newScan().useSnapshot(snapshot_id).ignoreResiduals()
    if int(table.java.snapshot(snapshot_id).allManifests(table.java.io()).size()) <= FEW_MANIFESTS:
        scan = scan.planWith(calling_thread(api))
    if metrics_of:
        scan = scan.includeColumnStats(java_list(api, metrics_of))
    handles = api.java.lang.invoke.MethodHandles
    location = handles.filterReturnValue(
        getter(api, f"{_ICEBERG}.ContentScanTask", "file"), getter(api, f"{_ICEBERG}.ContentFile", "location")
    )
    named = json_mapper(api).readValue(json.dumps(sorted(wanted)), java_class(api, "java.util.HashSet"))
    contains = method(api, "java.util.HashSet", "contains", "java.lang.Object").bindTo(named)
    is_named = as_interface(api, "java.util.function.Predicate", handles.filterReturnValue(location, contains))
    found = list(each_of(api.org.apache.iceberg.io.CloseableIterable.filter(scan.planFiles(), is_named)))
    to_location = as_interface(api, "java.util.function.Function", location)
    located = json.loads(as_json(api, java_list(api, found).stream().map(to_location).toList()))
    tasks = dict(zip(located, found, strict=True))
    if len(tasks) < len(wanted):
        missing = sorted(wanted - tasks.keys())
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: snapshot {snapshot_id} does not hold {len(missing)} of the {len(wanted)} data files "
            f"of the plan, the first is {without_values(missing[0])}. Nothing was committed. The run plans again.",
        )
    return tasks


def documents_of(table: IcebergTable, files: Sequence[Any]) -> list[dict[str, Any]]:
    """Iceberg's JSON of data files or delete files, in a few calls into the JVM."""
    api, specs = table.jvm, table.java.specs()
    by_spec: dict[int, list[int]] = {}
    for n, file in enumerate(files):
        by_spec.setdefault(int(file.specId()) if specs.size() > 1 else _ONLY, []).append(n)
    documents: dict[int, dict[str, Any]] = {}
    for spec_id, numbers in by_spec.items():
        spec = table.java.spec() if spec_id == _ONLY else specs.get(spec_id)
        if bool(spec.isUnpartitioned()) and int(spec.fields().size()):
            documents |= {n: json.loads(json_of(table, files[n], spec)) for n in numbers}
            continue
        parse = method(api, f"{_ICEBERG}.ContentFileParser", "toJson", f"{_ICEBERG}.PartitionSpec")
        bound = api.java.lang.invoke.MethodHandles.insertArguments(parse, 1, java_array(table, [spec]))
        written = as_interface(api, "java.util.function.Function", bound)
        some = java_list(api, [files[n] for n in numbers])
        texts = json.loads(as_json(api, some.stream().map(written).toList()))
        documents |= {n: json.loads(text) for n, text in zip(numbers, texts, strict=True)}
    return [documents[n] for n in range(len(files))]


def java_array(table: IcebergTable, values: Sequence[Any]) -> Any:
    """A Java array of objects."""
    array = table.gateway.new_array(table.jvm.java.lang.Object, len(values))
    for n, value in enumerate(values):
        array[n] = value
    return array


@reading("making data files")
def data_files(table: IcebergTable, documents: Sequence[str]) -> Any:
    """A Java list of data files.

    A call from Python into the JVM takes at least a tenth of a millisecond, and building one data file needs twenty calls. So the
    files are sent as JSON, in the format of Iceberg's REST protocol, and Java parses them.

    Args:
        documents: JSON objects, as `ContentFileParser` of Iceberg writes them.
    """
    api = table.jvm
    mapper = json_mapper(api)
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

    def with_deletes(self, java: Any, document: Mapping[str, Any], positions: FrozenBitMap64) -> "HiddenRows":
        """With another file of deletes by position.

        Args:
            java: Iceberg's delete file.
            document: Its JSON.
        """
        known = self.by_position
        if not is_file_scoped(document):
            return replace(self, by_position=replace(known, shared=known.shared | positions))
        if _is_of_lethe(document["file-format"], document["file-path"]):
            return replace(self, by_position=replace(known, ours=known.ours | positions), ours=(*self.ours, java))
        return replace(self, by_position=replace(known, theirs=(*known.theirs, positions)), theirs=(*self.theirs, java))

    @property
    def positions(self) -> FrozenBitMap64:
        """All positions that deletes by position hide, of Lethe and of other writers. Equality deletes may hide others."""
        return self.by_position.all

    def replaced_by(self, taken_over: Collection[int]) -> tuple[Any, ...]:
        """Iceberg's delete files that Lethe's next one replaces (`PositionsAfter.taken_over`)."""
        return (*self.ours, *(self.theirs[n] for n in sorted(taken_over)))


@reading("reading native deletes")
def deleted_of(table: IcebergTable, tasks: Mapping[str, Any], files: FileIO) -> dict[str, HiddenRows]:
    """The rows that native deletes hide.

    Args:
        tasks: Scan tasks by the path of their data file.

    Returns:
        By path, for all of them.
    """
    lists = {path: task.deletes() for path, task in tasks.items()}
    found = [(path, deletes.get(n)) for path, deletes in lists.items() for n in range(int(deletes.size()))]
    documents = documents_of(table, [java for _, java in found]) if found else []
    by_position = [
        (path, java, d) for (path, java), d in zip(found, documents, strict=True) if d["content"] == _POSITIONAL
    ]
    positions = read_positions(files, [(d, path) for path, _, d in by_position])
    rows: dict[str, HiddenRows] = {path: HiddenRows(DeletedPositions()) for path in tasks}
    for path in {path for (path, _), d in zip(found, documents, strict=True) if d["content"] != _POSITIONAL}:
        rows[path] = replace(rows[path], others=True)
    for (path, java, document), of_file in zip(by_position, positions, strict=True):
        rows[path] = rows[path].with_deletes(java, document, of_file)
    return rows


def position_deletes_of(table: IcebergTable, tasks: Iterable[Any]) -> tuple[Any, ...]:
    """Iceberg's files of position deletes that apply to one data file of these scan tasks, and to no other.

    A commit that removes the data file must remove them too: Iceberg itself only removes deletion vectors.
    """
    deletes = (d for task in tasks for d in each(task.deletes()) if _is_positional(d))
    return tuple(d for d in deletes if is_of_one_file(table, d) and not _is_vector(d))


@reading("writing native deletes")
def write_deletes(
    table: IcebergTable,
    tasks: Mapping[str, Any],
    positions: Mapping[str, FrozenBitMap64],
    replaced: Iterable[Any],
    run_id: str,
    files: FileIO,
) -> DeleteChanges:
    """Write the deletes by position of data files, each in a file of its own, without committing them.

    Args:
        tasks: Scan tasks of these files, by path.
        positions: For format version 3 all deleted positions of each file, including those deleted before; for version 2 those in
            Lethe's delete file. A file without positions gets none.
        replaced: Iceberg's delete files that the new ones replace.
        run_id: A folder in the paths of the files.

    Files that were written by then stay in storage.

    Raises:
        TransientError: A dependency is temporarily unavailable.
    """
    paths = [path for path in positions if positions[path]]
    places = writing_as(table, run_id).locationProvider()
    are_vectors = table.format_version >= NativeDeletes.DELETION_VECTORS.format_version
    suffix = ".puffin" if are_vectors else f"-{names.POSITION_DELETES_SUFFIX}.parquet"
    described = documents_of(table, [tasks[path].file() for path in paths])
    deletes = [
        DeletesOfFile(
            str(places.newDataLocation(f"{n:05d}-{uuid.uuid4()}{suffix}")),
            path,
            positions[path],
            {"spec-id": document["spec-id"], "partition": document["partition"]},
        )
        for n, (path, document) in enumerate(zip(paths, described, strict=True))
    ]
    documents = write_vectors(files, deletes) if are_vectors else write_position_deletes(files, deletes)
    added = tuple(each(data_files(table, documents))) if documents else ()
    return DeleteChanges(tuple(d.path for d in deletes), tuple(positions), added, tuple(replaced))


def is_file_scoped(document: Mapping[str, Any]) -> bool:
    """Whether a file of deletes by position applies to a single data file. Its metadata names the file, or has equal bounds."""
    if document.get("referenced-data-file") is not None:
        return True
    bounds = [dict(zip(b["keys"], b["values"], strict=True)) for k in _BOUNDS if (b := document.get(k)) is not None]
    paths = [b.get(FILE_PATH) for b in bounds]
    return len(paths) == 2 and paths[0] is not None and paths[0] == paths[1]


def _is_of_lethe(format_name: str, path: str) -> bool:
    return format_name.upper() == "PUFFIN" or path.endswith(f"-{names.POSITION_DELETES_SUFFIX}.parquet")


def _is_positional(deletes: Any) -> bool:
    return str(deletes.content().toString()) == "POSITION_DELETES"


def _is_vector(deletes: Any) -> bool:
    return str(deletes.format().toString()) == "PUFFIN"


def is_by_lethe(deletes: Any) -> bool:
    """Whether Lethe's next delete file replaces these: deletion vectors, and position deletes of Lethe."""
    return _is_of_lethe(str(deletes.format().toString()), str(deletes.location()))


def is_of_one_file(table: IcebergTable, deletes: Any) -> bool:
    """Whether these are position deletes, or a deletion vector, of a single data file."""
    return bool(table.jvm.org.apache.iceberg.util.ContentFileUtil.isFileScoped(deletes))
