"""The summary keys of Lethe's snapshots. Pure."""

from dataclasses import dataclass

from lethe.base import names


@dataclass(frozen=True)
class WrittenLedger:
    """A ledger that is written, but to which no snapshot points yet."""

    root: str  # URI
    tombstones: str  # URI of the only file of active tombstones; if there are several, of the root, which lists them
    added: int  # tombstones that are active only in this ledger
    deleted: int  # tombstones that are active only in the ledger before
    total: int  # active tombstones
    vacuumed: str | None = None  # URI of the tombstones that a vacuum applied; None: not a vacuum
    vacuumed_count: int = 0  # entries of that file


def summary(written: WrittenLedger, run_id: str, run_kind: str) -> dict[str, str]:
    """The summary of the snapshot that carries the ledger. All keys are always set, except those of a vacuum."""
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
