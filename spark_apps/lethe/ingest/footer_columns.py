"""The columns of a table in Parquet footers: their statistics, sizes and bounds. Pure.

Most files of a table have one and the same schema. What follows from it is found once, and used for all files with this schema.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Any, Final, TypeAlias

from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

_ARROW_SCHEMA: Final = b"ARROW:schema"
_TIMES: Final = (DateType, TimestampType, TimestamptzType)
# What a footer says of its schema. Equal for two files only if the same follows from both.
SchemaKey: TypeAlias = tuple[str, tuple[str, ...], bytes | None]


@dataclass(frozen=True)
class Column:
    """The statistics of a column in a footer."""

    of: "FooterColumn"
    values: int  # their number, including nulls
    nulls: int | None  # None: unknown
    lower: Any = None  # in Iceberg's units; None: unknown, or there are only nulls
    upper: Any = None  # like `lower`
    bytes: int = 0  # compressed

    @property
    def all_null(self) -> bool:
        return self.values == self.nulls


@dataclass(frozen=True)
class FooterColumn:
    """A column of all files with one schema."""

    index: int  # in the file
    field_id: int
    kind: IcebergType
    is_single: bool  # not part of a list or a map
    is_nested: bool  # a field of a struct, list or map
    collector: StatisticsCollector  # which statistics the table keeps

    def read(self, groups: list[Any]) -> Column:
        """The column's statistics in all row groups. Raises: ValueError and others, for values that Python does not have.

        Args:
            groups: pyarrow's `RowGroupMetaData` of all row groups.
        """
        chunks = [group.column(self.index) for group in groups]
        parts = [self._chunk(chunk) for chunk, group in zip(chunks, groups, strict=True) if group.num_rows]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        if len(parts) == 1:
            values, nulls, lower, upper = parts[0]
            return Column(self, values, nulls, lower, upper, size)
        return _joined(self, parts, size)

    def _chunk(self, chunk: Any) -> tuple[int, int | None, Any, Any]:
        """The number of values, the number of nulls, and the bounds, as in `Column`."""
        statistics = chunk.statistics if chunk.is_stats_set else None
        if statistics is None:
            return chunk.num_values, None, None, None
        nulls = statistics.null_count if statistics.has_null_count else None
        if not statistics.has_min_max:
            return chunk.num_values, nulls, None, None
        if isinstance(self.kind, _TIMES):
            if self.is_nested and self.keeps_bounds:
                # Of columns that are not nested, the caller checks the years.
                _ = statistics.min, statistics.max
            return chunk.num_values, nulls, statistics.min_raw, statistics.max_raw
        if isinstance(self.kind, DecimalType) and statistics.physical_type != "FIXED_LEN_BYTE_ARRAY":
            unit = Decimal(1).scaleb(-self.kind.scale)
            return chunk.num_values, nulls, statistics.min_raw * unit, statistics.max_raw * unit
        lower, upper = statistics.min, statistics.max
        if isinstance(self.kind, (FloatType, DoubleType)) and (isnan(lower) or isnan(upper)):
            # parquet-java takes NaN as the largest value, so the largest number is unknown.
            return chunk.num_values, nulls, None, None
        return chunk.num_values, nulls, lower, upper

    @property
    def keeps_counts(self) -> bool:
        return self.is_single and self.collector.mode.type is not MetricModeTypes.NONE

    @property
    def keeps_bounds(self) -> bool:
        return self.collector.mode.type in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL)

    def lower_bound(self, column: Column) -> bytes | None:
        """The lower bound in Iceberg's bytes, truncated as the table wants it. None: there is none."""
        width = self.collector.mode.length
        value = column.lower
        if value is not None and width is not None and isinstance(self.kind, (StringType, BinaryType)):
            value = value[:width]
        return self._bytes(value)

    def upper_bound(self, column: Column) -> bytes | None:
        """Like `lower_bound`. Also None if no truncated value is above the upper bound."""
        width = self.collector.mode.length
        value = column.upper
        if value is not None and width is not None and isinstance(self.kind, StringType):
            value = _text_above(value, width)
        elif value is not None and width is not None and isinstance(self.kind, BinaryType):
            value = truncate_upper_bound_binary_string(value, width)
        return self._bytes(value)

    def _bytes(self, value: Any) -> bytes | None:
        assert isinstance(self.kind, PrimitiveType)
        return None if value is None else to_bytes(self.kind, value)


def _text_above(value: str, width: int) -> str | None:
    """The text, or a text of at most `width` characters above it; None: there is none. PyIceberg's function makes half of a
    surrogate pair of U+D7FF, which is no character."""
    if len(value) <= width:
        return value
    for end in range(width - 1, -1, -1):
        after = ord(value[end]) + 1
        if 0xD800 <= after <= 0xDFFF:
            after = 0xE000
        if after <= 0x10FFFF:
            return value[:end] + chr(after)
    return None


def _joined(of: FooterColumn, parts: list[tuple[int, int | None, Any, Any]], size: int) -> Column:
    """Merge the statistics of a column's chunks. Bounds are known only if every chunk that may contain a value has them."""
    values = sum(p[0] for p in parts)
    nulls = [p[1] for p in parts if p[1] is not None]
    known = sum(nulls) if len(nulls) == len(parts) else None
    holding = [(lower, upper) for count, n, lower, upper in parts if count != n]
    if not holding or any(lower is None for lower, _ in holding):
        return Column(of, values, known, bytes=size)
    return Column(of, values, known, min(lower for lower, _ in holding), max(upper for _, upper in holding), size)


@dataclass(frozen=True)
class FileSchema:
    """What follows from the schema of a file, for one table."""

    problem: str | None  # why such files cannot be registered; None: their schema is no reason
    columns: tuple[FooterColumn, ...]  # empty if the table does not have all of them


def footer_columns(
    file: Any, table: Schema, ids: Mapping[str, int], collectors: Mapping[int, StatisticsCollector]
) -> tuple[FooterColumn, ...]:
    """The columns of files with a schema, in their order. Empty if the table does not have all of them.

    Args:
        file: The `schema` of pyarrow's `FileMetaData`.
        ids: The field ids of the table's leaf columns, by their paths in a Parquet file.
        collectors: By field id.
    """
    leaves, top = [file.column(n) for n in range(len(file))], {f.field_id for f in table.fields}
    if any(leaf.path not in ids for leaf in leaves):
        return ()
    return tuple(
        FooterColumn(
            index,
            field_id := ids[leaf.path],
            table.find_type(field_id),
            is_single=leaf.max_repetition_level == 0,
            is_nested=field_id not in top,
            collector=collectors[field_id],
        )
        for index, leaf in enumerate(leaves)
    )


def schema_key(metadata: Any) -> SchemaKey:
    """What a footer says of its schema, of pyarrow's `FileMetaData`."""
    schema = metadata.schema
    declared = metadata.metadata
    text = str(schema).partition("\n")[2]  # the first line names the Python object
    return text, tuple(schema.names), declared.get(_ARROW_SCHEMA) if declared else None
