"""Finds the batches of a consolidation in the buffer. I/O: lists the buffer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from lethe_spark.jobs.consolidation.listing import ignored, list_buffer
from lethe_spark.jvm.commit import Append, Register
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.run.context import Run

NOT_THERE: Final = (
    f"are not in the buffer, have no {names.SUCCESS_MARKER} or have the same id as another folder or file there"
)
NO_DATA: Final = f"have {names.SUCCESS_MARKER} but no data file yet"


@dataclass(frozen=True)
class WrittenBatches:
    """Batches in files that are not yet part of the table, and the batches that were refused or could not be read."""

    files: tuple[DataFile, ...]
    batches: Mapping[str, WrittenBatch]  # by batch id
    refused: Mapping[str, JudgedBatch]  # by batch id
    # The snapshot that keeps the files. None: the files are not staged.
    staged: int | None = None
    # Why a batch could not be read, by batch id. The ledger records nothing about these batches.
    missing: Mapping[str, str] = field(default_factory=dict)
    # Ids of refused batches of which the buffer still holds objects.
    left: tuple[str, ...] = ()
    # Register mode: Iceberg's list of the producers' files. None: Lethe wrote the files.
    registers: Any = field(default=None, repr=False)
    # Register mode: the ledger's entries when the files were read, by batch id.
    refused_before: Mapping[str, BatchEntry] = field(default_factory=dict)
    # The batches that still wait in the buffer, as of its listing. None: the buffer was not listed.
    waiting: tuple[BatchRow, ...] | None = None
    # By batch id, the partitions that its rows are in; None: any. If this is None, they are those of the files that may hold it.
    partitions: Mapping[str, tuple[str, ...] | None] | None = field(default=None, repr=False)
    # Other runs promoted or reverted some of the batches in the meantime, and the files were deleted.
    is_lost: bool = False

    def covers(self, batch_ids: Iterable[str]) -> bool:
        """Whether each of these batches was written, refused or found missing."""
        return all(i in self.batches or i in self.refused or i in self.missing for i in batch_ids)

    @property
    def change(self) -> Append | Register:
        return Append(self.files) if self.registers is None else Register(self.registers)


@dataclass(frozen=True)
class GatheredBatches:
    """The wanted batches, after the buffer was listed."""

    batches: Mapping[str, BufferedBatch]  # complete batches with data files, by batch id
    missing: Mapping[str, str]  # as in `WrittenBatches`
    mixed: Mapping[str, JudgedBatch]  # refused, because they contain refused objects and new ones; by batch id
    found: Found  # the whole result of the listing


def gather(
    context: Run, base: Base, batch_ids: Iterable[str], on_object: Callable[[], None] = ignored
) -> GatheredBatches:
    """List the buffer for these batches. `on_object` as in `list_buffer`. Raises: as `list_buffer`."""
    context.reporter.phase(Phase.READING, "listing the buffer")
    wanted = frozenset(batch_ids)
    entries = apart(base.ledger.batches)
    found = find(_without_tables(context, on_object), wanted, lambda ids: get_many(entries, ids))
    whole = {i: b for i, b in found.batches.items() if b.data_objects}
    missing = {i: NO_DATA if i in found.batches else NOT_THERE for i in sorted(wanted - whole.keys())}
    context.reporter.phase(Phase.READING, f"{len(whole)} batches, {sum(b.bytes for b in whole.values())} bytes")
    mixed = _mixed(context, whole, found.entries)
    context.step("after-list")
    return GatheredBatches({i: b for i, b in whole.items() if i not in mixed}, missing, mixed, found)


def _without_tables(context: Run, on_object: Callable[[], None]) -> Iterator[BufferedBatch | NoBatch]:
    """List the buffer. Raises: InputError (BufferHoldsTable), if it holds files of an Iceberg table; as `list_buffer`."""
    for found in list_buffer(context, on_object):
        if isinstance(found, NoBatch) and found.table:
            raise table_found(context, found)
        yield found


def _mixed(
    context: Run, wanted: Mapping[str, BufferedBatch], entries: Mapping[str, BatchEntry]
) -> dict[str, JudgedBatch]:
    """The wanted batches that contain refused objects and new ones, after a run began to move the refused ones away."""
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
