"""`lethe read` prints what is not deleted, in each of its formats; and how errors of any command look."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from lethe.cli import read
from pyiceberg.catalog import Catalog

from tests.tables.lethe.cli.conftest import NAME, Kept

Lethe = Callable[..., Result]


def values(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return sorted(json.loads(line)["v"] for line in result.output.splitlines())


def test_rows_of_batches_taken_back_are_left_out(flights: Kept, lethe: Lethe) -> None:
    before = flights.append("A", "B", None)
    flights.commit("A")

    assert values(lethe("read", NAME, "--format", "json")) == [1, 2]
    assert values(lethe("read", NAME, "--format", "json", "--snapshot", before)) == [0, 1, 2]
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert values(lethe("read", NAME, "--format", "json", "--as-of", later)) == [1, 2]


def test_csv_is_what_a_csv_reader_reads(flights: Kept, lethe: Lethe) -> None:
    flights.append('quoted "A", with a comma', "B")

    found = list(csv.DictReader(io.StringIO(lethe("read", NAME, "--format", "csv").output)))

    assert found == [{"v": "0", "batch_id": 'quoted "A", with a comma'}, {"v": "1", "batch_id": "B"}]


def test_csv_keeps_the_end_of_a_line_within_a_text(flights: Kept, lethe: Lethe) -> None:
    flights.append("A\rB", "C\nD")

    written = io.StringIO(lethe("read", NAME, "--format", "csv").output, newline="")

    assert list(csv.reader(written)) == [["v", "batch_id"], ["0", "A\rB"], ["1", "C\nD"]]


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_a_time_that_python_does_not_have_is_refused_in_text(
    catalog: Catalog, lethe: Lethe, tmp_path: Path, form: str
) -> None:
    """Such as the date `infinity` of PostgreSQL, which other engines write."""
    rows = pa.table({"day": pa.array([2_932_897], pa.int32()).cast(pa.date32())})
    table = catalog.create_table("air.odd", rows.schema)
    table.append(pa.table({"day": [date(2026, 3, 1)]}))
    (task,) = table.scan().plan_files()
    file = task.file.file_path.removeprefix("file://")
    pq.write_table(rows.cast(pq.read_schema(file)), file)

    refused = lethe("read", "lite.air.odd", "--format", form)

    assert (refused.exit_code, "lethe: NotInFormat: a row has a time" in refused.output) == (10, True), refused.output
    whole = lethe("read", "lite.air.odd", "--format", "parquet", "--output", tmp_path / "out")
    assert (whole.exit_code, pq.read_table(tmp_path / "out").num_rows) == (0, 1)


def test_parquet_goes_into_a_file(flights: Kept, lethe: Lethe, tmp_path: Path) -> None:
    flights.append("A", "B")
    flights.commit("A")
    file = tmp_path / "out.parquet"

    assert lethe("read", NAME, "--format", "parquet", "--output", file).exit_code == 0

    assert pq.read_table(file).to_pylist() == [{"v": 1, "batch_id": "B"}]


def test_text_goes_into_a_file_too(flights: Kept, lethe: Lethe, tmp_path: Path) -> None:
    flights.append("A")
    file = tmp_path / "out.json"

    assert lethe("read", NAME, "--format", "json", "--output", file).output == ""

    assert file.read_text() == '{"v": 0, "batch_id": "A"}\n'


def test_a_printed_table_says_if_it_is_incomplete(flights: Kept, lethe: Lethe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "DEFAULT_LIMIT", 2)
    flights.append("A", "[bold]B", "C")

    result = lethe("read", NAME)

    assert "[bold]B" in result.output
    assert "Only 2 rows are shown" in result.output
    assert "the first" not in lethe("read", NAME, "--limit", "3").output


def test_an_increment_holds_what_came_or_what_went(flights: Kept, lethe: Lethe) -> None:
    start = flights.append("A")
    flights.append("B", start=5)
    flights.commit("A")

    assert values(lethe("read", NAME, "--format", "json", "--since", start)) == [5]
    assert values(lethe("read", NAME, "--format", "json", "--since", start, "--rows", "deleted")) == [0]


def test_times_bytes_and_nested_values_have_a_form_in_text(catalog: Catalog, lethe: Lethe) -> None:
    rows = pa.table(
        {
            "at": pa.array([datetime(2026, 3, 1, 12, tzinfo=UTC)], pa.timestamp("us", "UTC")),
            "raw": pa.array([b"\x01\xff"], pa.binary()),
            "tags": pa.array([["a", "b"]], pa.list_(pa.string())),
            "nothing": pa.array([None], pa.string()),
        }
    )
    catalog.create_table("air.odd", rows.schema).append(rows)

    assert json.loads(lethe("read", "lite.air.odd", "--format", "json").output) == {
        "at": "2026-03-01T12:00:00+00:00",
        "raw": "01ff",
        "tags": ["a", "b"],
        "nothing": None,
    }
    (found,) = csv.DictReader(io.StringIO(lethe("read", "lite.air.odd", "--format", "csv").output))
    assert found == {"at": "2026-03-01T12:00:00+00:00", "raw": "01ff", "tags": '["a", "b"]', "nothing": ""}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), [float("nan")]])
def test_numbers_that_json_does_not_have_are_refused_there(catalog: Catalog, lethe: Lethe, value: object) -> None:
    rows = pa.table({"x": [value]})
    catalog.create_table("air.odd", rows.schema).append(rows)

    refused = lethe("read", "lite.air.odd", "--format", "json")

    assert (refused.exit_code, "lethe: NotInFormat: a row has NaN" in refused.output) == (10, True), refused.output
    assert lethe("read", "lite.air.odd", "--format", "csv").exit_code == 0


WRONG = {
    "two moments": (["--snapshot", "1", "--since", "1"], 2, "Give only one of --snapshot"),
    "an end without a beginning": (["--until", "1"], 2, "--until and --rows need --since"),
    "a time without a zone": (["--as-of", "2026-03-01T12:00:00"], 2, "has no time zone"),
    "parquet to the terminal": (["--format", "parquet"], 2, "needs --output"),
    "a table into a file": (["--output", "x"], 2, "--output needs --format"),
    "an unknown column": (["--columns", "v,w"], 10, "lethe: UnknownColumn: air.flights has no column w."),
    "a filter on an unknown column": (["--filter", "w = 'secret'"], 10, "lethe: InvalidFilter: "),
    "a filter that is none": (["--filter", "v ="], 10, "lethe: InvalidFilter: "),
    "an unknown snapshot": (["--snapshot", "5"], 10, "lethe: SnapshotNotFound: "),
}


@pytest.mark.parametrize(("options", "code", "says"), WRONG.values(), ids=WRONG)
def test_wrong_input_gives_one_line_with_the_remedy(
    flights: Kept, lethe: Lethe, options: list[str], code: int, says: str
) -> None:
    flights.append("A")

    result = lethe("read", NAME, *options)

    assert (result.exit_code, says in result.output) == (code, True), result.output
    assert "Traceback" not in result.output
    assert "secret" not in result.output
    assert code == 2 or len(result.output.splitlines()) == 1


def test_the_error_for_an_unknown_name_says_which_part_is_unknown(catalog: Catalog, lethe: Lethe) -> None:
    assert catalog.name == "lite"

    for name, says in {
        "air.flights": "InvalidRead: 'air.flights' is not a table name: expected catalog.namespace.table.",
        "nope.air.flights": "UnknownCatalog: there is no catalog 'nope'",
        "lite.air.nope": "TableNotFound: catalog lite has no table air.nope.",
        "lite.nope.nope": "TableNotFound: catalog lite has no table nope.nope.",
    }.items():
        result = lethe("ledger", "show", name)
        assert (result.exit_code, says in result.output) == (10, True), result.output


def test_a_ledger_that_cannot_be_read_stops_the_read(flights: Kept, lethe: Lethe) -> None:
    """Rows without it would be deleted ones."""
    flights.append("A", "B")
    flights.commit("A")
    flights.ledger_file("*-tombstones.avro").unlink()

    result = lethe("read", NAME, "--format", "json")

    assert (result.exit_code, "lethe: LedgerMissing: " in result.output) == (10, True)
    assert '"v"' not in result.output


def test_a_catalog_that_is_away_is_for_later_and_its_address_stays_unsaid(
    catalog: Catalog, lethe: Lethe, tmp_path: Path
) -> None:
    assert catalog.name == "lite"
    (tmp_path / ".pyiceberg.yaml").write_text(
        "catalog:\n  lite:\n    type: sql\n    uri: postgresql+psycopg2://me:pass-word@127.0.0.1:9/ice\n"
    )

    result = lethe("ledger", "show", NAME)

    assert (result.exit_code, "CatalogOrStorageAway" in result.output) == (20, True), result.output
    assert "pass-word" not in result.output
    assert len(result.output.splitlines()) == 1
