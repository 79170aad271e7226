"""Read tables with one engine that does not know Lethe, in a process of its own.

    python -m tests.support.engines.readers ENGINE KEY [METADATA_FILE SNAPSHOT_ID]...

ENGINE: a name of `READERS`. KEY: a column with numbers. SNAPSHOT_ID: 0 for the head. It runs in the environment of
`dev/venv.sh engines`, and prints one JSON document: {"version": of the engine, "tables": one of these for each table}.
{"rows": [[batch id, key], …]}, with null for the rows if the engine has no time travel, or {"error": the first line of the
error}.

The environment variable LETHE_TABLE_PROPERTIES may have properties of PyIceberg's FileIO as a JSON object, for tables on S3.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from typing import Any

from bench.one_read import duckdb_with_iceberg

Rows = list[list[Any]]
PROPERTIES = "LETHE_TABLE_PROPERTIES"


@dataclass(frozen=True)
class Wanted:
    """What to read."""

    metadata: str
    snapshot_id: int | None
    key: str

    @property
    def columns(self) -> tuple[str, str]:
        return ("batch_id", self.key)

    @property
    def table(self) -> Any:
        """As a table of PyIceberg."""
        return import_module("pyiceberg.table").StaticTable.from_metadata(self.metadata, _properties())

    def select(self, source: str, after: str = "") -> str:
        return f"SELECT {', '.join(self.columns)} FROM {source} {after}".strip()

    def of_arrow(self, table: Any) -> Rows:
        return [[row[c] for c in self.columns] for row in table.select(self.columns).to_pylist()]


def pyiceberg(wanted: Wanted) -> Rows:
    return wanted.of_arrow(wanted.table.scan(snapshot_id=wanted.snapshot_id).to_arrow())


def duckdb(wanted: Wanted) -> Rows:
    connection, properties = duckdb_with_iceberg(), _properties()
    if properties:
        endpoint = properties["s3.endpoint"].removeprefix("http://")
        connection.execute(
            "CREATE SECRET (TYPE s3, URL_STYLE 'path', USE_SSL false, "
            f"ENDPOINT '{endpoint}', REGION '{properties['s3.region']}', "
            f"KEY_ID '{properties['s3.access-key-id']}', SECRET '{properties['s3.secret-access-key']}')"
        )
    at = f", snapshot_from_id => {wanted.snapshot_id}" if wanted.snapshot_id else ""
    return [list(row) for row in connection.execute(wanted.select(f"iceberg_scan('{wanted.metadata}'{at})")).fetchall()]


def polars(wanted: Wanted) -> Rows:
    found = import_module("polars").scan_iceberg(
        wanted.table, snapshot_id=wanted.snapshot_id, storage_options=_properties() or None
    )
    return [list(row) for row in found.select(wanted.columns).collect().rows()]


def datafusion(wanted: Wanted) -> Rows | None:
    """With the tables of iceberg-rust, which PyIceberg passes on to DataFusion. They have no time travel."""
    if wanted.snapshot_id:
        return None
    context = import_module("datafusion").SessionContext()
    context.register_table("t", wanted.table)
    return wanted.of_arrow(context.sql(wanted.select("t")).to_arrow_table())


def clickhouse(wanted: Wanted) -> Rows:
    folder, _, file = re.sub(r"^file:/+", "/", wanted.metadata).partition("/metadata/")
    source = f"icebergLocal('{folder}', SETTINGS iceberg_metadata_file_path = 'metadata/{file}')"
    at = f"SETTINGS iceberg_snapshot_id = {wanted.snapshot_id} " if wanted.snapshot_id else ""
    lines = str(import_module("chdb").query(wanted.select(source, f"{at}FORMAT JSONCompactEachRow"))).splitlines()
    return [[row[0], int(row[1])] for row in map(json.loads, lines)]  # large numbers are strings


def daft(wanted: Wanted) -> Rows:
    return wanted.of_arrow(import_module("daft").read_iceberg(wanted.table, wanted.snapshot_id).to_arrow())


READERS: dict[str, tuple[str, Callable[[Wanted], Rows | None]]] = {
    "PyIceberg": ("pyiceberg", pyiceberg),
    "DuckDB": ("duckdb", duckdb),
    "Polars": ("polars", polars),
    "DataFusion": ("datafusion", datafusion),
    "ClickHouse (chdb)": ("chdb", clickhouse),
    "Daft": ("daft", daft),
}


def _properties() -> dict[str, str]:
    return dict(json.loads(os.environ.get(PROPERTIES, "{}")))


def _read(reader: Callable[[Wanted], Rows | None], wanted: Wanted) -> dict[str, Any]:
    try:
        return {"rows": reader(wanted)}
    except BaseException as e:  # whatever an engine raises, such as a panic of Rust
        lines = [line.strip() for line in str(e).splitlines() if line.strip()]
        return {"error": lines[0] if lines else type(e).__name__}


def stable(error: str) -> str:
    """The line without what differs from one run to the next, and not too long for a table."""
    error = re.sub(r"(file://)?/[^\s'\",)]+", "…", error)
    error = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}[^\s'\",)]*", "…", error)
    return error[:160]


def main() -> None:
    engine, key, *tables = sys.argv[1:]
    package, reader = READERS[engine]
    wanted = [Wanted(m, int(i) or None, key) for m, i in zip(tables[::2], tables[1::2], strict=True)]
    print(json.dumps({"version": version(package), "tables": [_read(reader, w) for w in wanted]}))


if __name__ == "__main__":
    main()
