"""Plain Spark SQL on a table, with settings of Iceberg's own and nothing of Lethe. Runs in a pod of the Spark image.

python plain_spark.py SETTINGS TABLE, with SETTINGS a JSON file. Prints a line for each different row: its batch, its id, and how
often it is there.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROW = "row: "


def main(settings: str, table: str) -> None:
    start = {
        "spark.master": "local[1]",
        "spark.driver.memory": "600m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # it lives for one query
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.enabled": "false",
    }
    session = SparkSession.builder.config(map=start).getOrCreate()
    for key, value in json.loads(Path(settings).read_text()).items():
        session.conf.set(key, value)
    for row in session.sql(f"SELECT batch_id, id, count(*) FROM {table} GROUP BY batch_id, id").collect():
        print(f"{ROW}{json.dumps(list(row))}")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
