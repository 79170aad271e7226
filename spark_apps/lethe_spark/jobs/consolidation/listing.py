"""Lists the buffer of a run, and explains why the store refuses to list it. I/O."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lethe.base.errors import TransientError
from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.notifications import with_sequencer
from lethe.contract.run import SeenObject
from lethe.storage.buffer import open_buffer
from lethe.storage.object_store import DENIED, NO_BUCKET, StoreError

from lethe_spark.run.context import Run

_ADVICE = {
    NO_BUCKET: ("BufferNotFound", "the bucket does not exist. Create it, or correct spec.buffer.uri"),
    DENIED: ("AccessDenied", "the store does not let this run list it. Grant the run's credentials access"),
}


def ignored() -> None:
    """The default of `on_object`: does nothing."""


def list_buffer(context: Run, on_object: Callable[[], None] = ignored) -> Iterator[BufferedBatch | NoBatch]:
    """List the batches in the run's buffer, complete or not. A folder that does not exist is an empty buffer.

    Args:
        on_object: Called for each object that the store lists. An exception from it ends the listing.
    Raises: TransientError (BufferNotFound, AccessDenied), because users can fix both without a new run; what the store raises.
    """
    uri, layout = context.spec.buffer.uri, context.spec.buffer.layout
    asked = context.spec.consolidation
    seen = {o.key: o for o in asked.seen_objects} if asked else {}
    with words_of(context):
        buffer = open_buffer(uri, context.spec.batch_column, context.catalog_properties, layout)
        for found in buffer.folders(on_object):
            yield _with_seen(found, seen) if seen and isinstance(found, BufferedBatch) else found


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
