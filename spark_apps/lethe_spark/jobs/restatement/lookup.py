"""Looks up in the table of another Dataset what stands in a column for given values. I/O: reads data through executors.

Invariants: only rows that the table shows count, those of its newest snapshot. No message contains a value, neither of the list
nor of the table: foreign keys are personal data too. A table is read once in an attempt, and again in the next one.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
from lethe.base.errors import InputError, LedgerError, TransientError
from lethe.contract.result import Phase
from lethe.contract.run import ConditionRef, LookupRef, RestatementRequest
from lethe.files.values import MAX_VALUES, ValueKind, Values, ValueType, conversion, described, parse_values
from lethe.finding import errors_of
from lethe.guards.boundary import require_table_within
from lethe.iceberg import catalogs
from lethe.iceberg.column_path import ColumnPath
from lethe.ingest.schema_fit import field_ids
from lethe.read import data_file
from lethe.read.scan import Scan, scan
from lethe.search.candidates import candidates
from lethe.search.columns import ColumnUse, SearchableColumn, searchable_column
from lethe.search.positions import Wanted, distinct_values, is_one_of
from lethe.storage import vended
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.table import Table

from lethe_spark.jobs.restatement.values import ValueLists
from lethe_spark.run.context import RunContext
from lethe_spark.sql.searching import Search, search

_NONE: Final = -1
"""No column has this field id: a lookup may use the batch column of its table."""
_IN_AT_MOST: Final = 200
"""Row groups are skipped by so many values, or by the range of more."""
_NARROWED: Final = (ValueType.STRING, ValueType.INT, ValueType.LONG, ValueType.DECIMAL)
"""Their values are the same in `Values` and in PyIceberg's expressions."""
_KEY: Final = ""


@dataclass
class Lookups:
    """The lookups of a run."""

    context: RunContext
    lists: ValueLists
    _found: dict[tuple[str, str, ValueKind], Values] = field(default_factory=dict, repr=False)
    """By the key of the request, the field of the condition, and the kind of the column in which the values are searched."""

    def values(self, request: RestatementRequest, condition: ConditionRef, kind: ValueKind) -> Values:
        """The values to search for in the column of a condition: those of its list, or those that stand for them.

        Args:
            kind: Of that column.

        Raises:
            InputError: InvalidValues, ColumnNotFound, ColumnNotSearchable, FileNotSearchable, IncompatibleColumns, TooManyKeys,
                and those of `lethe.scan`.
            TransientError: Of `ValueLists`; `TableNotFound`, `CatalogUnavailable`.
            Exception: Spark's errors.
        """
        if condition.via is None:
            where = f"Restatement {request.name}: the values of {condition.field}"
            content = self.lists.content(request, condition)
            return parse_values(content, kind, condition.column, where, request.operation.done)
        of = (request.key, condition.field, kind)
        if of not in self._found:
            content = self.lists.content(request, condition)
            self._found[of] = self._looked_up(request, condition, condition.via, content, kind)
            self.context.step("after-lookup")
        return self._found[of]

    def _looked_up(
        self, request: RestatementRequest, condition: ConditionRef, via: LookupRef, content: bytes, kind: ValueKind
    ) -> Values:
        where = f"Restatement {request.name}: {condition.field}.via"
        nothing = f"Nothing was {request.operation.done}."
        table = self._opened(via)
        source, target = (
            searchable_column(
                table.schema(), _NONE, via.table, ColumnUse(f"{where}.{end}", request.operation.done), name
            )
            for end, name in (("from", via.from_column), ("to", via.to_column))
        )
        if target.path.in_list:
            raise InputError(
                "ColumnNotSearchable",
                f"{where}.to names {via.to_column}, of which a row has several values because it is in a list; expected a "
                f"column, or a field of structs. {nothing}",
            )
        convert = conversion(target.kind, kind)
        if convert is None:
            raise InputError(
                "IncompatibleColumns",
                f"{where}.to names {via.to_column} of Dataset {via.dataset}, of type {target.path.type}, whose values cannot be "
                f"converted exactly to those of {condition.column}: expected {described(kind)}. {nothing}",
            )
        given = f"Restatement {request.name}: the values of {condition.field}"
        wanted = Wanted.of(
            source.path.field_id, parse_values(content, source.kind, via.from_column, given, request.operation.done)
        )
        found: set[Any] = set()
        for keys in self._keys(where, nothing, via, table, source, target, wanted):
            try:
                found.update(v for key in keys if (v := convert(key)) is not None)
            except (ValueError, ArithmeticError):  # its text contains the key
                raise InputError(
                    "IncompatibleColumns",
                    f"{where}.to names {via.to_column} of Dataset {via.dataset}, which has a value that is not one of column "
                    f"{condition.column}: expected {described(kind)}. {nothing} Correct the value in that table.",
                ) from None
            if len(found) > MAX_VALUES:
                raise InputError(
                    "TooManyKeys",
                    f"{where}: more than {MAX_VALUES} values of {via.to_column} in Dataset {via.dataset} stand for the values of "
                    f"the list. {nothing} Divide the list among several Restatements.",
                )
        return Values(kind, tuple(sorted(found)))

    def _opened(self, via: LookupRef) -> Table:
        """The table, within the boundary of the run.

        Raises:
            InputError: CatalogUnusable, OutsideBoundary.
            TransientError: TableNotFound, CatalogUnavailable.
        """
        with errors_of(via.catalog):
            try:
                table = catalogs.load(via.catalog).load_table(via.table)
            except (NoSuchTableError, NoSuchNamespaceError):
                raise TransientError(
                    "TableNotFound",
                    f"The table {via.table} of Dataset {via.dataset}, in which values are looked up, does not exist yet.",
                ) from None
        require_table_within(self.context.spec, table.location(), table.properties)
        return table

    def _keys(
        self,
        where: str,
        nothing: str,
        via: LookupRef,
        table: Table,
        source: SearchableColumn,
        target: SearchableColumn,
        wanted: Wanted,
    ) -> Iterator[tuple[Any, ...]]:
        """The values of the column `to` in the visible rows with a wanted value, as `Values` has them; some more than once."""
        with _naming(where, nothing, via):
            rows = scan(table, columns=tuple(dict.fromkeys((source.path.top.name, target.path.top.name))))
        files = candidates(table, rows.snapshot_id, {_KEY: wanted})
        if not files:
            return
        self.context.reporter.phase(
            Phase.SCAN, f"{len(files)} files of Dataset {via.dataset} for the values to search for"
        )
        io_properties = vended.of_table(catalogs.properties(via.catalog), via.table)
        request = Search({_KEY: wanted}, io_properties, field_ids(table.properties))
        assert self.context.spec.restatement is not None
        searched = search(self.context.spark.sparkContext, self.context.spec.restatement.search_limits, request, files)
        if unsure := next((searched.unsure[c.path] for c in files if c.path in searched.unsure), None):
            raise InputError(
                "FileNotSearchable",
                f"{where}: rows with the values of the list may be in a data file of Dataset {via.dataset} that cannot be "
                f"searched: {unsure}. Rewrite the file with the engine that wrote it. {nothing}",
            )
        if searched.missing:
            raise TransientError(
                "ObjectGone",
                f"{where}: a data file of Dataset {via.dataset} was removed while it was searched. The run is tried again.",
            )
        condition = None if source.path.in_list else _narrowed(source.path, wanted.values)
        with _naming(where, nothing, via):
            narrowed = rows if condition is None else rows.filter(condition)
            for batch in _of_files(narrowed, searched.found.keys()):
                matching = batch.filter(is_one_of(source.path.of(batch), wanted))
                if matching.num_rows:
                    yield distinct_values(pa.chunked_array([target.path.of(matching)]), target.kind)


@contextmanager
def _naming(where: str, nothing: str, via: LookupRef) -> Iterator[None]:
    """Let errors of a read say what it is for. Only this request waits for another table whose ledger is unusable.

    Raises:
        InputError: The table cannot be read.
        TransientError: Its ledger cannot be read.
    """
    try:
        yield
    except LedgerError as e:
        raise TransientError(e.reason, f"{where}: Dataset {via.dataset} cannot be read: {e.message}") from None
    except InputError as e:
        text = f"{where}: the table {via.table} of Dataset {via.dataset} cannot be read: {e.message} {nothing}"
        raise InputError(e.reason, text) from None


def _narrowed(column: ColumnPath, values: Values) -> BooleanExpression | None:
    """A condition by which row groups without the values are skipped; None: the read compares its kind otherwise."""
    if values.kind.type not in _NARROWED:
        return None
    if len(values.items) <= _IN_AT_MOST:
        return In(column.name, values.items)  # type: ignore[call-arg]
    lower = GreaterThanOrEqual(column.name, values.items[0])  # type: ignore[call-arg]
    upper = LessThanOrEqual(column.name, values.items[-1])  # type: ignore[call-arg]
    return And(lower, upper)


def _of_files(rows: Scan, paths: Collection[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these data files, one file at a time."""
    parts = (replace(p, files=tuple(f for f in p.files if f.bounds.path in paths)) for p in rows.parts)
    return data_file.read(rows.view, [p for p in parts if p.files], rows.columns, several=False)
