"""Lethe's equality deletes: files of batch ids, each of which hides the rows of these batches in older files of its partition.

I/O. Their file names distinguish them from those of other writers, so that readers that know the ledger can skip them.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.iceberg.native_deletes import has_ours
from lethe.uri import as_file_uri
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from lethe_spark.jvm.deletes import DeleteChanges
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.run_folder import run_folder
from lethe_spark.jvm.table import IcebergTable

_COLUMN = "batch_id"  # readers use the field id, not the name


@dataclass(frozen=True)
class EqualityDeletes:
    """A file of equality deletes."""

    path: str
    # The batches that it hides.
    ids: frozenset[str]
    # Iceberg's object.
    java: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class DeletePartition:
    """A partition with equality deletes, as Iceberg's data files and delete files hold it."""

    spec_id: int
    partition: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, file: Any) -> "DeletePartition":
        return cls(int(file.specId()), file.partition())

    @property
    def key(self) -> tuple[int, str]:
        return self.spec_id, str(self.partition.toString())


@reading("reading equality deletes")
def our_equality_deletes(
    table: IcebergTable, io: FileIO, manifests: Iterable[ManifestFile], snapshot_id: int
) -> list[EqualityDeletes]:
    """Lethe's equality deletes in a snapshot.

    Args:
        manifests: The manifests of the snapshot. Python reads them first, because most tables have no equality deletes.
    """
    if not has_ours(io, manifests):
        return []
    api = table.jvm.org.apache.iceberg
    found: list[EqualityDeletes] = []
    for manifest in each(table.java.snapshot(snapshot_id).deleteManifests(table.java.io())):
        read = api.ManifestFiles.readDeleteManifest(manifest, table.java.io(), table.java.specs())
        try:
            for file in each(read):
                path = str(file.location())
                if path.rpartition("/")[2].startswith(names.EQUALITY_DELETES_PREFIX):
                    found.append(EqualityDeletes(path, _ids(io, path), file.copy()))
        finally:
            read.close()
    return found


def _ids(io: FileIO, path: str) -> frozenset[str]:
    with io.new_input(as_file_uri(path)).open() as stream:
        return frozenset(pq.read_table(stream).column(0).to_pylist())


@reading("writing equality deletes")
def write_equality_deletes(
    table: IcebergTable,
    io: FileIO,
    field_id: int,
    wanted: Iterable[tuple[DeletePartition, Collection[str]]],
    replaced: Iterable[EqualityDeletes],
    run_id: str,
) -> DeleteChanges:
    """Write a file for each partition with the ids that it hides, without committing it.

    Args:
        field_id: The field id of the batch column.
        replaced: Files that the commit removes.
        run_id: A folder in the paths of the files.
    Raises: TransientError, and the errors of the storage. Files that were written by then stay in storage.
    """
    written = [_write(table, io, field_id, partition, sorted(ids), run_id) for partition, ids in wanted if ids]
    paths = tuple(str(file.location()) for file in written)
    return DeleteChanges(paths, (), tuple(written), tuple(f.java for f in replaced))


def _write(
    table: IcebergTable, io: FileIO, field_id: int, partition: DeletePartition, ids: list[str], run_id: str
) -> Any:
    path = f"{run_folder(table, run_id)}/{names.EQUALITY_DELETES_PREFIX}{uuid.uuid4()}.parquet"
    column = pa.field(_COLUMN, pa.string(), nullable=False, metadata={"PARQUET:field_id": str(field_id)})
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({_COLUMN: ids}, schema=pa.schema([column])), buffer, compression="zstd")
    content = buffer.getvalue().to_pybytes()
    with io.new_output(as_file_uri(path)).create() as stream:
        stream.write(content)
    api = table.jvm.org.apache.iceberg
    fields = table.gateway.new_array(table.jvm.int, 1)
    fields[0] = field_id
    text = api.types.Types.StringType.get()
    bounds = [{field_id: api.types.Conversions.toByteBuffer(text, i)} for i in (ids[0], ids[-1])]
    builder = (
        api.FileMetadata.deleteFileBuilder(table.java.specs().get(partition.spec_id))
        .ofEqualityDeletes(fields)
        .withPath(path)
        .withFormat(api.FileFormat.PARQUET)
        .withFileSizeInBytes(len(content))
        .withMetrics(api.Metrics(len(ids), None, None, None, None, *map(_java_map(table), bounds)))
    )
    return builder.withPartition(partition.partition).build()


def _java_map(table: IcebergTable) -> Any:
    def of(entries: dict[int, Any]) -> Any:
        found = table.jvm.java.util.HashMap()
        for key, value in entries.items():
            found.put(key, value)
        return found

    return of


def partitions_of_files(
    files: Iterable[tuple[Any, Collection[str]]],
) -> Iterator[tuple[DeletePartition, frozenset[str]]]:
    """The partitions of data files, each once, with the ids that its files may hold.

    Args:
        files: Iceberg's data files, each with its ids.
    """
    by_key: dict[tuple[int, str], tuple[DeletePartition, set[str]]] = {}
    for file, ids in files:
        partition = DeletePartition.of(file)
        by_key.setdefault(partition.key, (partition, set()))[1].update(ids)
    yield from ((partition, frozenset(ids)) for partition, ids in by_key.values())
