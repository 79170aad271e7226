"""Restatement: carries out a group of requests in one snapshot, with the data of Replays and the deletes of Erases. I/O.

A dry run only reports what each request would do. No row of an unusable replacement is written, and it stops only its own
request. Native deletes are of the kind in `spec.deletes`; `lethe.files.native_deletes` decides.
"""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, assert_never

from lethe.base.errors import InputError, LedgerError, LetheError, TableError, TransientError
from lethe.contract.result import Phase, RequestResult, RestatementGroupResult, RunOutcome
from lethe.contract.run import RestatementRequest
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
from lethe.restatement.group import plan_dry_run, set_aside
from lethe.restatement.plan import PlanScope, ReplacementRows
from lethe.search.candidates import candidates, values_if_absent
from lethe.search.positions import Wanted
from pyroaring import FrozenBitMap64

from lethe_spark.commit import replacement_files
from lethe_spark.commit.group_commit import (
    CannotLift,
    GroupCommit,
    Lifts,
    Masker,
    Masks,
    Replacements,
    result_of,
    unknown_ids_of,
)
from lethe_spark.commit.ledger_commit import Attempts, Intent, NothingToCommit, commit_on_ledger, discard, noted_run
from lethe_spark.commit.opening import open_table
from lethe_spark.commit.replacement_files import not_now, refused, with_ids
from lethe_spark.commit.table_state import Base, observe_base
from lethe_spark.ingest import BatchSource, write_into
from lethe_spark.jobs.clean_up import finished
from lethe_spark.jobs.lost_partitions import ANY, leave_lost_specs, unmasked_ids
from lethe_spark.jobs.restatement.erase import RowEraser, keyed_of, unusable_keys, wanted_by
from lethe_spark.jvm.commit import LedgerOnly
from lethe_spark.jvm.data_files import (
    DataFile,
    DeleteChanges,
    HiddenRows,
    deleted_of,
    position_deletes_of,
    tasks_of,
    write_position_deletes,
    write_vectors,
)
from lethe_spark.jvm.scan_tasks import scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_properties, with_digests
from lethe_spark.sql.searching import BatchSearch, named, search_batches, semi_join

log = logging.getLogger(__name__)
_BATCHES: Final = "batches"
_VECTORS: Final = NativeDeletes.DELETION_VECTORS
_POSITIONS: Final = NativeDeletes.POSITION_DELETES
Found: TypeAlias = Mapping[str, Mapping[str, FrozenBitMap64]]
"""Positions of rows, by the path of a file, then by batch id."""


@dataclass
class SparkMasker:
    """Writes native deletes with Spark.

    Each file is searched once. Rows of a file never change, so after a conflict only new files are read.
    """

    context: RunContext
    table: SparkTable
    native: NativeDeletes | None
    """The kind of native deletes, from `spec.deletes`."""
    written: list[str] = field(default_factory=list)
    """The paths of all files that it wrote."""
    _asked: dict[str, frozenset[str]] = field(default_factory=dict)
    """The batch ids that a file was searched for, by its path."""
    _found: dict[str, dict[str, FrozenBitMap64]] = field(default_factory=dict)
    """Row positions, by the path of the file, then by batch id."""
    _unsure: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be searched, by its path."""

    def masks(self, base: Base, delta: Delta, lifts: Lifts, mask: bool = True) -> Masks:
        """Search the data files with Spark, and write deletion vectors, or position deletes for older format versions.

        Raises:
            CannotLift: An Undo cannot show exactly the rows of its batches again.
        """
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
        planned = plan_positions(
            {p: file_deletes.by_position for p, file_deletes in before.items()}, found, masking, native
        )
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
        searches = {_BATCHES: Wanted.of(base.field_id, values)}
        files = [c for c in candidates(base.iceberg, base.facts.head_id, searches) if c.path not in without]
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


def write_replacements(
    context: RunContext, table: SparkTable, requests: Sequence[RestatementRequest], base: Base
) -> Replacements:
    """Read the replacements of these requests and write their rows as data files. Commits nothing.

    Args:
        requests: Their replacements have distinct batch ids.

    Raises:
        Exception: As `write_into`.
        TransientError: The store does not answer.
    """
    context.reporter.phase(Phase.READING, f"{len(requests)} replacements")
    aside = unusable_keys(requests, base)
    replacements = find_replacements(context, [r for r in requests if r.key not in aside])
    aside |= {r.key: result for r, result in replacements if isinstance(result, RequestResult)}
    sources = [(r, source) for r, source in replacements if isinstance(source, BatchSource)]
    context.step("after-list")
    if not sources:
        return Replacements(aside=aside)
    bytes_of = {s.id: sum(o.size for o in s.objects) for _, s in sources}
    context.reporter.phase(Phase.WRITING, f"{len(sources)} replacements, {sum(bytes_of.values())} bytes")
    try:
        done = write_into(context, table, [s for _, s in sources], base.batch_column, keyed=keyed_of(requests))
    except (LedgerError, TableError):
        raise
    except InputError as e:  # the table accepts none of the rows; requests that write no rows go on
        return Replacements(aside=aside | {r.key: set_aside(r, e) for r, _ in sources})
    context.reporter.rows(done.rows, sum(bytes_of.values()))
    asked = {s.id: r for r, s in sources}
    for bad in done.refused:
        aside[asked[bad.batch_id].key] = refused(asked[bad.batch_id], bad.reason, bad.message)
    for bad in done.unread:
        aside[asked[bad.batch_id].key] = not_now(asked[bad.batch_id], bad.reason, bad.message)
    context.step("after-write")
    rows = {asked[i].key: ReplacementRows(n, bytes_of[i]) for i, n in done.rows_per_batch.items()}
    keys = {asked[i].key: table_ for i, table_ in done.keys.items()}
    return Replacements(done.files, rows, aside, keys)


def find_replacements(
    context: RunContext, requests: Iterable[RestatementRequest]
) -> list[tuple[RestatementRequest, BatchSource | RequestResult]]:
    """Find the replacements of Replays.

    Returns:
        Each request with its replacement, or with its result if that cannot be used.
    """
    spec = context.spec
    replacements = replacement_files.find_replacements(
        requests, spec.table.catalog, context.catalog_properties, spec.buffer.uri
    )
    return [
        (r, f if isinstance(f, RequestResult) else BatchSource(_new_batch(r), f, _folder(r))) for r, f in replacements
    ]


def _folder(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.uri


def _new_batch(request: RestatementRequest) -> str:
    assert request.replacement is not None
    return request.replacement.batch_id


def run(context: RunContext) -> RestatementGroupResult:
    """Carry out the requests of `run.json` in one commit. A refused request does not affect the others.

    Raises:
        InputError: The user has to change something.
        ConflictError: The table moved between plan and commit.
        TransientError: Also if none of the requests can be carried out now.
    """
    spec = context.spec
    assert spec.restatement is not None
    context.reporter.phase(Phase.PLANNING)
    requests = tuple({r.key: r for r in spec.restatement.requests}.values())
    if spec.restatement.dry_run:
        return _planned(context, requests)
    table = open_table(context)
    native = spec.restatement.deletes.native
    require_format(table, native)
    requests, aside = with_ids(with_digests(requests), context.catalog_properties, table.location)

    def write(adding: Sequence[RestatementRequest], base: Base) -> Replacements:
        return write_replacements(context, table, adding, base)

    def find(unknown_ids: Sequence[str], base: Base) -> frozenset[str]:
        return _in_files(context, table, base, unknown_ids)

    if native is not None or any(r.undoes or r.searches for r in requests):
        searches = (
            any(r.searches for r in requests) and table.format_version >= NativeDeletes.DELETION_VECTORS.format_version
        )
        ids = unmasked_ids(context, table, [i for r in requests for i in r.batch_ids]) if native is not None else ()
        with noted_run(context, table, None):
            leave_lost_specs(context, table, ANY if searches else ids)
    masker = SparkMasker(context, table, native)
    eraser, listed = RowEraser(context, table), spec.restatement.listed_snapshot_id
    group = GroupCommit(context, table, requests, write, find, eraser, masker, aside, listed)
    if any(r.searches for r in requests):
        with noted_run(context, table, None):
            done = group.carry_out()
    elif brought := [r.replacement.batch_id for r in requests if r.replacement is not None]:
        with noted_run(context, table, brought):
            done = group.carry_out()
    else:
        done = group.carry_out()
    if masker.native is not None:
        mask_rest(context, table, masker)
    return finished(context, table, result_of(spec, requests, done))


def _planned(context: RunContext, requests: Sequence[RestatementRequest]) -> RestatementGroupResult:
    """The result of a dry run: what each request would do on its own. Changes nothing."""
    table = open_table(context, prepare=False)
    base = observe_base(context, table)
    requests, aside = with_ids(requests, context.catalog_properties, table.location)
    replays = [r for r in requests if r.replacement is not None and r.key not in aside]
    aside |= {r.key: found for r, found in find_replacements(context, replays) if isinstance(found, RequestResult)}
    searches: dict[str, Wanted] = {}
    for r in requests:
        if r.rows is not None and r.key not in aside:
            try:
                searches[r.key] = wanted_by(r, base)
            except (InputError, TransientError) as e:
                aside[r.key] = set_aside(r, e, again=isinstance(e, TransientError))
    held = candidates(base.iceberg, base.facts.head_id, searches)
    searched = {key: [c for c in held if key in c.keys] for key in searches}
    unknown_ids = unknown_ids_of(base.ledger, requests)
    in_files = _in_files(context, table, base, unknown_ids) if unknown_ids else frozenset()
    files, spec = base.files(), context.spec
    scope = PlanScope(spec.run_id, datetime.now(UTC), base.field_id, in_files)
    return RestatementGroupResult(
        run_id=spec.run_id,
        family=spec.family,
        attempt=spec.attempt,
        outcome=RunOutcome.PLANNED,
        finished_time=scope.now,
        requests=tuple(
            aside.get(r.key) or plan_dry_run(base.ledger, r, files, scope, searched.get(r.key)) for r in requests
        ),
    )


def _in_files(context: RunContext, table: SparkTable, base: Base, unknown_ids: Sequence[str]) -> frozenset[str]:
    """The ids that have rows in the head.

    Reads the batch column of each file whose bounds include one of the ids, because bounds also include ids that the file does
    not contain.
    """
    index = IdIndex(unknown_ids)
    paths = [f.path for f in base.files() if index.might_hold(f)]
    if not paths or base.facts.head_id is None:
        return frozenset()
    context.reporter.phase(Phase.SCAN, f"{len(unknown_ids)} unknown batch ids in {len(paths)} files")
    column = named(base.batch_column)
    with scan_files(table, paths, base.facts.head_id) as scanned:
        rows = semi_join(scanned.frame.select(column), base.batch_column, unknown_ids).distinct().collect()
    return frozenset(str(r[0]) for r in rows)
