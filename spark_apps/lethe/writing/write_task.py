"""The work of a task that writes: takes blocks in any order, and writes the data files of its buckets. I/O.

Runs in Spark's Python workers, without Spark.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from lethe.writing.blocks import Block, BlockKey, Cell, decode, without_batches
from lethe.writing.data_files import DataFileWriter
from lethe.writing.layout import TableLayout
from lethe.writing.spool import Spool


@dataclass(frozen=True)
class WriteTask:
    """Writes the data files of one task. It is pickled and sent to the workers."""

    layout: TableLayout
    # Batches whose rows are left out.
    without: tuple[str, ...] = ()

    def __call__(self, blocks: Iterable[Block]) -> Iterator[str]:
        """Returns: Iceberg's JSON of each data file. Raises: the errors of the storage."""
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
