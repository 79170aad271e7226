"""Checks and claims the buffer before a run reads, moves or deletes anything in it. I/O.

The run repeats the operator's checks, because the buffer may have changed since.
"""

import logging
from collections.abc import Callable

from lethe.base import names
from lethe.base.errors import InputError
from lethe.buffer.batch import NoBatch
from lethe.guards import rejections as guards
from lethe.guards.claim import Holder, Owner, holder_of, rejected
from lethe.guards.rejections import BUFFER_CLAIMED, BUFFER_HOLDS_TABLE, BUFFER_LOCAL, Contents, buffer_rejection
from lethe.iceberg import catalogs
from lethe.storage.surroundings import Adopted, around, read_claim, take_claim
from lethe.uri import names_place

from lethe_spark.jobs.consolidation.listing import ignored, list_buffer, words_of
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Run

log = logging.getLogger(__name__)
NAMES_KEPT = 1000  # how many names of objects that are not batches are kept


def claim_buffer(context: Run, table: IcebergTable, on_object: Callable[[], None] = ignored) -> None:
    """Make sure that the buffer belongs to the Dataset. A buffer without a claim is listed completely and claimed, unless it
    holds objects that are not batches and `spec.buffer.adopt` is false.

    Args:
        on_object: As in `list_buffer`.
    Raises: InputError (BufferLocal, BufferHoldsTable, BufferHoldsOtherObjects, BufferClaimed, UnsupportedStorage);
        TransientError.
    """
    spec, properties = context.spec, context.catalog_properties
    uri, owner = spec.buffer.uri, Owner.of(spec.dataset, table.uuid)
    local = guards.local("spec.buffer.uri", uri, spec.table.catalog, catalogs.is_local(properties))
    if local is not None:
        raise InputError(BUFFER_LOCAL, local)
    with words_of(context):
        seen = around(uri, properties)
    contents = Contents()
    if holder_of(seen.claim, owner) is Holder.NONE:
        contents = _contents(context, on_object)
    found = buffer_rejection(uri, owner, seen, contents, spec.buffer.adopt, _warehouses(context))
    if found is not None:
        raise found.error()
    adopted = Adopted(contents.unrelated, tuple(contents.unrelated_names))
    claim = take_claim(uri, properties, owner, spec.buffer.layout, adopted)
    if holder_of(claim, owner) is not Holder.OURS:
        raise InputError(BUFFER_CLAIMED, rejected(claim, uri))
    context.step("after-claim")


def require_claim(context: Run, table: IcebergTable) -> None:
    """Check the claim again, right before something in the buffer is moved. Raises: InputError (BufferClaimed)."""
    uri = context.spec.buffer.uri
    claim = read_claim(uri, context.catalog_properties)
    owner = Owner.of(context.spec.dataset, table.uuid)
    if claim is None:
        raise InputError(
            BUFFER_CLAIMED, f"the buffer {uri} has lost its claim ({names.CLAIM_FILE}); the next run claims it again."
        )
    if holder_of(claim, owner) is not Holder.OURS:
        raise InputError(BUFFER_CLAIMED, rejected(claim, uri))


def table_found(context: Run, found: NoBatch) -> InputError:
    """The error for a buffer in which a listing finds files of an Iceberg table."""
    return InputError(
        BUFFER_HOLDS_TABLE,
        f"spec.buffer.uri {context.spec.buffer.uri} holds files of an Iceberg table ({found.folder}). Nothing "
        "in it was moved or deleted. Use a location that does not overlap with a table.",
    )


def _contents(context: Run, on_object: Callable[[], None]) -> Contents:
    count = 0
    first: list[str] = []
    tables: list[str] = []
    for found in list_buffer(context, on_object):
        if isinstance(found, NoBatch):
            count += 1
            if len(first) < NAMES_KEPT:
                first.append(found.folder)
            if found.table and len(tables) < NAMES_KEPT:
                tables.append(found.folder)
    return Contents(count, first, tables)


def _warehouses(context: Run) -> tuple[str, ...]:
    warehouse = context.catalog_properties.get("warehouse", "")
    return (warehouse,) if names_place(warehouse) else ()
