"""Decides which column types of a buffered file fit a table's column type, and which type a new column gets. Pure.

The types may differ in representation only: an allowed conversion keeps every value.
"""

from typing import Final

import pyarrow as pa

_WIDER: Final = {
    pa.int8(): {pa.int8(), pa.int16(), pa.int32(), pa.int64()},
    pa.int16(): {pa.int16(), pa.int32(), pa.int64()},
    pa.int32(): {pa.int32(), pa.int64()},
    pa.uint8(): {pa.int16(), pa.int32(), pa.int64()},
    pa.uint16(): {pa.int32(), pa.int64()},
    pa.uint32(): {pa.int64()},
    pa.float16(): {pa.float32(), pa.float64()},
    pa.float32(): {pa.float64()},
}
_COLUMN: Final = {
    **dict.fromkeys((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()), pa.int32()),
    **dict.fromkeys((pa.int64(), pa.uint32()), pa.int64()),
    **dict.fromkeys((pa.float16(), pa.float32()), pa.float32()),
    **{t: t for t in (pa.float64(), pa.bool_(), pa.date32())},
}


def fits(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of type `actual` can be converted to type `wanted`. The cast of a value that is out of range still fails."""
    if actual == wanted or pa.types.is_null(actual):
        return True
    if pa.types.is_dictionary(actual):
        return fits(actual.value_type, wanted)
    if _is_text(actual) and _is_text(wanted):
        return True
    if _is_bytes(actual) and _is_bytes(wanted):
        return True
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(wanted):
        # A timestamp without a zone is a local time, one with a zone is an instant. They cannot be converted into each other.
        return (actual.tz is None) == (wanted.tz is None)
    if pa.types.is_decimal(actual) and pa.types.is_decimal(wanted):
        return actual.scale == wanted.scale and actual.precision <= wanted.precision
    if pa.types.is_struct(actual) and pa.types.is_struct(wanted):
        same = [f.name for f in actual] == [f.name for f in wanted]
        return same and all(fits(a.type, w.type) for a, w in zip(actual, wanted, strict=True))
    if _is_list(actual) and _is_list(wanted):
        return fits(actual.value_type, wanted.value_type)
    if pa.types.is_map(actual) and pa.types.is_map(wanted):
        return fits(actual.key_type, wanted.key_type) and fits(actual.item_type, wanted.item_type)
    return wanted in _WIDER.get(actual, ())


def promotes(table: pa.DataType, wider: pa.DataType) -> bool:
    """Whether Iceberg can promote a column from the first type to the second without rewriting existing files."""
    if pa.types.is_decimal(table) and pa.types.is_decimal(wider):
        return table.scale == wider.scale and table.precision < wider.precision
    return (table, wider) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def as_column(t: pa.DataType) -> pa.DataType | None:
    """The column type of a table that fits every value of type `t`; None: there is none."""
    if pa.types.is_dictionary(t):
        return as_column(t.value_type)
    if _is_text(t):
        return pa.string()
    if _is_bytes(t):
        return pa.binary()
    if pa.types.is_timestamp(t):
        return pa.timestamp("us", "UTC" if t.tz else None)
    if pa.types.is_decimal(t):
        return pa.decimal128(t.precision, t.scale) if t.precision <= 38 and t.scale >= 0 else None
    if pa.types.is_struct(t):
        inner = [as_column(f.type) for f in t]
        return None if None in inner else pa.struct([(f.name, i) for f, i in zip(t, inner, strict=True)])
    if _is_list(t):
        item = as_column(t.value_type)
        return item and pa.list_(item)
    if pa.types.is_map(t):
        key, item = as_column(t.key_type), as_column(t.item_type)
        return pa.map_(key, item) if key and item else None
    return _COLUMN.get(t)


def _is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def _is_bytes(t: pa.DataType) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t))


def _is_list(t: pa.DataType) -> bool:
    return bool(pa.types.is_list(t) or pa.types.is_large_list(t))
