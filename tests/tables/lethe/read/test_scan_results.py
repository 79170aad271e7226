"""A scan can be narrowed step by step, and be given to other libraries."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import lethe
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import InputError, LedgerError
from lethe.read import data_file
from lethe.read.data_file import FILES_AHEAD, Reading
from pyiceberg.expressions import GreaterThan
from pyiceberg.table import Table

from tests.support.clock import wait_until
from tests.support.tables import kinds, revert, rows, values


@pytest.fixture
def flights(table: Table) -> Table:
    """The rows 1, 10 and 11 are left."""
    table.append(rows("A", "B"))
    table.append(rows("C", "C", "A", start=10))
    revert(table, "A")
    return table


READERS: dict[str, Callable[[lethe.Scan], list[dict[str, Any]]]] = {
    "to_arrow": lambda scan: scan.to_arrow().to_pylist(),
    "to_batches": lambda scan: [row for batch in scan.to_batches() for row in batch.to_pylist()],
    "to_reader": lambda scan: scan.to_reader().read_all().to_pylist(),
    "to_pandas": lambda scan: scan.to_pandas().to_dict("records"),
    "to_polars": lambda scan: scan.to_polars().to_dicts(),
    "to_duckdb": lambda scan: scan.to_duckdb().to_arrow_table().to_pylist(),
    "to_duckdb with a connection": lambda scan: scan.to_duckdb(duckdb.connect()).to_arrow_table().to_pylist(),
    "pyarrow.table": lambda scan: pa.table(scan).to_pylist(),
    "polars.DataFrame": lambda scan: polars.DataFrame(scan).to_dicts(),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_each_library_sees_the_rows_that_are_left(flights: Table, read: Callable[..., list[dict[str, Any]]]) -> None:
    scan = lethe.scan(flights)

    assert sorted(read(scan), key=lambda r: r["v"]) == [
        {"v": 1, "batch_id": "B"}, {"v": 10, "batch_id": "C"}, {"v": 11, "batch_id": "C"},
    ]  # fmt: skip
    assert [r["v"] for r in read(scan.filter("v = 10").select("v"))] == [10]
    assert len(read(scan.limit(2))) == 2
    assert read(scan.limit(0)) == read(scan.filter("v > 99")) == []


def test_the_kinds_of_results_are_those_of_the_libraries(flights: Table) -> None:
    scan = lethe.scan(flights)

    assert isinstance(scan.to_pandas(), pandas.DataFrame)
    assert isinstance(scan.to_polars(), polars.DataFrame)
    assert isinstance(scan.head(), pa.Table)


def test_a_relation_of_duckdb_can_be_queried_again(flights: Table) -> None:
    relation = lethe.scan(flights).to_duckdb()

    assert [relation.aggregate("sum(v)").fetchall() for _ in range(2)] == [[(22,)], [(22,)]]


def test_filters_add_up_and_a_limit_applies_after_them(flights: Table) -> None:
    scan = lethe.scan(flights, filter="v > 0").limit(1)
    narrower = scan.filter(GreaterThan("v", 1)).filter("batch_id = 'C' and v < 11")

    assert values(narrower) == [10]
    assert scan.limit(5).count() == scan.count() == 1
    assert values(lethe.scan(flights)) == [1, 10, 11]


def test_a_filter_may_name_a_column_that_is_not_selected(flights: Table) -> None:
    found = lethe.scan(flights).select("batch_id").filter("v = 1").to_arrow()

    assert found.to_pylist() == [{"batch_id": "B"}]


def test_a_scan_and_those_made_from_it_do_not_change(flights: Table) -> None:
    scan = lethe.scan(flights)
    selected = scan.select("v")
    flights.append(rows("D", start=50))
    flights.refresh()

    assert scan.columns == ("v", "batch_id")
    assert values(scan.filter("v >= 0")) == values(selected) == [1, 10, 11]


def test_an_increment_can_be_narrowed_too(flights: Table) -> None:
    first = flights.metadata.snapshots[0].snapshot_id

    assert values(lethe.scan(flights, since=first).filter("v > 10")) == [11, 12]
    assert values(lethe.scan(flights, since=first, rows="deleted").filter("v > 0")) == [12]


def test_a_few_rows_open_one_file(table: Table, opened: list[str]) -> None:
    for start in range(5):
        table.append(rows("A", "A", start=start))
    scan = lethe.scan(table)
    assert scan.parts
    opened.clear()

    assert scan.head(2).num_rows == 2

    assert kinds(opened) == {"roots": 0, "chunks": 0, "data": 1}


def test_a_limited_scan_reads_no_further_than_asked(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many row groups is not read whole for its first rows."""
    table.append(rows(*["A"] * 1000))
    (task,) = table.scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    whole = pq.read_table(path)
    pq.write_table(whole, path, row_group_size=10)
    assert pq.ParquetFile(path).num_row_groups == 100

    read: list[int] = []
    rows_of = Reading.rows

    def noting(*arguments: Any) -> Iterator[pa.RecordBatch]:
        for batch in rows_of(*arguments):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(Reading, "rows", noting)

    assert lethe.scan(table).limit(15).to_arrow().num_rows == 15
    assert read == [10, 10]


def test_the_next_file_begins_when_one_is_handed_over(table: Table, opened: list[str]) -> None:
    """The files are not read in groups, whose slowest file all others would wait for."""
    for start in range(FILES_AHEAD + 2):
        table.append(rows("A", start=start))
    scan = lethe.scan(table)
    assert scan.parts
    opened.clear()
    batches = scan.to_batches()

    for begun in (FILES_AHEAD, FILES_AHEAD + 1, FILES_AHEAD + 2):
        next(batches)
        wait_until(lambda begun=begun: kinds(opened)["data"] == begun, 30)  # type: ignore[misc]


@pytest.mark.parametrize(("columns", "begun"), [(["batch_id"], 2), (None, 1)])
def test_as_many_large_files_are_read_at_once_as_their_columns_leave_memory(
    table: Table, opened: list[str], monkeypatch: pytest.MonkeyPatch, columns: list[str] | None, begun: int
) -> None:
    for start in range(5):
        table.append(rows("A", start=start))
    (size, *_) = table.inspect.files()["column_sizes"].to_pylist()
    of_column = dict(size)[table.schema().find_field("batch_id").field_id]
    assert 2 * of_column < sum(dict(size).values())
    monkeypatch.setattr(data_file, "BYTES_AHEAD", 2 * of_column)
    scan = lethe.scan(table, columns=columns)
    assert scan.parts
    opened.clear()

    next(scan.to_batches())

    assert kinds(opened)["data"] == begun


@pytest.mark.parametrize("package", ["pandas", "polars", "duckdb"])
def test_a_missing_library_is_named(flights: Table, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(InputError, match=f"pip install {package}, or 'lethe-lake\\[notebook\\]'") as raised:
        getattr(lethe.scan(flights), f"to_{package}")()
    assert raised.value.reason == "NotInstalled"


WRONG: dict[str, tuple[Callable[[lethe.Scan], object], str, str]] = {
    "a column twice": (lambda s: s.select("v", "v"), "InvalidRead", "v is chosen more than once"),
    "an unknown column": (
        lambda s: s.select("v", "w"),
        "UnknownColumn",
        "has no column w. Its columns are v, batch_id.",
    ),
    "no column": (lambda s: s.select(), "InvalidRead", "Its columns are v, batch_id."),
    "a filter that is none": (lambda s: s.filter("v ="), "InvalidRead", "Write, for example, v > 3."),
    "a filter on an unknown column": (lambda s: s.filter("w = 'secret'"), "InvalidRead", "its columns are v, batch_id"),
    "an expression on an unknown column": (
        lambda s: s.filter(GreaterThan("w", 1)),
        "InvalidRead",
        "names the column w",
    ),
    "a negative limit": (lambda s: s.limit(-1), "InvalidRead", "expected 0 or more"),
}


@pytest.mark.parametrize(("change", "reason", "says"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_an_error_of_lethe(
    flights: Table, change: Callable[[lethe.Scan], object], reason: str, says: str
) -> None:
    with pytest.raises(InputError) as raised:
        change(lethe.scan(flights))

    assert raised.value.reason == reason
    assert says in raised.value.message
    assert "secret" not in raised.value.message


def test_wrong_columns_and_snapshots_of_a_read_are_errors_of_lethe(flights: Table) -> None:
    for options, reason in (({"columns": ["w"]}, "UnknownColumn"), ({"snapshot_id": 5}, "SnapshotNotFound")):
        with pytest.raises(InputError) as raised:
            lethe.scan(flights, **options)  # type: ignore[arg-type]
        assert raised.value.reason == reason


@pytest.mark.parametrize("convert", ["to_reader", "to_duckdb", "to_polars", "to_batches", "count"])
def test_a_lost_ledger_is_an_error_of_lethe_and_not_of_the_library(flights: Table, convert: str) -> None:
    scan = lethe.scan(flights)
    folder = Path(flights.location().removeprefix("file://")) / "_tombstones"
    for file in folder.iterdir():
        file.unlink()

    with pytest.raises(LedgerError) as raised:
        list(getattr(scan, convert)())
    assert raised.value.reason == "LedgerMissing"


def test_a_scan_is_shown_without_reading_and_without_the_values_of_its_filter(
    flights: Table, opened: list[str]
) -> None:
    scan = lethe.scan(flights, filter="batch_id = 'private'").limit(7)
    opened.clear()

    for shown in (repr(scan), scan._repr_html_()):
        assert f"air.flights, snapshot {scan.snapshot_id}, filtered, at most 7 rows" in shown
        assert "private" not in shown
    assert repr(scan).endswith("v int64, batch_id large_string)")
    assert opened == []
