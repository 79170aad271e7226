"""Writes native deletes for the tombstones of a commit, of the kind in `spec.deletes`. I/O; `lethe.files.native_deletes` decides.

Each file is searched once. Rows of a file never change, so after a conflict only new files are read.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, assert_never

from lethe.base.errors import InputError, LetheError
from lethe.contract.result import Phase
from lethe.contract.settings import NativeDeletes
from lethe.files.bounds import BoundsSplit, IdIndex
from lethe.files.native_deletes import (
    Masked,
    Masking,
    PositionsPlan,
    check_lifted,
    files_to_mask,
    plan_masking,
    plan_positions,
    with_masks,
)
from lethe.files.values import ValueKind, Values, ValueType
from lethe.ingest.schema_fit import field_ids
from lethe.ledger.ledger import Delta
from lethe.search.candidates import candidates, values_if_absent
from lethe.search.positions import Wanted
from pyroaring import FrozenBitMap64

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.native_deletes import CannotLift, Lifts, Masker, Masks
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.data_files import DataFile, tasks_of
from lethe_spark.jvm.deletes import (
    DeleteChanges,
    HiddenRows,
    deleted_of,
    position_deletes_of,
    write_position_deletes,
    write_vectors,
)
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties
from lethe_spark.sql.searching import BatchSearch, search_batches

log = logging.getLogger(__name__)
_BATCHES: Final = "batches"
_VECTORS: Final = NativeDeletes.DELETION_VECTORS
_POSITIONS: Final = NativeDeletes.POSITION_DELETES
Found: TypeAlias = Mapping[str, Mapping[str, FrozenBitMap64]]  # positions by the path of a file, then by batch id


@dataclass
class SparkMasker:
    """Writes native deletes with Spark."""

    context: RunContext
    table: SparkTable
    native: NativeDeletes | None
    """As `spec.deletes`."""
    written: list[str] = field(default_factory=list)
    """The paths of all files that it wrote."""
    _asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """The batch ids that a file was searched for, by its path."""
    _found: dict[str, dict[str, FrozenBitMap64]] = field(default_factory=dict)
    """Row positions, by the path of the file, then by batch id."""
    _unsure: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be searched, by its path."""

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True) -> Masks:
        native = self.native if mask else None
        masking = plan_masking(base.ledger, delta, base.field_id, native, base.is_masked)
        if masking.is_empty or base.facts.head_id is None:
            nothing = Masked(dict.fromkeys(masking.mask, 0))
            return Masks(with_masks(delta, masking, nothing, native), everything=native is not None)
        if not mask:
            refuse_to_lift(masking, lifts)
        split = files_to_mask(base.files(), masking)
        dropped = frozenset(f.path for f in split.all_rows_deleted)
        searched = frozenset(masking.lift) | frozenset(masking.mask)
        found, unsure = self._searched(base, searched, dropped)
        tasks = self._tasks(base, found, split)
        before = deleted_of(self.table, [tasks[p] for p in found.keys() & tasks.keys()]) if tasks else {}
        planned = plan_positions({p: of.by_position for p, of in before.items()}, found, masking, native)
        check_lifts(masking, lifts, found, unsure, planned.still_hidden)
        positions = self._positions(planned, before, tasks)
        dangling = DeleteChanges(replaced=position_deletes_of(self.table, [tasks[p] for p in dropped]))
        deletes = positions.along_with(dangling)
        counted = counts(found)
        for f in split.all_rows_deleted:
            counted[f.lower or ""] += f.records
        masked = Masked(counted, {f.lower or "" for f in split.all_rows_deleted}, planned.beside, unsure)
        marked = with_masks(delta, masking, masked, native)
        by_id = {t.id: t for t in marked.add_tombstones if t.namespace == base.field_id}
        applied = tuple(by_id[i] for i in sorted(masking.mask) if counted[i] or i in masked.dropped)
        wrote = bool(dropped or deletes.added or deletes.replaced)
        return Masks(
            delta=marked,
            native=self._by_position if wrote else None,
            deletes=deletes,
            dropped=tuple(DataFile.of(tasks[p].file()) for p in sorted(dropped)),
            applied=applied if wrote and applied else None,
            everything=native is not None and not unsure,
        )

    @property
    def _by_position(self) -> NativeDeletes:
        """The native deletes by position of tables of this format version."""
        return _VECTORS if self.table.format_version >= _VECTORS.format_version else _POSITIONS

    def _searched(self, base: Base, ids: frozenset[str], without: Collection[str]) -> tuple[Found, dict[str, str]]:
        """Search the data files that might hold rows of the batches.

        Args:
            without: Paths of files that are not searched.

        Returns:
            The positions of the rows; and by id of batches that might have rows in a file that cannot be searched, why.
        """
        if not ids:
            return {}, {}
        values = Values(ValueKind(ValueType.STRING), tuple(sorted(ids)))
        wanted = {_BATCHES: Wanted.of(base.field_id, values)}
        files = [c for c in candidates(base.iceberg, base.facts.head_id, wanted) if c.path not in without]
        new = [c for c in files if not ids <= self._asked.get(c.path, frozenset())]
        if new:
            size = sum(c.size for c in new)
            self.context.reporter.phase(
                Phase.SCAN, f"{len(new)} files of {size} bytes for the rows of {len(ids)} batches"
            )
            names = field_ids(base.iceberg.properties)
            absent = values_if_absent(new, _BATCHES, values)
            asked = BatchSearch(base.field_id, ids, table_properties(self.context), names, absent=absent)
            result = search_batches(self.context.spark.sparkContext, asked, new)
            self._found |= {path: dict(positions) for path, positions in result.found.items()}
            self._unsure |= result.unsure
            self._asked |= {c.path: ids for c in new}
        self.context.step("after-search")
        positions = {c.path: {i: p for i, p in self._found.get(c.path, {}).items() if i in ids} for c in files}
        bounds = {f.path: f for f in base.files()}
        index, unsure = IdIndex(ids), dict[str, str]()
        for path in (c.path for c in files if c.path in self._unsure):
            log.warning("native deletes cannot hide rows of deleted batches in a data file: %s", self._unsure[path])
            unsure |= dict.fromkeys(index.within(bounds[path]), self._unsure[path])
        return {path: by_id for path, by_id in positions.items() if by_id}, unsure

    def _tasks(self, base: Base, found: Found, split: BoundsSplit) -> dict[str, Any]:
        """The scan tasks of all files that are dropped or whose native deletes change, by path."""
        assert base.facts.head_id is not None
        paths = {*found, *(f.path for f in split.all_rows_deleted)}
        if not paths:
            return {}
        return {str(t.file().location()): t for t in tasks_of(self.table, paths, base.facts.head_id)}

    def _positions(
        self, planned: PositionsPlan, before: Mapping[str, HiddenRows], tasks: Mapping[str, Any]
    ) -> DeleteChanges:
        """Write the native deletes by position."""
        if not planned.after:
            return DeleteChanges()
        changed = [tasks[p] for p in planned.after]
        self.context.reporter.phase(Phase.WRITING, f"native deletes of {len(changed)} files")
        if self._by_position is _VECTORS:
            whole = {p: after.whole(before[p].by_position) for p, after in planned.after.items()}
            written = write_vectors(self.table, changed, whole, self.context.run_id)
        else:
            replaced = [d for p, after in planned.after.items() for d in before[p].replaced_by(after.taken_over)]
            ours = {p: after.ours for p, after in planned.after.items()}
            written = write_position_deletes(self.table, changed, ours, replaced, self.context.run_id)
        self.written += written.paths
        return written


def require_format(table: SparkTable, native: NativeDeletes | None) -> None:
    """Check that a table of this format version can have such deletes.

    Raises:
        InputError: `FormatVersionMismatch`.
    """
    version = table.format_version
    match native:
        case None:
            return
        case NativeDeletes.DELETION_VECTORS:
            fits = version >= native.format_version
            remedy = f"Set spec.deletes to {_POSITIONS}, or set the table property format-version to 3."
        case NativeDeletes.POSITION_DELETES:
            fits = version == native.format_version
            remedy = f"Set spec.deletes to {_VECTORS}."
        case _:
            assert_never(native)
    if not fits:
        raise InputError(
            "FormatVersionMismatch",
            f"{table.full_name}: spec.deletes {native} is not supported for tables of format version {version}. "
            f"{remedy} Nothing was changed.",
        )


def counts(found: Found) -> Counter[str]:
    """The number of rows of each batch."""
    rows: Counter[str] = Counter()
    for by_id in found.values():
        rows.update({i: len(positions) for i, positions in by_id.items()})
    return rows


def refuse_to_lift(masking: Masking, lifts: Lifts) -> None:
    """Refuse Undos that would remove masks in the same commit as an Erase by records.

    Raises:
        CannotLift: An Undo cannot show exactly the rows of its batches again.
    """
    for undo, ids in lifts.values():
        if not masking.lift.keys().isdisjoint(ids):
            text = (
                f"Restatement {undo.name} removes native deletes, and waits until an Erase of records in the "
                "same run is committed."
            )
            raise CannotLift(undo.key, LetheError("WaitingForRestatement", text), again=True)


def check_lifts(
    masking: Masking, lifts: Lifts, found: Found, unsure: Mapping[str, str], still_hidden: Mapping[str, int]
) -> None:
    """Check that each Undo shows exactly the rows of its batches again.

    Raises:
        CannotLift: For the first that does not.
    """
    rows = counts(found)
    for undo, ids in lifts.values():
        try:
            check_lifted(undo.name, {i: masking.lift[i] for i in ids if i in masking.lift}, rows, unsure, still_hidden)
        except InputError as e:
            raise CannotLift(undo.key, e) from None


def mask_rest(context: RunContext, table: SparkTable, masker: Masker) -> None:
    """Mask the tombstones that are not masked yet.

    Those of other writers, those from before a change of `spec.deletes`, and those committed together with an Erase by
    records.

    Raises:
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        Exception: What the storage raises.
    """
    attempts = Attempts()
    last: list[Masks] = []

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        if base.is_masked:
            return NothingToCommit(None)
        masks = masker.masks(base, Delta(context.run_id), {})
        last[:] = [masks]
        if masks.delta.is_empty:
            return NothingToCommit(None)
        return Intent(
            masks.delta,
            masks.change((), base.facts.head_id) or LedgerOnly(),
            None,
            masks.applied,
            native=masks.native,
            masks_everything=masks.everything,
        )

    done = False
    try:
        done = commit_on_ledger(context, table, plan, attempts).snapshot_id is not None
    finally:
        used = last[0].deletes.paths if done else ()
        discard(table, [p for p in masker.written if p not in used], attempts)
        masker.written.clear()
