"""The summary keys of a snapshot of ours, from the ledgers before and after it. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from lethe import names
from lethe.ledger.ledger import Ledger
from lethe.ledger.tombstone import Tombstone


@dataclass(frozen=True)
class WrittenLedger:
    """Where a ledger was written: the URIs of its root and of its tombstone file, and of a vacuum's second file."""

    root: str
    tombstones: str
    vacuumed: str | None = None


def summary(
    before: Ledger,
    after: Ledger,
    written: WrittenLedger,
    run_id: str,
    run_kind: str,
    vacuumed: Collection[Tombstone] | None = None,
) -> dict[str, str]:
    """Keys and values for the snapshot that carries `after`. Each key is always there; vacuum keys on a vacuum's only."""
    keys = {
        names.LEDGER: written.root,
        names.RUN_ID: run_id,
        names.RUN_KIND: run_kind,
        names.TOMBSTONE_FILE: written.tombstones,
        names.TOMBSTONE_ADDED: str(len(after.tombstones.keys() - before.tombstones.keys())),
        names.TOMBSTONE_DELETED: str(len(before.tombstones.keys() - after.tombstones.keys())),
        names.TOMBSTONE_TOTAL: str(len(after.tombstones)),
    }
    if vacuumed is not None and written.vacuumed is not None:
        keys[names.TOMBSTONE_VACUUM_FILE] = written.vacuumed
        keys[names.TOMBSTONE_VACUUM_COUNT] = str(len(vacuumed))
    return keys
