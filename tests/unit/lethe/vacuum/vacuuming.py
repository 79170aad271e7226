"""A SCAN over files that a test has made up, as a run does it over those of a head."""

from collections.abc import Iterable
from datetime import datetime

from lethe.files.bounds import FileBounds
from lethe.files.tombstone_index import Suspects
from lethe.ledger.ledger import Ledger
from lethe.vacuum.estimate import Likely
from lethe.vacuum.plan import VacuumPlan, chosen, earliest, owed, plan_of


def plan_vacuum(
    ledger: Ledger,
    snapshot_id: int,
    files: Iterable[FileBounds],
    field_id: int,
    max_bytes: int | None = None,
    due_by: datetime | None = None,
) -> VacuumPlan:
    """What `plan_of` makes of them."""
    tombstones = chosen(ledger, field_id)
    suspects, erasures = Suspects(tombstones), owed(ledger, field_id)
    might: list[FileBounds] = []
    must: list[FileBounds] = []
    for f in files:
        if suspects.must_hold(f):
            must.append(f)
        elif suspects.might_hold(f) or (f.deletes and erasures):
            might.append(f)
    likely = Likely(suspects, might, {})
    return plan_of(snapshot_id, tombstones, suspects, likely, must, might, max_bytes, due_by, earliest(erasures))
