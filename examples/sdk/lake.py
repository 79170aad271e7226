"""A catalog on SQLite and local files for the examples, and a Spark session on it. No server is needed."""

import os
from pathlib import Path

from lethe.iceberg import catalogs
from lethe_spark import make_session
from pyspark.sql import SparkSession

CATALOG = "local"


def open_lake(home: Path) -> SparkSession:
    """Create the catalog in this folder if it does not exist, and a Spark session that uses it."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / ".pyiceberg.yaml"
    if not config.exists():
        config.write_text(
            f"catalog:\n  {CATALOG}:\n    type: sql\n    uri: sqlite:///{home}/catalog.db\n"
            f"    warehouse: file://{home}/warehouse\n    init_catalog_tables: true\n"
        )
    os.environ["PYICEBERG_HOME"] = str(home)
    catalogs.load(CATALOG).create_namespace_if_not_exists("shop")
    return make_session(CATALOG, {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "768m"})
