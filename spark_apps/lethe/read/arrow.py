"""Reads rows of planned data files as Arrow record batches. I/O: reads data."""

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask

from lethe.files.bounds import IdIndex, split_by_bounds
from lethe.files.read_plan import ReadPlan
from lethe.iceberg.snapshot_files import PlannedFile, SnapshotView

# PyIceberg warns about each file of which a column is read as a dictionary, which `read` does on purpose.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(lambda r: "not have a dictionary type" not in r.getMessage())
# PyIceberg reads all files of a call at once and keeps the rows in memory: this limits the memory.
PARALLEL_FILES = 16


@dataclass(frozen=True)
class ReadPart:
    """Files to read in the same way."""

    tasks: tuple[FileScanTask, ...]
    ids: frozenset[str] = frozenset()  # of batches
    of_ids: bool = False  # True: read the rows of these batches; False: read all other rows

    @property
    def reads_all_rows(self) -> bool:
        return not self.ids and not self.of_ids


def all_of(files: Sequence[PlannedFile]) -> tuple[ReadPart, ...]:
    return (ReadPart(tuple(f.task for f in files)),) if files else ()


def filtered(files: Sequence[PlannedFile], plan: ReadPlan) -> tuple[ReadPart, ...]:
    """Read the files as the plan says."""
    tasks = {f.bounds.path: f.task for f in files}
    parts = (
        ReadPart(tuple(tasks[f.path] for f in plan.plain)),
        ReadPart(tuple(tasks[f.path] for f in plan.filtered), plan.ids),
    )
    return tuple(p for p in parts if p.tasks)


def of_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read only the rows of these batches, from the files that might hold some."""
    index = IdIndex(ids)
    whole = tuple(f.task for f in files if index.must_hold(f.bounds))
    mixed = tuple(f.task for f in files if index.might_hold(f.bounds) and not index.must_hold(f.bounds))
    parts = (ReadPart(whole), ReadPart(mixed, frozenset(ids), of_ids=True))
    return tuple(p for p in parts if p.tasks)


def without_batches(files: Sequence[PlannedFile], ids: Collection[str]) -> tuple[ReadPart, ...]:
    """Read all rows except those of these batches."""
    split = split_by_bounds([f.bounds for f in files], ids)
    return filtered(files, ReadPlan(split.cannot, split.might, split.must, frozenset(ids)))


def read(view: SnapshotView, parts: Sequence[ReadPart], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Read these columns of the rows of all parts."""
    batch_column = view.schema.find_column_name(view.field_id) if view.field_id is not None else None
    for part in parts:
        if part.reads_all_rows or batch_column is None:
            yield from _rows(view, part.tasks, columns)
            continue
        needed = tuple(dict.fromkeys((*columns, batch_column)))
        ids = pa.array(sorted(part.ids), pa.string())
        # With a dictionary, each batch id is looked up once per record batch, not once per row.
        for batch in _rows(view, part.tasks, needed, (batch_column,)):
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
        unknown: list[FileScanTask] = []
        for task in part.tasks:
            if part.reads_all_rows and isinstance(task.residual, AlwaysTrue) and not task.delete_files:
                total += task.file.record_count
            else:
                unknown.append(task)
        to_read.append(ReadPart(tuple(unknown), part.ids, part.of_ids))
    name = view.schema.find_column_name(view.field_id) if view.field_id is not None else view.schema.fields[0].name
    return total + sum(b.num_rows for b in read(view, to_read, (name or "",)))


def _rows(
    view: SnapshotView, tasks: Sequence[FileScanTask], columns: Sequence[str], dictionaries: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    projected = view.schema.select(*columns)
    scan = ArrowScan(view.metadata, view.io, projected, view.row_filter, dictionary_columns=dictionaries)
    for n in range(0, len(tasks), PARALLEL_FILES):
        yield from scan.to_record_batches(tasks[n : n + PARALLEL_FILES])
