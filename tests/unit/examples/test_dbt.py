"""What the macros for dbt do to a model. Neither dbt nor a table of Iceberg is needed."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jinja2 import Environment

ROOT = Path(__file__).parents[3]
MACROS = (ROOT / "examples/dbt/macros/lethe.sql").read_text()
MODEL = "model.shop.orders_by_batch"
COLUMNS = [SimpleNamespace(quoted=f'"{name}"') for name in ("batch_id", "orders")]
BEFORE = [(None, 9), ("A", 1), ("B", 2), ("C", 3)]


def replay(changes: Path) -> str:
    """The SQL of an incremental run whose changes are in this folder."""
    names = ("get_incremental_lethe_sql", "lethe_since", "lethe_progress")
    found = [re.search(rf"{{% macro {name}\(.*?endmacro -?%}}", MACROS, re.DOTALL) for name in names]
    given = {
        "config": {"meta": {}},
        "lethe_changes": lambda: changes,
        "model": SimpleNamespace(unique_id=MODEL),
        "return": lambda value: value,
        "target": SimpleNamespace(schema="main"),
    }
    arguments = {"target_relation": "orders", "temp_relation": "news", "dest_columns": COLUMNS}
    template = Environment().from_string("\n".join(m.group() for m in found if m), given)
    module: Any = template.module
    return str(module.get_incremental_lethe_sql(arguments))


@pytest.mark.parametrize(
    ("progress", "changed", "news", "after"),
    [
        # B has changed since, and C was taken back.
        ("7", ["B", "C"], "('B', 5)", [(None, 9), ("A", 1), ("B", 5)]),
        ("7", ["B", None], "('B', 5), (NULL, 2)", [(None, 2), ("A", 1), ("B", 5), ("C", 3)]),
        # Nothing says what the model has read, as after a change of its strategy: everything is read again.
        (None, [], "('A', 1), ('B', 5)", [("A", 1), ("B", 5)]),
        ("NULL", [], "('A', 1), ('B', 5)", [("A", 1), ("B", 5)]),
    ],
    ids=["a batch taken back", "rows without a batch", "no progress", "progress in an empty table"],
)
def test_an_incremental_run_has_each_batch_once(
    tmp_path: Path, progress: str | None, changed: list[str | None], news: str, after: list[tuple[str | None, int]]
) -> None:
    pq.write_table(pa.table({"batch_id": pa.array(changed, pa.string())}), tmp_path / "batches.parquet")
    with duckdb.connect() as db:
        db.execute("CREATE TABLE orders (batch_id VARCHAR, orders INTEGER)")
        db.executemany("INSERT INTO orders VALUES (?, ?)", BEFORE)
        db.execute(f"CREATE TABLE news AS FROM (VALUES {news}) AS t(batch_id, orders)")
        db.execute("CREATE TABLE lethe_progress (model VARCHAR PRIMARY KEY, snapshot_id BIGINT)")
        if progress is not None:
            db.execute(f"INSERT INTO lethe_progress VALUES ('{MODEL}', {progress})")

        db.execute(replay(tmp_path))

        assert db.execute("FROM orders ORDER BY batch_id NULLS FIRST").fetchall() == after
