"""A table with batches in every state, its table of batches, and the Dataset that owns both: what the gateway shows."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lethe.base import names
from lethe.base.errors import Verdict
from lethe.buffer.batch_rows import BUFFERED, BatchRow
from lethe.ledger.ledger import BatchState
from lethe.ledger.tombstone import BlockerKind, Erasure, ErasureBlocker
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from tests.support.builders import NOW, a_batch, a_request_entry
from tests.support.documents import Document, resource
from tests.support.tables import commit, commit_delta, new_table, rows, tombstone, vacuum
from tests.support.tracked import NAME, update

REVERT, REPLAY, ERASE = "default/revert-b/1f", "default/replay-c/2f", "default/erase-d/3f"
REFUSAL = Verdict("SchemaMismatch", "part-0.parquet: column delay: expected int, found string")
CREATED = NOW - timedelta(hours=2)
STATES = {
    "A": "promoted",
    "B": "reverted",
    "C": "replaced",
    "D": "erased",
    "E": "refused",
    "F": "buffered",
    "G": "promoted",
    "late": "reverted",
}


def flights_table(catalog: Catalog, claim: str = "default/flights", name: str = NAME) -> Table:
    """An empty table that its Dataset has claimed."""
    return new_table(catalog, name, **{names.CLAIM: claim})


def fill(catalog: Catalog, table: Table) -> None:
    """Commit a history: batches are promoted, refused, reverted, replaced and erased; the reverted one is purged."""
    table.append(rows("A", "A", "A", "B", "C", "D"))
    promoted = [a_batch(i, time=NOW - timedelta(hours=1, minutes=n)) for n, i in enumerate("ABCDG")]
    commit(table, *promoted, a_batch("E", BatchState.REFUSED, rows=None, refusal=REFUSAL))
    _restate(table, "B", REVERT, "Revert", BatchState.REVERTED)
    _restate(table, "C", REPLAY, "Replay", BatchState.REPLACED, replaced_by="G")
    _restate(table, "D", ERASE, "Erase", BatchState.ERASED, evict_by=NOW + timedelta(days=3))
    table.refresh()
    vacuum(table, "B")
    table.refresh()
    # Taken back before it came.
    commit(table, a_batch("late", BatchState.REVERTED, rows=None, bytes=None, time=NOW, restatement=REVERT))
    waiting = [BatchRow("F", BUFFERED, NOW - timedelta(minutes=5), bytes=10, objects=1)]
    update(catalog, waiting=waiting)


def _restate(table: Table, id: str, key: str, operation: str, state: BatchState, **entry: Any) -> None:
    table.refresh()
    request = a_request_entry(
        key,
        operation=operation,
        batch_ids=(id,),
        rows_deleted=1,
        provenance={
            "reason": f"the producer sent {id} twice",
            "ticket": "LAKE-7",
            "createdTime": CREATED.isoformat(),
            "marks": {"lethe.dev/requested-by": "ana"},
        },
    )
    due = entry.get("evict_by")
    blocker = ErasureBlocker(BlockerKind.TAG, "q1", why="tag of the first quarter")
    erasures = (Erasure(key, 2, due, purged_by=5, purged_at=5, blockers=(blocker,), blockers_count=1),) if due else ()
    commit_delta(
        table,
        add_tombstones=(tombstone(table, id),),
        set_batches=(a_batch(id, state, time=NOW, restatement=key, snapshot_id=_first_snapshot(table), **entry),),
        set_requests=(request,),
        set_erasures=erasures,
    )


def _first_snapshot(table: Table) -> int:
    """The commit that promoted the batches."""
    return table.snapshots()[1].snapshot_id


def dataset(name: str = "flights", catalog: str = "lite", table: str = NAME, **spec: Any) -> Document:
    own = {
        "table": {"catalog": catalog, "name": table},
        "batchColumn": "batch_id",
        "buffer": {"uri": "file:///nowhere/buffer"},
    }
    return resource("Dataset", name, {**own, **spec})


def restatement(name: str = "revert-b", of: str = "flights", **spec: Any) -> Document:
    own = {"datasetRef": {"name": of}, "operation": "Revert", "batchIds": ["B"], "reason": "sent twice"}
    return resource("Restatement", name, {**own, **spec})


def run(name: str, kind: str = "Consolidation", phase: str = "Writing", **more: Any) -> Mapping[str, Any]:
    return {"name": name, "kind": kind, "phase": phase, "attempt": 1, "startTime": "2026-03-01T11:00:00Z", **more}


DATASET_STATUS = {
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Available",
            "message": "ok",
            "lastTransitionTime": "2026-03-01T10:00:00Z",
        }
    ],
    "table": {"uuid": "u", "snapshotId": 8642949070972100074, "formatVersion": 2},
    "batches": {
        "promoted": 2,
        "reverted": 3,
        "refused": 1,
        "refusedBatches": [{"batchId": "E", "reason": "SchemaMismatch"}],
    },
    "buffer": {"batches": 1, "bytes": 10},
    "tombstones": {"active": 2},
    "vacuum": {
        "decision": "NeedsApproval",
        "reason": "ApprovalNeeded",
        "plan": {"digest": "d1", "files": 3, "bytes": 30},
    },
    "runs": [run("flights-1"), run("flights-0", phase="Succeeded")],
}
