"""Decides whether a Parquet file can be registered as a data file, and creates its manifest entry. Pure: a footer in, JSON out.

Invariant: the footer proves every statement of the entry. If it does not prove a required statement, the file is refused.
Optional statements are left out.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lethe.files.partitions import partition_text
from lethe.ingest import calendar_limits
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.folder_values import values_of
from lethe.ingest.footer_columns import Column, FileSchema, SchemaKey, footer_columns, schema_key
from lethe.ingest.hybrid_calendar import calendar_of
from lethe.ingest.parquet_types import misfit
from lethe.ingest.path_limits import encoded_bytes
from lethe.ingest.path_limits import problem as too_long_problem
from lethe.uri import NAME_BYTES

_METRICS_MODE: Final = "write.metadata.metrics.default"
_METRICS_OF: Final = "write.metadata.metrics.column."
_DEFAULT_METRICS_MODE: Final = "truncate(16)"
# Those of Parquet's Java library, as pyarrow names them.
_CODECS: Final = ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4")
# Thousands of these documents go to the JVM at once.
_COMPACT: Final = (",", ":")
# Schemas of files, of which a worker remembers what follows from them.
_SCHEMAS_AT_MOST: Final = 1000


@dataclass(frozen=True)
class Target:
    """What a table requires of files. Contains JSON, because it is sent to Spark's workers."""

    schema_json: str
    spec_json: str  # the partition spec
    properties: Mapping[str, str]  # of the table
    field_id: int  # of the batch column
    may_lack: bool  # optional columns may be missing

    @classmethod
    def of(cls, table: Table, field_id: int, may_lack: bool) -> "Target":
        """What the current schema, spec and properties of a table require."""
        schema, spec = table.schema().model_dump_json(), table.spec().model_dump_json()
        return cls(schema, spec, dict(table.properties), field_id, may_lack)

    @cached_property
    def schema(self) -> Schema:
        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def collectors(self) -> dict[int, StatisticsCollector]:
        """By field id, which statistics of a column the table keeps."""
        found = compute_statistics_plan(self.schema, dict(self.properties))
        return {i: replace(c, mode=self._mode(c)) for i, c in found.items()}

    def _mode(self, column: StatisticsCollector) -> MetricsMode:
        """PyIceberg keeps no bounds of fields of structs, and Iceberg does."""
        if column.mode.type is not MetricModeTypes.COUNTS:
            return column.mode
        default = self.properties.get(_METRICS_MODE, _DEFAULT_METRICS_MODE)
        mode = match_metrics_mode(self.properties.get(f"{_METRICS_OF}{column.column_name}", default))
        is_cut = mode.type is MetricModeTypes.TRUNCATE and isinstance(column.iceberg_type, (StringType, BinaryType))
        return mode if is_cut or mode.type is not MetricModeTypes.TRUNCATE else MetricsMode(MetricModeTypes.FULL)

    @cached_property
    def ids(self) -> dict[str, int]:
        return parquet_path_to_id_mapping(self.schema)

    def name(self, field_id: int) -> str:
        return self.schema.find_column_name(field_id) or ""

    def schema_of(self, metadata: Any) -> FileSchema:
        """What follows from the schema of a file. `metadata`: pyarrow's `FileMetaData`."""
        key = schema_key(metadata)
        found = self._schemas.get(key)
        if found is None:
            if len(self._schemas) >= _SCHEMAS_AT_MOST:
                self._schemas.clear()
            file = metadata.schema
            problem = _batch_column_missing(file, self) or misfit(file, self.schema, self.ids, self.may_lack)
            found = FileSchema(problem, footer_columns(file, self.schema, self.ids, self.collectors))
            self._schemas[key] = found
        return found

    def transform_of(self, field: PartitionField) -> Callable[[Any], Any]:
        """The function of a partition field, from a value of its source column."""
        if field.field_id not in self._transforms:
            self._transforms[field.field_id] = field.transform.transform(self.schema.find_type(field.source_id))
        return self._transforms[field.field_id]

    @cached_property
    def _schemas(self) -> dict[SchemaKey, FileSchema]:
        return {}

    @cached_property
    def _transforms(self) -> dict[int, Callable[[Any], Any]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """Without what follows from the fields: other processes find it again."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class Described:
    """A file that can be registered."""

    records: int
    document: str = ""  # Iceberg's JSON of a data file; empty: the file has no rows and is not registered
    partition: str | None = None  # as `partition_text` writes it; None: no rows, or a value that it cannot write


def describe(metadata: Any, uri: str, size: int, batch_id: str, target: Target, folders: str = "") -> Described:
    """Decide whether one file can be registered.

    Args:
        metadata: pyarrow's `FileMetaData`.
        uri: The path of the data file.
        size: Of the file, in bytes.
        folders: Those of the file that name values, see `lethe.ingest.folder_values`.
    Raises: BadFile (SchemaMismatch, StatisticsMissing, BatchIdMismatch, SpansPartitions, CodecNotReadable).
    """
    schema = target.schema_of(metadata)
    if schema.problem is not None:
        raise BadFile("SchemaMismatch", schema.problem)
    if not metadata.num_rows:
        return Described(0)
    _check_codecs(metadata)
    columns = _read(metadata, schema)
    _check_folders(columns, folders, batch_id, target)
    _check_calendar(metadata, columns, target)
    _check_batch_id(columns[target.field_id], batch_id, target)
    _check_values(columns, target)
    values = [_partition_value(field, columns.get(field.source_id), target) for field in target.spec.fields]
    results = [f.transform.result_type(target.schema.find_type(f.source_id)) for f in target.spec.fields]
    partition = [None if v is None else to_json(t, v) for t, v in zip(results, values, strict=True)]  # type: ignore[arg-type]
    document = data_file_document(metadata, uri, size, columns) | {
        "spec-id": target.spec.spec_id,
        "partition": partition,
    }
    return Described(
        metadata.num_rows, json.dumps(document, separators=_COMPACT), partition_text(target.spec.spec_id, values)
    )


def columns_of(metadata: Any, target: Target) -> dict[int, Column]:
    """The statistics of the file's columns, by field id."""
    return _read(metadata, target.schema_of(metadata))


def _read(metadata: Any, schema: FileSchema) -> dict[int, Column]:
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    return {c.field_id: c.read(groups) for c in schema.columns}


def _batch_column_missing(file: Any, target: Target) -> str | None:
    name = target.name(target.field_id)
    if name in (file.column(n).path for n in range(len(file))):
        return None
    return f"column {name}, the batch column, is missing; a registered file holds the batch's id in every row"


def _check_codecs(metadata: Any) -> None:
    """Raises: BadFile, if a column is compressed by a codec that Parquet's Java library lacks without further packages."""
    for n in range(metadata.num_row_groups):
        group = metadata.row_group(n)
        for column in range(group.num_columns):
            codec = group.column(column).compression
            if codec not in _CODECS:
                raise BadFile(
                    "CodecNotReadable",
                    f"it is compressed by {codec}, which not every engine reads; expected one of {', '.join(_CODECS)}",
                )


def _check_folders(columns: Mapping[int, Column], folders: str, batch_id: str, target: Target) -> None:
    """Check the folders of a file. Readers of a registered file do not read them.

    A folder of a column that the table does not have is only a place: Spark makes such folders of the column by which a producer
    divides rows among files.

    Raises: BadFile, if a folder names a value that the file does not hold.
    """
    if not folders:
        return
    by_name = {f.name: f.field_id for f in target.schema.fields}
    table = target.schema.as_arrow()
    for name, value in values_of(folders, table, target.name(target.field_id), batch_id, only_known=True).items():
        column = columns.get(by_name[name])
        if column is None:
            raise BadFile(
                "SchemaMismatch",
                f"its folder names a value of column {name}, and the file lacks the column; a registered file must "
                "hold it in every row",
            )
        if not value.is_valid:
            differs = not column.all_null
        else:
            plain = value.as_py() if pa.types.is_string(value.type) else _plain(value)
            differs = column.all_null or (
                plain is not None and column.lower is not None and not column.lower == column.upper == plain
            )
        if differs:
            raise BadFile("SchemaMismatch", f"column {name} holds another value than its folder names")


def _plain(value: pa.Scalar) -> int | None:
    """A value in Iceberg's units; None: its type has others."""
    if pa.types.is_date32(value.type):
        return int(value.cast(pa.int32()).as_py())
    is_whole = pa.types.is_integer(value.type) or pa.types.is_timestamp(value.type)
    return int(value.cast(pa.int64()).as_py()) if is_whole else None


def _check_calendar(metadata: Any, columns: Mapping[int, Column], target: Target) -> None:
    """Raises: BadFile, if a column may hold days of the hybrid calendar, as readers of Iceberg tables do not convert them."""
    calendar = calendar_of(metadata.metadata)
    if calendar is None or not calendar.datetimes:
        return
    for field_id, column in columns.items():
        if column.all_null or not isinstance(column.of.kind, (DateType, TimestampType, TimestamptzType)):
            continue
        is_date = isinstance(column.of.kind, DateType)
        if column.lower is None:
            raise BadFile(
                "StatisticsMissing",
                f"its footer has no statistics of column {target.name(field_id)}, and the file is of "
                f"{calendar.writer}, which counts days "
                "before 1582-10-15 in the hybrid calendar, so it is unknown whether it has such days",
            )
        first = calendar.first_day if is_date else calendar.first_micros
        if column.lower < first:
            since = "1582-10-15" if is_date or calendar.utc else "1900"
            raise BadFile("SchemaMismatch", f"column {target.name(field_id)} {calendar.problem(since)}")


def _check_batch_id(column: Column, batch_id: str, target: Target) -> None:
    name = target.name(target.field_id)
    if column.nulls is None or (column.lower is None and not column.all_null):
        raise BadFile(
            "StatisticsMissing",
            f"its footer has no statistics of column {name}, the batch column, so it is unknown whether every "
            "row holds the batch's id; write the file with statistics of that column",
        )
    if column.nulls or (column.lower, column.upper) != (batch_id, batch_id):
        raise BadFile(
            "BatchIdMismatch",
            f"column {name} does not hold the batch's id {batch_id!r} in every row, or its statistics are truncated",
        )


def _check_values(columns: Mapping[int, Column], target: Target) -> None:
    for field in target.schema.fields:
        column = columns.get(field.field_id)
        if column is None:
            continue
        if field.required and column.nulls != 0:
            problem = "holds nulls" if column.nulls else "may hold nulls, because its footer does not count them"
            raise BadFile("SchemaMismatch", f"column {field.name} {problem}, but the table requires values")
        if isinstance(field.field_type, (DateType, TimestampType, TimestamptzType)) and not _in_calendar(column, field):
            raise BadFile(
                "SchemaMismatch", f"column {field.name} holds a {field.field_type} outside the years 1 to 9999"
            )


def _in_calendar(column: Column, field: NestedField) -> bool:
    within = (
        calendar_limits.allow_days if isinstance(field.field_type, DateType) else calendar_limits.allow_microseconds
    )
    return column.lower is None or within(column.lower, column.upper)


def _partition_value(field: PartitionField, column: Column | None, target: Target) -> Any:
    """The partition value of all rows, in Iceberg's units.

    Raises: BadFile (SpansPartitions), if rows have different values; BadFile (StatisticsMissing), if the footer does not show it.
    """
    if isinstance(field.transform, VoidTransform) or column is None or column.all_null:
        return None  # a column that is missing in the file is read as null
    source, kind = target.name(field.source_id), target.schema.find_type(field.source_id)
    by = f"{field.transform} of {source}" if str(field.transform) != "identity" else source
    if column.nulls is None or column.lower is None:
        raise BadFile(
            "StatisticsMissing",
            f"its footer has no complete statistics of column {source}, by which the table is partitioned; "
            "write the file with statistics of that column",
        )
    if isinstance(kind, (FloatType, DoubleType)):
        raise BadFile(
            "StatisticsMissing",
            f"the table is partitioned by {source}, a {kind}, and footers do not show whether its values "
            "include NaN; files cannot be registered in such a table",
        )
    if column.nulls:
        raise BadFile("SpansPartitions", f"the file spans partitions by {by}: some values are null, and others are not")
    transform = target.transform_of(field)
    lower, upper = transform(column.lower), transform(column.upper)
    is_name = isinstance(field.transform, IdentityTransform) and isinstance(lower, (str, bytes))
    if is_name and encoded_bytes(lower) > NAME_BYTES - len(field.name) - 1:
        raise BadFile("SchemaMismatch", f"column {source} {too_long_problem(lower)}")
    ordered = field.transform.preserves_order
    if lower != upper or (not ordered and column.lower != column.upper):
        raise BadFile(
            "SpansPartitions",
            f"the file spans partitions by {by}: its lowest and its highest value are in different partitions"
            + ("" if ordered else ", or may be, because only a single value for all rows proves one bucket")
            + "; write one file for each partition",
        )
    return lower


def data_file_document(metadata: Any, uri: str, size: int, columns: Mapping[int, Column]) -> dict[str, Any]:
    """Iceberg's JSON of a data file, without its partition and its spec.

    Args:
        metadata: pyarrow's `FileMetaData`.
        columns: As `columns_of` finds them.
    """
    sizes: dict[int, int] = {}
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lowers: dict[int, str] = {}
    uppers: dict[int, str] = {}
    for field_id, column in columns.items():
        sizes[field_id] = column.bytes
        if not column.of.keeps_counts:
            continue
        values[field_id] = column.values
        if column.nulls is not None:
            nulls[field_id] = column.nulls
        if column.of.keeps_bounds and (lower := column.of.lower_bound(column)) is not None:
            lowers[field_id] = lower.hex().upper()
        if column.of.keeps_bounds and (upper := column.of.upper_bound(column)) is not None:
            uppers[field_id] = upper.hex().upper()
    return {
        "content": "data",
        "file-path": uri,
        "file-format": "parquet",
        "file-size-in-bytes": size,
        "record-count": metadata.num_rows,
        "column-sizes": by_field_id(sizes),
        "value-counts": by_field_id(values),
        "null-value-counts": by_field_id(nulls),
        "lower-bounds": by_field_id(lowers),
        "upper-bounds": by_field_id(uppers),
        "split-offsets": _split_offsets(metadata),
    }


def _split_offsets(metadata: Any) -> list[int]:
    """Where the row groups begin, in bytes."""
    found = []
    for n in range(metadata.num_row_groups):
        first = metadata.row_group(n).column(0)
        dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
        data = first.data_page_offset
        found.append(dictionary if dictionary is not None and dictionary < data else data)
    return sorted(found)


def by_field_id(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    """A map of Iceberg's JSON."""
    return {"keys": list(values), "values": list(values.values())}
