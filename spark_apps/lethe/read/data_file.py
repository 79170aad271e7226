"""Reads one data file as rows of the table's schema. I/O: reads data.

Reads which rows of data files are deleted by position, in delete files and deletion vectors. I/O.

Reads rows of planned data files as Arrow record batches. I/O: reads data.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField
from pyiceberg.utils.concurrent import ExecutorFactory

from lethe.base.errors import InputError
from lethe.files.bounds import IdIndex, split_by_bounds
from lethe.files.increment import ReadPlan
from lethe.iceberg.conditions import Column, RowCondition
from lethe.iceberg.native_deletes import Vector
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.read.projection import FileField, Projection, Unprojectable, arrow_type, file_fields

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Deleted: TypeAlias = Mapping[str, Positions]
_PATH: Final = "file_path"
_POSITION: Final = "pos"
_REFERENCED: Final = "referenced-data-file"


def read_deletes(io: FileIO, files: Sequence[PlannedFile]) -> Deleted:
    """The sorted positions of deleted rows of some data files, by path, for those that have any."""
    # The delete files, each with the data files to which it may apply.
    applied: dict[str, tuple[DataFile, list[PlannedFile]]] = {}
    for file in files:
        for delete in file.delete_files:
            # A deletion vector replaces all other deletes by position of its data file.
            if file.vectors and delete.file_format != FileFormat.PUFFIN:
                continue
            applied.setdefault(delete.file_path, (delete, []))[1].append(file)
    found: dict[str, list[Positions]] = {}
    for of_file in ExecutorFactory.get_or_create().map(lambda of: _read(io, *of), applied.values()):
        for path, positions in of_file.items():
            found.setdefault(path, []).append(positions)
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


def _read(io: FileIO, file: DataFile, to: Sequence[PlannedFile]) -> dict[str, Positions]:
    wanted = frozenset(f.bounds.path for f in to)
    with io.new_input(file.file_path).open() as stream:
        match file.file_format:
            case FileFormat.PUFFIN:
                live = {(f.bounds.path, v) for f in to for v in f.vectors}
                return _vectors(file.file_path, PuffinFile(stream.read()), live)
            case FileFormat.AVRO:
                rows = list(fastavro.reader(stream))
                table = pa.table({name: pa.array([r[name] for r in rows]) for name in (_PATH, _POSITION)})
            case FileFormat.ORC:
                table = _scanned(ds.OrcFileFormat(), stream)
            case _:
                table = _scanned(ds.ParquetFileFormat(dictionary_columns=(_PATH,), pre_buffer=True), stream)
    return dict(_by_path(table, wanted))


def _scanned(form: ds.FileFormat, stream: Any) -> pa.Table:
    return ds.Scanner.from_fragment(form.make_fragment(stream), columns=[_PATH, _POSITION]).to_table()


def _by_path(table: pa.Table, wanted: frozenset[str]) -> Iterable[tuple[str, Positions]]:
    for batch in table.combine_chunks().to_batches():
        paths = batch.column(_PATH)
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        numbers, positions = encoded.indices.to_numpy(), batch.column(_POSITION).to_numpy()
        for number, path in enumerate(encoded.dictionary.to_pylist()):
            if path in wanted:
                yield path, positions[numbers == number].astype(np.int64)


def _vectors(path: str, puffin: PuffinFile, live: Collection[tuple[str, Vector]]) -> dict[str, Positions]:
    """The vectors.

    Args:
        path: Of the Puffin file.
        live: The paths of data files, each with a vector that applies to it.
    """
    vectors: dict[str, Positions] = {}
    for blob in puffin.footer.blobs:
        data_file = blob.properties.get(_REFERENCED)
        if data_file is None or (data_file, (path, blob.offset)) not in live:
            continue
        bitmaps = DeletionVector._deserialize_bitmap(_extract_vector_payload(puffin.get_blob_payload(blob)))
        parts = [(key << 32) + np.array(bitmap, np.int64) for key, bitmap in enumerate(bitmaps)]
        vectors[data_file] = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return vectors


_BUFFER: Final = 8 * 1024**2


@dataclass(frozen=True)
class Reading:
    """What to read of data files."""

    columns: tuple[NestedField, ...]
    condition: RowCondition
    names: NameMapping | None
    specs: Mapping[int, PartitionSpec]
    dictionaries: tuple[str, ...] = ()
    """Columns whose text is read as dictionaries, if files have them under this name."""

    def rows(self, io: FileIO, file: DataFile, deleted: Positions | None) -> Iterator[pa.RecordBatch]:
        """The rows that are not deleted, and for which the condition is true; no empty record batch.

        Args:
            deleted: The sorted positions of deleted rows. None: there are none.

        Raises:
            InputError: UnreadableFile.
            Exception: What the storage raises.
        """
        form = self._format(file)
        with io.new_input(file.file_path).open() as stream:
            fragment = form.make_fragment(stream)
            physical = fragment.physical_schema
            try:
                known = file_fields(physical, self.names)
                kept = [f.field_id for f in self.columns if f.name in self.dictionaries]
                projection = Projection.of(known, self.columns, self._constants(file), kept)
            except Unprojectable as e:
                raise InputError("UnreadableFile", f"the data file {file.file_path} cannot be read: {e}.") from None
            if deleted is None and file.file_format == FileFormat.PARQUET:
                fragment = self._promising(fragment, physical, known)
            names = [physical.names[n] for n in projection.needed]
            position = 0
            for rows in ds.Scanner.from_fragment(fragment, schema=physical, columns=names).to_batches():
                begin, position = position, position + rows.num_rows
                left = rows if deleted is None else _without(rows, begin, deleted)
                batch = projection(left) if left.num_rows else left
                if batch.num_rows and not self.condition.is_always_true:
                    batch = batch.filter(self.condition.true_in(batch))
                if batch.num_rows:
                    yield batch

    def _format(self, file: DataFile) -> ds.FileFormat:
        match file.file_format:
            case FileFormat.PARQUET:
                return ds.ParquetFileFormat(
                    dictionary_columns=self.dictionaries,
                    pre_buffer=True,
                    buffer_size=_BUFFER,
                    coerce_int96_timestamp_unit="us",
                )
            case FileFormat.ORC:
                return ds.OrcFileFormat()
        raise InputError(
            "UnreadableFile",
            f"the data file {file.file_path} has the format {file.file_format.value}, which can only be read by Spark. Use "
            "lethe_spark.read.",
        )

    def _constants(self, file: DataFile) -> dict[int, Any]:
        """The values of the file's partition, by the ids of the columns that have them."""
        spec = self.specs.get(file.spec_id or 0)
        fields = enumerate(spec.fields if spec is not None else ())
        return {f.source_id: file.partition[n] for n, f in fields if isinstance(f.transform, IdentityTransform)}

    def _promising(self, fragment: Any, physical: pa.Schema, known: Sequence[FileField]) -> Any:
        """Without the row groups that hold no row of the condition, by the statistics in the footer."""
        types = {f.field_id: (name, f.type) for name, f in zip(physical.names, known, strict=True)}

        def is_exact(column: Column) -> bool:
            field = column.top
            return types.get(field.field_id) == (field.name, arrow_type(field.field_type))

        expression = self.condition.of_groups(is_exact)
        return fragment if expression is None else fragment.subset(filter=expression, schema=physical)


def _without(rows: pa.RecordBatch, begin: int, deleted: Positions) -> pa.RecordBatch:
    """Without the deleted rows.

    Args:
        begin: The position of the first row.
    """
    low, high = np.searchsorted(deleted, (begin, begin + rows.num_rows))
    if low == high:
        return rows
    stays = np.ones(rows.num_rows, bool)
    stays[deleted[low:high] - begin] = False
    return rows.filter(pa.array(stays))


# So many files are read at once, and their rows kept in memory.
PARALLEL_FILES = 16


@dataclass(frozen=True)
class ReadPart:
    """Files to read in the same way."""

    files: tuple[PlannedFile, ...]
    ids: frozenset[str] = frozenset()
    """Of batches."""
    of_ids: bool = False
    """True: read the rows of these batches; False: read all other rows."""

    @property
    def reads_all_rows(self) -> bool:
        return not self.ids and not self.of_ids


def all_of(files: Sequence[PlannedFile]) -> tuple[ReadPart, ...]:
    return (ReadPart(tuple(files)),) if files else ()


def filtered(files: Sequence[PlannedFile], plan: ReadPlan) -> tuple[ReadPart, ...]:
    """Read the files as the plan says."""
    by_path = {f.bounds.path: f for f in files}
    parts = (
        ReadPart(tuple(by_path[f.path] for f in plan.plain)),
        ReadPart(tuple(by_path[f.path] for f in plan.filtered), plan.ids),
    )
    return tuple(p for p in parts if p.files)


def of_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read only the rows of these batches, from the files that might hold some."""
    index = IdIndex(ids)
    whole = tuple(f for f in files if index.must_hold(f.bounds))
    mixed = tuple(f for f in files if index.might_hold(f.bounds) and not index.must_hold(f.bounds))
    parts = (ReadPart(whole), ReadPart(mixed, frozenset(ids), of_ids=True))
    return tuple(p for p in parts if p.files)


def without_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read all rows except those of these batches."""
    split = split_by_bounds([f.bounds for f in files], ids)
    return filtered(
        files, ReadPlan(split.cannot, split.may_contain_deleted_rows, split.all_rows_deleted, frozenset(ids))
    )


def read(view: SnapshotView, parts: Sequence[ReadPart], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read these columns of the rows of all parts."""
    batch_column = view.schema.find_column_name(view.field_id) if view.field_id is not None else None
    for part in parts:
        if part.reads_all_rows or batch_column is None:
            yield from _rows(view, part.files, columns)
            continue
        needed = tuple(dict.fromkeys((*columns, batch_column)))
        ids = pa.array(sorted(part.ids), pa.string())
        # With a dictionary, each batch id is looked up once per record batch, not once per row.
        for batch in _rows(view, part.files, needed, (batch_column,)):
            matches = _is_one_of(batch.column(batch_column), ids)
            kept = batch.filter(matches if part.of_ids else pc.invert(matches))
            if kept.num_rows:
                yield _decoded(kept.select(list(columns)), batch_column)


def _is_one_of(values: pa.Array, ids: pa.Array) -> pa.Array:
    """Whether each value is one of the ids. False for null: it is not the id of a batch."""
    if not pa.types.is_dictionary(values.type):
        return pc.is_in(values.cast(pa.string()), value_set=ids)
    known = pc.is_in(values.dictionary.cast(pa.string()), value_set=ids)
    return pc.fill_null(known.take(values.indices), False)


def _decoded(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """The same rows; a column that was read as a dictionary becomes text."""
    at = batch.schema.get_field_index(column)
    if at < 0 or not pa.types.is_dictionary(batch.schema.field(at).type):
        return batch
    return batch.set_column(at, column, batch.column(at).cast(pa.string()))


def count(view: SnapshotView, parts: Sequence[ReadPart]) -> int:
    """Count the rows. For files that are read completely, use their metadata."""
    total = 0
    to_read: list[ReadPart] = []
    for part in parts:
        unknown: list[PlannedFile] = []
        for file in part.files:
            if part.reads_all_rows and view.condition.is_always_true and not file.delete_files:
                total += file.data_file.record_count
            else:
                unknown.append(file)
        to_read.append(ReadPart(tuple(unknown), part.ids, part.of_ids))
    batch_column = view.schema.find_column_name(view.field_id) if view.field_id is not None else None
    return total + sum(b.num_rows for b in read(view, to_read, (batch_column or view.schema.fields[0].name,)))


def _rows(
    view: SnapshotView, files: Sequence[PlannedFile], columns: Sequence[str], dictionaries: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    """These columns of the rows that are not deleted natively, and for which the filter of the view is true."""
    by_name = {f.name: f for f in view.schema.fields}
    wanted = tuple(by_name[name] for name in dict.fromkeys((*columns, *view.condition.columns)))
    metadata = view.metadata
    reading = Reading(wanted, view.condition, metadata.name_mapping(), metadata.specs(), dictionaries)
    executor = ExecutorFactory.get_or_create()
    for n in range(0, len(files), PARALLEL_FILES):
        some = files[n : n + PARALLEL_FILES]
        deleted = read_deletes(view.io, some)

        def rows_of(file: PlannedFile, deleted: Deleted = deleted) -> list[pa.RecordBatch]:
            return list(reading.rows(view.io, file.data_file, deleted.get(file.bounds.path)))

        for batches in executor.map(rows_of, some):
            yield from (rows.select(list(columns)) for rows in batches)
