"""`lethe doctor` on real tables: what it looks at is there, and what it says is true."""

import json
import os
from collections.abc import Callable

from click.testing import Result
from lethe.base import names
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from tests.tables.lethe.cli.conftest import NAME, SCHEMA, Kept

Lethe = Callable[..., Result]


def prepare(flights: Kept, column: str = "batch_id") -> None:
    field_id = flights.table.schema().find_field(column).field_id
    with flights.table.transaction() as transaction:
        transaction.set_properties({names.BATCH_COLUMN: str(field_id), names.LEDGER_SINCE: "0"})
    with flights.table.update_sort_order() as update:
        update.asc(column, IdentityTransform())


def findings(lethe: Lethe, *options: str) -> tuple[int, dict[str, str]]:
    result = lethe("doctor", NAME, "--json", *options)
    return result.exit_code, {f["code"]: f["what"] for f in json.loads(result.output)["findings"]}


def test_a_prepared_table_with_a_ledger_at_its_head_is_healthy(flights: Kept, lethe: Lethe) -> None:
    prepare(flights)
    flights.commit("A")

    assert findings(lethe) == (
        0,
        {"Snapshots": "1 snapshot is retained.", "Unclaimed": "no Dataset claims the table, so no operator keeps it."},
    )


def test_a_foreign_append_bares_the_head_and_is_out_of_order(flights: Kept, lethe: Lethe) -> None:
    prepare(flights)
    flights.commit("A")
    flights.append("B")

    code, found = findings(lethe)

    assert code == 1
    assert found.keys() >= {"BareHead", "UnsortedFiles"}
    assert "1 of 1 data files" in found["UnsortedFiles"]


def test_a_table_as_others_make_them_is_not_prepared(catalog: Catalog, lethe: Lethe) -> None:
    other = Kept(catalog.create_table("air.flights", SCHEMA, properties={"format-version": "2"}))
    other.append("2013-01-01T00:00:00Z.UA", "2013-01-01T00:00:00Z.WN")

    code, found = findings(lethe)

    assert code == 1
    assert found.keys() >= {"NotSorted", "MetricsTruncated", "BoundsTruncated", "NoLedger"}


def test_a_missing_and_an_unneeded_ledger_file_are_named(flights: Kept, lethe: Lethe) -> None:
    prepare(flights)
    flights.commit("A")
    stray = flights.folder / "00000009-lost-race-tombstones.avro"
    stray.touch()
    os.utime(stray, (0, 0))
    gone = flights.ledger_file("00000001-*-tombstones.avro")
    gone.unlink()

    code, found = findings(lethe)

    assert code == 1
    assert gone.name in found["LedgerFileMissing"]
    assert stray.name in found["LedgerFileOrphaned"]
    young = flights.folder / "00000009-under-way-tombstones.avro"
    young.touch()
    assert young.name not in findings(lethe)[1]["LedgerFileOrphaned"]
    assert young.name in findings(lethe, "--grace-hours", "0")[1]["LedgerFileOrphaned"]


def test_a_damaged_root_is_reported_and_hides_no_other_finding(flights: Kept, lethe: Lethe) -> None:
    prepare(flights)
    flights.commit("A")
    flights.ledger_file("*-root.json").write_text("{}")
    flights.append("B")

    code, found = findings(lethe)

    assert code == 1
    assert found.keys() >= {"LedgerUnreadable", "BareHead"}


def test_a_batch_column_that_was_dropped_is_an_error_also_when_another_has_its_name(
    flights: Kept, lethe: Lethe
) -> None:
    prepare(flights, "batch_id")
    flights.commit("A")
    with flights.table.update_sort_order() as order:
        order.asc("v", IdentityTransform())
    with flights.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("batch_id")
    with flights.table.update_schema() as update:
        update.add_column("batch_id", StringType())

    code, found = findings(lethe)

    assert (code, "BatchColumnDropped" in found) == (1, True)


def test_the_output_names_the_remedy(flights: Kept, lethe: Lethe) -> None:
    flights.append("A")

    result = lethe("doctor", NAME)

    assert result.exit_code == 1
    assert "warning NotSorted: " in result.output
    assert "prepare=True" in result.output


def test_a_table_that_is_empty_and_was_never_written_is_no_error(flights: Kept, lethe: Lethe) -> None:
    prepare(flights)
    assert flights.table.current_snapshot() is None

    assert findings(lethe)[0] == 0
