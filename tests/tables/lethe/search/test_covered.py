"""Which files a hold concerns: by metadata never too few, and by their rows exactly those that would lose a covered one."""

from pathlib import Path

import pytest
from lethe.contract.dataset import HoldSpec
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.holds import Holds
from lethe.search.covered import HeldTable, Leaving, LeavingRows
from pyiceberg.table import Table
from pyroaring import FrozenBitMap64

from tests.support.tables import catalog_in, head, new_table, rows


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Two files: rows 0 to 3 of the batches A and B in turn, and rows 10 to 13 of C."""
    made = new_table(catalog_in(tmp_path))
    made.append(rows("A", "B", "A", "B"))
    made.append(rows("C", "C", "C", "C", start=10))
    return made


def held(table: Table, **filters: str) -> HeldTable:
    specs = [HoldSpec(name=name, filter=filter) for name, filter in filters.items()]
    return HeldTable(
        table, head(table), table.schema().find_field("batch_id").field_id, Holds.of(specs, table.schema())
    )


def paths(table: Table) -> tuple[str, str]:
    """Of the file of A and B, and of that of C."""
    by_start = {f.file.lower_bounds[1]: f.file.file_path for f in table.scan().plan_files()}
    first, second = (by_start[key] for key in sorted(by_start))
    return first, second


def test_bounds_say_which_files_may_have_covered_rows(table: Table) -> None:
    first, second = paths(table)

    found = {f: set(held(table, h=f).may_cover() or ()) for f in ("v = 2", "v > 1", "v = 7", "", "v IS NULL")}

    assert found == {
        "v = 2": {first},
        "v > 1": {first, second},
        "v = 7": set(),
        "": {first, second},
        "v IS NULL": set(),
    }
    assert set(held(table, h="v > 1").may_cover([second]) or ()) == {second}


def test_only_covered_rows_that_leave_count(table: Table) -> None:
    first, second = paths(table)
    holds = held(table, of_b="v = 1", of_c="v IN (11, 12)")

    old = RowCondition.of(table.schema(), "v < 12")

    def covering(*files: LeavingRows, ids: str = "") -> dict[str, frozenset[str]]:
        return dict(holds.covering(files, Leaving(frozenset(ids), old), dict(table.io.properties)))

    both = (LeavingRows(first), LeavingRows(second))
    assert covering(*both, ids="A") == {}
    assert covering(*both, ids="BC") == {first: {"of_b"}, second: {"of_c"}}
    assert covering(LeavingRows(first, is_whole=True)) == {first: {"of_b"}}
    assert covering(LeavingRows(first, positions=FrozenBitMap64([0, 2]))) == {}
    assert covering(LeavingRows(second, positions=FrozenBitMap64([2]))) == {second: {"of_c"}}
    assert covering(LeavingRows(second, matching=True)) == {second: {"of_c"}}
    assert covering(LeavingRows(second, matching=False)) == {}


def test_a_file_that_cannot_be_read_counts_as_covered(table: Table) -> None:
    first, _ = paths(table)
    Path(first.removeprefix("file://")).write_bytes(b"no Parquet")

    found = held(table, h="v = 1").covering([LeavingRows(first)], Leaving(), dict(table.io.properties))

    assert found == {first: {"h"}}
