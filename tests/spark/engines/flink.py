"""Read tables with Flink, in a process of its own.

    python -m tests.spark.engines.flink CATALOG_FILE WAREHOUSE JARS [TABLE SNAPSHOT_ID]...

SNAPSHOT_ID: 0 for the head. Prints one JSON document, as `tests.support.engines.readers` does. The tables are those of a JDBC
catalog in SQLite, whose name is `lite`. It runs in the environment of `dev/venv.sh flink`. `JARS`: paths divided by colons.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import Any

AT_ONCE = 12  # tables


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
    wanted = [(table, int(snapshot)) for table, snapshot in zip(tables[::2], tables[1::2], strict=True)]
    found = [answer for n in range(0, len(wanted), AT_ONCE) for answer in _read(environment, wanted[n : n + AT_ONCE])]
    print(json.dumps({"version": version("apache-flink"), "tables": found}))


def _read(environment: Any, wanted: Sequence[tuple[str, int]]) -> list[dict[str, Any]]:
    """By one query, since each query starts a cluster; or by one for each, to tell which fails.

    Each row of a result takes many calls from Python to Java, so the values of a batch are one text.
    """
    tables = []
    for number, (table, snapshot_id) in enumerate(wanted):
        at = f" /*+ OPTIONS('snapshot-id' = '{snapshot_id}') */" if snapshot_id else ""
        tables.append(f"SELECT {number} AS nr, batch_id, v FROM lite.{table}{at}")
    query = "SELECT nr, batch_id, LISTAGG(CAST(v AS STRING)) FROM ({}) GROUP BY nr, batch_id"
    found: list[dict[str, Any]] = [{"rows": []} for _ in wanted]
    try:
        with environment.execute_sql(query.format(" UNION ALL ".join(tables))).collect() as batches:
            for number, batch, values in batches:
                found[number]["rows"] += [[batch, int(v)] for v in values.split(",")]
    except Exception as e:
        if len(wanted) > 1:
            return [answer for one in wanted for answer in _read(environment, [one])]
        causes = [line for line in str(e).splitlines() if line.startswith("Caused by: ")]
        return [{"error": (causes or str(e).splitlines())[-1].removeprefix("Caused by: ")}]
    return found


if __name__ == "__main__":
    main()
