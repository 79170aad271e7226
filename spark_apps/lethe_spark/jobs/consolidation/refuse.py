"""Moves refused batches out of the buffer, after the ledger records their refusal. I/O; `lethe.buffer.refusals` decides."""

import logging
from collections.abc import Iterable

from lethe.buffer.layout import is_of_batch, layout_of
from lethe.buffer.refusals import folder_of, is_file, plan_removal
from lethe.ledger.ledger import BatchEntry
from lethe.ledger.parts import get_many
from lethe.storage.object_store import ObjectStore, open_store

from lethe_spark.commit.table_state import observe_base
from lethe_spark.jobs.consolidation.claiming import require_claim
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Cancelled, Run

log = logging.getLogger(__name__)


def set_aside(context: Run, table: IcebergTable, judged: Iterable[str], left: Iterable[str]) -> None:
    """Move batches to the buffer's folder for refused batches, if the ledger says that they are refused.

    A batch that cannot be moved stays, and the next run tries again.

    Args:
        judged: Ids of batches that this run has refused.
        left: Ids of batches that earlier runs have refused, and of which the buffer still holds objects.
    Raises: Cancelled.
    """
    mine, others = dict.fromkeys(judged), dict.fromkeys(left)
    if not mine and not others:
        return
    try:
        entries = get_many(observe_base(context, table).ledger.batches, (*mine, *others))
        uri = context.spec.buffer.uri
        require_claim(context, table)
        store = open_store(uri, context.catalog_properties)
        for entry in entries.values():
            set_one_aside(context, store, entry, was_judged=entry.id in mine)
    except Cancelled:
        raise
    except Exception as e:
        log.warning("refused batches stay in the buffer until the next run (%s)", type(e).__name__)


def set_one_aside(context: Run, store: ObjectStore, entry: BatchEntry, was_judged: bool) -> None:
    """Move one batch. Each step is safe to repeat."""
    if not entry.objects:
        return
    uri = context.spec.buffer.uri
    layout = layout_of(context.spec.buffer.layout, context.spec.batch_column)
    if not all(is_of_batch(o.key, uri, layout) for o in entry.objects):
        return  # only an earlier version of Lethe took these objects for a batch
    place = folder_of(uri, entry)
    listed = filter(None, [store.head(place)]) if is_file(uri, entry) else store.list(place)
    removal = plan_removal(uri, entry, listed, until=None if was_judged else entry.time)
    if removal is None:
        return
    for source, target in removal.copies:
        if not store.copy(source, target):
            return  # the producer has changed the object
    context.step("refused-copied")
    store.put(removal.reason_uri, removal.reason.encode())
    context.step("refused-explained")
    if removal.marker is not None and not store.delete_unchanged(removal.marker):
        return
    context.step("refused-unmarked")
    for o in removal.objects:
        store.delete_unchanged(o)
    log.info("moved the refused batch %r to %s", entry.id, removal.reason_uri.rpartition("/")[0])
