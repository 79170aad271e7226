"""Finds the rows of Erases by records, and of replacements with keys, in one pass, and deletes them from data files. I/O.

Invariants: every row of a data file counts, also rows that a tombstone or a native delete hides. Values are only in files that
are mounted into this pod, and in the memory of this run and its workers. No plan, path, message or log contains them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from lethe.base.errors import ConflictError, InputError, TransientError
from lethe.base.verdict import Verdict
from lethe.contract.hold import HoldSpec
from lethe.contract.hold import named as named_holds
from lethe.contract.result import LEGAL_HOLD, Phase, RequestResult
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import NativeDeletes
from lethe.files.values import ValueKind, Values, ValueType
from lethe.ingest.change_rows import Keyed
from lethe.ingest.schema_fit import field_ids
from lethe.restatement.group import set_aside
from lethe.restatement.plan import ErasedRows
from lethe.search.candidates import CandidateFile, candidates, values_if_absent
from lethe.search.columns import SearchableColumn, erased_column, key_columns
from lethe.search.covered import LeavingRows
from lethe.search.positions import AnyWanted, Wanted, WantedKeys, columns_of
from pyroaring import FrozenBitMap64
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.commit.group_commit import Erased, Replacements
from lethe_spark.commit.ledger_commit import Attempts, discard
from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.holds import covering, holds_of
from lethe_spark.jobs.restatement.lookup import Lookups
from lethe_spark.jvm.data_files import (
    DataFile,
    HiddenRows,
    deleted_of,
    position_deletes_of,
    tasks_by_path,
    write_deletes,
)
from lethe_spark.jvm.scan_tasks import scan_files, write_uncommitted
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_io, table_properties
from lethe_spark.sql.searching import (
    BatchSearch,
    Search,
    count_of,
    named,
    require_every_row,
    require_written,
    search,
    search_batches,
)

Positions = Mapping[str, FrozenBitMap64]
"""Positions of rows, by the path of a data file."""
_NOTHING: Final = FrozenBitMap64()
_FILE, _NUMBER, _POSITION = "_lethe_file", "_lethe_number", "_lethe_position"
BROADCAST_AT_MOST: Final = 5_000_000
"""Spark broadcasts up to this many row positions to each executor."""


def keyed_of(requests: Iterable[RestatementRequest], base: Base) -> dict[str, Keyed]:
    """How to read the replacements that are change data, by batch id.

    Raises:
        InputError: As `key_columns`.
    """
    keyed: dict[str, Keyed] = {}
    for request in requests:
        if request.replacement is not None and (columns := _key_columns(request, base)):
            keys = tuple(c.path.parts for c in columns)
            keyed[request.replacement.batch_id] = Keyed(keys, request.replacement.op_column)
    return keyed


def unusable_keys(requests: Iterable[RestatementRequest], base: Base) -> dict[str, RequestResult]:
    """Results of the requests whose key or operation columns cannot be used, by key."""
    aside: dict[str, RequestResult] = {}
    for request in requests:
        try:
            _key_columns(request, base)
        except InputError as e:
            aside[request.key] = set_aside(request, e.verdict)
    return aside


def wanted_keys(request: RestatementRequest, base: Base, keys: pa.Table | None) -> WantedKeys:
    """The rows with the keys of a replacement.

    Args:
        keys: None: the replacement has no keys, so no rows are wanted.

    Raises:
        InputError: As `key_columns`.
    """
    columns = [(c.path.field_id, c.kind) for c in _key_columns(request, base)]
    return WantedKeys.of(columns, keys) if keys is not None else WantedKeys.none(columns)


def _key_columns(request: RestatementRequest, base: Base) -> list[SearchableColumn]:
    return key_columns(request, base.iceberg.schema(), base.field_id, base.facts.name)


@dataclass
class RowEraser:
    """Searches each data file once. Rows of a file never change, so after another commit only new files are searched."""

    context: RunContext
    table: SparkTable
    lookups: Lookups
    _wanted: dict[str, tuple[AnyWanted, ...]] = field(default_factory=dict, repr=False)
    """What is searched for, by the key of the request: rows that meet one of the conditions, or that have one of the keys."""
    _found: dict[str, Mapping[str, FrozenBitMap64]] = field(default_factory=dict)
    """Row positions, by the path of the file, then by the key of the request."""
    _unsure: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be searched, by its path."""

    def erase(self, requests: Sequence[RestatementRequest], base: Base, written: Replacements) -> Erased:
        """Find the rows of all requests and write the deletes or the files without these rows. Commits nothing.

        Args:
            written: The replacements, with the keys of those that are change data.

        Raises:
            ConflictError: The table moved between plan and commit.
            TransientError: A dependency is temporarily unavailable.
            Exception: What Spark raises.
        """
        aside = self._read_values(requests, base, written)
        files = self._searched(base, [r.key for r in requests if r.key not in aside])
        aside |= self._unsearchable(requests, files)
        asked = [r.key for r in requests if r.key not in aside]
        aside |= self._held([r for r in requests if r.key in asked], self._hit(files, asked), base)
        asked = [key for key in asked if key not in aside]
        hit = self._hit(files, asked)
        self.context.step("after-search")
        taken_out = {c.path: c.deletes for c in hit}
        if not hit or base.facts.head_id is None:
            return Erased({key: ErasedRows(0, self._field_id(key)) for key in asked}, aside)
        tasks = tasks_by_path(self.table, taken_out, base.facts.head_id)
        deleted = deleted_of(self.table, tasks, table_io(self.context, self.table.location))
        fresh, counts = self._fresh(asked, deleted)
        rows = {key: ErasedRows(counts[key], self._field_id(key)) for key in asked}
        self.context.reporter.phase(Phase.WRITING, f"{sum(counts.values())} rows to delete from {len(fresh)} files")
        beside = self._hidden_too(base, asked, deleted)
        erased = Erased(rows, aside, taken_out, beside=beside)
        changing = [tasks[p] for p in fresh]
        if changing and self.table.format_version >= 3:
            whole = {path: deleted[path].positions | positions for path, positions in fresh.items()}
            replaced = [d for path in fresh for d in (*deleted[path].ours, *deleted[path].theirs)]
            io = table_io(self.context, self.table.location)
            vectors = write_deletes(self.table, tasks, whole, replaced, self.context.run_id, io)
            erased = replace(erased, vectors=vectors)
        elif changing:
            removed = tuple(DataFile.of(task.file()) for task in changing)
            erased = replace(
                erased,
                removed=removed,
                dangling=position_deletes_of(self.table, changing),
                survivors=self._survivors(removed, fresh, deleted, base.facts.head_id),
                partitions=frozenset(c.partition for c in hit if c.path in fresh),
            )
        self.context.step("after-erase")
        return erased

    def still_right(self, erased: Erased, base: Base) -> bool:
        """Whether the same files of this base hold wanted rows, with the same native deletes. Searches files that are new."""
        columns = (c for key in erased.rows for search in self._wanted[key] for c in columns_of(search))
        if any(base.iceberg.schema().find_column_name(c.field_id) is None for c in columns):
            return False
        files = self._searched(base, erased.rows)
        if any(c.path in self._unsure for c in files):
            return False
        return {c.path: c.deletes for c in self._hit(files, erased.rows)} == erased.taken_out

    def _read_values(
        self, requests: Iterable[RestatementRequest], base: Base, written: Replacements
    ) -> dict[str, RequestResult]:
        """Read the values or keys of the requests.

        Returns:
            Results of requests whose values cannot be read, by key.
        """
        aside: dict[str, RequestResult] = {}
        for request in requests:
            try:
                searches: tuple[AnyWanted, ...] = (
                    (wanted_keys(request, base, written.keys.get(request.key)),)
                    if request.by_keys
                    else wanted_by(request, base, self.lookups)
                )
            except (InputError, TransientError) as e:
                aside[request.key] = set_aside(request, e.verdict)
            else:
                if self._wanted.get(request.key) != searches:
                    # The request is new, the values were changed, or another column has this name now.
                    self._wanted[request.key] = searches
                    self._found.clear()
                    self._unsure.clear()
        return aside

    def _searched(self, base: Base, keys: Iterable[str]) -> list[CandidateFile]:
        """Search the data files that might hold wanted rows, if they were not searched before.

        Returns:
            All these files.
        """
        wanted = {key: self._wanted[key] for key in keys}
        searches = {search_key(key, n): search for key, several in wanted.items() for n, search in enumerate(several)}
        files = candidates(base.iceberg, base.facts.head_id, searches)
        new = [c for c in files if c.path not in self._found and c.path not in self._unsure]
        if new:
            size = sum(c.size for c in new)
            self.context.reporter.phase(
                Phase.SCAN, f"{len(new)} files of {size} bytes for the rows of {len(wanted)} requests"
            )
            names = field_ids(base.iceberg.properties)
            result = search(
                self.context.spark.sparkContext, Search(searches, table_properties(self.context), names), new
            )
            self._found |= {path: _by_request(found) for path, found in result.found.items()}
            self._unsure |= result.unsure
        return files

    def _field_id(self, key: str) -> int:
        """The field id of the first column that a request searches."""
        return self._wanted[key][0].field_id

    def _hit(self, files: Iterable[CandidateFile], keys: Collection[str]) -> list[CandidateFile]:
        """The files that hold wanted rows."""
        return [c for c in files if not self._found.get(c.path, {}).keys().isdisjoint(keys)]

    def _unsearchable(
        self, requests: Sequence[RestatementRequest], files: Iterable[CandidateFile]
    ) -> dict[str, RequestResult]:
        """Results of the requests whose rows might be in a file that cannot be searched, by key."""
        first: dict[str, str] = {}
        for c in files:
            for key in c.keys if c.path in self._unsure else ():
                first.setdefault(request_key_of(key), c.path)
        return {
            r.key: set_aside(r, _not_searchable(r, self._unsure[first[r.key]]).verdict)
            for r in requests
            if r.key in first
        }

    def _held(
        self, requests: Sequence[RestatementRequest], files: Sequence[CandidateFile], base: Base
    ) -> dict[str, RequestResult]:
        """Results of the requests that would remove rows which holds cover, by key. They wait until the holds end.

        A Replay with keys in format version 3 only hides rows, which stay in their data files.

        Args:
            files: Those with wanted rows.
        """
        rewrites = self.table.format_version < NativeDeletes.DELETION_VECTORS.format_version
        removing = [r for r in requests if r.rows is not None or rewrites]
        if not self.context.spec.holds or not removing:
            return {}
        try:
            holds_of(self.context, base)
        except InputError as e:  # a request fails for good; this is about the Dataset
            return {r.key: set_aside(r, replace(e.verdict, transient=True)) for r in removing}
        aside: dict[str, RequestResult] = {}
        for request in removing:
            found = {c.path: self._found[c.path].get(request.key, _NOTHING) for c in files}
            # A rewrite also leaves out the rows that native deletes hide.
            leaving = [LeavingRows(path, positions=p, hidden=rewrites) for path, p in found.items() if p]
            names = frozenset[str]().union(*covering(self.context, base, leaving).values())
            if names:
                aside[request.key] = set_aside(request, _held_by(request, names, self.context.spec.holds))
        return aside

    def _fresh(
        self, keys: Sequence[str], deleted: Mapping[str, HiddenRows]
    ) -> tuple[dict[str, FrozenBitMap64], dict[str, int]]:
        """The wanted positions that are not deleted yet, by file, and the number of rows of each request.

        A row that several requests want counts for the first one.
        """
        fresh: dict[str, FrozenBitMap64] = {}
        counts = dict.fromkeys(keys, 0)
        for path, before in deleted.items():
            taken = before.positions
            for key in keys:
                new = self._found[path].get(key, _NOTHING) - taken
                counts[key] += len(new)
                taken = taken | new
            if taken != before.positions:
                fresh[path] = taken - before.positions
        return fresh, counts

    def _hidden_too(self, base: Base, asked: Collection[str], deleted: Mapping[str, HiddenRows]) -> frozenset[str]:
        """The reverted batches with a wanted row that deletes by position hide already. An Undo would show this row again."""
        hidden_by_path: dict[str, FrozenBitMap64] = {}
        for path, before in deleted.items():
            taken = FrozenBitMap64.union(_NOTHING, *(self._found[path].get(key, _NOTHING) for key in asked))
            if hidden := taken & before.positions:
                hidden_by_path[path] = hidden
        files = [f for f in base.files() if f.path in hidden_by_path]
        active = base.ledger.tombstones_within(base.field_id, [(f.lower, f.upper) for f in files]) if files else []
        masked = frozenset(t.id for t in active if t.mask is not None)
        if not masked:
            return frozenset()
        values = Values(ValueKind(ValueType.STRING), tuple(sorted(masked)))
        named = candidates(base.iceberg, base.facts.head_id, {"": Wanted.of(base.field_id, values)})
        asked_for = BatchSearch(
            base.field_id,
            masked,
            table_properties(self.context),
            field_ids(base.iceberg.properties),
            absent=values_if_absent(named, "", values),
        )
        result = search_batches(
            self.context.spark.sparkContext, asked_for, [c for c in named if c.path in hidden_by_path]
        )
        hit = {
            i
            for path, found in result.found.items()
            for i, positions in found.items()
            if positions & hidden_by_path[path]
        }
        return frozenset(hit if not result.unsure else masked)

    def _survivors(
        self, removed: Sequence[DataFile], fresh: Positions, deleted: Mapping[str, HiddenRows], snapshot_id: int
    ) -> tuple[DataFile, ...]:
        """Write the remaining rows of the files to new files.

        Then there are no new files.

        Raises:
            ConflictError: `RowsDiffer`, if the number of rows is wrong.
        """
        left = {f.path: f.records - len(fresh[f.path]) - len(deleted[f.path].positions) for f in removed}
        paths = [path for path, rows in left.items() if rows]
        if not paths:
            return ()
        gone = {path: fresh[path] for path in paths}
        with scan_files(self.table, paths, snapshot_id) as scanned:
            # How many rows equality deletes hide is only known by reading.
            counts = count_of(scanned, without_positions(scanned.frame.select("_file", "_pos"), gone))
            survivors, name = tuple[DataFile, ...](), self.table.full_name
            try:
                require_every_row(name, scanned.files, counts)
                survivors = write_uncommitted(self.table, without_positions(scanned.frame, gone), self.context.run_id)
                require_written(name, counts.kept, survivors)
            except ConflictError:
                discard(self.table, survivors, Attempts())
                raise
        return survivors


def _held_by(request: RestatementRequest, names: Collection[str], holds: Iterable[HoldSpec]) -> Verdict:
    by = named_holds(h for h in holds if h.name in names)
    what = "replace" if request.by_keys else "erase"
    text = f"rows that it would {what} are covered by {by}. Nothing was removed. It goes on when they are not covered any more."
    return Verdict(LEGAL_HOLD, f"Restatement {request.name}: {text}", transient=True)


def _not_searchable(request: RestatementRequest, why: str) -> InputError:
    meant, done = (
        ("the keys of the replacement", "changed") if request.by_keys else ("the values of spec.rows", "erased")
    )
    return InputError(
        "FileNotSearchable",
        f"Restatement {request.name}: rows with {meant} may be in a data file that cannot be searched: {why}. "
        f"Rewrite the file with the engine that wrote it. Nothing was {done}.",
    )


def search_key(request_key: str, number: int) -> str:
    """The key of one of the searches of a request. No key of a request contains a line feed."""
    return f"{number}\n{request_key}"


def request_key_of(search: str) -> str:
    """The key of the request that a search belongs to."""
    return search.partition("\n")[2]


def _by_request(found: Mapping[str, FrozenBitMap64]) -> dict[str, FrozenBitMap64]:
    """The positions by the key of the request. A row that meets several conditions counts once."""
    positions: dict[str, FrozenBitMap64] = {}
    for of_search, some in found.items():
        key = request_key_of(of_search)
        positions[key] = positions[key] | some if key in positions else some
    return positions


def wanted_by(request: RestatementRequest, base: Base, lookups: Lookups) -> tuple[Wanted, ...]:
    """The rows that a request erases, for each of its conditions. It names the columns by their current names.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec, and those of `Lookups`.
        TransientError: Of `Lookups`.
    """
    # All columns first: a lookup reads data.
    schema, name = base.iceberg.schema(), base.facts.name
    columns = [(c, erased_column(request, c, schema, base.field_id, name)) for c in request.conditions]
    return tuple(Wanted.of(at.path.field_id, lookups.values(request, c, at.kind)) for c, at in columns)


def without_positions(frame: DataFrame, positions: Positions) -> DataFrame:
    """The rows of data files without the rows at these positions. Does not compare values, so it works for all column types.

    Args:
        frame: As `scan_files` reads the files.
    """
    spark, columns = frame.sparkSession, [named(c) for c in frame.columns]
    paths = list(positions)
    files = pa.table({_FILE: pa.array(paths, pa.string()), _NUMBER: pa.array(range(len(paths)), pa.int32())})
    numbers = [pa.repeat(pa.scalar(n, pa.int32()), len(positions[p])) for n, p in enumerate(paths)]
    rows = pa.table(
        {
            _NUMBER: pa.chunked_array(numbers, pa.int32()),
            _POSITION: pa.chunked_array([pa.array(list(positions[p]), pa.int64()) for p in paths], pa.int64()),
        }
    )
    gone: Any = spark.createDataFrame(rows)
    if rows.num_rows <= BROADCAST_AT_MOST:
        gone = F.broadcast(gone)
    located = frame.select(*columns, F.col("_file").alias(_FILE), F.col("_pos").alias(_POSITION))
    numbered = located.join(F.broadcast(spark.createDataFrame(files)), _FILE)
    return numbered.join(gone, [_NUMBER, _POSITION], "left_anti").select(*columns)
