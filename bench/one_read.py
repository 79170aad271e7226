"""Read a table with one engine, without Spark, in a process of its own.

    python -m bench.one_read ENGINE METADATA_FILE QUERY [BATCH_ID]

ENGINE: `lethe.scan`, `PyIceberg` or `DuckDB`; QUERY: `all` (all rows and columns, as a stream), `count`, or `batch` (the rows of
one batch). Prints {"seconds", "rows", "peak_bytes"}; the seconds do not include imports. DuckDB needs its extensions from PyPI:
`dev/venv.sh engines`.
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

COLUMN = "batch_id"
Read = Callable[[], int]


def lethe_scan(metadata: str, query: str, batch: str) -> Read:
    from lethe.read.scan import scan  # `lethe.scan` imports it at its first use
    from pyiceberg.table import StaticTable

    def read() -> int:
        table = StaticTable.from_metadata(metadata)
        if query == "count":
            return scan(table).count()
        found = scan(table, filter=f"{COLUMN} = '{batch}'") if query == "batch" else scan(table)
        return sum(b.num_rows for b in found.to_batches())

    return read


def pyiceberg(metadata: str, query: str, batch: str) -> Read:
    from pyiceberg.table import StaticTable

    def read() -> int:
        table = StaticTable.from_metadata(metadata)
        if query == "count":
            return table.scan().count()
        found = table.scan(f"{COLUMN} = '{batch}'") if query == "batch" else table.scan()
        return sum(b.num_rows for b in found.to_arrow_batch_reader())

    return read


def duckdb_with_iceberg() -> Any:
    """A connection. Only the environment of the engines has these packages, in the versions that fit together."""
    connection: Any = import_module("duckdb").connect()
    for package in ("duckdb_extension_avro", "duckdb_extension_httpfs", "duckdb_extension_iceberg"):
        (file,) = Path(import_module(package).__path__[0]).rglob("*.duckdb_extension")
        connection.execute(f"FORCE INSTALL '{file}'")
    connection.execute("LOAD avro; LOAD httpfs; LOAD iceberg")
    return connection


def duckdb(metadata: str, query: str, batch: str) -> Read:
    connection = duckdb_with_iceberg()

    def read() -> int:
        table = f"iceberg_scan('{metadata}')"
        if query == "count":
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])
        where = f" WHERE {COLUMN} = '{batch}'" if query == "batch" else ""
        return sum(b.num_rows for b in connection.execute(f"SELECT * FROM {table}{where}").fetch_record_batch(100_000))

    return read


ENGINES = {"lethe.scan": lethe_scan, "PyIceberg": pyiceberg, "DuckDB": duckdb}


def main() -> None:
    engine, metadata, query, batch = [*sys.argv[1:], ""][:4]
    read = ENGINES[engine](metadata, query, batch)
    since = time.perf_counter()
    rows = read()
    seconds = time.perf_counter() - since
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "rows": rows, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
