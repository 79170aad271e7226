"""A table of a Spark session: loads and creates it, and reads its columns as Spark sees them. Also names for SQL."""

import logging
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, assert_never

from lethe.base.errors import ConflictError, InputError
from lethe.contract.run import CreateTable
from lethe.files.transforms import Transform, TransformKind, check_properties, parse_transforms
from lethe.iceberg.column_path import NoColumn, resolve_column
from pyiceberg.schema import Schema
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from lethe_spark.jvm.errors import (
    ATTEMPTS,
    ICEBERG,
    JvmError,
    is_a,
    is_away,
    is_caused_by,
    java_class,
    java_message,
    says_no_such_table,
    transient,
    unknown_type,
    unparsed_type,
    wait_before,
)
from lethe_spark.jvm.gateway import gateway, java_map, jvm
from lethe_spark.jvm.table import IcebergTable, parsed_schema

log = logging.getLogger(__name__)

_SEPARATORS: Final = "\x01\x02\x03\x04\x05\x06\x07"
"""Characters without a meaning in regular expressions."""

_FLOATS: Final = ("float", "double")
_NUMBERS: Final = (*_FLOATS, "decimal", "byte", "short", "integer", "long", "tinyint", "smallint", "int", "bigint")

NEW_TABLE: Mapping[str, str] = {
    # Each commit writes a metadata file with the whole history. Without this, thousands of commits a day would keep them all.
    "write.metadata.delete-after-commit.enabled": "true",
    # A purge copies the row groups that lose no rows. Iceberg's default, 128 MiB, would leave few to copy.
    "write.parquet.row-group-size-bytes": str(12 * 1024**2),
    # Each commit of native deletes adds a manifest, and every plan reads all of them. Iceberg's default, 100, would leave many.
    "commit.manifest.min-count-to-merge": "8",
}

_KNOWN: Final = (
    BinaryType,
    BooleanType,
    CharType,
    DateType,
    NumericType,
    StringType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)
"""Types of Spark that Iceberg stores, and that Lethe reads and writes."""
_COLUMN_METADATA: Final = frozenset({"comment", "__CHAR_VARCHAR_TYPE_STRING"})
"""Metadata of a column besides its name, type and nullability."""


def quoted(name: str) -> str:
    """One name, which may contain any characters; a dot is part of the name."""
    return "`" + name.replace("`", "``") + "`"


def quoted_path(*names: str) -> str:
    """Names whose parts are separated by dots, such as a catalog and `namespace.table`."""
    return ".".join(quoted(part) for name in names for part in name.split("."))


def in_set(spark: SparkSession, column: Column, values: Collection[str]) -> Column:
    """Whether a string column is one of `values`; null where it is null. A hash look-up per row.

    Equivalent to `isin`, but it needs only a few calls into the JVM instead of several per value, and makes one expression
    instead of one per value, which each rule of the optimizer would visit.
    """
    separator = next((c for c in _SEPARATORS if not any(c in v for v in values)), None)
    if separator is None or not values:
        return column.isin(*values)
    java = jvm(spark)
    text = java.org.apache.spark.unsafe.types.UTF8String.fromString
    array = text(separator.join(values)).split(text(separator), -1)
    found = java.scala.runtime.ScalaRunTime.genericWrapArray(array).toSet()
    utils = java.org.apache.spark.sql.classic.ExpressionUtils
    return Column(
        utils.column(java.org.apache.spark.sql.catalyst.expressions.InSet(utils.expression(column._jc), found))
    )


def for_skipping(frame: DataFrame, condition: str) -> str | None:
    """A weaker condition, which is also true for rows whose values Iceberg's bounds do not show; None: it is the same.

    Iceberg's bounds leave NaN out, although Spark orders it above all numbers, and they tell -0.0 from 0.0, although Spark does
    not. So a condition such as `x >= 0.0` that is pushed down skips files with rows for which it is true. A weaker condition
    skips none.

    Args:
        condition: On the rows of the frame, as SQL text.

    Raises:
        AnalysisException: The text is not a condition on these rows.
        ParseException: The text is not SQL.
    """
    tree = frame.filter(condition)._jdf.queryExecution().analyzed().condition()
    columns = dict(_floats(tree))
    if not columns:
        return None
    terms = [f"{name} = {kind}('NaN')" for name, kind in columns.items()]
    if _has_zero(tree):
        terms += [f"{name} = {kind}('{zero}')" for name, kind in columns.items() for zero in ("0.0", "-0.0")]
    # The line break ends a comment.
    return f"({condition}\n) OR {' OR '.join(terms)}"


def _floats(expression: Any) -> Iterator[tuple[str, str]]:
    """The columns and fields of structs with floating-point numbers that an expression names: their SQL text and type."""
    path = _path(expression)
    kind = str(expression.dataType().typeName())
    if path is not None and kind in _FLOATS:
        yield ".".join(map(quoted, path)), kind
    else:
        for child in _children(expression):
            yield from _floats(child)


def _path(expression: Any) -> tuple[str, ...] | None:
    match str(expression.nodeName()):
        case "AttributeReference":
            return (str(expression.name()),)
        case "GetStructField":
            parent = _path(expression.child())
            return None if parent is None else (*parent, str(expression.extractFieldName()))
    return None


def _has_zero(expression: Any) -> bool:
    """Whether an expression has a number that is zero, or a constant of which that is unknown."""
    if bool(expression.foldable()):
        if str(expression.dataType().typeName()).partition("(")[0] not in _NUMBERS:
            return False
        try:
            value = expression.eval(None)
            return value is not None and float(str(value)) == 0
        except (ValueError, *JvmError):
            return True
    return any(_has_zero(child) for child in _children(expression))


def _children(expression: Any) -> Iterator[Any]:
    children = expression.children()
    return (children.apply(n) for n in range(int(children.size())))


class SparkTable(IcebergTable):
    """A table that Spark reads and writes."""

    def __init__(self, spark: SparkSession, catalog: str, name: str, java: Any) -> None:
        super().__init__(gateway(spark), catalog, name, java)
        self.spark = spark

    @classmethod
    def load(cls, spark: SparkSession, catalog: str, name: str) -> "SparkTable | None":
        """The table `name` ("namespace.table"). None: it does not exist.

        Raises:
            InputError: `UnknownType`, if Iceberg does not know the type of a column.
            TransientError: A dependency is temporarily unavailable.
        """
        try:
            java = jvm(spark).org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
                spark._jsparkSession, quoted_path(catalog, name)
            )
        except JvmError as e:
            if says_no_such_table(jvm(spark), e):
                return None
            if (kind := unparsed_type(e)) is not None:
                raise unknown_type(f"{catalog}.{name}", kind) from e
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
        batch_column: str = "",
        own_folder: bool = True,
    ) -> "SparkTable":
        """Create the table and its namespace, unless they exist, and load it.

        Iceberg's catalog creates the table: no text of the definition becomes part of a statement.

        Args:
            create: Columns as a column list of Spark SQL, and partition fields as `lethe.files.transforms` reads them. Its
                properties override Lethe's defaults for a new table; `properties` override both.
            batch_column: Added to the columns if it is missing. Empty: no column is added.
            own_folder: If there are files at the location that the catalog proposes, create the table beside it. They may be
                of a table that was renamed.

        Raises:
            InputError: `InvalidTableDefinition`.
            TransientError: A dependency is temporarily unavailable.
        """
        columns, transforms = _columns_of(create, batch_column), parse_transforms(create.partition_by)
        check_properties(create.properties)
        table_properties = {
            **NEW_TABLE,
            **create.properties,
            **(properties or {}),
            "format-version": str(create.format_version),
        }
        java = jvm(spark).org.apache.iceberg
        try:
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {quoted_path(catalog, name.rpartition('.')[0])}")
            schema = java.spark.SparkSchemaUtil.convert(spark._jsparkSession.parseDataType(columns.json()))
            schema.findField(columns.names[0])  # Iceberg refuses a field and a column of one full name here
            spec = java.PartitionSpec.builderFor(schema).caseSensitive(False)
            for transform in transforms:
                _partition_by(spec, parsed_schema(jvm(spark), schema), transform)
            made = java.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, catalog).buildTable(
                java.catalog.TableIdentifier.parse(name), schema
            )
            made = made.withPartitionSpec(spec.build()).withProperties(java_map(jvm(spark), table_properties))
            if own_folder and (location := _location_beside(made)) is not None:
                made = made.withLocation(location)
            made.create()
        except JvmError as e:
            if _is_bad_definition(spark, e):
                raise InputError(
                    "InvalidTableDefinition",
                    f"{catalog}.{name} could not be created from spec.table.create: {java_message(e).strip()[:300]}. Correct "
                    "its schema (a Spark SQL column list) or partitionBy.",
                ) from e
            if not is_a(jvm(spark), e, ICEBERG + "AlreadyExistsException"):
                raise transient(e, f"creating the table {catalog}.{name}") from e
        table = cls.load(spark, catalog, name)
        if table is None:
            raise transient(RuntimeError("NotThereAfterCreation"), f"creating the table {catalog}.{name}")
        return table

    @property
    def columns(self) -> StructType:
        """The current columns, as Spark sees them."""
        return self.spark.table(quoted_path(self.catalog, self.name)).schema

    def take_over(self, columns: StructType) -> None:
        """Add missing columns as optional ones, and widen the types of existing columns.

        A column that is as wide or wider does not change. Safe to repeat, and to run beside other writers.

        Raises:
            ConflictError: The table has such a column of another type, or after many lost races.
            TransientError: A dependency is temporarily unavailable.
        """
        convert = self.jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert
        added_columns = convert(self.spark._jsparkSession.parseDataType(columns.json()))
        for attempt in range(1, ATTEMPTS + 1):
            self.refresh()
            try:
                self.java.updateSchema().unionByNameWith(added_columns).commit()
                break
            except JvmError as e:
                lost = is_a(self.jvm, e, ICEBERG + "CommitFailedException")
                if not lost and is_away(e):
                    raise transient(e, f"adding columns to {self.full_name}") from e
                if not lost or attempt == ATTEMPTS:
                    raise ConflictError(
                        "ColumnsMoved",
                        f"{self.full_name}: columns {', '.join(columns.names)} could not be added or widened, because other "
                        "writers changed the table's columns at the same time. Nothing was committed. The run plans again.",
                    ) from e
                wait_before(attempt + 1)
        self.refresh()


def _location_beside(builder: Any) -> str | None:
    """A location without files beside the one that the catalog proposes for a new table.

    For a proposed location that has files or cannot be listed: some catalogs vend credentials only for a table that
    exists. None: the proposed one has no files.

    Args:
        builder: Iceberg's builder of the table.
    """
    proposed = builder.createTransaction().table()  # creates nothing until it is committed
    location = str(proposed.location()).rstrip("/")
    try:
        if not proposed.io().listPrefix(f"{location}/").iterator().hasNext():
            return None
    except JvmError as e:
        if is_caused_by(e, "java.io.FileNotFoundException"):  # the local file system has no such folder
            return None
        log.info("%s cannot be listed (%s)", location, java_class(e))
    return f"{location}-{uuid.uuid4().hex[:8]}"


def _columns_of(create: CreateTable, batch_column: str = "") -> StructType:
    """The columns of the definition, and the batch column, which the definition may omit.

    Raises:
        InputError: `InvalidTableDefinition`.
    """
    try:
        columns = StructType.fromDDL(create.table_schema)
    except Exception as e:
        first = str(e).strip().splitlines()[0][:300] if str(e).strip() else type(e).__name__
        raise InputError(
            "InvalidTableDefinition", f"spec.table.create.schema is not a Spark SQL column list: {first}"
        ) from e
    for column in columns.fields:
        if (kind := _unknown_type(column.dataType)) is not None:
            raise InputError(
                "InvalidTableDefinition",
                f"spec.table.create.schema: column {column.name} has the type {kind}, which Lethe does not read or write. Use "
                "another type.",
            )
        extra = sorted(set(column.metadata) - _COLUMN_METADATA)
        if extra:
            raise InputError(
                "InvalidTableDefinition",
                f"spec.table.create.schema: column {column.name} has {', '.join(extra)}; a column can have a name, a type, "
                "NOT NULL and a COMMENT. Remove the rest.",
            )
    if not batch_column or batch_column.lower() in {f.name.lower() for f in columns.fields}:
        return columns
    return StructType([*columns.fields, StructField(batch_column, StringType())])


def _unknown_type(kind: DataType) -> str | None:
    """The first type in a column's type that Lethe does not know. None: it knows all."""
    match kind:
        case ArrayType(elementType=element):
            return _unknown_type(element)
        case MapType(keyType=key, valueType=value):
            return _unknown_type(key) or _unknown_type(value)
        case StructType(fields=fields):
            return next((found for f in fields if (found := _unknown_type(f.dataType)) is not None), None)
    return None if isinstance(kind, _KNOWN) else str(kind.simpleString())


def _partition_by(spec: Any, schema: Schema, transform: Transform) -> None:
    """Add a field to Iceberg's builder of partition specs.

    Raises:
        InputError: `InvalidTableDefinition`.
    """
    name = ".".join(transform.column)
    where = f"spec.table.create.partitionBy names {name}"
    try:
        # The column list is Spark's, in which names differ by more than their case.
        path = resolve_column(schema, name, "spec.table.create.schema", case_sensitive=False)
    except NoColumn as e:
        raise InputError("InvalidTableDefinition", f"{where}, {e}.") from None
    if path.in_list:
        raise InputError(
            "InvalidTableDefinition",
            f"{where}, of which a row has several values because it is in a list; expected a column, or a field of structs. Use "
            "another column.",
        )
    column = path.name
    match transform.kind:
        case TransformKind.IDENTITY:
            spec.identity(column)
        case TransformKind.YEARS:
            spec.year(column)
        case TransformKind.MONTHS:
            spec.month(column)
        case TransformKind.DAYS:
            spec.day(column)
        case TransformKind.HOURS:
            spec.hour(column)
        case TransformKind.BUCKET:
            spec.bucket(column, transform.number)
        case TransformKind.TRUNCATE:
            spec.truncate(column, transform.number)
        case _:
            assert_never(transform.kind)


def _is_bad_definition(spark: SparkSession, error: BaseException) -> bool:
    """Whether Spark, Iceberg or the catalog refused the definition of the table."""
    if isinstance(error, (AnalysisException, ParseException, IllegalArgumentException)):
        return True
    wrong = (
        ICEBERG + "ValidationException",
        ICEBERG + "BadRequestException",
        "java.lang.UnsupportedOperationException",
    )
    return any(is_a(jvm(spark), error, name) for name in wrong)
