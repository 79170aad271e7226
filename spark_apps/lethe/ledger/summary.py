"""The summary keys of a snapshot of ours. Pure."""

from dataclasses import dataclass

from lethe.base import names


@dataclass(frozen=True)
class WrittenLedger:
    """A ledger that was written and is not yet pointed to.

    Args:
        root: URI of its root.
        tombstones: URI of the one file of active tombstones, or, when they lie in several chunks, of the root, which
            lists them.
        added, deleted: Tombstones active only after it, only before it.
        total: Active ones.
        vacuumed: URI of a vacuum's second file, `vacuumed_count` its entries; None for any other commit.
    """

    root: str
    tombstones: str
    added: int
    deleted: int
    total: int
    vacuumed: str | None = None
    vacuumed_count: int = 0


def summary(written: WrittenLedger, run_id: str, run_kind: str) -> dict[str, str]:
    """Keys and values for the snapshot that carries the ledger. Each key is always there; vacuum keys on a vacuum's only."""
    keys = {
        names.LEDGER: written.root,
        names.RUN_ID: run_id,
        names.RUN_KIND: run_kind,
        names.TOMBSTONE_FILE: written.tombstones,
        names.TOMBSTONE_ADDED: str(written.added),
        names.TOMBSTONE_DELETED: str(written.deleted),
        names.TOMBSTONE_TOTAL: str(written.total),
    }
    if written.vacuumed is not None:
        keys[names.TOMBSTONE_VACUUM_FILE] = written.vacuumed
        keys[names.TOMBSTONE_VACUUM_COUNT] = str(written.vacuumed_count)
    return keys
