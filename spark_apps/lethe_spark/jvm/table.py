"""An Iceberg table as the driver's JVM sees it: loading, its facts, the layout that Lethe needs."""

from collections.abc import Mapping
from typing import Any

from lethe import names
from lethe.errors import ConflictError, InputError
from lethe.run import CreateTable
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lethe_spark.backoff import ATTEMPTS, wait_before
from lethe_spark.jvm.errors import ICEBERG, JvmError, is_a, is_away, java_class, java_message, reading, transient
from lethe_spark.jvm.gateway import each, jvm
from lethe_spark.sql_names import quoted_path

# Each commit writes a metadata file of the whole history; thousands of commits a day would leave them all behind.
NEW_TABLE: Mapping[str, str] = {"write.metadata.delete-after-commit.enabled": "true"}


class IcebergTable:
    """A handle to one table. What it says is as of its loading or the last `refresh`."""

    def __init__(self, spark: SparkSession, catalog: str, name: str, java: Any) -> None:
        self.spark = spark
        self.catalog = catalog
        self.name = name
        self.java = java

    @classmethod
    def load(cls, spark: SparkSession, catalog: str, name: str) -> "IcebergTable | None":
        """The table `name` ("namespace.table"), or None when there is none. Raises TransientError."""
        try:
            java = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
                spark._jsparkSession, quoted_path(catalog, name)
            )
        except JvmError as e:
            if _says_not_found(spark, e):
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
    ) -> "IcebergTable":
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
    def full_name(self) -> str:
        return f"{self.catalog}.{self.name}"

    @reading("refreshing a table")
    def refresh(self) -> None:
        self.java.refresh()

    @property
    def metadata_location(self) -> str:
        return str(self.java.operations().current().metadataFileLocation())

    @property
    def location(self) -> str:
        return str(self.java.location()).rstrip("/")

    @property
    def uuid(self) -> str:
        return str(self.java.operations().current().uuid())

    @property
    def format_version(self) -> int:
        return int(self.java.operations().current().formatVersion())

    @property
    def head_id(self) -> int | None:
        head = self.java.currentSnapshot()
        return None if head is None else int(head.snapshotId())

    @property
    def schema_names(self) -> tuple[str, ...]:
        return tuple(str(column.name()) for column in each(self.java.schema().columns()))

    @property
    def columns(self) -> StructType:
        """The columns of now, as Spark sees them."""
        return self.spark.table(quoted_path(self.catalog, self.name)).schema

    @property
    def properties(self) -> dict[str, str]:
        return {str(e.getKey()): str(e.getValue()) for e in each(self.java.properties().entrySet())}

    @property
    def is_partitioned(self) -> bool:
        return bool(self.java.spec().isPartitioned())

    def field_id(self, column: str) -> int | None:
        """The Iceberg field id of a column, None when there is no such column."""
        found = self.java.schema().findField(column)
        return None if found is None else int(found.fieldId())

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Set table properties in a commit of their own. Raises: TransientError."""
        try:
            update = self.java.updateProperties()
            for key, value in properties.items():
                update.set(key, value)
            update.commit()
        except JvmError as e:
            raise transient(e, f"setting properties of {self.full_name}") from e
        self.refresh()

    def take_over(self, columns: StructType) -> None:
        """Add those of the columns that the table does not have, as optional ones, and widen the types of others. A column
        that is there already, and as wide or wider, stays as it is: safe to repeat, and beside others who do the same.

        Raises: ConflictError, if the table now has such a column of another kind, or after many lost races; TransientError.
        """
        convert = jvm(self.spark).org.apache.iceberg.spark.SparkSchemaUtil.convert
        wanted = convert(self.spark._jsparkSession.parseDataType(columns.json()))
        for attempt in range(1, ATTEMPTS + 1):
            self.refresh()
            try:
                self.java.updateSchema().unionByNameWith(wanted).commit()
                break
            except JvmError as e:
                lost = is_a(jvm(self.spark), e, ICEBERG + "CommitFailedException")
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

    def column_name(self, field_id: int) -> str | None:
        """The name of today of a column, None when there is no such column (any more)."""
        found = self.java.schema().findColumnName(field_id)
        return None if found is None else str(found)

    def ensure_layout(self, batch_column: str, properties: Mapping[str, str] | None = None) -> bool:
        """Prepare the table for Lethe in one commit: sorted by the batch column, exact bounds of it, the field's id.

        Args:
            properties: Further table properties to set in the same commit, such as the claim.
        Returns: Whether anything had to be changed.
        Raises: InputError (`BatchColumnMissing`), TransientError.
        """
        field_id = self.field_id(batch_column)
        if field_id is None:
            raise InputError(
                "BatchColumnMissing",
                f"{self.full_name} has no column {batch_column!r} (spec.batchColumn); it has {', '.join(self.schema_names)}",
            )
        wanted = layout_properties(batch_column, field_id, partitioned=self.is_partitioned) | dict(properties or {})
        known = self.properties
        changed = {k: v for k, v in wanted.items() if known.get(k) != v}
        is_sorted = self._is_sorted_by(field_id)
        if is_sorted and not changed:
            return False
        api = jvm(self.spark).org.apache.iceberg
        try:
            transaction = self.java.newTransaction()
            if not is_sorted:
                order = transaction.replaceSortOrder()
                order.asc(api.expressions.Expressions.ref(batch_column), api.NullOrder.NULLS_FIRST).commit()
            update = transaction.updateProperties()
            for key, value in changed.items():
                update.set(key, value)
            update.commit()
            transaction.commitTransaction()
        except JvmError as e:
            raise transient(e, f"preparing the table {self.full_name}") from e
        self.refresh()
        return True

    def _is_sorted_by(self, field_id: int) -> bool:
        fields = list(each(self.java.sortOrder().fields()))
        return bool(fields) and int(fields[0].sourceId()) == field_id and bool(fields[0].transform().isIdentity())


def layout_properties(batch_column: str, field_id: int, *, partitioned: bool) -> dict[str, str]:
    """The table properties that Lethe's reads and vacuums lean on. Pure.

    A partitioned table is distributed by hash of its partition. One without partitions has nothing to hash: by range,
    or every task would write a file of its own with all batches in it.
    """
    return {
        names.METRICS_MODE.format(column=batch_column): "full",
        names.DISTRIBUTION_MODE: "hash" if partitioned else "range",
        names.WAP_ENABLED: "true",
        names.BATCH_COLUMN: str(field_id),
    }


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _says_not_found(spark: SparkSession, error: Exception) -> bool:
    """Spark wraps Iceberg's exceptions, or throws its own."""
    if any(is_a(jvm(spark), error, ICEBERG + n) for n in ("NoSuchTableException", "NoSuchNamespaceException")):
        return True
    spark_names = ("NoSuchTableException", "NoSuchNamespaceException", "NoSuchDatabaseException")
    if java_class(error).rsplit(".", 1)[-1] in spark_names:
        return True
    return "TABLE_OR_VIEW_NOT_FOUND" in java_message(error)
