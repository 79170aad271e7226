"""SCAN and choosing with a hundred thousand files and as many tombstones: seconds, and memory of what is suspected alone."""

import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from lethe.files.bounds import FileBounds, Suspects
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone
from lethe.vacuum.plan import Drift, Estimate, PurgeDeadlines, ScannedSnapshot, VacuumPlan, in_vain_percent, plan_vacuum

from tests.support.builders import NOW, a_tombstone

pytestmark = pytest.mark.long

# For 100,000 files: seconds of processor time on a slow machine whose two cores others work on. The goal is a tenth of it.
ALLOWANCE_SECONDS = 30
BATCHES_PER_FILE = 10
DAYS = 100


def batch(n: int) -> str:
    return f"2013-01-01.{n:09d}"


def files(many: int) -> Iterator[FileBounds]:
    """Sorted, ten batches in each, in a hundred partitions one after the other; as a manifest tells of them, one by one."""
    for n in range(many):
        first = n * BATCHES_PER_FILE
        yield FileBounds(
            path=f"s3://lake/warehouse/air/flights/data/0123456789abcdef0123456789abcdef/day={n % DAYS}/{n:05d}-{n:016x}.parquet",
            records=10_000,
            size=64 * 1024**2,
            lower=batch(first),
            upper=batch(first + BATCHES_PER_FILE - 1),
            null_count=0,
            partition=f"0/[{n * DAYS // many}]",
        )


def tombstones(many: int, of: int) -> list[Tombstone]:
    """Spread over all files, half of them with a known partition, a tenth due."""
    found = []
    for n in range(many):
        at = n * BATCHES_PER_FILE * of // many
        meta = {META_PARTITIONS: f"0/[{at // BATCHES_PER_FILE * DAYS // of}]"} if n % 2 else {}
        due = NOW + timedelta(days=n % 50) if n % 10 == 0 else None
        found.append(a_tombstone(batch(at), evict_by=due, meta=meta))
    return found


def scanned(suspects: Suspects, many: int) -> tuple[list[FileBounds], list[FileBounds], Drift]:
    may_contain_deleted_rows, all_rows_deleted, drift = [], [], Drift()
    for f in files(many):
        drift.add(f)
        if suspects.must_hold(f):
            all_rows_deleted.append(f)
        elif suspects.might_hold(f):
            may_contain_deleted_rows.append(f)
    return may_contain_deleted_rows, all_rows_deleted, drift


def planned(known: list[Tombstone], many: int) -> tuple[VacuumPlan, float | None, float | None]:
    suspects = Suspects(known)
    may_contain_deleted_rows, all_rows_deleted, drift = scanned(suspects, many)
    estimate = Estimate(suspects, may_contain_deleted_rows, {t.id: 1000 for t in known})
    plan = plan_vacuum(
        ScannedSnapshot(1, tuple(known), suspects, all_rows_deleted, may_contain_deleted_rows),
        estimate,
        PurgeDeadlines(NOW),
        max_bytes=10 * 1024**4,
    )
    return plan, in_vain_percent(estimate, plan.rewrite), drift.mean_depth()


@pytest.mark.parametrize("many", [20_000, 100_000])
def test_many_files_and_tombstones_are_planned_in_seconds(many: int) -> None:
    known = tombstones(many, of=many)
    began = time.process_time()

    plan, in_vain, drift = planned(known, many)

    seconds = time.process_time() - began
    assert len(plan.rewrite) + len(plan.postponed) == many
    assert plan.digest
    assert (in_vain, drift) == (pytest.approx(0, abs=0.5), 1.0)
    assert seconds < ALLOWANCE_SECONDS * many / 100_000, f"{seconds:.1f} s"


def test_what_is_kept_of_files_is_what_might_hold_something() -> None:
    """One file in a hundred is suspected: of the others only their bounds stay, until their order was judged."""
    many, suspected = 20_000, 200
    suspects = Suspects(tombstones(suspected, of=many))
    tracemalloc.start()

    may_contain_deleted_rows, _, drift = scanned(suspects, many)

    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(may_contain_deleted_rows) == suspected
    assert drift.mean_depth() == 1.0
    assert kept < many * 300
    assert peak < many * 400


def test_wide_bounds_cost_no_more_than_narrow_ones() -> None:
    """A table that was never sorted: each file might hold each tombstone."""
    known = tombstones(2_000, of=2_000)
    wide = [replace(f, lower="0", upper="9", partition=None) for f in files(20_000)]
    began = time.process_time()

    suspects = Suspects(known)
    may_contain_deleted_rows = [f for f in wide if suspects.might_hold(f)]
    estimate = Estimate(suspects, may_contain_deleted_rows, {})
    plan = plan_vacuum(
        ScannedSnapshot(1, tuple(known), suspects, (), may_contain_deleted_rows), estimate, PurgeDeadlines()
    )

    assert (len(plan.rewrite), len(plan.applied)) == (20_000, 2_000)
    assert time.process_time() - began < ALLOWANCE_SECONDS / 5
