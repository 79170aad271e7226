"""Plans a vacuum: which files to rewrite or delete, in which order, and which tombstones each commit removes. Pure."""

import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import accumulate
from math import exp, frexp, log1p
from typing import Final

from lethe.base.names import ROW_ID_COLUMNS
from lethe.contract.run import VacuumSpec
from lethe.files.bounds import NEVER, FileBounds, Layer, Suspects, outdated
from lethe.ledger.ledger import Delta, Ledger, get_many
from lethe.ledger.tombstone import META_PURGED_BY, Erasure, Tombstone

_LOG_IMPOSSIBLE = -1e9
"""The logarithm of a probability of almost 0."""

MERGED_SHARE = 0.02
"""Small files next to rewritten files are merged with them; at most this fraction of additional bytes."""
SMALL_PART = 8
"""A file is small if it is smaller than the target size divided by this."""
_TARGET = "write.target-file-size-bytes"
_TARGET_BYTES = 512 * 1024 * 1024
"""Iceberg's default of the target file size."""
_NOTHING = -10_000
"""Below the exponent of any number."""

WINDOW_CLOSED: Final = "WindowClosed"
MAX_RUN_SECONDS: Final = "MaxRunSeconds"

ROW_IDS_SINCE: Final = 3
"""The format version since which rows have ids."""
_FORMAT_VERSIONS: Final = (1, 2, 3)
_FORMAT: Final = "write.format.default"
_PARQUET: Final = "parquet"
_ENCRYPTED: Final = "encryption.key-id"
_BLOOM_FILTER_OF: Final = "write.parquet.bloom-filter-enabled.column."


class Estimate:
    """Estimates, for files that might hold tombstoned rows, how many they hold.

    Bounds only say that a file might hold a batch. Where files overlap, several might, but few do: a batch is written in one
    piece, so its rows are in as few files as they fit into. The estimate only decides the order of files.

    Args:
        files: All these files.
        rows: The number of rows by batch id; a batch that is missing counts as one row.
    """

    def __init__(self, suspects: Suspects, files: Iterable[FileBounds], rows: Mapping[str, int]) -> None:
        self._suspects = suspects
        by_layer: dict[int, tuple[Layer, list[FileBounds]]] = {}
        for f in files:
            for layer in suspects.layers_of(f):
                by_layer.setdefault(id(layer), (layer, []))[1].append(f)
        self._of = {key: _Expected(layer, index, rows) for key, (layer, index) in by_layer.items()}

    def rows_in(self, file: FileBounds) -> float:
        """The expected number of tombstoned rows in the file."""
        return sum(self._of[id(layer)].rows(*layer.index.span(file)) for layer in self._suspects.layers_of(file))

    def batches_in(self, file: FileBounds) -> float:
        """The expected number of tombstoned batches that the file holds rows of."""
        return sum(self._of[id(layer)].batches(*layer.index.span(file)) for layer in self._suspects.layers_of(file))

    def none_in(self, file: FileBounds) -> float:
        """The probability that no row of the file is tombstoned."""
        return exp(
            sum(self._of[id(layer)].log_none(*layer.index.span(file)) for layer in self._suspects.layers_of(file))
        )


class _Expected:
    """Prefix sums over the tombstones of a layer.

    Of their expected rows in one file, of the probability that a file holds some, and of the logarithm of the
    probability that it holds none.
    """

    def __init__(self, layer: Layer, files: Sequence[FileBounds], rows: Mapping[str, int]) -> None:
        edges = [0] * (len(layer.tombstones) + 1)
        for f in files:
            start, end = layer.index.span(f)
            edges[start] += 1
            edges[end] -= 1
        rows_in_a_file = max(1.0, sum(f.records for f in files) / len(files))
        each = [0.0]
        some = [0.0]
        none = [0.0]
        for t, depth in zip(layer.tombstones, accumulate(edges), strict=False):
            row_count = _rows_of(t, rows)
            files_needed = max(1.0, row_count / rows_in_a_file)
            held = min(1.0, files_needed / max(depth, 1))
            each.append(row_count / max(depth, 1))
            some.append(held)
            none.append(_LOG_IMPOSSIBLE if held >= 1.0 else log1p(-held))
        self._rows, self._some, self._none = (list(accumulate(sums)) for sums in (each, some, none))

    def rows(self, start: int, end: int) -> float:
        return self._rows[end] - self._rows[start]

    def batches(self, start: int, end: int) -> float:
        return self._some[end] - self._some[start]

    def log_none(self, start: int, end: int) -> float:
        return self._none[end] - self._none[start]


def _rows_of(tombstone: Tombstone, rows: Mapping[str, int]) -> float:
    """The expected rows in each partition that the batch may have rows in."""
    return max(rows.get(tombstone.id, 1), 1) / max(len(tombstone.partitions or ()), 1)


def in_vain_percent(estimate: Estimate, files: Iterable[FileBounds], aged: Collection[str] = ()) -> float | None:
    """The expected share of the files' bytes, in percent, that is in files without rows to purge; None: there are no files.

    Files with native deletes certainly hold deleted rows, and those with rows that are too old (`aged`, by path) hold such rows.
    """
    file_list = list(files)
    total = sum(f.size for f in file_list)
    vain = sum(f.size * estimate.none_in(f) for f in file_list if not f.deletes and f.path not in aged)
    return 100 * vain / total if total else None


class Drift:
    """Measures how much the files of a partition overlap in batch order."""

    def __init__(self) -> None:
        self._bounds: dict[str | None, tuple[list[str], list[str], list[str]]] = {}

    def add(self, file: FileBounds) -> None:
        """Add a file; O(1). Keeps only the bounds."""
        lowers, uppers, single = self._bounds.setdefault(file.partition, ([], [], []))
        if file.lower is not None and file.lower == file.upper:
            single.append(file.lower)
            return
        lowers.append(file.lower or "")  # nothing sorts before the empty text
        if file.upper is not None:
            uppers.append(file.upper)

    def mean_depth(self) -> float | None:
        """The average number of files of a partition whose range contains the lower bound of a file.

        That includes the file itself. 1.0: files share at most the last batch of one and the first of the next. None:
        there are no files. O(n log n).
        """
        total = files = 0
        for lowers, uppers, single in self._bounds.values():
            lowers.sort()
            uppers.sort()
            total += sum(bisect_right(lowers, lower) - bisect_right(uppers, lower) for lower in lowers)
            # Files that hold only the same batch do not count as overlapping.
            total += sum(1 + bisect_left(lowers, batch) - bisect_right(uppers, batch) for batch in single)
            files += len(lowers) + len(single)
        return total / files if files else None


def target_bytes(requested: int | None, properties: Mapping[str, str]) -> int:
    """The target size of data files: as requested, or else by the table's properties."""
    return requested or int(properties.get(_TARGET, _TARGET_BYTES))


def stays_large(file: FileBounds, rows: int, target: int) -> bool:
    """Whether a file is not small without some of its rows, so that nothing is gained by merging it with others.

    Args:
        rows: The number of rows that it loses.
        target: The target size of data files, in bytes.
    """
    left = file.size * (file.records - rows) // max(1, file.records)
    return left >= target // SMALL_PART


def apart(files: Iterable[FileBounds]) -> frozenset[str]:
    """The paths of the files that need not be sorted together with another file.

    Their range of batches overlaps with that of no other file of their partition. Ranges may share a batch at their
    ends. Files with an unknown bound overlap.
    """
    by_partition: dict[str | None, list[tuple[str, str, str]]] = {}
    unknown: set[str | None] = set()
    for f in files:
        if f.lower is None or f.upper is None:
            unknown.add(f.partition)
        else:
            by_partition.setdefault(f.partition, []).append((f.lower, f.upper, f.path))
    paths: set[str] = set()
    for partition, ranges in by_partition.items():
        if partition in unknown:
            continue
        ranges.sort()
        ends = list(accumulate((upper for _, upper, _ in ranges), max))
        for n, (lower, upper, path) in enumerate(ranges):
            before = n == 0 or ends[n - 1] <= lower
            after = n + 1 == len(ranges) or upper <= ranges[n + 1][0]
            if before and after:
                paths.add(path)
    return frozenset(paths)


@dataclass(frozen=True)
class PurgeDeadlines:
    """Which deadlines a vacuum considers."""

    due_by: datetime | None = None
    """Only deadlines up to this time; None: none."""
    erase_by: datetime | None = None
    """The deadline of rows under native deletes; None: there is none."""


def by_priority(
    files: Iterable[FileBounds],
    suspects: Suspects,
    estimate: Estimate,
    deadlines: PurgeDeadlines,
    aged: Collection[str] = (),
) -> list[FileBounds]:
    """Order the files that might hold tombstoned rows, rows under native deletes, or rows that are too old.

    Files with a deadline come first, the earliest deadline before the others, then those with rows that are too old. Then come
    the files from which readers gain most: those with the most expected deleted rows per byte to rewrite, because readers have to
    filter each row of a file that might hold deleted rows. Files with a similar gain are ordered by partition and batch.

    Args:
        aged: Paths of the files that might hold rows that are too old.
    """
    due_by, erase_by = deadlines.due_by, deadlines.erase_by

    def rank(file: FileBounds) -> tuple[datetime, bool, int, str, str, str]:
        due = NEVER
        if due_by is not None:
            due = min(suspects.earliest(file), erase_by if erase_by is not None and file.deletes else NEVER)
        rows = estimate.rows_in(file)
        gain = frexp(rows / max(file.size, 1))[1] if rows else _NOTHING  # the exponent of 2
        is_due = due_by is not None and due <= due_by
        is_young = file.path not in aged
        return (due if is_due else NEVER, is_young, -gain, file.partition or "", file.lower or "", file.path)

    return sorted(files, key=rank)


def within_budget(
    files: Sequence[FileBounds], max_bytes: int | None, spent: int = 0
) -> tuple[tuple[FileBounds, ...], tuple[FileBounds, ...]]:
    """Split ordered files into those within the budget and those for the next vacuum.

    If nothing was spent before, the first file is always within the budget: otherwise a file larger than the budget would never
    be purged.

    Args:
        max_bytes: The budget of a run; None: no limit.
        spent: Bytes of the budget spent before.
    """
    if max_bytes is None:
        return tuple(files), ()
    taken: list[FileBounds] = []
    left: list[FileBounds] = []
    for f in files:
        if spent + f.size <= max_bytes or not (taken or spent):
            taken.append(f)
            spent += f.size
        else:
            left.append(f)
    return tuple(taken), tuple(left)


def first_step(files: Sequence[FileBounds], step_bytes: int) -> tuple[FileBounds, ...]:
    """The first files, of about `step_bytes` in total; at least one, if there is one."""
    chosen: list[FileBounds] = []
    size = 0
    for f in files:
        if chosen and size + f.size > step_bytes:
            break
        chosen.append(f)
        size += f.size
    return tuple(chosen)


def bytes_after_conflict(files: Iterable[FileBounds], step_bytes: int) -> int:
    """The size of the next step after one with these files was in vain because others changed some of them.

    A quarter of it is likelier to be committed before others change it again.
    """
    return max(1, min(step_bytes, sum(f.size for f in files) // 4))


def small_neighbours(
    rewritten: Sequence[FileBounds], small: Iterable[FileBounds], at_most: int | None = None
) -> tuple[FileBounds, ...]:
    """Choose small files without deleted rows to merge with the rewritten files.

    They are of the same partition, next to a rewritten file in batch order or within its range. The smallest first, up
    to `MERGED_SHARE`.

    Args:
        at_most: A further limit in bytes; None: no further limit.
    """
    left = int(sum(f.size for f in rewritten) * MERGED_SHARE)
    left = left if at_most is None else min(left, at_most)
    by_partition: dict[str, list[FileBounds]] = {}
    for f in rewritten:
        if f.partition is not None:
            by_partition.setdefault(f.partition, []).append(f)
    beside: list[FileBounds] = []
    small_of: dict[str, list[FileBounds]] = {}
    for f in small:
        if f.partition in by_partition:
            small_of.setdefault(f.partition or "", []).append(f)
    for partition, files in small_of.items():
        beside += _adjacent(by_partition[partition], files)
    neighbours: list[FileBounds] = []
    for f in sorted(beside, key=lambda f: (f.size, f.path)):
        if f.size > left:
            break
        neighbours.append(f)
        left -= f.size
    return tuple(neighbours)


def _adjacent(rewritten: Sequence[FileBounds], small: Sequence[FileBounds]) -> list[FileBounds]:
    """The small files directly before or after a rewritten file, in the order of lower bounds."""
    ranked = sorted(
        [(f.lower or "", True, f) for f in rewritten] + [(f.lower or "", False, f) for f in small], key=_rank
    )
    files: list[FileBounds] = []
    for index, (_, is_rewritten, f) in enumerate(ranked):
        if is_rewritten:
            continue
        before = ranked[index - 1][1] if index else False
        after = ranked[index + 1][1] if index + 1 < len(ranked) else False
        if before or after:
            files.append(f)
    return files


def _rank(entry: tuple[str, bool, FileBounds]) -> tuple[str, bool, str]:
    lower, is_rewritten, file = entry
    return lower, is_rewritten, file.path


@dataclass(frozen=True)
class AgedRows:
    """The rows that a plan removes because they are too old."""

    cutoff: date
    """Rows with an earlier time than this UTC day are too old."""
    rule: str
    """What tells the time of a row."""
    field_id: int
    """Of the batch column."""
    files: frozenset[str]
    """Paths of the files that lose rows for their age, or may do so. Postponed files may be among them."""
    batch_ids: frozenset[str] = frozenset()
    """Of a step: the batches in its files that are too old. Empty if a column says which rows are."""


@dataclass(frozen=True)
class VacuumPlan:
    """The plan of a run, by bounds alone, or of one step."""

    snapshot_id: int
    delete: tuple[FileBounds, ...]
    """Files in which all rows are tombstoned."""
    rewrite: tuple[FileBounds, ...]
    """Files to rewrite without their deleted rows, in this order."""
    tombstones: tuple[Tombstone, ...]
    """All that the run purges."""
    applied: tuple[Tombstone, ...]
    """The tombstones whose rows are purged: those that the files might hold or, after a search, do hold; and others whose rows
    native deletes hide in these files.
    """
    postponed: tuple[FileBounds, ...] = ()
    """Files left for the next vacuum."""
    aged: AgedRows | None = None
    """None: no row is removed for its age."""

    @property
    def touched(self) -> frozenset[str]:
        """The paths of the files that the plan removes from the table, rewritten ones included. Postponed ones stay."""
        return frozenset(f.path for f in (*self.delete, *self.rewrite))

    @property
    def losing_aged(self) -> tuple[FileBounds, ...]:
        """The files that it removes from the table and that lose rows for their age."""
        paths = self.aged.files if self.aged is not None else ()
        return tuple(f for f in (*self.delete, *self.rewrite) if f.path in paths)

    @property
    def losing_aged_in_part(self) -> tuple[FileBounds, ...]:
        """Of these files, those that it rewrites."""
        paths = self.aged.files if self.aged is not None else ()
        return tuple(f for f in self.rewrite if f.path in paths)

    def batches_leaving(self, for_age: bool) -> frozenset[str]:
        """The batches whose rows are left out of rewritten files.

        Args:
            for_age: Of the files in `losing_aged`. Rows of too old batches stay in others, because holds cover some of them.
        """
        too_old = self.aged.batch_ids if self.aged is not None and for_age else frozenset()
        return too_old | {t.id for t in self.applied}

    @property
    def digest(self) -> str:
        """Identifies the plan: the same files, tombstones and day of too old rows have the same digest."""
        files = [sorted(f.path for f in group) for group in (self.delete, self.rewrite)]
        marks = sorted([t.id, t.added_on.isoformat(), *t.restatements] for t in self.applied)
        aged = [[self.aged.cutoff.isoformat(), self.aged.rule]] if self.aged is not None and self.losing_aged else []
        document = json.dumps([*files, marks, *aged], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(document.encode()).hexdigest()[:32]


def tombstones_to_purge(ledger: Ledger, field_id: int, batch_ids: Collection[str] = ()) -> tuple[Tombstone, ...]:
    """All tombstones of the batch column, or those of these batches."""
    if batch_ids:
        return tuple(get_many(ledger.tombstones, [(field_id, i) for i in batch_ids]).values())
    return tuple(t for t in ledger.tombstones.values() if t.namespace == field_id)


def unpurged_record_erasures(ledger: Ledger, field_id: int) -> tuple[Erasure, ...]:
    """The open Erases by records that may have rows in files.

    While there is one, a vacuum also rewrites files with native deletes, because the hidden rows are still in these files.
    """
    return tuple(e for e in ledger.unpurged_erasures if e.field_id != field_id)


@dataclass(frozen=True)
class ScannedSnapshot:
    """What SCAN found in a snapshot, by bounds."""

    snapshot_id: int
    tombstones: tuple[Tombstone, ...]
    """The tombstones to purge."""
    suspects: Suspects
    """The index of these tombstones."""
    all_rows_deleted: Collection[FileBounds]
    """Files in which all rows are tombstoned: deleting them is free, so it needs no budget."""
    may_contain_deleted_rows: Collection[FileBounds]
    """Files that might hold tombstoned rows, rows under native deletes to erase, or rows that are too old."""
    aged: AgedRows | None = None
    """None: no row is too old."""


def plan_vacuum(
    scanned: ScannedSnapshot, estimate: Estimate, deadlines: PurgeDeadlines, max_bytes: int | None = None
) -> VacuumPlan:
    """Choose the files of a snapshot to delete and to rewrite.

    Args:
        estimate: Of the files in `scanned.might`.
        max_bytes: Limit for the total size of files to rewrite; None: no limit.
    """
    aged = scanned.aged.files if scanned.aged is not None else frozenset()
    ordered = by_priority(scanned.may_contain_deleted_rows, scanned.suspects, estimate, deadlines, aged)
    rewrite, postponed = within_budget(ordered, max_bytes)
    ids = scanned.suspects.covered((*scanned.all_rows_deleted, *rewrite))
    applied = tuple(t for t in scanned.tombstones if t.id in ids)
    return VacuumPlan(
        scanned.snapshot_id,
        tuple(scanned.all_rows_deleted),
        rewrite,
        scanned.tombstones,
        applied,
        postponed,
        scanned.aged,
    )


def earliest_deadline(erasures: Iterable[Erasure]) -> datetime | None:
    """The first time at which bytes of one of these erasures must be gone; None: none has a deadline."""
    return min((e.evict_by for e in erasures if e.evict_by is not None), default=None)


@dataclass(frozen=True)
class PurgeStep:
    """Commit the planned files."""

    delta: Delta
    """Removes tombstones that can have no more rows, and marks those that were applied in part."""
    vacuumed: tuple[Tombstone, ...]
    """All that were applied to a removed file, still active or not."""


@dataclass(frozen=True)
class KeptFile:
    """A file with rows to purge that stays as it is, because holds cover some of these rows."""

    path: str
    holds: frozenset[str]
    """The names of the holds."""
    ids: frozenset[str]
    """The ids of the tombstones of which it has rows."""
    is_sure: bool
    """False: it could not be searched, so `ids` are those that its bounds allow."""
    has_deletes: bool
    """Native deletes apply to it."""


@dataclass(frozen=True)
class PlanAgain:
    """The plan does not fit the head any more."""

    why: str


def plan_purge(
    plan: VacuumPlan,
    ledger: Ledger,
    files_now: Collection[FileBounds],
    run: str,
    cleared: Collection[str] = (),
    kept: Iterable[KeptFile] = (),
) -> PurgeStep | PlanAgain:
    """Decide whether the files written for `plan` may be committed on this ledger and this head.

    Args:
        ledger: Of the head to commit on, which may be newer than the head of the plan.
        files_now: The data files of that head: those of the plan that remain, and all others that might hold rows of the
            tombstones, by this ledger.
        cleared: Paths of files that hold no rows of the tombstones, as a search of the files found.
        kept: Files that stay because of holds.
    """
    if why := outdated((*plan.delete, *plan.rewrite), files_now):
        return PlanAgain(why)
    active, applied = still_active(plan.tombstones, ledger), still_active(plan.applied, ledger)
    if len(applied) < len(plan.applied):
        return PlanAgain("the tombstone of a batch was removed or set again since the plan")
    # Assess all files of this head again: a file added after the plan might hold rows of a tombstone, which then must stay. So
    # must a tombstone that was not in the plan or was set again.
    searched = {f.path: f.ids for f in kept if f.is_sure}
    settled = plan.touched.union(cleared, searched)
    remaining = [f for f in files_now if f.path not in settled]
    still_there = Suspects(active.values()).covered(remaining).union(*searched.values())
    gone = frozenset(key for key, t in active.items() if t.id not in still_there)
    vacuumed = tuple(applied[t.key] for t in plan.applied)
    vacuumed += tuple(t for t in _hidden_in(plan.losing_aged, plan.aged, ledger) if t.key not in applied)
    purged_in_part = tuple(
        replace(t, meta={META_PURGED_BY: run, **t.meta}) for t in vacuumed if t.key not in gone and _unmarked(t)
    )
    return PurgeStep(Delta(run, add_tombstones=purged_in_part, remove_tombstones=gone), vacuumed)


def _hidden_in(files: Collection[FileBounds], aged: AgedRows | None, ledger: Ledger) -> tuple[Tombstone, ...]:
    """The tombstones of this ledger whose rows may be among those that these files lose for their age.

    An Undo cannot show these rows again, whether the tombstone was set before the plan or after it.
    """
    if aged is None or not files or not len(ledger.tombstones):
        return ()
    within = ledger.tombstones_within(aged.field_id, [(f.lower, f.upper) for f in files])
    held = Suspects(within).covered(files)
    return tuple(t for t in within if t.id in held)


def _unmarked(tombstone: Tombstone) -> bool:
    return META_PURGED_BY not in tombstone.meta


def still_active(tombstones: Iterable[Tombstone], ledger: Ledger) -> Mapping[tuple[int, str], Tombstone]:
    """The tombstones that this ledger still has from the same deletion, by key, as the ledger has them."""
    tombstones_by_key = {t.key: t for t in tombstones}
    return {
        k: t for k, t in get_many(ledger.tombstones, tombstones_by_key).items() if t.same_origin(tombstones_by_key[k])
    }


def also_purged(
    ledger: Ledger, field_id: int, tombstones: Collection[Tombstone], files: Collection[FileBounds]
) -> tuple[Tombstone, ...]:
    """The other tombstones whose rows a rewrite of these files removes.

    Native deletes hide the rows, so the rewrite does not copy them. An increment must report these rows as deleted, and
    an Undo must not expect them.

    Args:
        tombstones: Those that the run purges, as this ledger has them.
        files: The files to rewrite.
    """
    if len(ledger.tombstones) <= len(tombstones) or not files:
        return ()
    purged_keys = {t.key for t in tombstones}
    within = ledger.tombstones_within(field_id, [(f.lower, f.upper) for f in files])
    others = [t for t in within if t.mask is not None and t.key not in purged_keys]
    held = Suspects(others).covered(files)
    return tuple(t for t in others if t.id in held)


def out_of_time(spec: VacuumSpec, elapsed: timedelta, now: datetime) -> str:
    """Why a vacuum run must start no further step; empty: it may.

    Args:
        elapsed: Since the start of the run, by a monotonic clock.
    """
    if spec.stop_by is not None and now >= spec.stop_by:
        return WINDOW_CLOSED
    if spec.max_seconds is not None and elapsed >= timedelta(seconds=spec.max_seconds):
        return MAX_RUN_SECONDS
    return ""


@dataclass(frozen=True)
class TableTraits:
    """What decides about all files of a table."""

    format_version: int
    spec_id: int
    """Id of the current partition spec."""
    columns: Collection[str]
    """Names of the columns."""
    properties: Mapping[str, str]
    batch_orders: Collection[int]
    """Ids of its sort orders, old ones included, that begin with the batch column."""

    @property
    def are_files_filterable(self) -> bool:
        """Whether Arrow may rewrite its files: plain Parquet, no Bloom filters, no columns with names of row ids."""
        plain = self.properties.get(_FORMAT, _PARQUET) == _PARQUET and _ENCRYPTED not in self.properties
        readable = self.format_version in _FORMAT_VERSIONS and not any(n in self.columns for n in ROW_ID_COLUMNS)
        return plain and readable and not has_bloom_filters(self.properties)

    def is_filterable(self, format_name: str, spec_id: int | None) -> bool:
        """Whether Arrow may rewrite a file of this format and partition spec."""
        return self.are_files_filterable and format_name.lower() == _PARQUET and spec_id == self.spec_id

    def is_sorted(self, sort_order_id: int | None) -> bool:
        """Whether the writer of a file says that its rows are in the order of batches."""
        return sort_order_id in self.batch_orders


@dataclass(frozen=True)
class SmallPurge:
    """A file that might be purged one by one."""

    bounds: FileBounds
    format_name: str
    """The name of the file's format, as Iceberg writes it."""
    spec_id: int
    loses: int | None
    """Rows that it loses; None: unknown."""
    groups: int = 0
    """Row groups of the file; 0: unknown."""
    sort_order_id: int | None = None
    """Id of the sort order that its writer has named; None: none."""


def has_bloom_filters(properties: Mapping[str, str]) -> bool:
    """Whether new files of a table have Bloom filters. Arrow does not write them as the table asks for."""
    return any(k.startswith(_BLOOM_FILTER_OF) and v.lower() == "true" for k, v in properties.items())


def one_by_one(table: TableTraits, files: Collection[SmallPurge], target: int) -> list[SmallPurge]:
    """Those of the files to rewrite that stay large when they are purged one by one.

    Sorted files that overlap are left if they lose rows of batches: they are sorted together, so that the next vacuum finds
    fewer suspects. Unsorted files have no order that could be restored.

    The run reads the footers of these files, too, and leaves to Spark what does not fit (`lethe.purge.source`).

    Args:
        target: The target size of data files, in bytes.
    """
    fitting = [f for f in files if _fits(table, f, target)]
    free = {f.bounds.path for f in fitting if not f.loses or not table.is_sorted(f.sort_order_id)}
    apart_ = apart(f.bounds for f in files if f.bounds.path not in free)
    return [f for f in fitting if f.bounds.path in free or f.bounds.path in apart_]


def _fits(table: TableTraits, file: SmallPurge, target: int) -> bool:
    is_filterable = table.is_filterable(file.format_name, file.spec_id)
    return is_filterable and file.loses is not None and stays_large(file.bounds, file.loses, target)


@dataclass(frozen=True)
class ExpectedBytes:
    """What becomes of the bytes of files to rewrite. The rest is in files without deleted rows, which stay."""

    copied: int = 0
    """Bytes in row groups without deleted rows, which are copied."""
    encoded: int = 0
    """Bytes in other row groups, and in files that Spark rewrites."""


def expected_bytes(
    estimate: Estimate,
    files: Iterable[SmallPurge],
    filtered: Collection[SmallPurge] = (),
    aged: Collection[str] = (),
) -> ExpectedBytes:
    """Estimate how many bytes are copied and encoded.

    A file that is purged one by one counts as in the order of batches if its batches do not overlap with those of others. The
    estimate takes the row groups of such a file to be equally large, and counts each deleted batch as if it shared its row groups
    with no other one. So rather too many bytes are encoded.

    Args:
        estimate: Of all these files.
        filtered: Those that are purged one by one.
        aged: Paths of those with rows that are too old.
    """
    files = list(files)
    in_order = {f.bounds.path for f in filtered} & apart(f.bounds for f in files)
    copied = encoded = 0.0
    for f in files:
        is_certain = f.bounds.deletes or f.bounds.path in aged
        rewritten = 1.0 if is_certain else 1.0 - estimate.none_in(f.bounds)
        share = rewritten
        if f.bounds.path in in_order and f.groups > 1:
            share = min(rewritten, _touched(estimate, f) / f.groups)
        encoded += f.bounds.size * share
        copied += f.bounds.size * (rewritten - share)
    return ExpectedBytes(round(copied), round(encoded))


def _touched(estimate: Estimate, file: SmallPurge) -> float:
    """The expected number of row groups with deleted rows, if no two batches share one.

    A batch of n rows that begins anywhere is in 1 + (n - 1) / r row groups of r rows, on average.
    """
    batches, rows = estimate.batches_in(file.bounds), estimate.rows_in(file.bounds)
    return batches + max(0.0, rows - batches) * file.groups / max(1, file.bounds.records)
