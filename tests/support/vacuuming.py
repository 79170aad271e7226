"""A SCAN over files that a test has made up, as a run does it over those of a head."""

from collections.abc import Iterable
from datetime import datetime

from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.ledger import Ledger
from lethe.vacuum import plan
from lethe.vacuum.plan import (
    Estimate,
    PurgeDeadlines,
    ScannedSnapshot,
    VacuumPlan,
    earliest_deadline,
    tombstones_to_purge,
    unpurged_record_erasures,
)


def plan_vacuum(
    ledger: Ledger,
    snapshot_id: int,
    files: Iterable[FileBounds],
    field_id: int,
    max_bytes: int | None = None,
    due_by: datetime | None = None,
) -> VacuumPlan:
    """The plan for these files."""
    tombstones = tombstones_to_purge(ledger, field_id)
    suspects, erasures = Suspects(tombstones), unpurged_record_erasures(ledger, field_id)
    may_contain_deleted_rows: list[FileBounds] = []
    all_rows_deleted: list[FileBounds] = []
    for f in files:
        if suspects.must_hold(f):
            all_rows_deleted.append(f)
        elif suspects.might_hold(f) or (f.deletes and erasures):
            may_contain_deleted_rows.append(f)
    scanned = ScannedSnapshot(snapshot_id, tombstones, suspects, all_rows_deleted, may_contain_deleted_rows)
    deadlines = PurgeDeadlines(due_by, earliest_deadline(erasures))
    return plan.plan_vacuum(scanned, Estimate(suspects, may_contain_deleted_rows, {}), deadlines, max_bytes)
