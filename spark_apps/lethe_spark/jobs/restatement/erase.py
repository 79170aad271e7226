"""Finds the rows of Erases by records, of replacements with keys, and of Redacts in one pass, and takes them out of files. I/O.

A Redact deletes its rows as an Erase does, and writes them again with other values, in the same commit. They keep their batch
ids, so that what is done to a batch, before or later, is also done to its redacted rows.

Invariants: every row of a data file counts, also rows that a tombstone or a native delete hides. Values are only in files that
are mounted into this pod, and in the memory of this run and its workers. No plan, path, message or log contains them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from lethe.base.errors import InputError, TransientError, Verdict
from lethe.contract.dataset import HoldSpec
from lethe.contract.dataset import named as named_holds
from lethe.contract.result import LEGAL_HOLD, Phase, RequestResult
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import NativeDeletes
from lethe.files.values import ValueKind, Values, ValueType
from lethe.ingest.change_rows import Keyed
from lethe.ingest.schema_fit import field_ids
from lethe.purge.filtering import Loss
from lethe.restatement.group import set_aside
from lethe.restatement.plan import ErasedRows
from lethe.search.candidates import CandidateFile, candidates, traits_of, values_if_absent
from lethe.search.columns import SearchableColumn, erased_column, key_columns
from lethe.search.covered import LeavingRows
from lethe.search.positions import AnyWanted, Wanted, WantedKeys, columns_of
from pyroaring import FrozenBitMap64
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from lethe_spark.commit.group_commit import Erased, Replacements
from lethe_spark.commit.ledger_commit import Attempts, discard
from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.holds import covering, holds_of
from lethe_spark.jobs.restatement.lookup import Lookups
from lethe_spark.jobs.restatement.values import redactable, redaction_of, wanted_batches
from lethe_spark.jobs.rewriting import filter_files, kept_metrics, write_by_spark
from lethe_spark.jvm.data_files import (
    DataFile,
    DeleteChanges,
    HiddenRows,
    deleted_of,
    position_deletes_of,
    tasks_by_path,
    write_deletes,
)
from lethe_spark.jvm.scan_tasks import LOCATION_COLUMNS, scan_files
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.run.context import RunContext, table_io, table_properties
from lethe_spark.sql.redacting import RowRedaction, redacted
from lethe_spark.sql.searching import (
    BatchSearch,
    Search,
    count_of,
    named,
    search,
    search_batches,
)

Positions = Mapping[str, FrozenBitMap64]
"""Positions of rows, by the path of a data file."""
_NOTHING: Final = FrozenBitMap64()
_FILE, _NUMBER, _POSITION, _CHOICE = "_lethe_file", "_lethe_number", "_lethe_position", "_lethe_choice"
_ERASED: Final = 0
"""The `_CHOICE` of rows that are not written again."""
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


def unusable_columns(requests: Iterable[RestatementRequest], base: Base) -> dict[str, RequestResult]:
    """Results of the requests whose key, operation or redacted columns cannot be used, by key."""
    aside: dict[str, RequestResult] = {}
    for request in requests:
        try:
            _key_columns(request, base)
            redactable(request, base)
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


@dataclass(frozen=True)
class FreshRows:
    """The wanted rows that are not deleted yet."""

    counts: Mapping[str, int]
    """The number of rows by the key of the request. A row that several requests erase counts for the first one."""
    taken: Positions
    """All of them, by the path of their file; only files with such rows."""
    erased: Positions
    """Those that are not written again."""
    redacted: Mapping[tuple[str, ...], Positions]
    """Those that are, by the keys of the requests that redact them."""

    @classmethod
    def of(
        cls, erases: Sequence[str], redacts: Sequence[str], found: Mapping[str, Positions], before: Positions
    ) -> "FreshRows":
        """Sort the rows by what happens to them.

        Args:
            erases, redacts: Keys of requests, in their order.
            found: Path of a file -> key of the request -> rows.
            before: The rows that deletes by position hide already.
        """
        counts = dict.fromkeys((*erases, *redacts), 0)
        taken: dict[str, FrozenBitMap64] = {}
        erased: dict[str, FrozenBitMap64] = {}
        redacted: dict[tuple[str, ...], dict[str, FrozenBitMap64]] = {}
        for path, hidden in before.items():
            gone = _NOTHING
            for key in erases:
                new = found[path].get(key, _NOTHING) - hidden - gone
                counts[key] += len(new)
                gone |= new
            chosen: dict[tuple[str, ...], FrozenBitMap64] = {}
            for key in redacts:
                rows = found[path].get(key, _NOTHING) - hidden - gone
                counts[key] += len(rows)
                chosen = _with_choice(chosen, key, rows)
            for keys, rows in chosen.items():
                redacted.setdefault(keys, {})[path] = rows
            erased |= {path: gone} if gone else {}
            every = FrozenBitMap64.union(gone, *chosen.values()) if chosen else gone
            taken |= {path: every} if every else {}
        return cls(counts, taken, erased, redacted)

    @property
    def redacted_by_path(self) -> dict[str, FrozenBitMap64]:
        """All rows that are written again with other values."""
        rows: dict[str, FrozenBitMap64] = {}
        for positions in self.redacted.values():
            for path, some in positions.items():
                rows[path] = rows.get(path, _NOTHING) | some
        return rows


def _with_choice(
    chosen: Mapping[tuple[str, ...], FrozenBitMap64], key: str, rows: FrozenBitMap64
) -> dict[tuple[str, ...], FrozenBitMap64]:
    """The rows by the keys of their requests, with another request."""
    after: dict[tuple[str, ...], FrozenBitMap64] = {}
    for keys, some in chosen.items():
        parts = {keys: some - rows, (*keys, key): some & rows}
        after |= {k: part for k, part in parts.items() if part}
        rows -= some
    return after | ({(key,): rows} if rows else {})


@dataclass
class RowEraser:
    """Searches each data file once. Rows of a file never change, so after another commit only new files are searched."""

    context: RunContext
    table: SparkTable
    lookups: Lookups
    _wanted: dict[str, tuple[AnyWanted, ...]] = field(default_factory=dict, repr=False)
    """What is searched for, by the key of the request: rows that meet one of the conditions, or that have one of the keys."""
    _redactions: dict[str, RowRedaction] = field(default_factory=dict, repr=False)
    """What is written into the found rows, by the key of the request."""
    _found: dict[str, Mapping[str, FrozenBitMap64]] = field(default_factory=dict)
    """Row positions, by the path of the file, then by the key of the request."""
    _unsure: dict[str, str] = field(default_factory=dict)
    """Why a file cannot be searched, by its path."""
    _requests: dict[str, RestatementRequest] = field(default_factory=dict)
    """The Redacts, by key."""
    _format_version: int = 0
    """That of the table when rows were written. Since version 3 rows have ids, which the files would have to store."""

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
        self._format_version = self.table.format_version
        rewrites = self._format_version < NativeDeletes.DELETION_VECTORS.format_version
        tasks = tasks_by_path(self.table, taken_out, base.facts.head_id, kept_metrics(base) if rewrites else ())
        deleted = deleted_of(self.table, tasks, table_io(self.context, self.table.location))
        fresh = FreshRows.of(
            [key for key in asked if key not in self._redactions],
            [key for key in asked if key in self._redactions],
            self._found,
            {path: hidden.positions for path, hidden in deleted.items()},
        )
        rows = {key: ErasedRows(fresh.counts[key], self._field_id(key)) for key in asked}
        self.context.reporter.phase(
            Phase.WRITING, f"{sum(fresh.counts.values())} rows to change in {len(fresh.taken)} files"
        )
        beside = self._hidden_too(base, asked, deleted)
        erased = Erased(rows, aside, taken_out, beside=beside)
        changing = {path: tasks[path] for path in fresh.taken}
        partitions = frozenset(c.partition for c in hit if c.path in fresh.taken)
        if changing and not rewrites:
            written_again = self._redacted_rows(list(fresh.redacted_by_path), fresh, deleted, base.facts.head_id)
            self.context.step("after-redact")
            vectors = self._vectors(changing, fresh, deleted, written_again)
            moved = partitions if written_again else frozenset()
            erased = replace(erased, vectors=vectors, survivors=written_again, partitions=moved)
        elif changing:
            removed = {path: DataFile.of(task.file()) for path, task in changing.items()}
            losing = [(c, removed[c.path]) for c in hit if c.path in removed]
            erased = replace(
                erased,
                removed=tuple(removed.values()),
                dangling=position_deletes_of(self.table, changing.values()),
                survivors=self._survivors(base, losing, fresh, deleted),
                partitions=partitions,
            )
        self.context.step("after-erase")
        return erased

    def _field_id(self, key: str) -> int:
        """As `ErasedRows.field_id`."""
        redaction = self._redactions.get(key)
        return self._wanted[key][0].field_id if redaction is None else redaction.columns[0].path.field_id

    def _vectors(
        self,
        changing: Mapping[str, Any],
        fresh: FreshRows,
        deleted: Mapping[str, HiddenRows],
        written_again: Sequence[DataFile],
    ) -> DeleteChanges:
        """Write the deletion vectors of the files that lose rows.

        Args:
            written_again: Files that are deleted if the vectors cannot be written.
        """
        whole = {path: deleted[path].positions | positions for path, positions in fresh.taken.items()}
        replaced = [d for path in fresh.taken for d in (*deleted[path].ours, *deleted[path].theirs)]
        io = table_io(self.context, self.table.location)
        try:
            return write_deletes(self.table, changing, whole, replaced, self.context.run_id, io)
        except Exception:
            discard(self.table, written_again, Attempts())
            raise

    def still_right(self, erased: Erased, base: Base) -> bool:
        """Whether the same files of this base hold wanted rows, with the same native deletes. Searches files that are new."""
        if erased.taken_out and base.facts.format_version != self._format_version:
            return False
        columns = (c for key in erased.rows for search in self._wanted[key] for c in columns_of(search))
        if any(base.iceberg.schema().find_column_name(c.field_id) is None for c in columns):
            return False
        if any(not self._can_redact(key, base) for key in erased.rows):
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
                searches = self._searches_of(request, base, written)
                if request.redact is not None:
                    self._redactions[request.key] = redaction_of(request, base)
                    self._requests[request.key] = request
            except (InputError, TransientError) as e:
                aside[request.key] = set_aside(request, e.verdict)
            else:
                if self._wanted.get(request.key) != searches:
                    # The request is new, the values were changed, or another column has this name now.
                    self._wanted[request.key] = searches
                    self._found.clear()
                    self._unsure.clear()
        return aside

    def _searches_of(self, request: RestatementRequest, base: Base, written: Replacements) -> tuple[AnyWanted, ...]:
        if request.by_keys:
            return (wanted_keys(request, base, written.keys.get(request.key)),)
        return wanted_by(request, base, self.lookups) if request.rows is not None else (wanted_batches(request, base),)

    def _can_redact(self, key: str, base: Base) -> bool:
        """Whether the columns of a Redact are the same in this base, and may still be redacted; true of other requests."""
        redaction = self._redactions.get(key)
        try:
            return redaction is None or redaction.columns == redactable(self._requests[key], base)
        except InputError:
            return False

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
            assert self.context.spec.restatement is not None
            limits = self.context.spec.restatement.search_limits
            request = Search(searches, table_properties(self.context), names)
            result = search(self.context.spark.sparkContext, limits, request, new)
            self._found |= {path: _by_request(found) for path, found in result.found.items()}
            self._unsure |= result.unsure
        return files

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
        """Results of the requests that would remove or redact rows which holds cover, by key. They wait until the holds end.

        A Replay with keys in format version 3 only hides rows, which stay in their data files.

        Args:
            files: Those with wanted rows.
        """
        rewrites = self.table.format_version < NativeDeletes.DELETION_VECTORS.format_version
        removing = [r for r in requests if r.rows is not None or r.redact is not None or rewrites]
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
        self,
        base: Base,
        files: Sequence[tuple[CandidateFile, DataFile]],
        fresh: FreshRows,
        deleted: Mapping[str, HiddenRows],
    ) -> tuple[DataFile, ...]:
        """Write the remaining rows of the files to new files, redacted ones with their new values.

        Raises:
            ConflictError: `RowsDiffer`, if the number of rows is wrong.
        """
        assert base.facts.head_id is not None
        traits = traits_of(base.iceberg, base.field_id)
        alone, together = list[tuple[DataFile, Loss]](), list[str]()
        for candidate, file in files:
            # Other writers may have deleted positions that the file does not have.
            hidden = deleted[file.path].positions.range_cardinality(0, file.records)
            is_filterable = traits.is_filterable(candidate.format_name, candidate.spec_id)
            if is_filterable and file.records > hidden + len(fresh.taken[file.path]):
                alone.append((file, Loss(frozenset(), 0, traits.is_sorted(candidate.sort_order_id))))
            elif file.records > hidden + len(fresh.erased.get(file.path, _NOTHING)):
                together.append(file.path)
        filtered = filter_files(self.context, self.table, base, alone, deleted, fresh.taken)
        survivors = filtered.added
        together += [file.path for file, _ in alone if file.path not in filtered.replaced]
        redacted = [path for path in fresh.redacted_by_path if path in filtered.replaced]
        try:
            remaining = F.col(_CHOICE).isNull() | (F.col(_CHOICE) != _ERASED)
            survivors += self._rewritten(together, base.facts.head_id, fresh, remaining)
            survivors += self._redacted_rows(redacted, fresh, deleted, base.facts.head_id)
        except Exception:
            discard(self.table, survivors, Attempts())
            raise
        return survivors

    def _redacted_rows(
        self, paths: Sequence[str], fresh: FreshRows, deleted: Mapping[str, HiddenRows], snapshot_id: int
    ) -> tuple[DataFile, ...]:
        """Write only the redacted rows of files to new files, with their new values.

        Raises:
            ConflictError: `RowsDiffer`, if the number of rows is wrong.
        """
        again = fresh.redacted_by_path
        # Equality deletes may hide some of the rows: how many is only known by reading.
        exact = not any(deleted[path].others for path in paths)
        expected = sum(len(again[path]) for path in paths) if exact else None
        return self._rewritten(paths, snapshot_id, fresh, F.col(_CHOICE) > _ERASED, expected)

    def _rewritten(
        self, paths: Sequence[str], snapshot_id: int, fresh: FreshRows, condition: Column, expected: int | None = None
    ) -> tuple[DataFile, ...]:
        """Write rows of these files to new files, redacted ones with their new values.

        Args:
            condition: On `_CHOICE`: which rows to write.
            expected: How many these are; None: unknown.

        Raises:
            ConflictError: `RowsDiffer`.
        """
        if not paths:
            return ()
        wanted = frozenset(paths)
        positions = [
            {p: rows for p, rows in of.items() if p in wanted} for of in (fresh.erased, *fresh.redacted.values())
        ]
        redactions = [
            (self._redactions[key], [n for n, keys in enumerate(fresh.redacted, _ERASED + 1) if key in keys])
            for key in self._redactions
            if any(key in keys for keys in fresh.redacted)
        ]
        with scan_files(self.table, paths, snapshot_id) as scanned:
            columns = [named(c) for c in scanned.frame.columns]
            # How many rows equality deletes hide is only known by reading.
            located = scanned.located
            counts = count_of(scanned, with_choices(located.select(*LOCATION_COLUMNS), positions).where(condition))
            chosen = with_choices(located, positions).where(condition)
            new = redacted(chosen, _CHOICE, redactions) if redactions else chosen
            kept = new.select(*columns)
            return write_by_spark(self.context, self.table, scanned.files, kept, counts, expected=expected)


def _held_by(request: RestatementRequest, names: Collection[str], holds: Iterable[HoldSpec]) -> Verdict:
    by = named_holds(h for h in holds if h.name in names)
    what = "replace" if request.by_keys else request.operation.lower()
    return Verdict(
        LEGAL_HOLD,
        f"Restatement {request.name}: rows that it would {what} are covered by {by}. Nothing was {request.operation.done}. It "
        "goes on when they are not covered any more.",
        transient=True,
    )


def _not_searchable(request: RestatementRequest, why: str) -> InputError:
    meant = (
        "the keys of the replacement"
        if request.by_keys
        else "the values of spec.rows"
        if request.rows is not None
        else "the ids in spec.batchIds"
    )
    return InputError(
        "FileNotSearchable",
        f"Restatement {request.name}: rows with {meant} may be in a data file that cannot be searched: {why}. "
        f"Rewrite the file with the engine that wrote it. Nothing was {request.operation.done}.",
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
    """The rows that a request names by values, for each of its conditions. It names the columns by their current names.

    Raises:
        InputError: ColumnNotFound, ColumnNotSearchable, InvalidSpec, and those of `Lookups`.
        TransientError: Of `Lookups`.
    """
    # All columns first: a lookup reads data.
    schema, name = base.iceberg.schema(), base.facts.name
    columns = [(c, erased_column(request, c, schema, base.field_id, name)) for c in request.conditions]
    return tuple(Wanted.of(at.path.field_id, lookups.values(request, c, at.kind)) for c, at in columns)


def with_choices(frame: DataFrame, choices: Sequence[Positions]) -> DataFrame:
    """The rows of data files with a column `_CHOICE`. Does not compare values, so it works for all column types.

    Args:
        frame: As `ScannedFiles.located`.
        choices: Sets of rows that have no row in common. `_CHOICE` is the number of the set that contains the row, from 0; null:
            none does.
    """
    spark, columns = frame.sparkSession, [named(c) for c in frame.columns]
    paths = list(dict.fromkeys(path for positions in choices for path in positions))
    numbers = {path: number for number, path in enumerate(paths)}
    files = pa.table({_FILE: pa.array(paths, pa.string()), _NUMBER: pa.array(range(len(paths)), pa.int32())})
    parts = [(n, numbers[p], rows) for n, positions in enumerate(choices) for p, rows in positions.items()]
    rows = pa.table(
        {
            _NUMBER: pa.chunked_array([pa.repeat(pa.scalar(f, pa.int32()), len(r)) for _, f, r in parts], pa.int32()),
            _POSITION: pa.chunked_array([pa.array(list(r), pa.int64()) for _, _, r in parts], pa.int64()),
            _CHOICE: pa.chunked_array([pa.repeat(pa.scalar(n, pa.int32()), len(r)) for n, _, r in parts], pa.int32()),
        }
    )
    chosen: Any = spark.createDataFrame(rows)
    if rows.num_rows <= BROADCAST_AT_MOST:
        chosen = F.broadcast(chosen)
    located = frame.select(*columns, F.col("_file").alias(_FILE), F.col("_pos").alias(_POSITION))
    numbered = located.join(F.broadcast(spark.createDataFrame(files)), _FILE, "left")
    return numbered.join(chosen, [_NUMBER, _POSITION], "left").select(*columns, _CHOICE)
