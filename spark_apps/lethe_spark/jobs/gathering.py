"""What a consolidation finds of its batches in the buffer, and what it makes of them before it commits. I/O: lists."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from lethe import names
from lethe.ledger.ledger import BatchEntry, BufferedObject
from lethe.ledger.parts import get_many
from lethe.mover import open_mover
from lethe.plan.batches import BufferedBatch
from lethe.plan.consolidation import WrittenBatch
from lethe.plan.refusals import is_left, is_mixed, mixed_message, reason_uri
from lethe.plan.tracking import BatchRow, buffered_rows
from lethe.run import Phase

from lethe_spark.base import Base
from lethe_spark.context import RunContext
from lethe_spark.jobs.listing import list_buffer
from lethe_spark.jvm.commit import Append, Register
from lethe_spark.jvm.rewrite import DataFile

NOT_THERE: Final = f"are not in the buffer, have no {names.SUCCESS_MARKER} or share their id with another name there"
NO_DATA: Final = f"have {names.SUCCESS_MARKER} and no data file yet"

Refusal: TypeAlias = tuple[str, str, tuple[BufferedObject, ...]]  # reason, message, objects


@dataclass(frozen=True)
class Written:
    """Batches in files that are not yet part of the table, and the batches that were set aside on the way. `staged`: the
    snapshot that keeps the files; `missing`: batches that could not be had, and why; nothing is remembered of them;
    `left`: other batches that were refused before, and of which there are still objects; `registers`: the files are
    the producers' own, as Iceberg's list of them; `refused_before`: what was known of their batches when they were read;
    `waiting`: the others in the buffer, as it was listed for them."""

    files: tuple[DataFile, ...]
    batches: Mapping[str, WrittenBatch]
    refused: Mapping[str, Refusal]
    staged: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    registers: Any = field(default=None, repr=False)
    refused_before: Mapping[str, BatchEntry] = field(default_factory=dict)
    waiting: tuple[BatchRow, ...] | None = None

    def covers(self, batch_ids: Iterable[str]) -> bool:
        """Whether it was decided here what becomes of each of these batches."""
        return all(i in self.batches or i in self.refused or i in self.missing for i in batch_ids)

    @property
    def change(self) -> Append | Register:
        return Append(self.files) if self.registers is None else Register(self.registers)


@dataclass(frozen=True)
class Gathered:
    """The batches that were wanted and are there, whole; `missing`, `left` as in `Written`; `mixed`: refused as they are;
    `entries`: what the ledger knows of those found; `unknown`: all in the buffer that it does not know."""

    batches: Mapping[str, BufferedBatch]
    missing: Mapping[str, str]
    left: tuple[str, ...]
    mixed: Mapping[str, Refusal]
    entries: Mapping[str, BatchEntry]
    unknown: tuple[BufferedBatch, ...]

    def waiting_but(self, *settled: Container[str]) -> tuple[BatchRow, ...]:
        """What waits in the buffer when some batches do not any more."""
        return buffered_rows((b for b in self.unknown if not any(b.id in s for s in settled)), {})


def gather(context: RunContext, base: Base, batch_ids: Iterable[str]) -> Gathered:
    """List the buffer for these batches. Raises: as `list_buffer`."""
    context.reporter.phase(Phase.READING, "listing the buffer")
    wanted = frozenset(batch_ids)
    listed = list_buffer(context)
    complete = {b.id: b for b in listed.batches if b.id in wanted and b.complete}
    found = {i: b for i, b in complete.items() if b.data_objects}
    missing = {i: NO_DATA if i in complete else NOT_THERE for i in sorted(wanted - found.keys())}
    context.reporter.phase(Phase.READING, f"{len(found)} batches, {sum(b.bytes for b in found.values())} bytes")
    entries = get_many(base.ledger.batches, {b.id for b in listed.batches})
    left = tuple(b.id for b in listed.batches if b.id not in found and is_left(b, entries.get(b.id)))
    mixed = _mixed(context, found, entries)
    context.step("after-list")
    unknown = tuple(b for b in listed.batches if b.id not in entries)
    there = {i: b for i, b in found.items() if i not in mixed}
    return Gathered(there, missing, left, mixed, {i: e for i, e in entries.items() if i in there}, unknown)


def _mixed(
    context: RunContext, wanted: Mapping[str, BufferedBatch], entries: Mapping[str, BatchEntry]
) -> dict[str, Refusal]:
    """The wanted batches that mix objects refused before with new ones, though the old ones were on their way out."""
    uri = context.spec.buffer.uri
    doubtful = [entries[i] for i, b in wanted.items() if is_mixed(b, entries.get(i))]
    mover = open_mover(uri, context.catalog_properties)
    return {
        e.id: ("RefusedFilesLeft", mixed_message(e, uri), wanted[e.id].data_objects)
        for e in doubtful
        if mover.exists(reason_uri(uri, e))
    }
