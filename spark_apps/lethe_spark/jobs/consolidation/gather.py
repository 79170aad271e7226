"""Claims and lists the buffer of a consolidation, and finds the batches in it. I/O.

The run repeats the operator's checks before it reads, moves or deletes anything, because the buffer may have changed since.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lethe.base import names
from lethe.base.errors import InputError, TransientError, Verdict
from lethe.buffer.batch_rows import BatchRow
from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.buffer.notifications import with_sequencer
from lethe.buffer.promotion import JudgedBatch, WrittenBatch, is_mixed, mixed_message, reason_uri
from lethe.buffer.selection import SelectedBatches, find
from lethe.contract.result import Phase
from lethe.contract.run import SeenObject
from lethe.guards import claim as claims
from lethe.guards.claim import (
    BUFFER_CLAIMED,
    BUFFER_HOLDS_TABLE,
    BUFFER_LOCAL,
    Contents,
    Holder,
    Owner,
    buffer_rejection,
    holder_of,
    rejected,
)
from lethe.iceberg import catalogs
from lethe.ingest.references import NamedReferences, find_waiting, read_references
from lethe.ingest.shared_folders import Adopted, BufferClaims, around, open_buffer, read_claim, take_claim
from lethe.ledger.ledger import BatchEntry, Ledger, apart, get_many
from lethe.storage.object_store import DENIED, NO_BUCKET, StoreError, open_store
from lethe.uri import names_place

from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Append, Register
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

log = logging.getLogger(__name__)

_ADVICE = {
    NO_BUCKET: ("BufferNotFound", "the bucket does not exist. Create it, or correct spec.buffer.uri"),
    DENIED: ("AccessDenied", "the store does not let this run list it. Grant the run's credentials access"),
}

NAMES_KEPT = 1000
"""How many names of objects that are not batches are kept."""

NOT_THERE: Final = (
    f"are not in the buffer, have no {names.SUCCESS_MARKER} or have the same id as another folder or file there"
)
MARKER_DENIED: Final = f"have a {names.SUCCESS_MARKER} that the store does not let this run read (AccessDenied)"
NO_DATA: Final = f"have {names.SUCCESS_MARKER} but no data file yet"


def ignored() -> None:
    """The default of `on_object`: does nothing."""


def list_buffer(context: Run, on_object: Callable[[], None] = ignored) -> Iterator[BufferedBatch | NoBatch]:
    """List the batches in the run's buffer, complete or not. A folder that does not exist is an empty buffer.

    Args:
        on_object: Called for each object that the store lists. An exception from it ends the listing.

    Raises:
        TransientError: BufferNotFound, AccessDenied, because users can fix both without a new run.
        Exception: What the store raises.
    """
    asked = context.spec.consolidation
    seen = {o.key: o for o in asked.seen_objects} if asked else {}
    with words_of(context):
        for found in _opened(context).folders(on_object):
            yield _with_seen(found, seen) if seen and isinstance(found, BufferedBatch) else found


def buffered_ids(context: Run, on_object: Callable[[], None] = ignored) -> frozenset[str]:
    """The ids of the batches in the run's buffer, complete or not. A folder that does not exist is an empty buffer.

    Args:
        on_object: As in `list_buffer`.

    Raises:
        InputError: BufferLocal, UnsupportedScheme.
        TransientError: BufferNotFound, AccessDenied.
        Exception: What the store raises.
    """
    _refuse_local(context)
    context.step("before-look")
    with words_of(context):
        return _opened(context).ids(on_object)


def waiting_deliveries(
    context: Run, ledger: Ledger, references: Collection[str], on_object: Callable[[], None] = ignored
) -> dict[str, set[str]]:
    """The complete batches in the run's buffer that runs of other programs delivered, and that may be promoted yet.

    Args:
        ledger: Which batches are promoted or taken back already: their markers are not read.
        references: Of these runs.
        on_object: As in `list_buffer`.

    Returns:
        The ids by reference.

    Raises:
        InputError: BufferLocal, UnsupportedScheme.
        TransientError: BufferNotFound, AccessDenied.
        Exception: What the store raises.
    """
    _refuse_local(context)
    context.step("before-look")
    with words_of(context):
        return find_waiting(_opened(context), apart(ledger.batches), references, on_object)


def _opened(context: Run) -> BufferClaims:
    buffer = context.spec.buffer
    return open_buffer(buffer.uri, context.spec.batch_column, context.catalog_properties, buffer.layout)


def _refuse_local(context: Run) -> None:
    """Refuse a buffer on the run's own machine, unless the catalog is there as well.

    Raises:
        InputError: BufferLocal.
    """
    catalog, is_local = context.spec.table.catalog, catalogs.is_local(context.catalog_properties)
    local = claims.local("spec.buffer.uri", context.spec.buffer.uri, catalog, is_local)
    if local is not None:
        raise InputError(BUFFER_LOCAL, local)


@contextmanager
def words_of(context: Run) -> Iterator[None]:
    """Turn known errors of the store into TransientError (BufferNotFound, AccessDenied) with an explanation."""
    try:
        yield
    except StoreError as e:
        reason, text = _ADVICE.get(e.code, ("", ""))
        if not reason:
            raise
        message = f"the buffer {context.spec.buffer.uri}: {text}. Nothing was changed."
        raise TransientError(reason, message) from e


def _with_seen(batch: BufferedBatch, seen: Mapping[str, SeenObject]) -> BufferedBatch:
    """The batch, its objects with the sequencers from the run's notifications."""
    objects = tuple(
        with_sequencer(o, notified.etag, notified.sequencer) if (notified := seen.get(o.key)) else o
        for o in batch.objects
    )
    return replace(batch, objects=objects)


def claim_buffer(context: Run, table: IcebergTable, on_object: Callable[[], None] = ignored) -> None:
    """Make sure that the buffer belongs to the Dataset.

    A buffer without a claim is listed completely and claimed, unless it holds objects that are not batches and
    `spec.buffer.adopt` is false.

    Args:
        on_object: As in `list_buffer`.

    Raises:
        InputError: BufferLocal, BufferHoldsTable, BufferHoldsOtherObjects, BufferClaimed, UnsupportedStorage.
        TransientError: A dependency is temporarily unavailable.
    """
    spec, properties = context.spec, context.catalog_properties
    uri, owner = spec.buffer.uri, Owner.of(spec.dataset, table.uuid)
    _refuse_local(context)
    with words_of(context):
        seen = around(uri, properties)
    contents = Contents()
    if holder_of(seen.claim, owner) is Holder.NONE:
        contents = _contents(context, on_object)
    rejection = buffer_rejection(uri, owner, seen, contents, spec.buffer.adopt, _warehouses(context))
    if rejection is not None:
        raise InputError.of(rejection)
    adopted = Adopted(contents.unrelated, tuple(contents.unrelated_names))
    claim = take_claim(uri, properties, owner, spec.buffer.layout, adopted)
    if holder_of(claim, owner) is not Holder.OURS:
        raise InputError(BUFFER_CLAIMED, rejected(claim, uri))
    context.step("after-claim")


def _contents(context: Run, on_object: Callable[[], None]) -> Contents:
    count = 0
    first: list[str] = []
    tables: list[str] = []
    for found in list_buffer(context, on_object):
        if isinstance(found, NoBatch) and not found.too_large:
            count += 1
            if len(first) < NAMES_KEPT:
                first.append(found.folder)
            if found.table and len(tables) < NAMES_KEPT:
                tables.append(found.folder)
    return Contents(count, first, tables)


def _warehouses(context: Run) -> tuple[str, ...]:
    warehouse = context.catalog_properties.get("warehouse", "")
    return (warehouse,) if names_place(warehouse) else ()


def require_claim(context: Run, table: IcebergTable) -> None:
    """Check the claim again, right before something in the buffer is moved.

    Raises:
        InputError: BufferClaimed.
    """
    uri = context.spec.buffer.uri
    claim = read_claim(uri, context.catalog_properties)
    owner = Owner.of(context.spec.dataset, table.uuid)
    if claim is None:
        raise InputError(
            BUFFER_CLAIMED, f"the buffer {uri} has lost its claim ({names.CLAIM_FILE}); the next run claims it again."
        )
    if holder_of(claim, owner) is not Holder.OURS:
        raise InputError(BUFFER_CLAIMED, rejected(claim, uri))


def table_found(context: Run, folder: NoBatch) -> InputError:
    """The error for a buffer in which a listing finds files of an Iceberg table."""
    return InputError(
        BUFFER_HOLDS_TABLE,
        f"spec.buffer.uri {context.spec.buffer.uri} holds files of an Iceberg table ({folder.folder}). Nothing "
        "in it was moved or deleted. Use a location that does not overlap with a table.",
    )


@dataclass(frozen=True)
class WrittenBatches:
    """Batches in files that are not yet part of the table, and the batches that were refused or could not be read."""

    files: tuple[DataFile, ...]
    batches: Mapping[str, WrittenBatch]
    """The written batches, by id."""
    refused: Mapping[str, JudgedBatch]
    """The refused and held batches, by id."""
    staged: int | None = None
    """The snapshot that keeps the files. None: the files are not staged."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a batch could not be read, by batch id. The ledger records nothing about these batches."""
    left: tuple[str, ...] = ()
    """Ids of refused batches of which the buffer still holds objects."""
    registers: Any = field(default=None, repr=False)
    """Register mode: Iceberg's list of the producers' files. None: Lethe wrote the files."""
    references: Mapping[str, str] = field(default_factory=dict)
    """The references that the deliveries of batches name, by batch id."""
    refused_before: Mapping[str, BatchEntry] = field(default_factory=dict)
    """Register mode: the ledger's entries when the files were read, by batch id."""
    waiting: tuple[BatchRow, ...] | None = None
    """The batches that still wait in the buffer, as of its listing. None: the buffer was not listed."""
    partitions: Mapping[str, tuple[str, ...] | None] | None = field(default=None, repr=False)
    """By batch id, the partitions that its rows are in; None: any. If this is None, they are those of the files that may hold it.
    """
    is_lost: bool = False
    """Other runs promoted or reverted some of the batches in the meantime, and the files were deleted."""

    def covers(self, batch_ids: Iterable[str]) -> bool:
        """Whether each of these batches was written, refused or found missing."""
        return all(i in self.batches or i in self.refused or i in self.missing for i in batch_ids)

    @property
    def change(self) -> Append | Register:
        """In register mode a `Register` of the producers' files, otherwise an `Append` of `files`, even of none."""
        return Append(self.files) if self.registers is None else Register(self.registers)


@dataclass(frozen=True)
class GatheredBatches:
    """The wanted batches, after the buffer was listed."""

    batches: Mapping[str, BufferedBatch]
    """Complete batches with data files, by batch id."""
    missing: Mapping[str, str]
    """Why requested batches are not there, by id."""
    unusable: Mapping[str, JudgedBatch]
    """Refused before their files are read, by batch id: they contain refused objects and new ones, or an invalid reference."""
    found: SelectedBatches
    """The whole result of the listing."""
    references: Mapping[str, str]
    """The references that the deliveries of the batches name, by batch id."""


def gather(
    context: Run, base: Base, batch_ids: Iterable[str], on_object: Callable[[], None] = ignored
) -> GatheredBatches:
    """List the buffer for these batches. `on_object` as in `list_buffer`.

    Raises:
        Exception: As `list_buffer`.
    """
    context.reporter.phase(Phase.READING, "listing the buffer")
    requested_ids = frozenset(batch_ids)
    entries = apart(base.ledger.batches)
    selected = find(_without_tables(context, on_object), requested_ids, lambda ids: get_many(entries, ids))
    whole = {i: b for i, b in selected.batches.items() if b.data_objects}
    missing = {i: NO_DATA if i in selected.batches else NOT_THERE for i in sorted(requested_ids - whole.keys())}
    context.reporter.phase(Phase.READING, f"{len(whole)} batches, {sum(b.bytes for b in whole.values())} bytes")
    unusable = _mixed(context, whole, selected.entries)
    named = _references(context, [b for i, b in whole.items() if i not in unusable])
    unusable |= {i: JudgedBatch(e.verdict, whole[i].data_objects) for i, e in named.invalid.items()}
    missing |= dict.fromkeys(sorted(named.gone), NOT_THERE) | dict.fromkeys(sorted(named.denied), MARKER_DENIED)
    context.step("after-list")
    usable = {i: b for i, b in whole.items() if i not in unusable and i not in missing}
    return GatheredBatches(usable, missing, unusable, selected, named.references)


def _references(context: Run, batches: Sequence[BufferedBatch]) -> NamedReferences:
    """The references that the markers of these batches name.

    Raises:
        TransientError: AccessDenied.
        Exception: What the store raises.
    """
    with words_of(context):
        return read_references(open_store(context.spec.buffer.uri, context.catalog_properties), batches)


def _without_tables(context: Run, on_object: Callable[[], None]) -> Iterator[BufferedBatch | NoBatch]:
    """List the buffer.

    Raises:
        InputError: BufferHoldsTable, if it holds files of an Iceberg table.
        Exception: As `list_buffer`.
    """
    for found in list_buffer(context, on_object):
        if isinstance(found, NoBatch) and found.table:
            raise table_found(context, found)
        yield found


def _mixed(
    context: Run, requested: Mapping[str, BufferedBatch], entries: Mapping[str, BatchEntry]
) -> dict[str, JudgedBatch]:
    """The wanted batches that contain refused objects and new ones, after a run began to move the refused ones away."""
    doubtful = [e for i, e in entries.items() if i in requested and is_mixed(requested[i], e)]
    if not doubtful:
        return {}
    uri = context.spec.buffer.uri
    store = open_store(uri, context.catalog_properties)
    return {
        e.id: JudgedBatch(Verdict("RefusedFilesLeft", mixed_message(e, uri)), requested[e.id].data_objects)
        for e in doubtful
        if store.head(reason_uri(uri, e)) is not None
    }
