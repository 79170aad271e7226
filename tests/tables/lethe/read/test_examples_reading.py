"""The example runs as its users run it, and DuckDB and Polars see the same rows."""

import os
import subprocess
import sys
from pathlib import Path

from pyiceberg.table import Table

from tests.support.tables import head, revert, rows

ROOT = Path(__file__).parents[4]


def test_duckdb_and_polars_see_what_was_not_taken_back(table: Table) -> None:
    table.append(rows("A", "B", "B", None))
    first = head(table)
    table.append(rows("C", "C", "A", start=10))
    revert(table, "A")

    done = subprocess.run(
        [sys.executable, ROOT / "examples/reading/duckdb_and_polars.py", "lite.air.flights", "--since", str(first)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "spark_apps")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )

    per_batch = ["B  2", "C  2", "None  1"]
    assert done.stdout.splitlines() == [
        *(f"duckdb  {line}" for line in per_batch),
        *(f"polars  {line}" for line in per_batch),
        "appended  3",
        "deleted  2",
    ]
