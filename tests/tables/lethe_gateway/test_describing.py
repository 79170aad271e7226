"""What the console shows of a table itself."""

from dataclasses import replace

import pytest
from lethe.contract.dataset import HoldSpec
from lethe.iceberg.native_deletes import DeletedRowCounts
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.tables import looking
from lethe_gateway.tables.looking import RowsOfHolds, describe
from pyiceberg.catalog import Catalog

from tests.support.gateway_lake import fill, flights_table
from tests.tables.lethe_gateway.test_indexed_tables import TARGET


def test_a_table_is_described_by_its_metadata(catalog: Catalog) -> None:
    table = flights_table(catalog)
    fill(catalog, table)
    table.refresh()
    head = table.current_snapshot()
    assert head is not None

    found = describe(TARGET)

    assert [c.name for c in found.columns] == list(table.schema().column_names)
    assert (found.snapshots[0].id, found.snapshots[0].refs) == (head.snapshot_id, ("main",))
    assert found.snapshots_count == len(table.metadata.snapshots)
    assert {s.operation for s in found.snapshots} >= {"append"}
    assert found.deletes is not None
    assert (found.deletes.files, found.deletes.rows) == ((), 0)
    assert found.vacuum is not None
    assert (found.vacuum.tombstones, found.vacuum.files, found.vacuum.bytes > 0) == (2, 1, True)  # of C and D


def test_files_with_the_most_deleted_rows_come_first(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    table = flights_table(catalog)
    fill(catalog, table)
    table.refresh()
    path = next(iter(table.scan().plan_files())).file.file_path
    deleted = DeletedRowCounts({path: 1, "s3://b/gone.parquet": 5}, of_several=3)
    monkeypatch.setattr(looking, "deleted_rows", lambda *_: deleted)

    found = describe(TARGET).deletes

    assert found is not None
    assert [(f.path, f.deleted) for f in found.files] == [("s3://b/gone.parquet", 5), (path, 1)]
    assert (found.files[0].rows, (found.files[1].rows or 0) > 0) == (None, True)
    assert (found.files_count, found.rows, found.of_several) == (2, 6, 3)


def test_of_a_table_with_too_many_files_no_manifest_is_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(catalog, flights_table(catalog))
    monkeypatch.setattr(looking, "ENTRIES_AT_MOST", 0)

    assert (describe(TARGET).deletes, describe(TARGET).vacuum) == (None, None)


def test_what_the_holds_may_cover_is_counted_from_metadata(catalog: Catalog) -> None:
    """All data files for a hold without a filter, none by bounds that rule it out, and a reason if it is unknown."""
    table = flights_table(catalog)
    fill(catalog, table)
    table.refresh()
    head = table.current_snapshot()
    assert head is not None
    files = table.inspect.files()

    def held(filter: str) -> RowsOfHolds | str | None:
        return describe(TARGET, holds=[HoldSpec(name="case-7", filter=filter)]).held

    everything = held("")
    assert isinstance(everything, RowsOfHolds)
    assert (everything.holds, everything.files, everything.rows) == (
        ("case-7",),
        files.num_rows,
        sum(files["record_count"].to_pylist()),
    )
    assert everything.batches == 1  # A: the others are taken back, or in no file
    assert held("batch_id = 'Z'") == RowsOfHolds(("case-7",), 0, 0, 0)
    assert "filter of hold case-7" in str(held("nobody = 'Z'"))
    assert describe(TARGET).held is None
    planned = describe(TARGET, holds=[HoldSpec(name="case-7")]).vacuum
    assert planned is not None
    assert planned.files_held == planned.files


def test_the_table_of_another_dataset_is_not_described(catalog: Catalog) -> None:
    fill(catalog, flights_table(catalog))

    with pytest.raises(Problem) as error:
        describe(replace(TARGET, claim="default/other"))

    assert error.value.kind is Kind.NO_TABLE
