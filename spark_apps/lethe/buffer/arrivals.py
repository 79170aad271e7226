"""Adds folders that were read after the listing of a buffer to the digest of that listing. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.digest import BufferDigest, BufferState, WaitingBatch, state_of, waiting
from lethe.ledger.ledger import BatchEntry

# The content of each folder of the buffer, by its name. None: the folder is empty.
Folders = Mapping[str, BufferedBatch | NoBatch | None]


def with_folders(
    digest: BufferDigest, folders: Folders, entries: Mapping[str, BatchEntry], run_takes: int
) -> BufferDigest:
    """Update the waiting batches of the digest with the current content of these folders. All other counts stay as listed.

    A cut digest stays unchanged: the next run is full in any case, and the digest does not say whether it already counts a
    folder. Two folders of one id are not a batch, so they are left out; the next listing reports them.

    Args:
        entries: The ledger's entries of the folders' batches, by id.
        run_takes: The maximum number of batches of one run.
    """
    if digest.is_cut:
        return digest
    left = [b for b in digest.oldest if b.folder not in folders]
    came = [_waiting(f, entries) for f in folders.values()]
    folders_of_id = Counter(b.id for b in (*left, *came) if b)
    known = [b for b in (*left, *came) if b and folders_of_id[b.id] == 1]
    known.sort(key=lambda b: (b.oldest_time, b.id))
    return replace(digest, batches=len(known), bytes=sum(b.bytes for b in known), oldest=tuple(known[:run_takes]))


def _waiting(found: BufferedBatch | NoBatch | None, entries: Mapping[str, BatchEntry]) -> WaitingBatch | None:
    if not isinstance(found, BufferedBatch) or state_of(found, entries.get(found.id)) is not BufferState.WAITING:
        return None
    return waiting(found)
