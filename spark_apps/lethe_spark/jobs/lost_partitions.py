"""Moves data files out of partition specs whose partitions Iceberg can no longer write. I/O.

If a partition field was dropped, and then its column, Iceberg does not know the type of the field's values any more
(`identity`, `truncate`). It still reads the partitions of existing files, but whatever it writes of this spec has null instead:
a delete file does not fit its data file, so that Spark refuses the table, or it deletes nothing; and a manifest that is written
again loses the partitions of all its files. So Lethe writes no deletes for such files, and rewrites none of them while deletes
apply to others: before, it moves these files into the current spec, with the rows that its own native deletes hide, and hides
these rows there. The rows of the table stay the same, also for an Undo.
"""

import logging
from collections.abc import Collection
from typing import Any, Final

from lethe.base.errors import TransientError
from lethe.contract.dataset import named
from lethe.contract.result import LEGAL_HOLD, Phase
from lethe.files.bounds import FileBounds, IdIndex
from lethe.ingest.schema_fit import field_ids
from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import Tombstone
from lethe.search.candidates import CandidateFile
from lethe.search.covered import Leaving, LeavingRows
from pyiceberg.manifest import ManifestContent
from pyroaring import FrozenBitMap64

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.jobs.holds import covering
from lethe_spark.jvm.commit import RewriteFiles
from lethe_spark.jvm.data_files import (
    DataFile,
    DeleteChanges,
    is_by_lethe,
    is_of_one_file,
    tasks_of,
    with_deletes,
    write_deletes,
)
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.scan_tasks import scan_tasks, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_io, table_properties
from lethe_spark.sql.searching import (
    BatchSearch,
    RowCounts,
    anti_join,
    count_of,
    require_every_row,
    require_written,
    search_batches,
    semi_join,
)

log = logging.getLogger(__name__)
ANY: Final = None


def leave_lost_specs(context: RunContext, table: SparkTable, ids: Collection[str] | None = ()) -> None:
    """Move the data files of such specs that have native deletes, and those that the run may write deletes for.

    Args:
        ids: The batches whose rows the run may delete natively. None (`ANY`): any rows.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        InputError: The user has to change something.
        TransientError: A dependency is temporarily unavailable.
    """
    table.refresh()
    lost = table.lost_specs()
    if not lost or table.head_id is None:
        return
    written: list[str] = []
    used: list[str] = []
    attempts = Attempts()

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        moving = _Moving(context, table, base)
        tasks = moving.tasks(lost, ids)
        if not tasks:
            return NothingToCommit(None)
        intent = moving.moved(tasks, written)
        used[:] = [f.path for f in intent.change.add] if isinstance(intent.change, RewriteFiles) else []
        used.extend(str(d.location()) for d in getattr(intent.change, "deletes", ()))
        return intent

    done = False
    try:
        done = commit_on_ledger(context, table, plan, attempts).snapshot_id is not None
    finally:
        discard(table, [p for p in written if not done or p not in used], attempts)


class _Moving:
    """Moves files of one base."""

    def __init__(self, context: RunContext, table: SparkTable, base: Base) -> None:
        self.context, self.table, self.base = context, table, base

    def tasks(self, lost: frozenset[int], ids: Collection[str] | None) -> list[Any]:
        """The scan tasks of the files to move."""
        base = self.base
        of_lost = [m for m in base.manifests() if m.partition_spec_id in lost]
        paths = {
            e.data_file.file_path
            for m in of_lost
            if m.content is ManifestContent.DATA
            for e in m.fetch_manifest_entry(base.iceberg.io)
        }
        if not paths or base.facts.head_id is None:
            return []
        if ids is not None and not any(m.content is ManifestContent.DELETES for m in base.manifests()):
            index = IdIndex(ids)
            paths = {f.path for f in base.files() if f.path in paths and index.might_hold(f)}
            return tasks_of(self.table, paths, base.facts.head_id) if paths else []
        index = IdIndex(ids or ())
        file_paths = {f.path for f in base.files() if ids is None or index.might_hold(f)}
        tasks_found = tasks_of(self.table, paths, base.facts.head_id)
        return [t for t in tasks_found if str(t.file().location()) in file_paths or not t.deletes().isEmpty()]

    def moved(self, tasks: list[Any], written: list[str]) -> Intent[None]:
        """Write the files again, and the deletes by position of Lethe. Adds the paths of what it writes to `written`."""
        base, table, context = self.base, self.table, self.context
        assert base.facts.head_id is not None
        old = {str(t.file().location()) for t in tasks}
        files = [f for f in base.files() if f.path in old]
        masked = self._masked(files)
        by_id = {t.id for t in masked}
        self._require_no_hold(old, frozenset(by_id))
        context.reporter.phase(Phase.WRITING, f"{len(tasks)} files of a dropped partition field")
        # Lethe's own deletes hide rows that an Undo must find. Those of others are applied for good.
        ours_off = [with_deletes(table, t, [d for d in each(t.deletes()) if not is_by_lethe(d)]) for t in tasks]
        with scan_tasks(table, tasks) as shown, scan_tasks(table, ours_off) as every:
            frame = anti_join(shown.frame, base.batch_column, by_id)
            if by_id:
                frame = frame.unionByName(semi_join(every.frame, base.batch_column, by_id))
            counts: RowCounts = count_of(shown, frame)
            require_every_row(table.full_name, shown.files, counts)
            added = write_uncommitted(table, frame, context.run_id)
        written += [f.path for f in added]
        require_written(table.full_name, counts.kept, added)
        deletes = self._deletes(added, frozenset(by_id))
        written += deletes.paths
        dangling = {_key(d): d for t in tasks for d in each(t.deletes()) if is_of_one_file(table, d)}
        delta = base.moved(Delta(context.run_id), [f.partition for f in files], added)
        removed = tuple(DataFile.of(t.file()) for t in tasks)
        change = RewriteFiles(removed, added, base.facts.head_id, tuple(dangling.values()), deletes.added)
        log.info("%s: %d files leave a partition spec whose column was dropped", table.full_name, len(tasks))
        # The commit has no `native`: for increments it is a rewrite, after which the same rows are hidden.
        return Intent(delta, change, None, masks_everything=base.is_masked, unfinished=True)

    def _require_no_hold(self, paths: Collection[str], masked: frozenset[str]) -> None:
        """Check that holds cover no row that leaves: rows of reverted batches are hidden anew, and all others are dropped.

        Args:
            masked: The reverted batches.

        Raises:
            TransientError: `LegalHold`.
        """
        files = [LeavingRows(path) for path in paths]
        found = covering(self.context, self.base, files, Leaving(copied=masked))
        if found:
            by = named(h for h in self.context.spec.holds if any(h.name in names for names in found.values()))
            raise TransientError(
                LEGAL_HOLD,
                f"{self.table.full_name}: {len(found)} data files of a dropped partition field must be rewritten, and rows that "
                f"deletes hide in them are covered by {by}. Nothing was changed. The run tries again.",
            )

    def _masked(self, files: list[FileBounds]) -> list[Tombstone]:
        """The tombstones with native deletes that may have rows in these files."""
        bounds = [(f.lower, f.upper) for f in files]
        tombstones = self.base.ledger.tombstones_within(self.base.field_id, bounds) if bounds else []
        return [t for t in tombstones if t.mask is not None]

    def _deletes(self, added: Collection[DataFile], ids: frozenset[str]) -> DeleteChanges:
        """Hide the rows of these batches in new files."""
        if not ids or not added:
            return DeleteChanges()
        base = self.base
        candidates = [
            CandidateFile(f.path, f.bytes, "PARQUET", f.partition, frozenset(), frozenset(), frozenset()) for f in added
        ]
        names = field_ids(base.iceberg.properties)
        asked = BatchSearch(base.field_id, ids, table_properties(self.context), names, strict=True)
        result = search_batches(self.context.spark.sparkContext, asked, candidates)
        positions = {
            path: FrozenBitMap64.union(FrozenBitMap64(), *found.values())
            for path, found in result.found.items()
            if found
        }
        tasks = {f.path: _task_of(self.table, f) for f in added if f.path in positions}
        files = table_io(self.context, self.table.location)
        return write_deletes(self.table, tasks, positions, (), self.context.run_id, files)


def _task_of(table: SparkTable, file: DataFile) -> Any:
    """A scan task of a file that is in no snapshot."""
    api, spec = table.jvm.org.apache.iceberg, table.java.specs().get(int(file.java.specId()))
    everything = api.expressions.ResidualEvaluator.unpartitioned(api.expressions.Expressions.alwaysTrue())
    schema = api.SchemaParser.toJson(table.java.schema())
    none = table.gateway.new_array(api.DeleteFile, 0)
    return api.BaseFileScanTask(file.java, none, schema, api.PartitionSpecParser.toJson(spec), everything)


def _key(deletes: Any) -> tuple[str, str]:
    return str(deletes.location()), str(deletes.contentOffset())


def unmasked_ids(context: RunContext, table: SparkTable, ids: Collection[str]) -> frozenset[str]:
    """These batches, and those whose tombstones have no native deletes yet."""
    base = observe_base(context, table)
    more = () if base.is_masked else (t.id for t in base.ledger.tombstones.values() if not t.is_masked)
    return frozenset((*ids, *more))
