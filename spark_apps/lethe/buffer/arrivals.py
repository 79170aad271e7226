"""Folders of a buffer that were looked at since it was listed, made part of the listing's digest. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from lethe.buffer.batch import BufferedBatch, NoBatch
from lethe.buffer.digest import BufferDigest, Standing, WaitingBatch, standing, waiting
from lethe.ledger.ledger import BatchEntry

# What a folder of the buffer holds, None for nothing, by its name.
Folders = Mapping[str, BufferedBatch | NoBatch | None]


def with_folders(
    digest: BufferDigest, folders: Folders, entries: Mapping[str, BatchEntry], run_takes: int
) -> BufferDigest:
    """The digest with these folders as they are now; counts of anything but what waits stay those of the listing.

    While more batches wait than are known one by one, the next run is full whatever came since, and nobody could tell whether
    a folder has been counted: then nothing changes. Two folders of one id are no batch: the next listing says so.
    Args:
        entries: What the ledger knows of the folders' batches.
        run_takes: How many batches one run takes at most.
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
    if not isinstance(found, BufferedBatch) or standing(found, entries.get(found.id)) is not Standing.WAITING:
        return None
    return waiting(found)
