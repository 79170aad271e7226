"""Brings the batch of a completed upload into the buffer. I/O: the object store of the buffer, and its table.

A caller that finds that an upload was decided to be complete calls `finish`: the request that decided it may have been
interrupted at any step. Only when the batch is complete in the buffer, or the ledger shows that it was, `finish` notes so, and
only then an upload is `Complete`.
"""

from lethe.buffer.upload import has_files_of
from lethe.ledger.ledger import BatchState, BufferedObject

from lethe_gateway.problems import FieldError, Kind, Problem
from lethe_gateway.uploads import stored
from lethe_gateway.uploads.opening import Record


def finish(record: Record, decided_here: bool = False) -> None:
    """Let consolidations see the batch, unless one has seen it already. Repeating it changes nothing.

    Args:
        decided_here: This request has just decided that the upload is complete, so no consolidation can have seen the batch.
    Raises: Problem (`upload-incomplete`), if somebody deleted files that were checked, so the batch cannot be completed;
        StoreError, and what the catalog raises.
    """
    if record.is_published():
        return
    was_seen = not decided_here and _was_seen(record)
    if not was_seen and not _publish(record) and not _was_seen(record):
        raise _lost(record)
    record.note_published()
    if not record.places.target.marker:  # last: as long as nothing else has the content
        record.buffer.store.remove(record.places.uris[0])


def _was_seen(record: Record) -> bool:
    """Whether the ledger knows the batch with these files: it was in the buffer, and may have been moved away since."""
    table = record.buffer.reload()
    entry = table.entry(record.manifest.batch_id) if table is not None else None
    if entry is None or not has_files_of(entry, record.places.target):
        return False
    # A batch that was refused may be uploaded again under its id, even with files of the same sizes.
    return entry.state is not BatchState.REFUSED or entry.time >= record.manifest.opened_time


def _publish(record: Record) -> bool:
    """Write what makes the batch complete. False: not all of its files are there."""
    store, target = record.buffer.store, record.places.target
    there = stored.objects(record)
    if target.marker:
        if any(stored.missing(record, i, entry, there) for i, entry in enumerate(record.manifest.files)):
            return False
        store.put_if_absent(target.marker, b"")
        return True
    ((uri, file),) = target.files.items()
    found, staged = store.head(uri), there.get(record.places.uris[0])
    if found is None and staged is not None and staged.size == file.size:
        store.copy(BufferedObject(staged.key, staged.size, staged.etag), uri)
        found = store.head(uri)
    return found is not None and found.size == file.size


def _lost(record: Record) -> Problem:
    there = stored.objects(record)
    errors = tuple(
        FieldError(field=entry.path, message=why)
        for i, entry in enumerate(record.manifest.files)
        if (why := stored.missing(record, i, entry, there))
    )
    return Problem(
        Kind.UPLOAD_INCOMPLETE,
        "All files were there and checked, and then somebody else deleted or replaced some of them, before the batch was in the "
        "buffer. Delete this upload, and upload the batch again.",
        errors=errors[:100],
    )
