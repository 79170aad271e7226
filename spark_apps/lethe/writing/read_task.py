"""The work of a task that reads: buffered files into blocks. I/O. Runs in Spark's Python workers, without Spark."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from lethe.ingest.buffer_files import FileOutcome, Reader
from lethe.ingest.buffer_store import FileTask
from lethe.writing.blocks import Block, BlockFacts, blocks_of
from lethe.writing.layout import TableLayout


@dataclass(frozen=True)
class Found:
    """What a task tells the driver, besides the rows."""

    outcomes: dict[tuple[str, str], FileOutcome] = field(default_factory=dict)  # by batch id and URI
    blocks: BlockFacts = field(default_factory=BlockFacts)

    def add(self, other: "Found") -> None:
        """Adding the same again changes nothing."""
        self.outcomes.update(other.outcomes)
        self.blocks.add(other.blocks)


class Collector(Protocol):
    """Collects what tasks have found: a Spark accumulator. If a task runs twice, it finds the same."""

    def add(self, found: Found) -> None: ...


@dataclass(frozen=True)
class ReadTask:
    """Reads groups of files. It is pickled and sent to the workers."""

    reader: Reader
    # None: the rows are not divided by partition.
    layout: TableLayout | None
    collector: Collector

    def __call__(self, groups: Iterator[tuple[int, int, str]]) -> Iterator[Block]:
        """Args:
        groups: The number and the range of each group, and its files (`FileTask.encode`).
        Raises: BufferAway.
        """
        for number, range_, files in groups:
            found = Found()
            tables = self.reader.tables(FileTask.decode(files), found.outcomes)
            yield from blocks_of(tables, self.layout, range_, number, found.blocks)
            self.collector.add(found)
