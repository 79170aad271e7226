"""The work of a task that writes: takes blocks in any order, and writes the data files of its buckets. I/O.

Runs in Spark's Python workers. Blocks wait on local disk if they are many, so a task needs memory for one range of one bucket.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import IO, Final

import pyarrow as pa

from lethe.writing.blocks import Block, BlockKey, Cell, decode, without_batches
from lethe.writing.data_files import DataFileWriter
from lethe.writing.layout import TableLayout

_IN_MEMORY: Final = 64 * 1024**2


@dataclass(frozen=True)
class WriteTask:
    """Writes the data files of one task. It is pickled and sent to the workers."""

    layout: TableLayout
    # Batches whose rows are left out.
    without: tuple[str, ...] = ()

    def __call__(self, blocks: Iterable[Block]) -> Iterator[str]:
        """Returns: Iceberg's JSON of each data file. Raises: the errors of the storage."""
        with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
            places: dict[BlockKey, tuple[int, int]] = {}
            at = 0
            for block in blocks:
                spool.write(block.content)
                places[block.key] = at, len(block.content)
                at += len(block.content)

            writer = DataFileWriter(self.layout)
            for _, of_bucket in groupby(sorted(places), lambda key: key.cell.bucket):
                together = groupby(of_bucket, self._together)
                yield from writer.write(self._read(spool, [places[key] for key in keys]) for _, keys in together)

    def _together(self, key: BlockKey) -> BlockKey | Cell:
        """What is sorted together: blocks are in the order in which they were read, so their batches are in order."""
        return key if self.layout.batches_in_order else key.cell

    def _read(self, spool: IO[bytes], places: Iterable[tuple[int, int]]) -> pa.Table:
        tables = []
        for start, size in places:
            spool.seek(start)
            tables.append(decode(spool.read(size)))
        return without_batches(pa.concat_tables(tables), self.layout.batch_column, self.without)
