"""Merging small data files in sort order, as a step of a vacuum run. I/O; which files is decided in `lethe.vacuum.compaction`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from lethe.base.errors import ConflictError, LetheError
from lethe.contract.result import Phase
from lethe.files.bounds import FileBounds, outdated
from lethe.ledger.ledger import Delta
from lethe.vacuum.compaction import Bin, CompactionPlan, plan_compaction, rounds, steps
from lethe.vacuum.priority import target_bytes

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.commit.unpublished import discard
from lethe_spark.jvm.commit import Rewrite
from lethe_spark.jvm.data_files import DataFile
from lethe_spark.jvm.rewrite import scan_files, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import Cancelled, RunContext

log = logging.getLogger(__name__)
# Files that vanish under it again and again are being compacted by somebody else.
PLANS: Final = 3


@dataclass(frozen=True)
class Compacted:
    """`merged` files became others; `stopped`: time was over before all that was worth it was done, or, `why`, something else
    came in between."""

    merged: int = 0
    snapshot_id: int | None = None
    stopped: bool = False
    why: str = ""


def compact_small_files(
    context: RunContext, table: SparkTable, max_bytes: int | None, out_of_time: Callable[[], str]
) -> Compacted:
    """Merge small files, in commits of about `step_bytes` each. Files that go under a step are planned anew.

    Args:
        max_bytes: Of files to rewrite; None: all that are worth it.
        out_of_time: Asked before each step; what was committed by then stays.
    Raises: Cancelled; InputError, LedgerError or TransientError of the look at the table.
    """
    spec = context.spec.vacuum
    assert spec is not None
    done, rest = Compacted(), max_bytes
    for _ in range(PLANS):
        plan, target = _plan(context, table, rest)
        if not plan.bins:
            return done
        context.reporter.phase(
            Phase.WRITING, f"{len(plan.files)} small files into {len(plan.bins)}, {plan.left} groups left for later"
        )
        for step in steps(plan.bins, spec.step_bytes):
            if out_of_time():
                return replace(done, stopped=True)
            try:
                snapshot_id = _step(context, table, plan.snapshot_id, step, target)
            except Cancelled:
                raise
            except LetheError as e:
                return replace(done, why=str(e))
            if snapshot_id is None:
                break
            files = [f for one in step for f in one]
            done = Compacted(done.merged + len(files), snapshot_id)
            rest = None if rest is None else rest - sum(f.size for f in files)
        else:
            return done
    return replace(done, why=f"{table.full_name}: small files kept changing, and are compacted later.")


def _plan(context: RunContext, table: SparkTable, max_bytes: int | None) -> tuple[CompactionPlan, int]:
    """With the size of a file to write."""
    spec = context.spec.vacuum
    assert spec is not None
    base = observe_base(context, table)
    target = target_bytes(spec.target_file_size_bytes, base.facts.properties)
    if base.facts.head_id is None:
        return CompactionPlan(0), target
    tombstoned = base.ledger.ids(base.field_id)
    written_by = base.iceberg.metadata.default_spec_id
    return plan_compaction(base.facts.head_id, base.files(), tombstoned, written_by, target, max_bytes), target


def _step(
    context: RunContext, table: SparkTable, snapshot_id: int, bins: Sequence[Bin], target_bytes: int
) -> int | None:
    """The id of the snapshot that it made. None: the table moved under the files."""
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    attempts = Attempts()
    try:
        for together in rounds(bins):
            with scan_files(table, [f.path for one in together for f in one], snapshot_id) as scanned:
                added += write_uncommitted(table, scanned.frame, context.run_id, target_bytes, one_pass=True)
                removed += scanned.files
        if sum(f.records for f in removed) != sum(f.records for f in added):
            # Somebody's deletes, of a kind that manifests do not tell of. What they hide is the purge's to write anew.
            raise ConflictError(
                "RowsDiffer", f"{table.full_name}: small files hold other rows than their metadata says."
            )
        context.step("after-compact")
        files = [f for one in bins for f in one]
        change = Rewrite(removed, added, snapshot_id)
        done = commit_on_ledger(context, table, lambda base: _intent(context, base, files, added, change), attempts)
    except LetheError:
        discard(table, added, attempts)
        raise
    if done.snapshot_id is None:
        discard(table, added, attempts)
    return done.snapshot_id


def _intent(
    context: RunContext, base: Base, files: Sequence[FileBounds], added: Sequence[DataFile], change: Rewrite
) -> Intent[None] | NothingToCommit[None]:
    if why := outdated(files, base.files()):
        log.info("the compaction is planned anew: %s", why)
        return NothingToCommit(None)
    delta = base.moved(Delta(context.run_id), [f.partition for f in files], added)
    return Intent(delta, change, None)
