"""Rows on their way from the tasks that read them to the tasks that write them. Pure: Arrow in, bytes out, and back.

A block holds the rows of one bucket of partitions that one task has read, in the order in which it read them. Its key says where
it belongs. `plan` distributes the keys to writing tasks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.writing.layout import TableLayout
from lethe.writing.partitions import batches_of, partitions_of, split

BUCKETS: Final = 1024
# Rows are divided into blocks when they have so many bytes in memory.
BYTES_AT_ONCE: Final = 32 * 1024**2
# Writing tasks, so that all cores are busy until the end, and the bytes in memory that one takes at most, if they can be divided.
_TASKS_PER_CORE: Final = 2
_BYTES_PER_TASK: Final = 1024**3
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class Cell(NamedTuple):
    """Where rows belong: which partitions, and which batches."""

    # Of the hash of the partition; below `BUCKETS`.
    bucket: int
    # Rows of a lower range are of batches that come before.
    range: int


class BlockKey(NamedTuple):
    """The place of a block. Blocks of a cell are in the order of their keys."""

    cell: Cell
    # Of the task that read it, and within the task.
    task: int
    number: int


class Block(NamedTuple):
    """Rows as bytes."""

    key: BlockKey
    # A stream of Arrow's IPC format.
    content: bytes


@dataclass(frozen=True)
class BlockFacts:
    """What is known of the blocks of a task, or of several."""

    # Bytes in memory of each block.
    sizes: dict[BlockKey, int] = field(default_factory=dict)
    # By batch id, the partitions that its rows are in (`lethe.files.partitions`); None: one that has no text.
    partitions: dict[str, set[str | None]] = field(default_factory=dict)

    def add(self, other: "BlockFacts") -> None:
        self.sizes.update(other.sizes)
        for batch_id, partitions in other.partitions.items():
            self.partitions.setdefault(batch_id, set()).update(partitions)


def blocks_of(
    tables: Iterable[pa.Table], layout: TableLayout | None, range_: int, task: int, facts: BlockFacts
) -> Iterator[Block]:
    """Divide the rows that a task has read.

    Args:
        layout: None: all rows are of one bucket.
        facts: Gets what is known of the blocks.
    """
    for number, rows in enumerate(_gathered(tables)):
        for bucket, part in _by_bucket(rows, layout, facts):
            key = BlockKey(Cell(bucket, range_), task, number)
            facts.sizes[key] = part.nbytes
            yield Block(key, encode(part))


def _gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    size = 0
    for table in tables:
        if not table.num_rows:
            continue
        waiting.append(table)
        size += table.nbytes
        if size >= BYTES_AT_ONCE:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _by_bucket(rows: pa.Table, layout: TableLayout | None, facts: BlockFacts) -> Iterator[tuple[int, pa.Table]]:
    if layout is None:
        yield 0, rows
        return
    found = partitions_of(rows, layout)
    texts = [p.text(layout) for p in found.partitions]
    for batch_id, indices in batches_of(rows.column(layout.batch_column), found).items():
        facts.partitions.setdefault(batch_id, set()).update(texts[i] for i in indices)
    buckets = np.array([p.hash % BUCKETS for p in found.partitions], np.int64)
    if found.index is None:
        yield int(buckets[0]), rows
        return
    used, of_partition = np.unique(buckets, return_inverse=True)
    parts = split(rows, of_partition[found.index], len(used))
    yield from zip((int(bucket) for bucket in used), parts, strict=True)


def encode(rows: pa.Table) -> bytes:
    """Rows as a stream of Arrow's IPC format, in one record batch."""
    sink = pa.BufferOutputStream()
    whole = rows.unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema, options=_OPTIONS) as writer:
        writer.write_table(whole)
    return bytes(sink.getvalue())


def decode(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


def without_batches(rows: pa.Table, batch_column: str, ids: Sequence[str]) -> pa.Table:
    """The rows of other batches."""
    if not ids:
        return rows
    return rows.filter(pc.invert(pc.is_in(rows.column(batch_column), value_set=pa.array(ids, pa.string()))))


def bytes_of_cells(sizes: Mapping[BlockKey, int]) -> dict[Cell, int]:
    """Bytes in memory of each cell, by those of the blocks."""
    cells: dict[Cell, int] = {}
    for key, size in sizes.items():
        cells[key.cell] = cells.get(key.cell, 0) + size
    return cells


def plan(
    sizes: Mapping[BlockKey, int], input_bytes: int, target_file_size: int, parallelism: int
) -> tuple[dict[Cell, int], int]:
    """Distribute cells to writing tasks. Pure and deterministic.

    A bucket is divided into several tasks at the borders of ranges, if its file would be larger than `target_file_size`, or if
    other cores had nothing to do and its files stay as large as a quarter of that.

    Args:
        sizes: Bytes in memory of the blocks.
        input_bytes: Bytes of the files that were read, as an estimate of the bytes to write.
        target_file_size: In bytes.
    Returns: the task of each cell, and the number of tasks.
    """
    cells = bytes_of_cells(sizes)
    total = sum(cells.values())
    if not total:
        return dict.fromkeys(cells, 0), min(len(cells), 1)
    compressed = min(input_bytes / total, 1.0)
    limit = min(target_file_size, max(target_file_size / 4, total * compressed / parallelism)) / compressed
    units: list[tuple[int, list[Cell]]] = []
    for cell in sorted(cells):
        size = cells[cell]
        last = units[-1] if units else None
        if last is not None and last[1][-1].bucket == cell.bucket and last[0] + size <= limit:
            units[-1] = last[0] + size, [*last[1], cell]
        else:
            units.append((size, [cell]))
    count = min(len(units), max(parallelism * _TASKS_PER_CORE, -(-total // _BYTES_PER_TASK)))
    loads = [(0, task) for task in range(count)]
    heapify(loads)
    found: dict[Cell, int] = {}
    for size, together in sorted(units, key=lambda unit: (-unit[0], unit[1][0])):
        load, task = loads[0]
        heapreplace(loads, (load + size, task))
        found.update(dict.fromkeys(together, task))
    return found, count
