"""Checks that Iceberg readers can read the columns of a Parquet file, and finds their statistics in its footer. Pure.

The checks are stricter than those for files that are rewritten: a rewrite casts values, but a registered file is not changed.
Most files of a table have one and the same schema: what follows from it is found once, and used for all of them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string

FIELD_ID: Final = b"PARQUET:field_id"
_PLAIN: Final[Mapping[type[IcebergType], tuple[tuple[str, str], ...]]] = {
    BooleanType: (("BOOLEAN", "NONE"),),
    FloatType: (("FLOAT", "NONE"),),
    DoubleType: (("DOUBLE", "NONE"), ("FLOAT", "NONE")),
    DateType: (("INT32", "DATE"),),
    StringType: (("BYTE_ARRAY", "STRING"),),
    BinaryType: (("BYTE_ARRAY", "NONE"),),
}
_INTEGERS: Final[Mapping[type[IcebergType], Mapping[str, int]]] = {
    IntegerType: {"INT32": 32},
    LongType: {"INT32": 32, "INT64": 64},
}
"""Physical types and the maximum bit widths of their signed integers."""

_ARROW_SCHEMA: Final = b"ARROW:schema"
_TIMES: Final = (DateType, TimestampType, TimestamptzType)
SchemaKey: TypeAlias = tuple[str, tuple[str, ...], bytes | None]
"""What a footer says of its schema. Equal for two files only if the same follows from both."""


def misfit(file: Any, table: Schema, table_ids: Mapping[str, int], may_lack: bool) -> str | None:
    """Why the columns of a file do not match those of the table; None: they match.

    Args:
        file: The `schema` of pyarrow's `FileMetaData`.
        table_ids: The field ids of the table's leaf columns, by their paths in a Parquet file.
        may_lack: Optional columns may be missing from the file.
    """
    leaves = {c.path: c for c in (file.column(i) for i in range(len(file)))}
    if len(leaves) < len(file):
        return "two of its columns have the same name"
    column_names = {f.name for f in table.fields}
    in_file, in_table = _by_column(leaves, column_names), _by_column(table_ids, column_names)
    for number, path in enumerate(leaves, 1):
        if _column_of(path, column_names) is None:
            return (
                f"the file has a column that the table does not have (number {number} of {len(leaves)}, "
                f"counting the fields of nested columns); the table has {', '.join(sorted(column_names))}; add the "
                "column to the table first, or remove it from the file"
            )
    for field in table.fields:
        here = in_file.get(field.name, set())
        if not here:
            if field.required:
                return f"column {field.name} ({field.field_type}) is missing; the table requires it"
            if not may_lack:
                would = "with spec.schemaEvolution: AddColumns, Lethe reads it as null"
                return f"column {field.name} ({field.field_type}) is missing; {would}"
            continue
        paths = in_table.get(field.name, set())
        if here != paths:
            lacking, more = sorted(paths - here), len(here - paths)
            odd = f"{lacking[0]} is only in the table" if lacking else f"{more} parts of it are only in the file"
            return (
                f"column {field.name} is not a {field.field_type}: {odd} (lists and maps must have the three "
                "levels of the Parquet specification)"
            )
        for path in sorted(paths):
            if problem := _type_misfit(leaves[path], table.find_type(table_ids[path])):
                return problem
    return _declared_misfit(file.to_arrow_schema(), table)


def _column_of(path: str, columns: Set[str]) -> str | None:
    """The column that a path is of; None: there is none. Names of columns may contain dots."""
    while path not in columns:
        path, dot, _ = path.rpartition(".")
        if not dot:
            return None
    return path


def _by_column(paths: Iterable[str], columns: Set[str]) -> dict[str, set[str]]:
    kinds: dict[str, set[str]] = {}
    for path in paths:
        if (column := _column_of(path, columns)) is not None:
            kinds.setdefault(column, set()).add(path)
    return kinds


def _type_misfit(leaf: Any, expected: IcebergType) -> str | None:
    logical = leaf.logical_type
    is_fit = (leaf.physical_type, logical.type) in _PLAIN.get(type(expected), ())
    match expected:
        case IntegerType() | LongType():
            width = _INTEGERS[type(expected)].get(leaf.physical_type)
            declared = json.loads(logical.to_json())
            fits_width = logical.type == "INT" and declared["isSigned"] and declared["bitWidth"] <= (width or 0)
            is_fit = width is not None and (logical.type == "NONE" or fits_width)
        case DecimalType():
            is_fit = (
                logical.type == "DECIMAL"
                and leaf.physical_type in ("INT32", "INT64", "FIXED_LEN_BYTE_ARRAY")
                and leaf.scale == expected.scale
                and leaf.precision <= expected.precision
            )
        case TimestampType() | TimestamptzType():
            declared = json.loads(logical.to_json())
            is_fit = (
                (leaf.physical_type, logical.type) == ("INT64", "TIMESTAMP")
                and declared["timeUnit"] == "microseconds"
                and declared["isAdjustedToUTC"] == isinstance(expected, TimestamptzType)
            )
    if is_fit:
        return None
    return f"column {leaf.path} is {_found_type(leaf)}, expected {_expected(expected)}"


def _found_type(leaf: Any) -> str:
    logical = leaf.logical_type
    if logical.type == "NONE":
        return str(leaf.physical_type)
    declared = json.loads(logical.to_json())
    details = [f"{k}={declared[k]}" for k in ("bitWidth", "isSigned", "timeUnit", "isAdjustedToUTC") if k in declared]
    details += [f"precision={leaf.precision}", f"scale={leaf.scale}"] if logical.type == "DECIMAL" else []
    return f"{leaf.physical_type} {logical.type}" + (f" ({', '.join(details)})" if details else "")


def _expected(column_type: IcebergType) -> str:
    match column_type:
        case TimestampType():
            return "a timestamp in microseconds without a zone"
        case TimestamptzType():
            return "a timestamp in microseconds with a zone (isAdjustedToUTC)"
        case IntegerType() | LongType():
            return f"a signed integer that fits {column_type}"
    if type(column_type) in _PLAIN or isinstance(column_type, DecimalType):
        return str(column_type)
    return f"{column_type}, but files with columns of that type cannot be registered"


def _declared_misfit(file: pa.Schema, table: Schema) -> str | None:
    """Why declared field ids, or optional columns, do not match the table; None: they match."""
    ids = list(_ids(file, table))
    declared = [(name, found, table_id) for name, found, table_id in ids if found is not None]
    for name, found, table_id in declared:
        if found != table_id:
            return (
                f"column {name} has the field id {found}, but {table_id} in the table; write the file without field ids"
            )
    if declared and len(declared) < len(ids):
        lacking = next(name for name, found, _ in ids if found is None)
        return f"column {lacking} has no field id, but other columns have; write the file without field ids"
    return next((f"column {name} may hold nulls, but the table requires values" for name in _loose(file, table)), None)


def _ids(file: pa.Schema, table: Schema) -> Iterator[tuple[str, int | None, int]]:
    names = frozenset(file.names)
    for field in table.fields:
        if field.name in names:
            yield from _ids_of(field.name, file.field(field.name), field.field_id, field.field_type)


def _ids_of(
    name: str, file: pa.Field, field_id: int, column_type: IcebergType
) -> Iterator[tuple[str, int | None, int]]:
    text = (file.metadata or {}).get(FIELD_ID)
    yield name, None if text is None else int(text), field_id
    for part, inner, nested in _parts(file, column_type):
        yield from _ids_of(f"{name}.{part}", inner, nested.field_id, nested.field_type)


def _loose(file: pa.Schema, table: Schema) -> Iterator[str]:
    """Names of columns and nested fields that are required in the table and optional in the file.

    Primitive top-level columns are not included: the number of their nulls is checked instead.
    """
    names = frozenset(file.names)
    for field in table.fields:
        if field.name in names:
            column = file.field(field.name)
            if field.required and not field.field_type.is_primitive and column.nullable:
                yield field.name
            yield from _loose_parts(field.name, column, field.field_type)


def _loose_parts(name: str, file: pa.Field, column_type: IcebergType) -> Iterator[str]:
    for part, inner, nested in _parts(file, column_type):
        if nested.required and inner.nullable:
            yield f"{name}.{part}"
        yield from _loose_parts(f"{name}.{part}", inner, nested.field_type)


def _parts(file: pa.Field, column_type: IcebergType) -> Iterator[tuple[str, pa.Field, NestedField]]:
    """The nested fields of a column, each with its name, in the file and in the table."""
    match column_type:
        case StructType(fields=fields):
            for field in fields:
                yield field.name, file.type.field(field.name), field
        case ListType():
            yield "element", file.type.value_field, column_type.element_field
        case MapType():
            yield "key", file.type.key_field, column_type.key_field
            yield "value", file.type.item_field, column_type.value_field


@dataclass(frozen=True)
class ColumnStatistics:
    """The statistics of a column in a footer."""

    column: "FooterColumn"
    values: int
    """Their number, including nulls."""
    nulls: int | None
    """The number of nulls; None: unknown."""
    lower: Any = None
    """In Iceberg's units; None: unknown, or there are only nulls."""
    upper: Any = None
    """Like `lower`."""
    bytes: int = 0
    """Compressed."""

    @property
    def all_null(self) -> bool:
        """Whether the footer proves that there are only nulls, or no values. False if their number is unknown."""
        return self.values == self.nulls


@dataclass(frozen=True)
class FooterColumn:
    """A column of all files with one schema."""

    index: int
    """In the file."""
    field_id: int
    kind: IcebergType
    is_single: bool
    """Not part of a list or a map."""
    is_nested: bool
    """A field of a struct, list or map."""
    collector: StatisticsCollector
    """Which statistics the table keeps."""

    def read(self, groups: list[Any]) -> ColumnStatistics:
        """The column's statistics in all row groups.

        Raises:
            ValueError: And others, for values that Python does not have.

        Args:
            groups: pyarrow's `RowGroupMetaData` of all row groups.
        """
        chunks = [group.column(self.index) for group in groups]
        parts = [self._chunk(chunk) for chunk, group in zip(chunks, groups, strict=True) if group.num_rows]
        size = sum(chunk.total_compressed_size for chunk in chunks)
        if len(parts) == 1:
            values, nulls, lower, upper = parts[0]
            return ColumnStatistics(self, values, nulls, lower, upper, size)
        return _joined(self, parts, size)

    def _chunk(self, chunk: Any) -> tuple[int, int | None, Any, Any]:
        """The number of values, the number of nulls, and the bounds, as in `ColumnStatistics`."""
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
        """Whether the entry gets counts of values and nulls: not for metrics mode `none`, nor in lists and maps."""
        return self.is_single and self.collector.mode.type is not MetricModeTypes.NONE

    @property
    def keeps_bounds(self) -> bool:
        """Whether the table's metrics mode of the column is `truncate` or `full`, so that the entry gets bounds."""
        return self.collector.mode.type in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL)

    def lower_bound(self, column: ColumnStatistics) -> bytes | None:
        """The lower bound in Iceberg's bytes, truncated as the table wants it. None: there is none."""
        width = self.collector.mode.length
        value = column.lower
        if value is not None and width is not None and isinstance(self.kind, (StringType, BinaryType)):
            value = value[:width]
        return self._bytes(value)

    def upper_bound(self, column: ColumnStatistics) -> bytes | None:
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
    """The text, or a text of at most `width` characters above it; None: there is none.

    PyIceberg's function makes half of a surrogate pair of U+D7FF, which is no character.
    """
    if len(value) <= width:
        return value
    for end in range(width - 1, -1, -1):
        after = ord(value[end]) + 1
        if 0xD800 <= after <= 0xDFFF:
            after = 0xE000
        if after <= 0x10FFFF:
            return value[:end] + chr(after)
    return None


def _joined(column: FooterColumn, parts: list[tuple[int, int | None, Any, Any]], size: int) -> ColumnStatistics:
    """Merge the statistics of a column's chunks. Bounds are known only if every chunk that may contain a value has them."""
    values = sum(p[0] for p in parts)
    nulls = [p[1] for p in parts if p[1] is not None]
    null_count = sum(nulls) if len(nulls) == len(parts) else None
    holding = [(lower, upper) for count, n, lower, upper in parts if count != n]
    if not holding or any(lower is None for lower, _ in holding):
        return ColumnStatistics(column, values, null_count, bytes=size)
    return ColumnStatistics(
        column, values, null_count, min(lower for lower, _ in holding), max(upper for _, upper in holding), size
    )


@dataclass(frozen=True)
class FileSchema:
    """What follows from the schema of a file, for one table."""

    problem: str | None
    """Why such files cannot be registered; None: their schema is no reason."""
    columns: tuple[FooterColumn, ...]
    """Empty if the table does not have all of them."""


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
