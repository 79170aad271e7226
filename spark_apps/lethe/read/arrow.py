"""Reads rows of planned data files as Arrow record batches. I/O: reads data."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.utils.concurrent import ExecutorFactory

from lethe.files.bounds import IdIndex, split_by_bounds
from lethe.files.read_plan import ReadPlan
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView
from lethe.read.data_file import Reading
from lethe.read.deletes import Deleted, read_deletes

# So many files are read at once, and their rows kept in memory.
PARALLEL_FILES = 16


@dataclass(frozen=True)
class ReadPart:
    """Files to read in the same way."""

    files: tuple[PlannedFile, ...]
    ids: frozenset[str] = frozenset()  # of batches
    of_ids: bool = False  # True: read the rows of these batches; False: read all other rows

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
    return filtered(files, ReadPlan(split.cannot, split.might, split.must, frozenset(ids)))


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
