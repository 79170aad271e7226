"""Moves rows from the tasks that read buffered files to the tasks that write data files. I/O.

A block holds the rows of one bucket of partitions that one task has read, in the order in which it read them. Its key says where
it belongs, and `plan` distributes the keys to writing tasks. The tasks run in Spark's Python workers, without Spark.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from itertools import groupby
from types import TracebackType
from typing import IO, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lethe.ingest.buffer_files import FileOutcome, Reader
from lethe.ingest.buffer_store import FileTask
from lethe.writing.data_files import DataFileWriter, TableLayout, batches_of, partitions_of, split

BUCKETS: Final = 1024
BYTES_AT_ONCE: Final = 32 * 1024**2
"""Rows are divided into blocks when they have so many bytes in memory."""
# Writing tasks, so that all cores are busy until the end, and the bytes in memory that one takes at most, if they can be divided.
_TASKS_PER_CORE: Final = 2
_BYTES_PER_TASK: Final = 1024**3
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")

_IN_MEMORY: Final = 64 * 1024**2


class Cell(NamedTuple):
    """Where rows belong: which partitions, and which batches."""

    bucket: int
    """The bucket of the hash of the partition; below `BUCKETS`."""
    range: int
    """Rows of a lower range are of batches that come before."""


class BlockKey(NamedTuple):
    """The place of a block. Blocks of a cell are in the order of their keys."""

    cell: Cell
    # Of the task that read it, and within the task.
    task: int
    number: int


class Block(NamedTuple):
    """Rows as bytes."""

    key: BlockKey
    content: bytes
    """A stream of Arrow's IPC format."""


@dataclass(frozen=True)
class BlockFacts:
    """What is known of the blocks of a task, or of several."""

    sizes: dict[BlockKey, int] = field(default_factory=dict)
    """Bytes in memory of each block."""
    partitions: dict[str, set[str | None]] = field(default_factory=dict)
    """By batch id, the partitions that its rows are in (`lethe.files.bounds`); None: one that has no text."""

    def add(self, other: "BlockFacts") -> None:
        """Merge the facts of other blocks into these, in place. The facts of a task that ran twice count once."""
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
    partitions = partitions_of(rows, layout)
    texts = [p.text(layout) for p in partitions.partitions]
    for batch_id, indices in batches_of(rows.column(layout.batch_column), partitions).items():
        facts.partitions.setdefault(batch_id, set()).update(texts[i] for i in indices)
    buckets = np.array([p.hash % BUCKETS for p in partitions.partitions], np.int64)
    if partitions.index is None:
        yield int(buckets[0]), rows
        return
    used, of_partition = np.unique(buckets, return_inverse=True)
    parts = split(rows, of_partition[partitions.index], len(used))
    yield from zip((int(bucket) for bucket in used), parts, strict=True)


def encode(rows: pa.Table) -> bytes:
    """Rows as a stream of Arrow's IPC format, in one record batch."""
    sink = pa.BufferOutputStream()
    whole = rows.unify_dictionaries().combine_chunks()
    with pa.ipc.new_stream(sink, whole.schema, options=_OPTIONS) as writer:
        writer.write_table(whole)
    return bytes(sink.getvalue())


def decode(content: bytes) -> pa.Table:
    """The rows of which `encode` made these bytes, as one table."""
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

    Returns:
        The task of each cell, and the number of tasks.
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


class Spool:
    """Blocks by key. The file has no name, and its random key exists only in this process.

    It keeps blocks in memory, or encrypted on local disk, if they are many.
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        """Create `Spool`.

        Args:
            in_memory: Bytes. Further blocks are on disk.
        """
        self._free = in_memory
        self._held: dict[BlockKey, bytes] = {}
        # Where a block begins in the file, and its bytes there.
        self._places: dict[BlockKey, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None
        self._cipher = AESGCM(AESGCM.generate_key(256))
        self._end = 0

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, key: BlockKey, content: bytes) -> None:
        """Keep a block in memory, or encrypted on the local disk.

        Raises:
            OSError: The disk is full.
        """
        if len(content) <= self._free:
            self._held[key] = content
            self._free -= len(content)
            return
        if self._file is None:
            # Spark names its local disks so. The folder of temporary files of a pod is small.
            scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            self._file = tempfile.TemporaryFile(dir=scratch or None)  # noqa: SIM115 (closed with the spool)
        hidden = self._cipher.encrypt(_nonce(self._end), content, None)
        self._file.write(hidden)
        self._places[key] = self._end, len(hidden)
        self._end += len(hidden)

    def in_order(self) -> list[BlockKey]:
        """The keys of all blocks, sorted."""
        return sorted([*self._held, *self._places])

    def take(self, key: BlockKey) -> bytes:
        """The content of a block, which the spool then forgets if it is in memory."""
        if key in self._held:
            return self._held.pop(key)
        assert self._file is not None
        start, size = self._places[key]
        self._file.seek(start)
        return self._cipher.decrypt(_nonce(start), self._file.read(size), None)


def _nonce(position: int) -> bytes:
    """A number that no other block of the file has."""
    return position.to_bytes(12, "big")


@dataclass(frozen=True)
class TaskReport:
    """What a task tells the driver, besides the rows."""

    outcomes: dict[tuple[str, str], FileOutcome] = field(default_factory=dict)
    """The outcomes of files, by batch id and URI."""
    blocks: BlockFacts = field(default_factory=BlockFacts)

    def add(self, other: "TaskReport") -> None:
        """Add the report of another task. Adding one twice changes nothing."""
        self.outcomes.update(other.outcomes)
        self.blocks.add(other.blocks)


class Collector(Protocol):
    """Collects what tasks have found: a Spark accumulator. If a task runs twice, it finds the same."""

    def add(self, report: TaskReport) -> None:
        """Add what one attempt of a task has found. Attempts of one task may both be added."""


@dataclass(frozen=True)
class ReadTask:
    """Reads groups of files. It is pickled and sent to the workers."""

    reader: Reader
    layout: TableLayout | None
    """How to divide the rows by partition; None: they are not divided."""
    collector: Collector

    def __call__(self, groups: Iterator[tuple[int, int, str]]) -> Iterator[Block]:
        """Read groups of buffered files into blocks.

        Args:
            groups: The number and the range of each group, and its files (`FileTask.encode`).

        Raises:
                BufferAway: The store failed.
        """
        for number, range_, files in groups:
            report = TaskReport()
            tables = self.reader.tables(FileTask.decode(files), report.outcomes)
            yield from blocks_of(tables, self.layout, range_, number, report.blocks)
            self.collector.add(report)


@dataclass(frozen=True)
class WriteTask:
    """Writes the data files of one task. It is pickled and sent to the workers."""

    layout: TableLayout
    without: tuple[str, ...] = ()
    """Batches whose rows are left out."""

    def __call__(self, blocks: Iterable[Block]) -> Iterator[str]:
        """Write blocks of rows as data files.

        Returns:
            Iceberg's JSON of each data file.

        Raises:
            Exception: The errors of the storage.
        """
        with Spool() as spool:
            for block in blocks:
                spool.add(block.key, block.content)
            writer = DataFileWriter(self.layout)
            for _, of_bucket in groupby(spool.in_order(), lambda key: key.cell.bucket):
                together = groupby(of_bucket, self._together)
                yield from writer.write(self._read(spool, keys) for _, keys in together)

    def _together(self, key: BlockKey) -> BlockKey | Cell:
        """What is sorted together. Blocks are in the order in which they were read, so their batches are in order."""
        return key if self.layout.batches_in_order else key.cell

    def _read(self, spool: Spool, keys: Iterable[BlockKey]) -> pa.Table:
        rows = pa.concat_tables([decode(spool.take(key)) for key in keys])
        return without_batches(rows, self.layout.batch_column, self.without)
