"""Writes native deletes for the tombstones of a commit, of the kind in `spec.deletes`. I/O; `lethe.files.native_deletes` decides.

Each file is searched once. Rows of a file never change, so after a conflict new files are read, and others only for batches that
came.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

from lethe.base.errors import InputError, LetheError
from lethe.contract.result import Phase
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import Deletes, NativeDeletes
from lethe.files.bounds import IdIndex, Suspects
from lethe.files.native_deletes import (
    Masked,
    Masking,
    PositionsPlan,
    check_lifted,
    every_position,
    plan_masking,
    plan_positions,
    with_masks,
)
from lethe.files.values import ValueKind, Values, ValueType
from lethe.ingest.schema_fit import field_ids
from lethe.ledger.ledger import Delta, Ledger, get_many
from lethe.ledger.tombstone import Tombstone, merge
from lethe.restatement.plan import recalled
from lethe.search.batches import BatchSearch, Search, TooMuchToSearch
from lethe.search.candidates import BATCHES, CandidateFile, files_of_batches, values_if_absent
from pyiceberg.io import FileIO
from pyroaring import FrozenBitMap64

from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Append, Change, LedgerOnly, RowDelta
from lethe_spark.jvm.data_files import (
    DataFile,
    DeleteChanges,
    HiddenRows,
    deleted_of,
    tasks_by_path,
    write_deletes,
)
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.run.context import Committer, table_io, table_properties

log = logging.getLogger(__name__)
_VECTORS: Final = NativeDeletes.DELETION_VECTORS
T = TypeVar("T")
Found: TypeAlias = Mapping[str, Mapping[str, FrozenBitMap64]]
"""Positions of rows, by the path of a file, then by batch id."""
Lifts: TypeAlias = Mapping[str, tuple[RestatementRequest, Collection[str]]]
"""Undos by key, each with the batches that it shows again."""


@dataclass(frozen=True)
class Masks:
    """The native deletes of a change of the ledger, written and not yet committed."""

    delta: Delta
    """The change, with its tombstones marked as masked."""
    native: NativeDeletes | None = None
    """The kind that was written. None: none was written."""
    deletes: DeleteChanges = field(default_factory=DeleteChanges)
    applied: tuple[Tombstone, ...] | None = None
    """The tombstones for `tombstone.vacuum.file`. None: no such file."""
    everything: bool = False
    """Whether every active tombstone is masked."""
    postponed: int = 0
    """The data files that were too many to search now: a later commit masks the tombstones."""

    def is_news(self, ledger: Ledger) -> bool:
        """Whether the change differs from this ledger: it writes deletes, or marks tombstones."""
        known = get_many(ledger.tombstones, [t.key for t in self.delta.add_tombstones])
        return self.native is not None or any(known.get(t.key) != t for t in self.delta.add_tombstones)

    def intent(
        self, outcome: T, head_id: int | None, added: tuple[DataFile, ...] = (), otherwise: Change | None = None
    ) -> Intent[T]:
        """The commit of the change of the ledger with its native deletes.

        Args:
            head_id: The snapshot that the deletes were made for. None: the table has none.
            added: New data files.
            otherwise: The change of the table if there are no native deletes. By default it adds the new files.
        """
        if head_id is not None and self.native is not None:
            change: Change = RowDelta(self.deletes, added, head_id)
        else:
            change = otherwise or (Append(added) if added else LedgerOnly())
        return Intent(self.delta, change, outcome, self.applied, native=self.native, masks_everything=self.everything)


class CannotLift(Exception):
    """An Undo cannot show exactly the rows of its batches again. `key` is the key of its request."""

    def __init__(self, key: str, error: LetheError, again: bool = False) -> None:
        super().__init__(str(error))
        self.key = key
        self.error = error
        self.again = again  # whether a later attempt may succeed


@dataclass
class NativeMasker:
    """Finds the rows of batches, and writes the native deletes that hide them. Commits nothing."""

    context: Committer
    table: IcebergTable
    native: NativeDeletes | None
    """The kind to write. None: it writes none, but an Undo still removes existing ones."""
    search: Search
    """Searches data files."""
    written: list[str] = field(default_factory=list)
    """The paths of all files that it wrote."""
    postponed: int = 0
    """As in `Masks`, of the last commit."""
    _asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """The batch ids that a file was searched for, by its path."""
    _found: dict[str, dict[str, FrozenBitMap64]] = field(default_factory=dict)
    """Row positions, by the path of the file, then by batch id."""
    _unsure: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be searched, by its path."""

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True, complete: bool = False) -> Masks:
        """Write what a change of the ledger needs on this base: deletion vectors, or position deletes for older format versions.

        Args:
            mask: Whether to mask tombstones. False: a later commit does.
            complete: Raise an error if there is too much to search. Otherwise a later commit masks the tombstones.

        Raises:
            TooMuchToSearch: And `complete`, or masks are removed.
            CannotLift: An Undo cannot show exactly the rows of its batches again.
        """
        native = self.native if mask else None
        masking = plan_masking(base.ledger, delta, base.field_id, native, base.is_masked)
        if masking.is_empty or base.facts.head_id is None:
            nothing = Masked(dict.fromkeys(masking.mask, 0))
            return Masks(with_masks(delta, masking, nothing, native), everything=native is not None)
        if not mask:
            refuse_to_lift(masking, lifts)
        try:
            found, unsure = self._searched(base, delta, frozenset(masking.lift) | frozenset(masking.mask))
        except TooMuchToSearch as e:
            if complete or masking.lift:
                raise
            log.info("native deletes follow in a later commit: %s", e.message)
            return Masks(delta, postponed=e.files)
        tasks = tasks_by_path(self.table, found, base.facts.head_id)
        before = deleted_of(self.table, tasks, self._files)
        planned = plan_positions({p: of.by_position for p, of in before.items()}, found, masking, native)
        check_lifts(masking, lifts, found, unsure, planned.still_hidden)
        deletes = self._positions(planned, before, tasks)
        counted = counts(found)
        marked = with_masks(delta, masking, Masked(counted, planned.beside, unsure), native)
        by_id = {t.id: t for t in marked.add_tombstones if t.namespace == base.field_id}
        applied = tuple(by_id[i] for i in sorted(masking.mask) if counted[i])
        wrote = bool(deletes.added or deletes.replaced)
        return Masks(
            delta=marked,
            native=NativeDeletes.of_table(self.table.format_version) if wrote else None,
            deletes=deletes,
            applied=applied if wrote and applied else None,
            everything=native is not None and not unsure,
        )

    @property
    def _files(self) -> FileIO:
        return table_io(self.context, self.table.location)

    def _searched(self, base: Base, delta: Delta, ids: frozenset[str]) -> tuple[Found, dict[str, str]]:
        """Search the data files that might hold rows of the batches. Of a file of one batch, the metadata names all rows.

        After a conflict, new files are searched, and the others only for batches that came.

        Returns:
            The positions of the rows; and by id of batches that might have rows in a file that cannot be searched, why.
        """
        if not ids:
            return {}, {}
        values = Values(ValueKind(ValueType.STRING), tuple(sorted(ids)))
        tombstones = located(base, delta, ids)
        might_hold = Suspects(tombstones).might_hold
        named = files_of_batches(base.iceberg, base.facts.head_id, base.field_id, values, might_hold)
        of_one = {f.path: {str(f.lower): every_position(f.records)} for f in named.whole}
        files = [c for c, _ in named.mixed]
        absent = values_if_absent(files, BATCHES, values)
        before = {c.path: self._asked[c.path] for c in files if c.path in self._asked}
        came = frozenset[str]().union(*(ids - asked for asked in set(before.values())))
        might_hold_came = Suspects(t for t in tombstones if t.id in came).might_hold
        new = [c for c in files if c.path not in before]
        others = [c for c, bounds in named.mixed if came - before.get(c.path, came) and might_hold_came(bounds)]
        self._search(new, base, ids, absent)
        self._search(others, base, came, absent)
        self._asked |= dict.fromkeys((c.path for c in (*new, *others)), ids)
        self.context.step("after-search")
        positions = {c.path: {i: p for i, p in self._found.get(c.path, {}).items() if i in ids} for c in files}
        unsure: dict[str, str] = {}
        index = IdIndex(ids)
        for path, bounds in ((c.path, bounds) for c, bounds in named.mixed if c.path in self._unsure):
            log.warning("native deletes cannot hide rows of deleted batches in a data file: %s", self._unsure[path])
            unsure |= dict.fromkeys(index.within(bounds), self._unsure[path])
        return {path: by_id for path, by_id in positions.items() if by_id} | of_one, unsure

    def _search(
        self, files: Sequence[CandidateFile], base: Base, ids: frozenset[str], absent: Mapping[str, Any]
    ) -> None:
        """Search data files for rows of batches. `absent`: the batch of files without the batch column, by path."""
        if not files:
            return
        size = sum(c.size for c in files)
        self.context.reporter.phase(
            Phase.SCAN, f"{len(files)} files of {size} bytes for the rows of {len(ids)} batches"
        )
        asked = BatchSearch(
            base.field_id,
            ids,
            table_properties(self.context),
            field_ids(base.iceberg.properties),
            absent={c.path: absent[c.path] for c in files if absent.get(c.path) in ids},
            table_uuid=self.table.uuid,
        )
        result = self.search(asked, files)
        for path, found in result.found.items():
            self._found.setdefault(path, {}).update(found)
        self._unsure |= result.unsure

    def _positions(
        self, planned: PositionsPlan, before: Mapping[str, HiddenRows], tasks: Mapping[str, Any]
    ) -> DeleteChanges:
        """Write the native deletes by position."""
        if not planned.after:
            return DeleteChanges()
        self.context.reporter.phase(Phase.WRITING, f"native deletes of {len(planned.after)} files")
        if self.table.format_version >= _VECTORS.format_version:
            positions = {p: after.whole(before[p].by_position) for p, after in planned.after.items()}
            replaced = [d for p in planned.after for d in (*before[p].ours, *before[p].theirs)]
        else:
            positions = {p: after.ours for p, after in planned.after.items()}
            replaced = [d for p, after in planned.after.items() for d in before[p].replaced_by(after.taken_over)]
        written = write_deletes(self.table, tasks, positions, replaced, self.context.run_id, self._files)
        self.written += written.paths
        return written

    def discard_unused(self, committed: Masks | None, attempts: Attempts) -> None:
        """Delete the files that were written in vain, and forget all written files. Called after each commit.

        Args:
            committed: The native deletes of the commit. None: nothing was committed.
        """
        used = committed.deletes.paths if committed is not None else ()
        self.postponed = committed.postponed if committed is not None else 0
        discard(self.table, [p for p in self.written if p not in used], attempts)
        self.written.clear()


def located(base: Base, delta: Delta, ids: Iterable[str]) -> list[Tombstone]:
    """For each id a tombstone that names the partitions which rows of the batch may be in.

    Those of the change, and those that it replaces. The ledger knows the partitions, unless other writers have added files since:
    its next commit takes note of them.
    """
    tombstones = {i: Tombstone(i, base.field_id, datetime.min.replace(tzinfo=UTC)) for i in ids}
    if not base.knows_partitions:
        return list(tombstones.values())
    known = get_many(base.ledger.tombstones, [t.key for t in tombstones.values()])
    tombstones |= {t.id: t for t in known.values()}
    for new in delta.add_tombstones:
        if new.namespace == base.field_id and new.id in tombstones:
            tombstones[new.id] = merge(known[new.key], new) if new.key in known else new
    return list(tombstones.values())


def native_kind(table: IcebergTable, deletes: Deletes) -> NativeDeletes | None:
    """The native deletes to write to a table.

    Raises:
        InputError: `FormatVersionMismatch`, if the table cannot have those that `spec.deletes` names.
    """
    version = table.format_version
    native = deletes.native(version)
    if native not in (None, NativeDeletes.of_table(version)):
        raise InputError(
            "FormatVersionMismatch",
            f"{table.full_name}: spec.deletes {deletes} is not supported for tables of format version {version}. "
            f"Set spec.deletes to {Deletes.AUTO}. Nothing was changed.",
        )
    return native


def counts(found: Found) -> Counter[str]:
    """The number of rows of each batch."""
    rows: Counter[str] = Counter()
    for by_id in found.values():
        rows.update({i: len(positions) for i, positions in by_id.items()})
    return rows


def lifts_of(ledger: Ledger, requests: Iterable[RestatementRequest]) -> Lifts:
    """The Undos of these requests, each with the batches that it shows again."""
    undos = [r for r in requests if r.undoes]
    known = get_many(ledger.requests, [r.undoes for r in undos])
    return {r.key: (r, recalled(known[r.undoes]).batch_ids) for r in undos if r.undoes in known}


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


def mask_rest(context: Committer, table: IcebergTable, masker: NativeMasker) -> int | None:
    """Mask the tombstones that are not masked yet.

    Those of batches of which another writer has added rows, those from before a change of `spec.deletes`, those that were too
    many for one commit, and those committed together with an Erase by records.

    Returns:
        The id of the new snapshot; None: there were no such tombstones, or native deletes cannot hide more of their rows.

    Raises:
        TooMuchToSearch: The masker searches no more than it may.
        ConflictError: The table moved between plan and commit.
        UnknownCommitState: It is unknown whether the commit succeeded.
        Exception: What the storage raises.
    """
    attempts = Attempts()
    last: list[Masks] = []

    def plan(base: Base) -> Intent[None] | NothingToCommit[None]:
        if base.is_masked:
            return NothingToCommit(None)
        masks = masker.masks(base, Delta(context.run_id), {}, complete=True)
        last[:] = [masks]
        if not (masks.everything or masks.is_news(base.ledger)):
            return NothingToCommit(None)
        return masks.intent(None, base.facts.head_id)

    landed: int | None = None
    try:
        landed = commit_on_ledger(context, table, plan, attempts).snapshot_id
    finally:
        masker.discard_unused(last[0] if landed is not None else None, attempts)
    return landed
