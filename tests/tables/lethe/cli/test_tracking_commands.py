"""`lethe batches` reads the table of batches where it may, `lethe track` makes it, and `lethe doctor` looks after it."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import Result
from lethe import batches_table
from lethe.buffer.batch_rows import BUFFERED, BatchRow
from lethe.cli import batches
from lethe.ledger.ledger import BatchState
from pyiceberg.catalog import Catalog

from tests.support.builders import NOW, a_batch, a_request_entry, ago
from tests.tables.lethe.cli.conftest import NAME, Kept

Lethe = Callable[..., Result]


@pytest.fixture
def tracked(flights: Kept, lethe: Lethe) -> Kept:
    """A is promoted, B reverted and tombstoned, C refused; the table of batches says so."""
    flights.commit(
        "B", batches=[a_batch("A", time=ago(hours=2)), a_batch("B", BatchState.REVERTED, restatement="ns/r/1")]
    )
    flights.commit(
        batches=[a_batch("C", BatchState.REFUSED, time=ago(hours=1), rows=None, refusal="SchemaMismatch: x")]
    )
    assert lethe("track", NAME).exit_code == 0
    return flights


def listed(lethe: Lethe, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(lethe("batches", NAME, "--json", *options).stdout)
    return found


def findings(lethe: Lethe) -> dict[str, str]:
    return {f["code"]: f["what"] for f in json.loads(lethe("doctor", NAME, "--json").stdout)["findings"]}


@pytest.mark.usefixtures("tracked")
def test_track_creates_the_table_and_prints_its_content(lethe: Lethe, catalog: Catalog) -> None:
    result = lethe("track", NAME, "--rebuild")

    assert result.exit_code == 0
    assert [line.split(None, 1) for line in result.output.splitlines()] == [
        ["table", "lite.air.flights_batches"],
        ["ledger", "version 2"],
        ["batches", "1 promoted, 1 reverted, 1 refused"],
        ["changed", "rebuilt"],
    ]
    assert "no" in lethe("track", NAME).output.splitlines()[-1]
    assert catalog.load_table("air.flights_batches").scan().to_arrow().num_rows == 3


def test_a_dry_run_of_track_says_what_would_change_and_writes_nothing(
    lethe: Lethe, catalog: Catalog, flights: Kept
) -> None:
    def planned(*options: str) -> list[str]:
        result = lethe("track", NAME, "--dry-run", *options)
        assert result.exit_code == 0, result.output
        return [line.split(None, 1)[1] for line in result.output.splitlines()]

    flights.append("A")
    flights.commit("A", batches=(a_batch("A"),))
    absent = planned()
    assert not catalog.table_exists("air.flights_batches")
    lethe("track", NAME)
    current, rebuilt = planned(), planned("--rebuild")
    flights.commit(batches=(a_batch("B"),))
    behind = planned()

    name = "lite.air.flights_batches"
    assert absent == [name, "version 1", "1 promoted", "it would be created (dry run)"]
    assert current == [name, "version 1, it shows 1", "1 promoted", "no (dry run)"]
    assert rebuilt == [name, "version 1, it shows 1", "1 promoted", "it would be rebuilt (dry run)"]
    assert behind == [name, "version 2, it shows 1", "2 promoted", "it would be updated (dry run)"]
    assert planned() == behind


@pytest.mark.usefixtures("tracked")
def test_batches_of_the_table_are_those_of_the_ledger(lethe: Lethe, monkeypatch: pytest.MonkeyPatch) -> None:
    by_table = [listed(lethe), listed(lethe, "--state", "refused"), listed(lethe, "--id", "B", "--id", "A")]

    monkeypatch.setattr(batches.batches_table, "find", lambda *_: None)
    assert by_table == [listed(lethe), listed(lethe, "--state", "refused"), listed(lethe, "--id", "B", "--id", "A")]
    assert [[b["id"] for b in found] for found in by_table] == [["A", "C", "B"], ["C"], ["A", "B"]]
    assert (by_table[0][2]["tombstoned"], by_table[0][1]["refusal"]) == (True, "SchemaMismatch: x")


@pytest.mark.usefixtures("tracked")
def test_the_ledgers_batches_are_not_read_where_the_table_shows_them(lethe: Lethe, flights: Kept) -> None:
    for file in flights.folder.glob("*-batches.avro"):
        file.unlink()

    assert [b["id"] for b in listed(lethe, "--state", "promoted")] == ["A"]


@pytest.mark.usefixtures("tracked")
def test_what_waits_in_the_buffer_is_listed_too(lethe: Lethe, catalog: Catalog) -> None:
    row = BatchRow("W", BUFFERED, NOW, bytes=10, objects=1)
    batches_table.bring_up_to_date(
        catalog, "air.flights", "batch_id", batches_table.TrackingUpdate(create=False, waiting=[row])
    )

    (waiting,) = listed(lethe, "--state", "buffered")

    assert (waiting["id"], waiting["bytes"], waiting["snapshotId"], waiting["run"]) == ("W", 10, None, None)
    assert "producer" in lethe("batches", NAME, "--id", "W").output


ASKED = {"reason": "the producer sent the day twice", "ticket": "LAKE-7", "marks": {"lethe.dev/requested-by": "ana"}}


@pytest.fixture
def restated(flights: Kept) -> Kept:
    """A was promoted, reverted for a reason, and purged."""
    flights.append("A", "A", "A")
    flights.commit(batches=[a_batch("A")])
    request = a_request_entry("air/revert-a/1", batch_ids=("A",), provenance=ASKED)
    reverted = a_batch("A", BatchState.REVERTED, run="f" * 32, restatement="air/revert-a/1")
    flights.commit("A", batches=[reverted], requests=[request])
    flights.commit(removed=["A"], vacuumed=[])
    return flights


@pytest.mark.usefixtures("restated")
def test_the_history_of_a_batch_says_who_asked_and_why(lethe: Lethe) -> None:
    promoted, *taken_back = json.loads(lethe("history", NAME, "A", "-o", "json").stdout)

    assert (promoted["state"], promoted["rows"], promoted["reason"]) == ("promoted", 3, None)
    assert [(c["state"], c["tombstoned"]) for c in taken_back] == [("reverted", True), ("reverted", False)]
    for change in taken_back:
        assert (change["requestedBy"], change["ticket"], change["reason"]) == ("ana", "LAKE-7", ASKED["reason"])
        assert change["restatement"] == "air/revert-a/1"


@pytest.mark.usefixtures("restated")
def test_the_history_of_a_batch_fits_a_terminal_and_loses_no_reason(
    lethe: Lethe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe.cli.output._width", lambda: 80)

    printed = lethe("history", NAME, "A")

    assert printed.exit_code == 0, printed.output
    assert max(map(len, printed.stdout.splitlines())) <= 80
    words = " ".join(printed.stdout.split())
    assert all(words.count(text) == 2 for text in ("air/revert-a", "ana", "LAKE-7", ASKED["reason"]))


def test_a_batch_without_a_history_is_named(restated: Kept, lethe: Lethe) -> None:  # noqa: ARG001
    result = lethe("history", NAME, "Z")

    assert (result.exit_code, result.stderr.startswith("lethe: UnknownBatch: ")) == (10, True), result.output


def test_a_table_that_is_behind_is_not_believed(tracked: Kept, lethe: Lethe) -> None:
    tracked.commit(batches=[a_batch("D")])

    result = lethe("batches", NAME)

    assert "shows version 2 of the ledger, whose current version is 3" in result.stderr
    assert "D" in {line.split()[0] for line in result.stdout.splitlines()}


@pytest.mark.usefixtures("tracked")
def test_a_table_that_shows_the_ledger_is_nothing_to_speak_of(lethe: Lethe) -> None:
    assert not [code for code in findings(lethe) if "Batches" in code]


def test_doctor_names_a_table_that_is_missing(flights: Kept, lethe: Lethe) -> None:
    """Of a table that no Dataset claims, nobody said that there should be one."""
    flights.commit(batches=[a_batch("A")])
    assert "NoBatchesTable" not in findings(lethe)

    flights.table.transaction().set_properties({"lethe.dataset": "air/flights"}).commit_transaction()

    assert "NoBatchesTable" in findings(lethe)


def test_doctor_names_a_table_that_is_behind(tracked: Kept, lethe: Lethe) -> None:
    tracked.commit(batches=[a_batch("D")])

    assert "version 2" in findings(lethe)["BatchesTableBehind"]


@pytest.mark.usefixtures("tracked")
def test_doctor_names_a_table_that_somebody_else_wrote_to(lethe: Lethe, catalog: Catalog) -> None:
    mine = catalog.load_table("air.flights_batches")
    mine.append(mine.schema().as_arrow().empty_table())

    assert "lite.air.flights_batches" in findings(lethe)["BatchesTableForeign"]


def test_doctor_names_somebody_elses_table(flights: Kept, lethe: Lethe, catalog: Catalog) -> None:
    flights.commit(batches=[a_batch("A")])
    catalog.create_table("air.flights_batches", flights.table.schema())

    assert "Lethe did not make the table air.flights_batches" in findings(lethe)["BatchesTableTaken"]
    result = lethe("track", NAME)
    assert (result.exit_code, "BatchesTableTaken" in result.stderr) == (10, True)
