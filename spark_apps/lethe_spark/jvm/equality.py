"""Our own equality deletes: files of batch ids, of which each hides the rows of these batches in older files of its partition.

I/O. They are named so that readers who know the ledger can tell them from those of others and leave them out.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.iceberg.native_deletes import has_ours
from lethe.uri import local_path
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from lethe_spark.jvm.deletes import NativeDeletes
from lethe_spark.jvm.errors import reading
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.run_folder import run_folder
from lethe_spark.jvm.table import IcebergTable

_COLUMN = "batch_id"  # readers go by the field id


@dataclass(frozen=True)
class EqualityDeletes:
    """A file of them: the batches that it hides, and Iceberg's own object."""

    path: str
    ids: frozenset[str]
    java: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class Place:
    """The partition that equality deletes are of, as a data file or a file of deletes in it has it."""

    spec_id: int
    partition: Any = field(repr=False, compare=False)

    @classmethod
    def of(cls, file: Any) -> "Place":
        return cls(int(file.specId()), file.partition())

    @property
    def key(self) -> tuple[int, str]:
        return self.spec_id, str(self.partition.toString())


@reading("reading equality deletes")
def our_equality_deletes(
    table: IcebergTable, io: FileIO, manifests: Iterable[ManifestFile], snapshot_id: int
) -> list[EqualityDeletes]:
    """Those of ours that a snapshot holds.

    Args:
        manifests: Of the snapshot, which Python reads faster: mostly there are none.
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
    with io.new_input(_opened(path)).open() as stream:
        return frozenset(pq.read_table(stream).column(0).to_pylist())


@reading("writing equality deletes")
def write_equality_deletes(
    table: IcebergTable,
    io: FileIO,
    field_id: int,
    wanted: Iterable[tuple[Place, Collection[str]]],
    replaced: Iterable[EqualityDeletes],
    run_id: str,
) -> NativeDeletes:
    """Write a file for each place with the ids that it hides, and commit nothing.

    Args:
        field_id: Of the batch column.
        replaced: Files that go with the commit.
        run_id: Becomes a folder in the files' path.
    Raises: TransientError; what the storage raises. What was written by then stays in storage.
    """
    written = [_write(table, io, field_id, place, sorted(ids), run_id) for place, ids in wanted if ids]
    paths = tuple(str(file.location()) for file in written)
    return NativeDeletes(paths, (), tuple(written), tuple(f.java for f in replaced))


def _write(table: IcebergTable, io: FileIO, field_id: int, place: Place, ids: list[str], run_id: str) -> Any:
    path = f"{run_folder(table, run_id)}/{names.EQUALITY_DELETES_PREFIX}{uuid.uuid4()}.parquet"
    column = pa.field(_COLUMN, pa.string(), nullable=False, metadata={"PARQUET:field_id": str(field_id)})
    buffer = pa.BufferOutputStream()
    pq.write_table(pa.table({_COLUMN: ids}, schema=pa.schema([column])), buffer, compression="zstd")
    content = buffer.getvalue().to_pybytes()
    with io.new_output(_opened(path)).create() as stream:
        stream.write(content)
    api = table.jvm.org.apache.iceberg
    fields = table.gateway.new_array(table.jvm.int, 1)
    fields[0] = field_id
    text = api.types.Types.StringType.get()
    bounds = [{field_id: api.types.Conversions.toByteBuffer(text, i)} for i in (ids[0], ids[-1])]
    builder = (
        api.FileMetadata.deleteFileBuilder(table.java.specs().get(place.spec_id))
        .ofEqualityDeletes(fields)
        .withPath(path)
        .withFormat(api.FileFormat.PARQUET)
        .withFileSizeInBytes(len(content))
        .withMetrics(api.Metrics(len(ids), None, None, None, None, *map(_java_map(table), bounds)))
    )
    return builder.withPartition(place.partition).build()


def _java_map(table: IcebergTable) -> Any:
    def of(entries: dict[int, Any]) -> Any:
        found = table.jvm.java.util.HashMap()
        for key, value in entries.items():
            found.put(key, value)
        return found

    return of


def _opened(path: str) -> str:
    """Java writes local paths as `file:/x`, which PyIceberg would not open."""
    return f"file://{local_path(path)}" if path.startswith("file:") else path


def places_of(files: Iterable[tuple[Any, Collection[str]]]) -> Iterator[tuple[Place, frozenset[str]]]:
    """The partitions of data files, each once, with the ids that its files might hold.

    Args:
        files: Iceberg's own data files, each with its ids.
    """
    by_key: dict[tuple[int, str], tuple[Place, set[str]]] = {}
    for file, ids in files:
        place = Place.of(file)
        by_key.setdefault(place.key, (place, set()))[1].update(ids)
    yield from ((place, frozenset(ids)) for place, ids in by_key.values())
