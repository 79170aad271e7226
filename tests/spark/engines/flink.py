"""Read tables with Flink, in a process of its own.

    python -m tests.spark.engines.flink CATALOG_FILE WAREHOUSE JARS [TABLE SNAPSHOT_ID]...

SNAPSHOT_ID: 0 for the head. Prints one JSON document, as `tests.support.engines.readers` does. The tables are those of a JDBC
catalog in SQLite, whose name is `lite`. It runs in the environment of `dev/venv.sh flink`. `JARS`: paths divided by colons.
"""

import json
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

COLUMNS = "batch_id, v"


def main() -> None:
    catalog, warehouse, jars, *tables = sys.argv[1:]
    table_api = import_module("pyflink.table")
    environment = table_api.TableEnvironment.create(table_api.EnvironmentSettings.in_batch_mode())
    environment.get_config().set("pipeline.jars", ";".join(f"file://{j}" for j in jars.split(":")))
    environment.get_config().set("parallelism.default", "1")
    environment.execute_sql(
        "CREATE CATALOG lite WITH ('type' = 'iceberg', 'catalog-impl' = 'org.apache.iceberg.jdbc.JdbcCatalog', "
        f"'uri' = 'jdbc:sqlite:{catalog}', 'warehouse' = '{warehouse}', 'jdbc.schema-version' = 'V1', 'clients' = '1')"
    )
    found = [_read(environment, t, int(i)) for t, i in zip(tables[::2], tables[1::2], strict=True)]
    print(json.dumps({"version": version("apache-flink"), "tables": found}))


def _read(environment: Any, table: str, snapshot_id: int) -> dict[str, Any]:
    at = f" /*+ OPTIONS('snapshot-id' = '{snapshot_id}') */" if snapshot_id else ""
    try:
        with environment.execute_sql(f"SELECT {COLUMNS} FROM lite.{table}{at}").collect() as rows:
            return {"rows": [list(row) for row in rows]}
    except Exception as e:
        causes = [line for line in str(e).splitlines() if line.startswith("Caused by: ")]
        return {"error": (causes or str(e).splitlines())[-1].removeprefix("Caused by: ")}


if __name__ == "__main__":
    main()
