"""A table of a Spark session: loading and making one, and its columns as Spark sees them."""

from collections.abc import Mapping
from typing import Any

from lethe.errors import ConflictError, InputError
from lethe.run import CreateTable
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lethe_spark.backoff import ATTEMPTS, wait_before
from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, is_away, says_no_such_table, transient
from lethe_spark.jvm.gateway import gateway, jvm
from lethe_spark.jvm.table import IcebergTable
from lethe_spark.sql_names import quoted_path

# Each commit writes a metadata file of the whole history; thousands of commits a day would leave them all behind.
NEW_TABLE: Mapping[str, str] = {"write.metadata.delete-after-commit.enabled": "true"}


class SparkTable(IcebergTable):
    """A table that Spark reads and writes."""

    def __init__(self, spark: SparkSession, catalog: str, name: str, java: Any) -> None:
        super().__init__(gateway(spark), catalog, name, java)
        self.spark = spark

    @classmethod
    def load(cls, spark: SparkSession, catalog: str, name: str) -> "SparkTable | None":
        """The table `name` ("namespace.table"), or None when there is none. Raises TransientError."""
        try:
            java = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
                spark._jsparkSession, quoted_path(catalog, name)
            )
        except JvmError as e:
            if says_no_such_table(jvm(spark), e):
                return None
            raise transient(e, f"loading the table {catalog}.{name}") from e
        return cls(spark, catalog, name, java)

    @classmethod
    def create(
        cls,
        spark: SparkSession,
        catalog: str,
        name: str,
        create: CreateTable,
        properties: Mapping[str, str] | None = None,
    ) -> "SparkTable":
        """Make the table, and its namespace, unless it is there; then load it.

        Args:
            create: Columns and partitioning in Spark's SQL; its properties win over Lethe's defaults for a new table, and
                give way to `properties`.
        Raises: InputError (`InvalidTableDefinition`), TransientError.
        """
        wanted = {**NEW_TABLE, **create.properties, **(properties or {}), "format-version": str(create.format_version)}
        namespace = name.rpartition(".")[0]
        partitioned = f"PARTITIONED BY ({', '.join(create.partition_by)})" if create.partition_by else ""
        pairs = ", ".join(f"{_literal(k)} = {_literal(v)}" for k, v in wanted.items())
        try:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted_path(catalog, namespace)}")
            spark.sql(
                f"CREATE TABLE IF NOT EXISTS {quoted_path(catalog, name)} ({create.table_schema}) "
                f"USING iceberg {partitioned} TBLPROPERTIES ({pairs})"
            )
        except JvmError as e:
            if isinstance(e, (AnalysisException, ParseException, IllegalArgumentException)):
                first = str(e).strip().splitlines()[0][:300]
                raise InputError(
                    "InvalidTableDefinition",
                    f"{catalog}.{name} could not be created from spec.table.create: {first}. Correct its schema "
                    "(a Spark SQL column list) or partitionBy.",
                ) from e
            raise transient(e, f"creating the table {catalog}.{name}") from e
        table = cls.load(spark, catalog, name)
        if table is None:
            raise transient(RuntimeError("NotThereAfterCreation"), f"creating the table {catalog}.{name}")
        return table

    @property
    def columns(self) -> StructType:
        """The columns of now, as Spark sees them."""
        return self.spark.table(quoted_path(self.catalog, self.name)).schema

    def take_over(self, columns: StructType) -> None:
        """Add those of the columns that the table does not have, as optional ones, and widen the types of others. A column
        that is there already, and as wide or wider, stays as it is: safe to repeat, and beside others who do the same.

        Raises: ConflictError, if the table now has such a column of another kind, or after many lost races; TransientError.
        """
        convert = self.jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
        wanted = convert(self.spark._jsparkSession.parseDataType(columns.json()))
        for attempt in range(1, ATTEMPTS + 1):
            self.refresh()
            try:
                self.java.updateSchema().unionByNameWith(wanted).commit()
                break
            except JvmError as e:
                lost = is_a(self.jvm, e, ICEBERG + "CommitFailedException")
                if not lost and is_away(e):
                    raise transient(e, f"adding columns to {self.full_name}") from e
                if not lost or attempt == ATTEMPTS:
                    raise ConflictError(
                        "ColumnsMoved",
                        f"{self.full_name}: columns {', '.join(columns.names)} could not be added or widened, since others "
                        "changed the table's columns at the same time. Nothing was committed; the run is planned anew.",
                    ) from e
                wait_before(attempt + 1)
        self.refresh()


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
