"""Read tables with one engine that does not know Lethe, in a process of its own.

    python -m tests.spark.engines.readers ENGINE METADATA_FILE...

ENGINE: a name of `READERS`. Prints one JSON document: {"version": of the engine, "tables": one of these for each table}.
{"rows": [[batch id, v], …]} or {"error": the first line of the error}. It runs in the environment of `dev/venv.sh engines`.
"""

import json
import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from bench.one_read import duckdb_with_iceberg

Rows = list[list[Any]]
COLUMNS = ("batch_id", "v")


def pyiceberg(metadata: str) -> Rows:
    return _of_arrow(_static_table(metadata).scan().to_arrow())


def duckdb(metadata: str) -> Rows:
    found = duckdb_with_iceberg().execute(f"SELECT {', '.join(COLUMNS)} FROM iceberg_scan('{metadata}')").fetchall()
    return [list(row) for row in found]


def polars(metadata: str) -> Rows:
    return [list(row) for row in import_module("polars").scan_iceberg(metadata).select(COLUMNS).collect().rows()]


def datafusion(metadata: str) -> Rows:
    """With the tables of iceberg-rust, which PyIceberg passes on to DataFusion."""
    context = import_module("datafusion").SessionContext()
    context.register_table("t", _static_table(metadata))
    return _of_arrow(context.sql(f"SELECT {', '.join(COLUMNS)} FROM t").to_arrow_table())


def clickhouse(metadata: str) -> Rows:
    folder, _, file = re.sub(r"^file:/+", "/", metadata).partition("/metadata/")
    query = (
        f"SELECT {', '.join(COLUMNS)} FROM icebergLocal('{folder}', SETTINGS "
        f"iceberg_metadata_file_path = 'metadata/{file}') FORMAT JSONCompactEachRow"
    )
    lines = str(import_module("chdb").query(query)).splitlines()
    return [[row[0], int(row[1])] for row in map(json.loads, lines)]  # large numbers are strings


def daft(metadata: str) -> Rows:
    return _of_arrow(import_module("daft").read_iceberg(_static_table(metadata)).to_arrow())


READERS: dict[str, tuple[str, Callable[[str], Rows]]] = {
    "PyIceberg": ("pyiceberg", pyiceberg),
    "DuckDB": ("duckdb", duckdb),
    "Polars": ("polars", polars),
    "DataFusion": ("datafusion", datafusion),
    "ClickHouse (chdb)": ("chdb", clickhouse),
    "Daft": ("daft", daft),
}


def _static_table(metadata: str) -> Any:
    return import_module("pyiceberg.table").StaticTable.from_metadata(metadata)


def _of_arrow(table: Any) -> Rows:
    return [[row[c] for c in COLUMNS] for row in table.select(COLUMNS).to_pylist()]


def _read(reader: Callable[[str], Rows], metadata: str) -> dict[str, Any]:
    try:
        return {"rows": reader(metadata)}
    except BaseException as e:  # whatever an engine raises, such as a panic of Rust
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        return {"error": lines[0] if lines else type(e).__name__}


def stable(error: str) -> str:
    """The line without what differs from one run to the next, and not too long for a table."""
    error = re.sub(r"(file://)?/[^\s'\",)]+", "…", error)
    error = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}[^\s'\",)]*", "…", error)
    return error[:160]


def main() -> None:
    package, reader = READERS[sys.argv[1]]
    print(json.dumps({"version": version(package), "tables": [_read(reader, m) for m in sys.argv[2:]]}))


if __name__ == "__main__":
    main()
