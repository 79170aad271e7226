"""Merges small data files in sort order, as a step of a vacuum run. I/O; `lethe.vacuum.compaction` decides which files.

Arrow merges them in Spark's Python workers (`lethe.merging`). Spark merges what is left.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from lethe.base.errors import ConflictError, LetheError
from lethe.contract.result import Phase
from lethe.files.bounds import FileBounds, outdated
from lethe.ingest.registrable import RegisterTarget
from lethe.ledger.ledger import Delta
from lethe.merging import BinToMerge, FileToMerge, Merge
from lethe.purge.source import with_row_ids
from lethe.search.candidates import traits_of
from lethe.vacuum.compaction import Bin, CompactionPlan, plan_compaction, rounds, steps
from lethe.vacuum.plan import ROW_IDS_SINCE, TableTraits, bytes_after_conflict, target_bytes
from lethe.writing.data_files import Unsupported, sort_keys_of

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.rewriting import described_for_workers, in_workers, kept_metrics
from lethe_spark.jvm.commit import RewriteFiles
from lethe_spark.jvm.data_files import DataFile, data_files, described, tasks_of
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.scan_tasks import scan_files, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import Cancelled, RunContext, table_properties

log = logging.getLogger(__name__)

PLANS: Final = 3
"""How often a run plans, if other writers replace the planned files. Then another tool probably compacts the table."""


@dataclass(frozen=True)
class MergedBins:
    """The result of merging bins."""

    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    """The files that the added ones replace."""
    left: tuple[Bin, ...]
    """The other bins."""


def merge_bins(context: RunContext, table: SparkTable, base: Base, bins: Sequence[Bin], snapshot_id: int) -> MergedBins:
    """Write the rows of each bin to one file. Bins for which this is not certain to be right are left to the caller.

    Args:
        base: The table when the bins were planned.
        snapshot_id: Which has the files.

    Then there are no new files.

    Raises:
        ConflictError: `DataMoved`, if the snapshot does not hold one of the files.
        TransientError: A dependency is temporarily unavailable.
        Exception: The errors of the workers.
    """
    work = _work(context, base)
    if work is None:
        return MergedBins((), (), tuple(bins))
    has_ids = base.iceberg.metadata.format_version >= ROW_IDS_SINCE
    paths = [f.path for files_of_bin in bins for f in files_of_bin]
    files: dict[str, DataFile | None] = {}
    traits = traits_of(base.iceberg, base.field_id)
    for task in tasks_of(table, paths, snapshot_id, kept_metrics(base)):
        planned = DataFile.of(task.file())
        files[planned.path] = planned if _is_plain(task, traits) else None
    plain = {path: file for path, file in files.items() if file is not None}
    names = described_for_workers(context, table, plain.values(), "merged")
    descriptions = dict(zip(plain, names, strict=True))
    chosen: list[Bin] = []
    tasks: list[BinToMerge] = []
    for files_of_bin in bins:
        if not all(
            f.path in descriptions and (descriptions[f.path].row_ids is not None or not has_ids) for f in files_of_bin
        ):
            continue
        parts = [
            FileToMerge(
                f.path,
                f.size,
                f.records,
                descriptions[f.path].document,
                descriptions[f.path].row_ids if has_ids else None,
            )
            for f in files_of_bin
        ]
        chosen.append(files_of_bin)
        tasks.append(BinToMerge(tuple(parts), descriptions[files_of_bin[0].path].to))
    if not tasks:
        return MergedBins((), (), tuple(bins))
    done = in_workers(context, table, tasks, work.attempt, lambda merged: merged.path)
    replaced = {id(files_of_bin) for files_of_bin, merged in zip(chosen, done, strict=True) if merged.document}
    written = [merged for merged in done if merged.document]
    for merged in done:
        if merged.unsuitable:
            log.info("small files are merged by Spark: %s", merged.unsuitable)
    copied, encoded = sum(m.copied for m in written), sum(m.encoded for m in written)
    log.info("%d files merged: %d bytes copied, %d bytes encoded", len(written), copied, encoded)
    try:
        added = described(table, each(data_files(table, [merged.document for merged in written])))
    except LetheError:
        discard(table, [merged.path for merged in written], Attempts())
        raise
    removed = [plain[f.path] for files_of_bin in bins if id(files_of_bin) in replaced for f in files_of_bin]
    return MergedBins(
        added, tuple(removed), tuple(files_of_bin for files_of_bin in bins if id(files_of_bin) not in replaced)
    )


def _work(context: RunContext, base: Base) -> Merge | None:
    """What the tasks do. None: Spark merges all files of the table."""
    if not traits_of(base.iceberg, base.field_id).are_files_filterable:
        return None
    target = RegisterTarget.of(base.iceberg, base.field_id, may_lack=True)
    order = base.iceberg.sort_order()
    try:
        sort_keys_of(target, order)
    except Unsupported as e:
        log.info("Spark merges the small files of %s: %s", base.facts.name, e)
        return None
    if base.iceberg.metadata.format_version >= ROW_IDS_SINCE:
        target = with_row_ids(target)
    return Merge(target, order.model_dump_json(), table_properties(context))


def _is_plain(task: Any, traits: TableTraits) -> bool:
    """Whether Arrow may rewrite a file, and no deletes apply to it, also such as manifests do not show."""
    file = task.file()
    return traits.is_filterable(str(file.format()), int(file.specId())) and task.deletes().isEmpty()


@dataclass(frozen=True)
class Compacted:
    """What was compacted."""

    merged: int = 0
    """The number of files that were merged into others."""
    snapshot_id: int | None = None
    """The snapshot of the last commit; None: nothing was committed."""
    stopped: bool = False
    """The time was up before all planned files were merged."""
    why: str = ""
    """Why not all planned files were merged, other than time; empty: they were."""


def compact_small_files(
    context: RunContext, table: SparkTable, max_bytes: int | None, out_of_time: Callable[[], str]
) -> Compacted:
    """Merge small files, in commits of about `step_bytes` each.

    If files of a step were replaced in the meantime, it plans again, with smaller steps.

    Args:
        max_bytes: Limit for the total size of files to rewrite; None: no limit.
        out_of_time: Returns why no step may start any more; empty: one may. Called before each step.

    Raises:
        Cancelled: The process received SIGTERM.
        InputError: The table cannot be read.
        LedgerError: The table cannot be read.
        TransientError: The table cannot be read.
    """
    spec = context.spec.vacuum
    assert spec is not None
    done, bytes_left, step_bytes = Compacted(), max_bytes, spec.step_bytes
    for _ in range(PLANS):
        planned = _plan(context, table, bytes_left)
        plan = planned.plan
        if not plan.bins:
            return done
        context.reporter.phase(
            Phase.WRITING, f"merging {len(plan.files)} small files into {len(plan.bins)}, {plan.left} groups remain"
        )
        for step in steps(plan.bins, step_bytes):
            if out_of_time():
                return replace(done, stopped=True)
            try:
                snapshot_id = _step(context, table, planned, step)
            except Cancelled:
                raise
            except LetheError as e:
                return replace(done, why=str(e))
            files = [f for files_of_bin in step for f in files_of_bin]
            if snapshot_id is None:
                step_bytes = bytes_after_conflict(files, step_bytes)
                break
            done = Compacted(done.merged + len(files), snapshot_id)
            bytes_left = None if bytes_left is None else bytes_left - sum(f.size for f in files)
        else:
            return done
    return replace(
        done, why=f"{table.full_name}: other writers kept replacing the small files. The next vacuum tries again."
    )


def planned_bytes(context: RunContext, table: SparkTable, max_bytes: int | None) -> int:
    """The size of the small files that a run would merge."""
    return sum(f.size for f in _plan(context, table, max_bytes).plan.files)


@dataclass(frozen=True)
class _Planned:
    """Files to merge."""

    base: Base
    """The table that the plan is of."""
    plan: CompactionPlan
    target_bytes: int
    """The size of a file."""


def _plan(context: RunContext, table: SparkTable, max_bytes: int | None) -> _Planned:
    """Plan the files to merge."""
    spec = context.spec.vacuum
    assert spec is not None
    base = observe_base(context, table)
    target = target_bytes(spec.target_file_size_bytes, base.facts.properties)
    if base.facts.head_id is None:
        return _Planned(base, CompactionPlan(0), target)
    tombstoned = base.ledger.ids(base.field_id)
    written_by = base.iceberg.metadata.default_spec_id
    plan = plan_compaction(base.facts.head_id, base.files(), tombstoned, written_by, target, max_bytes)
    return _Planned(base, plan, target)


def _step(context: RunContext, table: SparkTable, planned: _Planned, bins: Sequence[Bin]) -> int | None:
    """Merge and commit these files.

    Returns:
        The id of the new snapshot; None: other writers replaced some of the files.
    """
    snapshot_id = planned.plan.snapshot_id
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    attempts = Attempts()
    try:
        by_arrow = merge_bins(context, table, planned.base, bins, snapshot_id)
        added, removed = by_arrow.added, by_arrow.removed
        for together in rounds(by_arrow.left):
            with scan_files(table, [f.path for files_of_bin in together for f in files_of_bin], snapshot_id) as scanned:
                added += write_uncommitted(table, scanned.frame, context.run_id, planned.target_bytes, one_pass=True)
                removed += scanned.files
        if sum(f.records for f in removed) != sum(f.records for f in added):
            # Deletes that manifests do not show hide rows, or rows were not read. A purge rewrites files with deletes, so they
            # are not merged here.
            raise ConflictError(
                "RowsDiffer",
                f"{table.full_name}: the small files to merge have {sum(f.records for f in removed)} rows by their metadata, "
                f"and {sum(f.records for f in added)} were written. Nothing was committed.",
            )
        context.step("after-compact")
        files = [f for files_of_bin in bins for f in files_of_bin]
        change = RewriteFiles(removed, added, snapshot_id)
        version = planned.base.facts.format_version

        def intent(base: Base) -> Intent[None] | NothingToCommit[None]:
            # Since version 3 rows have ids, which the files would have to store.
            if base.facts.format_version != version:
                log.info("the compaction is planned again: the format version of the table has changed")
                return NothingToCommit(None)
            if snapshot_id not in base.facts.snapshots:  # Iceberg checks what others have deleted since it
                log.info(
                    "the compaction is planned again: snapshot %d, of which the files are, has expired", snapshot_id
                )
                return NothingToCommit(None)
            return _intent(context, base, files, added, change)

        done = commit_on_ledger(context, table, intent, attempts)
    except Exception:
        discard(table, added, attempts)
        raise
    if done.snapshot_id is None:
        discard(table, added, attempts)
    return done.snapshot_id


def _intent(
    context: RunContext, base: Base, files: Sequence[FileBounds], added: Sequence[DataFile], change: RewriteFiles
) -> Intent[None] | NothingToCommit[None]:
    if why := outdated(files, base.files()):
        log.info("the compaction is planned again: %s", why)
        return NothingToCommit(None)
    delta = base.moved(Delta(context.run_id), [f.partition for f in files], added)
    return Intent(delta, change, None)
