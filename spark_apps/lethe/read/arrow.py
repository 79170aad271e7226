"""Rows of planned data files as Arrow, with or without those of some batches. I/O: reads data."""

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
from lethe.iceberg.snapshot_files import Lens, Planned

# PyIceberg warns of each file in which a column is read as a dictionary, as here it is meant to be.
logging.getLogger("pyiceberg.io.pyarrow").addFilter(lambda r: "not have a dictionary type" not in r.getMessage())
# PyIceberg reads all files it is given at once and keeps what it has read: so many at a time bound the memory.
FILES_AT_ONCE = 16


@dataclass(frozen=True)
class Part:
    """Files to read. With `ids`: only the rows of these batches if `of_ids`, else all the others."""

    tasks: tuple[FileScanTask, ...]
    ids: frozenset[str] = frozenset()
    of_ids: bool = False

    @property
    def takes_all(self) -> bool:
        return not self.ids and not self.of_ids


def all_of(files: Sequence[Planned]) -> tuple[Part, ...]:
    return (Part(tuple(f.task for f in files)),) if files else ()


def others(files: Sequence[Planned], plan: ReadPlan) -> tuple[Part, ...]:
    """What a plan reads of these files."""
    tasks = {f.bounds.path: f.task for f in files}
    parts = (
        Part(tuple(tasks[f.path] for f in plan.plain)),
        Part(tuple(tasks[f.path] for f in plan.filtered), plan.ids),
    )
    return tuple(p for p in parts if p.tasks)


def of_batches(files: Sequence[Planned], ids: Collection[str]) -> tuple[Part, ...]:
    """The rows of these batches only, from the files that may hold them."""
    index = IdIndex(ids)
    whole = tuple(f.task for f in files if index.must_hold(f.bounds))
    mixed = tuple(f.task for f in files if index.might_hold(f.bounds) and not index.must_hold(f.bounds))
    parts = (Part(whole), Part(mixed, frozenset(ids), of_ids=True))
    return tuple(p for p in parts if p.tasks)


def without_batches(files: Sequence[Planned], ids: Collection[str]) -> tuple[Part, ...]:
    """All rows but those of these batches."""
    split = split_by_bounds([f.bounds for f in files], ids)
    return others(files, ReadPlan(split.cannot, split.might, split.must, frozenset(ids)))


def read(lens: Lens, parts: Sequence[Part], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of all parts, in these columns, as many batches as there are."""
    batch_column = lens.schema.find_column_name(lens.field_id) if lens.field_id is not None else None
    for part in parts:
        if part.takes_all or batch_column is None:
            yield from _rows(lens, part.tasks, columns)
            continue
        needed = tuple(dict.fromkeys((*columns, batch_column)))
        ids = pa.array(sorted(part.ids), pa.string())
        # As a dictionary, each batch id is looked up once per batch of rows, not once per row.
        for batch in _rows(lens, part.tasks, needed, (batch_column,)):
            hit = _is_one_of(batch.column(batch_column), ids)
            kept = batch.filter(hit if part.of_ids else pc.invert(hit))
            if kept.num_rows:
                yield _plain(kept.select(list(columns)), batch_column)


def _is_one_of(values: pa.Array, ids: pa.Array) -> pa.Array:
    """A null is no batch's id: the answer for it is False."""
    if not pa.types.is_dictionary(values.type):
        return pc.is_in(values.cast(pa.string()), value_set=ids)
    known = pc.is_in(values.dictionary.cast(pa.string()), value_set=ids)
    return pc.fill_null(known.take(values.indices), False)


def _plain(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    """With the column as text, if it was read as a dictionary."""
    at = batch.schema.get_field_index(column)
    if at < 0 or not pa.types.is_dictionary(batch.schema.field(at).type):
        return batch
    return batch.set_column(at, column, batch.column(at).cast(pa.string()))


def count(lens: Lens, parts: Sequence[Part]) -> int:
    """How many rows. Of files that are taken whole, their metadata says it."""
    total = 0
    to_read: list[Part] = []
    for part in parts:
        unknown: list[FileScanTask] = []
        for task in part.tasks:
            if part.takes_all and isinstance(task.residual, AlwaysTrue) and not task.delete_files:
                total += task.file.record_count
            else:
                unknown.append(task)
        to_read.append(Part(tuple(unknown), part.ids, part.of_ids))
    name = lens.schema.find_column_name(lens.field_id) if lens.field_id is not None else lens.schema.fields[0].name
    return total + sum(b.num_rows for b in read(lens, to_read, (name or "",)))


def _rows(
    lens: Lens, tasks: Sequence[FileScanTask], columns: Sequence[str], dictionaries: tuple[str, ...] = ()
) -> Iterator[pa.RecordBatch]:
    projected = lens.schema.select(*columns)
    scan = ArrowScan(lens.metadata, lens.io, projected, lens.row_filter, dictionary_columns=dictionaries)
    for n in range(0, len(tasks), FILES_AT_ONCE):
        yield from scan.to_record_batches(tasks[n : n + FILES_AT_ONCE])
