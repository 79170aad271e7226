"""What a consolidation finds of its batches in the buffer, and what it makes of them before it commits. I/O: lists."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lethe.base import names
from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.promotion import JudgedBatch, WrittenBatch
from lethe.buffer.refusals import is_mixed, mixed_message, reason_uri
from lethe.buffer.selection import Found, find
from lethe.contract.refusal import Refusal
from lethe.contract.result import Phase
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import apart, get_many
from lethe.storage.object_store import open_store

from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.consolidation.claiming import table_found
from lethe_spark.jobs.consolidation.listing import list_buffer
from lethe_spark.jvm.commit import Append, Register
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.run.context import RunContext

NOT_THERE: Final = f"are not in the buffer, have no {names.SUCCESS_MARKER} or share their id with another name there"
NO_DATA: Final = f"have {names.SUCCESS_MARKER} and no data file yet"


@dataclass(frozen=True)
class WrittenBatches:
    """Batches in files that are not yet part of the table, and the batches that were set aside on the way. `staged`: the
    snapshot that keeps the files; `missing`: batches that could not be had, and why; nothing is remembered of them;
    `left`: other batches that were refused before, and of which there are still objects; `registers`: the files are
    the producers' own, as Iceberg's list of them; `refused_before`: what was known of their batches when they were read;
    `waiting`: the others in the buffer, as it was listed for them."""

    files: tuple[DataFile, ...]
    batches: Mapping[str, WrittenBatch]
    refused: Mapping[str, JudgedBatch]
    staged: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    registers: Any = field(default=None, repr=False)
    refused_before: Mapping[str, BatchEntry] = field(default_factory=dict)
    waiting: tuple[BatchRow, ...] | None = None
    is_lost: bool = False  # batches were promoted or taken back meanwhile, and the files were thrown away

    def covers(self, batch_ids: Iterable[str]) -> bool:
        """Whether it was decided here what becomes of each of these batches."""
        return all(i in self.batches or i in self.refused or i in self.missing for i in batch_ids)

    @property
    def change(self) -> Append | Register:
        return Append(self.files) if self.registers is None else Register(self.registers)


@dataclass(frozen=True)
class GatheredBatches:
    """The batches that were wanted and are there, whole; `missing` as in `Written`; `mixed`: refused as they are; `found`: all
    that the listing told."""

    batches: Mapping[str, BufferedBatch]
    missing: Mapping[str, str]
    mixed: Mapping[str, JudgedBatch]
    found: Found


def gather(context: RunContext, base: Base, batch_ids: Iterable[str]) -> GatheredBatches:
    """List the buffer for these batches. Raises: as `list_buffer`."""
    context.reporter.phase(Phase.READING, "listing the buffer")
    wanted = frozenset(batch_ids)
    entries = apart(base.ledger.batches)
    found = find(_without_tables(context), wanted, lambda ids: get_many(entries, ids))
    whole = {i: b for i, b in found.batches.items() if b.data_objects}
    missing = {i: NO_DATA if i in found.batches else NOT_THERE for i in sorted(wanted - whole.keys())}
    context.reporter.phase(Phase.READING, f"{len(whole)} batches, {sum(b.bytes for b in whole.values())} bytes")
    mixed = _mixed(context, whole, found.entries)
    context.step("after-list")
    return GatheredBatches({i: b for i, b in whole.items() if i not in mixed}, missing, mixed, found)


def _without_tables(context: RunContext) -> Iterator[BufferedBatch | NoBatch]:
    """The listing. Raises: InputError (BufferHoldsTable), as `list_buffer`."""
    for found in list_buffer(context):
        if isinstance(found, NoBatch) and found.table:
            raise table_found(context, found)
        yield found


def _mixed(
    context: RunContext, wanted: Mapping[str, BufferedBatch], entries: Mapping[str, BatchEntry]
) -> dict[str, JudgedBatch]:
    """The wanted batches that mix objects refused before with new ones, though the old ones were on their way out."""
    doubtful = [e for i, e in entries.items() if i in wanted and is_mixed(wanted[i], e)]
    if not doubtful:
        return {}
    uri = context.spec.buffer.uri
    store = open_store(uri, context.catalog_properties)
    return {
        e.id: JudgedBatch(Refusal("RefusedFilesLeft", mixed_message(e, uri)), wanted[e.id].data_objects)
        for e in doubtful
        if store.head(reason_uri(uri, e)) is not None
    }
