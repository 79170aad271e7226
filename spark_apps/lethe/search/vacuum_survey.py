"""SCAN: finds the tombstones of a vacuum and the files that might hold their rows, and plans the run. I/O: reads the ledger and
manifests, no data."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from pyiceberg.table import Table

from lethe.contract.result import VacuumPlanned
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import FileBounds
from lethe.ledger.ledger import Ledger
from lethe.ledger.parts import get_many
from lethe.ledger.tombstone import Tombstone
from lethe.search.live_suspects import Head, LiveSuspects, Suspect
from lethe.vacuum.estimate import Estimate, in_vain_percent
from lethe.vacuum.one_by_one import Candidate, ExpectedBytes, TableTraits, expected_bytes, one_by_one
from lethe.vacuum.plan import (
    ScannedSnapshot,
    VacuumPlan,
    earliest_deadline,
    plan_vacuum,
    tombstones_to_purge,
    unpurged_record_erasures,
)
from lethe.vacuum.priority import SMALL_PART, PurgeDeadlines, by_priority, target_bytes

_LOOKED_UP_AT_ONCE: Final = 5_000


@dataclass(frozen=True)
class Survey:
    """The tombstones at the start of a run, and the files that might hold their rows."""

    tombstones: tuple[Tombstone, ...]
    live: LiveSuspects  # these files; the run updates it to later heads
    rows: Mapping[str, int]  # the number of rows by batch id; missing: the ledger does not know it
    due_by: datetime  # only deadlines up to this time count
    erase_by: datetime | None  # the deadline of rows under native deletes; None: there is none
    plan: VacuumPlan  # of the whole run, by bounds
    planned: VacuumPlanned  # the plan as the run's result reports it

    def in_order(self, files: Sequence[FileBounds]) -> list[FileBounds]:
        """The files by priority: the vacuum purges the first ones first."""
        suspects = self.live.suspects
        estimate = Estimate(suspects, files, self.rows)
        return by_priority(files, suspects, estimate, PurgeDeadlines(self.due_by, self.erase_by))


def survey(
    head: Head, ledger: Ledger, field_id: int, table: TableTraits, spec: VacuumSpec, now: datetime
) -> Survey | None:
    """Survey the head.

    Args:
        ledger: Of the head.
        field_id: Of the batch column.
    Returns: None, if no tombstone is active and no erasure has rows left to purge.
    """
    tombstones = tombstones_to_purge(ledger, field_id, spec.batch_ids)
    erasures = () if spec.batch_ids else unpurged_record_erasures(ledger, field_id)
    if not tombstones and not erasures:
        return None
    target = target_bytes(spec.target_file_size_bytes, table.properties)
    live = LiveSuspects(tombstones, bool(erasures), small_bytes=target // SMALL_PART)
    live.observe(head)
    rows = _rows_of(ledger, [t.id for t in tombstones])
    might = [s.bounds for s in live.found.values() if not s.must]
    must = [s.bounds for s in live.found.values() if s.must]
    estimate, erase_by = Estimate(live.suspects, might, rows), earliest_deadline(erasures)
    due_by = now + timedelta(seconds=spec.evict_by_lead_seconds)
    scanned = ScannedSnapshot(head.snapshot_id, tombstones, live.suspects, must, might)
    plan = plan_vacuum(scanned, estimate, PurgeDeadlines(due_by, erase_by), spec.max_bytes)
    if not tombstones and not plan.rewrite:
        return None
    expected = _expected(table, [live.found[f.path] for f in plan.rewrite], estimate, target)
    planned = _planned(plan, estimate, live.sort_drift, rows, erase_by)
    planned = planned.model_copy(update={"bytes_to_copy": expected.copied, "bytes_to_encode": expected.encoded})
    return Survey(tombstones, live, rows, due_by, erase_by, plan, planned)


def traits_of(table: Table, field_id: int) -> TableTraits:
    """What decides whether files of a table are purged one by one.

    Args:
        field_id: Of the batch column.
    """
    metadata = table.metadata
    names = table.schema().column_names
    by_batch = {o.order_id for o in metadata.sort_orders if [f.source_id for f in o.fields[:1]] == [field_id]}
    return TableTraits(
        metadata.format_version, metadata.default_spec_id, frozenset(names), metadata.properties, frozenset(by_batch)
    )


def candidate(file: Suspect, loses: int | None) -> Candidate:
    """A file that might be purged one by one, and the rows that it loses. None: unknown."""
    return Candidate(file.bounds, file.format_name, file.spec_id, loses, file.groups, file.sort_order_id)


def _expected(table: TableTraits, files: Sequence[Suspect], estimate: Estimate, target: int) -> ExpectedBytes:
    """Estimate what becomes of the bytes of the files to rewrite."""
    found = [candidate(s, round(estimate.rows_in(s.bounds))) for s in files]
    filtered = one_by_one(table, found, target)
    return expected_bytes(estimate, found, filtered)


def _rows_of(ledger: Ledger, ids: list[str]) -> dict[str, int]:
    """The number of rows of the batches, if the ledger knows it. Reads some entries at a time to save memory."""
    found: dict[str, int] = {}
    for at in range(0, len(ids), _LOOKED_UP_AT_ONCE):
        entries = get_many(ledger.batches, ids[at : at + _LOOKED_UP_AT_ONCE])
        found |= {i: b.rows for i, b in entries.items() if b.rows is not None}
    return found


def _planned(
    plan: VacuumPlan, estimate: Estimate, sort_drift: float | None, rows: Mapping[str, int], erase_by: datetime | None
) -> VacuumPlanned:
    vain = in_vain_percent(estimate, plan.rewrite)
    deadlines = [t.evict_by for t in plan.applied if t.evict_by is not None]
    if erase_by is not None and any(f.deletes for f in plan.rewrite):
        deadlines.append(erase_by)
    return VacuumPlanned(
        digest=plan.digest,
        snapshot_id=plan.snapshot_id,
        files=len(plan.rewrite),
        bytes=_size(plan.rewrite),
        whole_files=len(plan.delete),
        tombstones=len(plan.applied),
        rows=sum(rows.get(t.id, 0) for t in plan.applied),
        files_left=len(plan.postponed),
        bytes_left=_size(plan.postponed),
        in_vain_percent=None if vain is None else round(vain, 1),
        sort_drift=None if sort_drift is None else round(sort_drift, 2),
        next_evict_by=min(deadlines, default=None),
    )


def _size(files: Sequence[FileBounds]) -> int:
    return sum(f.size for f in files)
