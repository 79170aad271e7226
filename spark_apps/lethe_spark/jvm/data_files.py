"""Data files of a table as objects of Iceberg, which a commit passes back to it, and the scan tasks of named files.

Make Iceberg's objects for data files that other programs wrote: thousands of files in a few calls.

A call from Python into the JVM takes at least a tenth of a millisecond, and building one data file needs twenty calls. So the
files are sent as JSON, in the format of Iceberg's REST protocol, and Java parses them.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import ConflictError
from lethe.files.bounds import partition_text_of_json
from lethe.iceberg.delete_entries import DeletesKey

from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import as_interface, each, each_of, java_list, method
from lethe_spark.jvm.table import IcebergTable


@dataclass(frozen=True)
class DataFile:
    """A data file. The partition and bounds of scanned files are unknown, those of written and staged files are known."""

    path: str
    # Number of rows.
    records: int
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
        known = json.loads(json_of(table, java, spec))
        found.append(
            DataFile(
                path=known["file-path"],
                records=known["record-count"],
                bytes=known["file-size-in-bytes"],
                java=java,
                partition=partition_text_of_json(spec_id, names_of_types, known["partition"]),
                lower=_bound(known, "lower-bounds", field_id),
                upper=_bound(known, "upper-bounds", field_id),
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
    known = json.loads(api.ContentFileParser.toJson(plain, spec))
    return json.dumps(known | {"partition": [None] * fields})


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
    for n, one in enumerate(deletes):
        array[n] = one
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
    wanted = set(paths)
    scan = table.java.newScan().useSnapshot(snapshot_id).ignoreResiduals()
    if metrics_of:
        scan = scan.includeColumnStats(java_list(table.jvm, metrics_of))
    planned = each_of(scan.planFiles())
    tasks = [task for task in planned if str(task.file().location()) in wanted]
    if len(tasks) < len(wanted):
        missing = sorted(wanted - {str(task.file().location()) for task in tasks})
        raise ConflictError(
            "DataMoved",
            f"{table.full_name}: snapshot {snapshot_id} does not hold {len(missing)} of the {len(wanted)} data files "
            f"of the plan, the first is {missing[0]}. Nothing was committed. The run plans again.",
        )
    return tasks


# Characters of JSON per call, unless one file alone has more. A file has about two thousand; Java's parser needs ten times as
# much memory.
CHARACTERS_AT_ONCE: Final = 1024 * 1024


@reading("making data files")
def data_files(table: IcebergTable, documents: Sequence[str]) -> Any:
    """A Java list of data files.

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
