"""Decides whether a Parquet file can be registered as a data file, and creates its manifest entry. Pure: a footer in, JSON out.

Invariant: the footer proves every statement of the entry. If it does not prove a required statement, the file is refused.
Optional statements are left out.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from pyiceberg.conversions import to_json
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import VoidTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lethe.files.partitions import partition_text
from lethe.ingest import calendar_limits
from lethe.ingest.buffer_store import BadFile
from lethe.ingest.parquet_types import misfit

_METRICS_MODE: Final = "write.metadata.metrics.default"
_METRICS_OF: Final = "write.metadata.metrics.column."
_DEFAULT_METRICS_MODE: Final = "truncate(16)"


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


@dataclass(frozen=True)
class Column:
    """The statistics of a column in a footer."""

    values: int  # their number, including nulls
    nulls: int | None  # None: unknown
    lower: Any = None  # in Iceberg's units; None: unknown, or there are only nulls
    upper: Any = None  # like `lower`

    @property
    def all_null(self) -> bool:
        return self.values == self.nulls


@dataclass(frozen=True)
class Described:
    """A file that can be registered."""

    records: int
    document: str = ""  # Iceberg's JSON of a data file; empty: the file has no rows and is not registered
    partition: str | None = None  # as `partition_text` writes it; None: no rows, or a value that it cannot write


def describe(metadata: Any, uri: str, size: int, batch_id: str, target: Target) -> Described:
    """Decide whether one file can be registered.

    Args:
        metadata: pyarrow's `FileMetaData`.
        uri: The path of the data file.
        size: Of the file, in bytes.
    Raises: BadFile (SchemaMismatch, StatisticsMissing, BatchIdMismatch, SpansPartitions).
    """
    _check_batch_column(metadata.schema, target)
    if problem := misfit(metadata.schema, target.schema, target.ids, target.may_lack):
        raise BadFile("SchemaMismatch", problem)
    if not metadata.num_rows:
        return Described(0)
    columns = columns_of(metadata, target)
    _check_batch_id(columns[target.field_id], batch_id, target)
    _check_values(columns, target)
    values = [_partition_value(field, columns.get(field.source_id), target) for field in target.spec.fields]
    results = [f.transform.result_type(target.schema.find_type(f.source_id)) for f in target.spec.fields]
    partition = [None if v is None else to_json(t, v) for t, v in zip(results, values, strict=True)]  # type: ignore[arg-type]
    document = data_file_document(metadata, uri, size, columns, target) | {
        "spec-id": target.spec.spec_id,
        "partition": partition,
    }
    return Described(metadata.num_rows, json.dumps(document), partition_text(target.spec.spec_id, values))


def columns_of(metadata: Any, target: Target) -> dict[int, Column]:
    """The statistics of the file's columns, by field id."""
    found: dict[int, Column] = {}
    for index in range(metadata.num_columns):
        field_id = target.ids[metadata.schema.column(index).path]
        kind = target.schema.find_type(field_id)
        groups = (metadata.row_group(n) for n in range(metadata.num_row_groups))
        parts = [_chunk(group.column(index), kind) for group in groups if group.num_rows]
        found[field_id] = _joined(parts)
    return found


def _chunk(chunk: Any, kind: IcebergType) -> Column:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return Column(chunk.num_values, None)
    nulls = statistics.null_count if statistics.has_null_count else None
    if not statistics.has_min_max:
        return Column(chunk.num_values, nulls)
    if isinstance(kind, (DateType, TimestampType, TimestamptzType)):
        return Column(chunk.num_values, nulls, statistics.min_raw, statistics.max_raw)
    if isinstance(kind, DecimalType) and statistics.physical_type != "FIXED_LEN_BYTE_ARRAY":
        unit = Decimal(1).scaleb(-kind.scale)
        return Column(chunk.num_values, nulls, statistics.min_raw * unit, statistics.max_raw * unit)
    return Column(chunk.num_values, nulls, statistics.min, statistics.max)


def _joined(parts: list[Column]) -> Column:
    """Merge the statistics of a column's chunks. Bounds are known only if every chunk that may contain a value has them."""
    values = sum(p.values for p in parts)
    nulls = [p.nulls for p in parts if p.nulls is not None]
    known = sum(nulls) if len(nulls) == len(parts) else None
    holding = [p for p in parts if not p.all_null]
    if not holding or any(p.lower is None for p in holding):
        return Column(values, known)
    return Column(values, known, min(p.lower for p in holding), max(p.upper for p in holding))


def _check_batch_column(file: Any, target: Target) -> None:
    name = target.name(target.field_id)
    if name not in (file.column(n).path for n in range(len(file))):
        raise BadFile(
            "SchemaMismatch",
            f"column {name}, the batch column, is missing; a registered file holds the batch's id in every row",
        )


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
    transform = field.transform.transform(kind)
    lower, upper = transform(column.lower), transform(column.upper)
    ordered = field.transform.preserves_order
    if lower != upper or (not ordered and column.lower != column.upper):
        raise BadFile(
            "SpansPartitions",
            f"the file spans partitions by {by}: its lowest and its highest value are in different partitions"
            + ("" if ordered else ", or may be, because only a single value for all rows proves one bucket")
            + "; write one file for each partition",
        )
    return lower


def data_file_document(
    metadata: Any, uri: str, size: int, columns: Mapping[int, Column], target: Target
) -> dict[str, Any]:
    """Iceberg's JSON of a data file, without its partition and its spec.

    Args:
        metadata: pyarrow's `FileMetaData`.
        columns: As `columns_of` finds them.
    """
    statistics = data_file_statistics_from_parquet_metadata(
        metadata, target.collectors, target.ids
    ).to_serialized_dict()
    leaves = (metadata.schema.column(n) for n in range(metadata.num_columns))
    # Iceberg keeps only the sizes of what is in lists and maps.
    single = {target.ids[c.path] for c in leaves if c.max_repetition_level == 0}
    # PyIceberg also aggregates statistics that only some row groups have. Leave those out.
    counted = {i for i in single if columns[i].nulls is not None}
    bounded = {i for i in single if columns[i].lower is not None}
    return {
        "content": "data",
        "file-path": uri,
        "file-format": "parquet",
        "file-size-in-bytes": size,
        "record-count": metadata.num_rows,
        "column-sizes": by_field_id(statistics["column_sizes"]),
        "value-counts": by_field_id({i: n for i, n in statistics["value_counts"].items() if i in single}),
        "null-value-counts": by_field_id({i: n for i, n in statistics["null_value_counts"].items() if i in counted}),
        "lower-bounds": by_field_id(
            {i: b.hex().upper() for i, b in statistics["lower_bounds"].items() if i in bounded}
        ),
        "upper-bounds": by_field_id(
            {i: b.hex().upper() for i, b in statistics["upper_bounds"].items() if i in bounded}
        ),
        "split-offsets": statistics["split_offsets"],
    }


def by_field_id(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    """A map of Iceberg's JSON."""
    return {"keys": list(values), "values": list(values.values())}
