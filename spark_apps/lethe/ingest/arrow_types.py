"""Decides which column types of a buffered file fit a table's column type, and which type a new column gets. Pure.

The types may differ in representation only: an allowed conversion keeps every value.
"""

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

_UINT64_DIGITS: Final = 20
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
    pa.uint64(): pa.decimal128(_UINT64_DIGITS, 0),
}


@dataclass(frozen=True)
class Mismatch:
    """A type in a file that the table's type does not fit."""

    path: str  # below the column, such as `.a` or `.element`; "": the column itself
    text: str


def fits(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of type `actual` can be converted to type `wanted`. The cast of a value that is out of range still fails."""
    return mismatch(actual, wanted) is None


def mismatch(actual: pa.DataType, wanted: pa.DataType, path: str = "") -> Mismatch | None:
    """The first nested type that does not fit; None: all fit. Fields of structs are matched by name."""
    actual = plain_type(actual)
    if actual == wanted or pa.types.is_null(actual):
        return None
    if pa.types.is_struct(actual) and pa.types.is_struct(wanted):
        return _struct_mismatch(actual, wanted, path)
    if is_list(actual) and is_list(wanted):
        return mismatch(actual.value_type, wanted.value_type, f"{path}.element")
    if pa.types.is_map(actual) and pa.types.is_map(wanted):
        key = mismatch(actual.key_type, wanted.key_type, f"{path}.key")
        return key or mismatch(actual.item_type, wanted.item_type, f"{path}.value")
    return None if _leaf_fits(actual, wanted) else Mismatch(path, f"is {kind_of(actual)}, expected {kind_of(wanted)}")


def _struct_mismatch(actual: pa.DataType, wanted: pa.DataType, path: str) -> Mismatch | None:
    names = [f.name for f in actual]
    for name in names:
        if wanted.get_field_index(name) < 0:
            return Mismatch(f"{path}.{shown(name)}", "is only in the file, expected no such field")
        if names.count(name) > 1:
            return Mismatch(f"{path}.{name}", f"is in the file {names.count(name)} times")
    for field in wanted:
        if field.name not in names:
            return Mismatch(f"{path}.{field.name}", f"is missing, expected {kind_of(field.type)}")
        if found := mismatch(actual.field(field.name).type, field.type, f"{path}.{field.name}"):
            return found
    return None


def _leaf_fits(actual: pa.DataType, wanted: pa.DataType) -> bool:
    if is_text(actual) and is_text(wanted):
        return True
    if is_bytes(actual) and is_bytes(wanted):
        return True
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(wanted):
        # A timestamp without a zone is a local time, one with a zone is an instant. They cannot be converted into each other.
        return (actual.tz is None) == (wanted.tz is None)
    if pa.types.is_decimal(wanted):
        if pa.types.is_decimal(actual):
            return actual.scale == wanted.scale and actual.precision <= wanted.precision
        return actual == pa.uint64() and wanted.precision - wanted.scale >= _UINT64_DIGITS
    return wanted in _WIDER.get(actual, ())


def plain_type(t: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, of runs, or of an extension type such as a UUID."""
    if isinstance(t, pa.BaseExtensionType):
        return plain_type(t.storage_type)
    return plain_type(t.value_type) if pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t) else t


def promotes(table: pa.DataType, wider: pa.DataType) -> bool:
    """Whether Iceberg can promote a column from the first type to the second without rewriting existing files."""
    if pa.types.is_decimal(table) and pa.types.is_decimal(wider):
        return table.scale == wider.scale and table.precision < wider.precision
    return (table, wider) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


def as_column(t: pa.DataType, keep_required: bool = False) -> pa.DataType | None:
    """The column type of a table that fits every value of type `t`; None: there is none.

    Args:
        keep_required: Nested fields that are not nullable stay so. False: all are nullable.
    """
    t = plain_type(t)
    if is_text(t):
        return pa.string()
    if is_bytes(t):
        return pa.binary()
    if pa.types.is_timestamp(t):
        return pa.timestamp("us", "UTC" if t.tz else None)
    if pa.types.is_decimal(t):
        return pa.decimal128(t.precision, t.scale) if t.precision <= 38 and t.scale >= 0 else None
    if pa.types.is_struct(t):
        fields = [_as_field(f.name, f, keep_required) for f in t]
        return pa.struct(fields) if fields and all(fields) else None  # a table's struct has fields
    if is_list(t):
        element = _as_field("element", t.value_field, keep_required)
        return element and pa.list_(element)
    if pa.types.is_map(t):
        key, item = as_column(t.key_type, keep_required), _as_field("value", t.item_field, keep_required)
        return pa.map_(key, item) if key and item else None
    return _COLUMN.get(t)


def _as_field(name: str, field: pa.Field, keep_required: bool) -> pa.Field | None:
    found = as_column(field.type, keep_required)
    return found and pa.field(name, found, field.nullable or not keep_required)


def is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def is_bytes(t: pa.DataType) -> bool:
    fixed = pa.types.is_fixed_size_binary(t) and not pa.types.is_decimal(t)
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t) or fixed)


def is_list(t: pa.DataType) -> bool:
    is_view = pa.types.is_list_view(t) or pa.types.is_large_list_view(t)
    return bool(pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t) or is_view)


def kind_of(t: pa.DataType) -> str:
    """A type as text, without the names of nested fields."""
    if pa.types.is_struct(t):
        return "a struct"
    if pa.types.is_map(t):
        return "a map"
    if pa.types.is_decimal(t):
        return f"decimal({t.precision},{t.scale})"
    return "a list" if is_list(t) else "a union" if pa.types.is_union(t) else str(t)


_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,63}")


def shown(name: str) -> str:
    """The name of a nested field that only a file has, for messages. Keys of JSON objects may be data, so a name that does not
    look like that of a field is not shown."""
    return name if _NAME.fullmatch(name) else "<field>"
