"""Tombstones that must come back: rows of a batch taken back earlier may have arrived by a commit that knows no ledger.

Pure. A vacuum forgets a tombstone once no row of it is left, but the batch stays `reverted` or `replaced` in the ledger;
when a bare snapshot then adds files that might hold the batch, the next commit of ours arms its tombstone again.
"""

from collections.abc import Iterable
from datetime import datetime

from lethe.ledger.ledger import BatchState, Ledger
from lethe.ledger.tombstone import META_REASON, META_RESTATEMENTS, META_RUN, Tombstone
from lethe.plan.bounds import FileBounds, IdIndex

_HIDDEN = (BatchState.REVERTED, BatchState.REPLACED)


def rearmed(
    ledger: Ledger, bare_files: Iterable[FileBounds], field_id: int, run: str, now: datetime
) -> tuple[Tombstone, ...]:
    """Tombstones for batches that are reverted or replaced, not tombstoned now, and might lie in `bare_files`.

    Arming one that hides nothing is harmless: the id of a batch taken back is never valid again.
    """
    active = ledger.ids(field_id)
    hidden = {b.id: b for b in ledger.batches.values() if b.state in _HIDDEN and b.id not in active}
    if not hidden:
        return ()
    index = IdIndex(hidden.keys())
    found = sorted({i for f in bare_files for i in index.within(f)})
    return tuple(
        Tombstone(
            id=i,
            namespace=field_id,
            added_on=now,
            meta={
                META_REASON: "rows of a batch taken back came in by a commit without a ledger",
                META_RUN: run,
                **({META_RESTATEMENTS: hidden[i].restatement or ""} if hidden[i].restatement else {}),
            },
        )
        for i in found
    )
