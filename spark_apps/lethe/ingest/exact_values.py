"""Decides which types of a file fit a table's, and converts columns without changing a value. Pure: Arrow in, Arrow out.

The types may differ in representation only. Whole columns are converted and checked at once. Only if that fails, the first row
with an unusable value is searched for, and in it the path of the value, such as `s.c`, `l.element.a` or `m.key`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.ingest.buffer_store import BadFile

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

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,63}")

# 0001-01-01 and 9999-12-31, in days since 1970-01-01.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
_DAY_MICROS: Final = 86_400_000_000

_FRACTION_DIGITS_AT_MOST: Final = 38
"""Of a decimal, and of what Arrow can convert to one."""
_NUMBER: Final = re.compile(r"\s*[+-]?[0-9]*(?:\.([0-9]*))?(?:[eE]([+-]?)0*([0-9]{0,20}))?\s*")
_NEGATIVE_EXPONENT: Final = re.compile(rb"[eE]-[0-9]")
_FINE: Final = re.compile(rb"\.([0-9]{39})|(?:\.([0-9]*))?[eE]-0*([0-9]+)")

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_FAILURES: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)

Cast: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]

_FIRST_GREGORIAN_DAY: Final = -141_427  # 1582-10-15
_FIRST_DAY_OF_1900: Final = -25_567
_SPARK_VERSION: Final = b"org.apache.spark.version"
_UTC: Final = (b"UTC", b"Etc/UTC", b"Z", b"GMT", b"+00:00")
_MICROS: Final = {"s": 1_000_000, "ms": 1000, "us": 1}

_FOOTER: Final = 2  # of a file tail
_CALENDAR: Final = 11  # of a footer
_PROLEPTIC: Final = 2


@dataclass(frozen=True)
class Mismatch:
    """A type in a file that the table's type does not fit."""

    path: str
    """Below the column, such as `.a` or `.element`; "": the column itself."""
    text: str


def fits(actual: pa.DataType, target: pa.DataType) -> bool:
    """Whether values of type `actual` can be converted to type `target`. The cast of a value that is out of range still fails."""
    return mismatch(actual, target) is None


def mismatch(actual: pa.DataType, target: pa.DataType, path: str = "") -> Mismatch | None:
    """The first nested type that does not fit; None: all fit. Fields of structs are matched by name."""
    actual = plain_type(actual)
    if actual == target or pa.types.is_null(actual):
        return None
    if pa.types.is_struct(actual) and pa.types.is_struct(target):
        return _struct_mismatch(actual, target, path)
    if is_list(actual) and is_list(target):
        return mismatch(actual.value_type, target.value_type, f"{path}.element")
    if pa.types.is_map(actual) and pa.types.is_map(target):
        key = mismatch(actual.key_type, target.key_type, f"{path}.key")
        return key or mismatch(actual.item_type, target.item_type, f"{path}.value")
    return None if _leaf_fits(actual, target) else Mismatch(path, f"is {kind_of(actual)}, expected {kind_of(target)}")


def _struct_mismatch(actual: pa.DataType, target: pa.DataType, path: str) -> Mismatch | None:
    names = [f.name for f in actual]
    for name in names:
        if target.get_field_index(name) < 0:
            return Mismatch(f"{path}.{shown(name)}", "is only in the file, expected no such field")
        if names.count(name) > 1:
            return Mismatch(f"{path}.{name}", f"is in the file {names.count(name)} times")
    for field in target:
        if field.name not in names:
            return Mismatch(f"{path}.{field.name}", f"is missing, expected {kind_of(field.type)}")
        if text := mismatch(actual.field(field.name).type, field.type, f"{path}.{field.name}"):
            return text
    return None


def _leaf_fits(actual: pa.DataType, target: pa.DataType) -> bool:
    if is_text(actual) and is_text(target):
        return True
    if is_bytes(actual) and is_bytes(target):
        return True
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(target):
        # A timestamp without a zone is a local time, one with a zone is an instant. They cannot be converted into each other.
        return (actual.tz is None) == (target.tz is None)
    if pa.types.is_decimal(target):
        if pa.types.is_decimal(actual):
            return actual.scale == target.scale and actual.precision <= target.precision
        return actual == pa.uint64() and target.precision - target.scale >= _UINT64_DIGITS
    return target in _WIDER.get(actual, ())


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


def as_column(t: pa.DataType, of_table: bool = False) -> pa.DataType | None:
    """The column type of a table that fits every value of type `t`; None: there is none.

    Args:
        of_table: `t` is the type of a column of a table: nested fields that are not nullable stay so, and UUIDs are texts, as for
            Spark. False: it is that of a file, and all nested fields are nullable.
    """
    if of_table and isinstance(t, pa.UuidType):
        return pa.string()
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
        fields = [_as_field(f.name, f, of_table) for f in t]
        return pa.struct(fields) if fields and all(fields) else None  # a table's struct has fields
    if is_list(t):
        element = _as_field("element", t.value_field, of_table)
        return element and pa.list_(element)
    if pa.types.is_map(t):
        key, item = as_column(t.key_type, of_table), _as_field("value", t.item_field, of_table)
        return pa.map_(key, item) if key and item else None
    return _COLUMN.get(t)


def _as_field(name: str, field: pa.Field, of_table: bool) -> pa.Field | None:
    column = as_column(field.type, of_table)
    return column and pa.field(name, column, field.nullable or not of_table)


def is_text(t: pa.DataType) -> bool:
    """Whether the type is one of Arrow's three layouts of UTF-8 strings. Dictionaries of strings are not."""
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def is_bytes(t: pa.DataType) -> bool:
    """Whether the type is binary, of variable or of fixed size. Decimals are not."""
    fixed = pa.types.is_fixed_size_binary(t) and not pa.types.is_decimal(t)
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t) or fixed)


def is_list(t: pa.DataType) -> bool:
    """Whether the type is one of Arrow's five layouts of lists. Maps are not."""
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


def shown(name: str) -> str:
    """The name of a nested field that only a file has, for messages.

    Keys of JSON objects may be data, so a name that does not look like that of a field is not shown.
    """
    return name if _NAME.fullmatch(name) else "<field>"


def allow_days(first: int, last: int) -> bool:
    """Whether both days are in these years. They are counted from 1970-01-01."""
    return first >= _FIRST_DAY and last <= _LAST_DAY


def allow_microseconds(first: int, last: int) -> bool:
    """Whether both timestamps are in these years. They are counted in microseconds from 1970-01-01."""
    return allow_days(first // _DAY_MICROS, last // _DAY_MICROS)


def allow_seconds(first: int, last: int) -> bool:
    """Whether both timestamps are in these years. They are counted in seconds from 1970-01-01."""
    return allow_microseconds(first * 1_000_000, last * 1_000_000)


def is_too_fine(text: str) -> bool:
    """Whether a number has more digits after its point than any decimal. Arrow must not read it as one.

    It would look up 10 to the power of the digits beyond the end of a table: the result is any number, or a crash.
    """
    number = _NUMBER.fullmatch(text)
    if number is None:
        return False
    exponent = int(f"{number[2] or ''}{number[3] or 0}")
    return len(number[1] or "") - exponent > _FRACTION_DIGITS_AT_MOST


def may_be_too_fine(content: bytes) -> bool:
    """Whether any part of a text may be such a number."""
    has_exponents = (b"e-" in content or b"E-" in content) and _NEGATIVE_EXPONENT.search(content) is not None
    return (has_exponents or _has_long_number(content)) and any(
        digits or len(fraction) + int(exponent[:3]) > _FRACTION_DIGITS_AT_MOST or len(exponent) > len("999")
        for digits, fraction, exponent in _FINE.findall(content)
    )


def _has_long_number(content: bytes) -> bool:
    """Whether 39 digits may follow one another: then three of every 13th character do. Much faster than a pattern."""
    are_digits = np.frombuffer(content, np.uint8)[::13] - np.uint8(ord("0")) < 10
    return bool((are_digits[:-2] & are_digits[1:-1] & are_digits[2:]).any())


def has_decimals(t: pa.DataType) -> bool:
    """Whether the type is a decimal, or has one within."""
    return pa.types.is_decimal(t) or any(has_decimals(f.type) for f in _fields(t))


@dataclass(frozen=True)
class Flaw:
    """A value that cannot be stored exactly."""

    row: int
    """Counted from 0."""
    path: str
    """Of the column."""
    problem: str

    def __str__(self) -> str:
        return f"row {self.row}: column {self.path} {self.problem}"


def exact(values: pa.ChunkedArray, field: pa.Field, finite: bool = False) -> pa.ChunkedArray | Flaw:
    """The values in the type of the table's column, or the first value that the column cannot hold exactly.

    Args:
        field: Of the table. It and its nested fields are nullable unless the table requires their values.
        finite: NaN and infinite numbers are flaws.
    """
    try:
        converted = converted_column(values, field.type)
        if _is_sound(converted, field):
            if finite and _has_floats(field.type) and any(_infinite(chunk, field.name) for chunk in converted.chunks):
                return first_flaw(converted, lambda some: _infinite(some, field.name))
            return converted
    except _FAILURES:
        pass
    return first_flaw(values, lambda some: _problem(some, field.type, field.nullable, field.name))


def _is_sound(values: pa.ChunkedArray, field: pa.Field) -> bool:
    """Whether the column can hold all values, which have its type."""
    if not field.nullable and values.null_count:
        return False
    if _has_limits(field.type):
        try:
            for chunk in values.chunks:
                chunk.validate(full=True)
        except pa.ArrowInvalid:
            return False
    return not _needs_walk(field.type) or all(_walk_is_sound(chunk, field.type) for chunk in values.chunks)


@lru_cache(1000)
def _has_limits(t: pa.DataType) -> bool:
    """Whether Arrow knows values of this type that are not valid: text that is not UTF-8, decimals with too many digits."""
    return is_text(t) or pa.types.is_decimal(t) or any(_has_limits(f.type) for f in _fields(t))


def _walk_is_sound(array: pa.Array, t: pa.DataType) -> bool:
    if not pa.types.is_nested(t):
        return is_within_calendar(array)
    for _, field, part, absent in nested(array, t):
        if not field.nullable and part.null_count > absent:
            return False
        if _needs_walk(field.type) and not _walk_is_sound(part, field.type):
            return False
    return True


@lru_cache(1000)
def _has_floats(t: pa.DataType) -> bool:
    return pa.types.is_floating(t) or any(_has_floats(f.type) for f in _fields(t))


def _infinite(array: pa.Array, path: str) -> tuple[str, str] | None:
    """The path of a number that is not finite; None: all are."""
    for part, values in leaves(array, path):
        if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            return part, f"holds NaN, or a number that is too large for the type {values.type}"
    return None


def _problem(
    array: pa.Array, target: pa.DataType, nullable: bool, path: str, absent: int = 0
) -> tuple[str, str] | None:
    """The path of a value that the type cannot hold, and why; None: it holds all."""
    if not nullable and array.null_count > absent:
        return path, "holds a null, but the table requires a value"
    array = unwrapped(array)
    if pa.types.is_null(array.type):
        return None
    if pa.types.is_nested(target):
        for name, field, part, nulls in nested(array, target):
            # Arrow checks the keys of maps.
            if text := _problem(part, field.type, field.nullable or name == "key", f"{path}.{name}", nulls):
                return text
        return None
    if problem := _leaf_problem(array, target):
        return path, problem
    return None


def _leaf_problem(array: pa.Array, target: pa.DataType) -> str | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _invalid(array.type, target)
    try:
        converted = array.cast(target, safe=True)
    except _FAILURES:
        if is_bytes(array.type) and is_text(target):
            return "holds text that is not UTF-8"
        return f"is {kind_of(array.type)} and holds a value that cannot be converted to {kind_of(target)} without loss"
    try:
        converted.validate(full=True)
    except pa.ArrowInvalid:
        return _invalid(target, target)
    return None if is_within_calendar(converted) else f"holds a {target} outside the years 1 to 9999"


def _invalid(actual: pa.DataType, target: pa.DataType) -> str:
    if is_text(actual):
        return "holds text that is not UTF-8"
    if pa.types.is_decimal(actual):
        return f"holds a number with too many digits, expected {kind_of(target)}"
    return f"holds a value that is damaged, expected {kind_of(target)}"


def first_flaw(values: pa.ChunkedArray, problem: Callable[[pa.Array], tuple[str, str] | None]) -> Flaw:
    """Find the first row with a problem. There must be one.

    Args:
        problem: Of some rows: the path of a value and what is wrong with it; None: nothing.
    """
    start, end = 0, len(values)
    while end - start > 1:
        middle = (start + end) // 2
        if any(problem(chunk) for chunk in values.slice(start, middle - start).chunks):
            end = middle
        else:
            start = middle
    flaws = [p for chunk in values.slice(start, 1).chunks if (p := problem(chunk))]
    path, text = flaws[0] if flaws else ("", "holds a value that cannot be read")
    return Flaw(start, path, text)


def _safe_cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target, safe=True)


def converted_column(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Convert a column as `converted` converts an array."""
    if values.type == target:
        return values
    if not pa.types.is_nested(target) and not _is_wrapped(values.type):
        return values.cast(target, safe=True)
    return pa.chunked_array([converted(chunk, target) for chunk in values.chunks], target)


def converted(array: pa.Array, target: pa.DataType, cast: Cast = _safe_cast) -> pa.Array:
    """The values in another type that `lethe.ingest.exact_values.fits` allows. Fields of structs are matched by name.

    Args:
        cast: Converts primitive values.

    Raises:
        ArrowInvalid: Arrow cannot convert the values.
        ArrowNotImplementedError: Arrow has no such conversion.
    """
    if array.type == target:
        return array
    array = unwrapped(array)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if pa.types.is_struct(target):
        children = dict(zip([f.name for f in array.type], array.flatten(), strict=True))
        parts = [converted(children[f.name], f.type, cast) for f in target]
        return struct_of(parts, list(target), array)
    if pa.types.is_map(target):
        offsets, mask, (keys, items) = _elements(array)
        parts = [converted(keys, target.key_type, cast), converted(items, target.item_type, cast)]
        return pa.MapArray.from_arrays(offsets, *parts, type=target, mask=mask)
    if pa.types.is_list(target):
        offsets, mask, (values,) = _elements(array)
        return pa.ListArray.from_arrays(offsets, converted(values, target.value_type, cast), type=target, mask=mask)
    return cast(array, target)


def struct_of(parts: list[pa.Array], fields: list[pa.Field], like: pa.Array) -> pa.Array:
    """A struct of these columns, null where `like` is null."""
    return pa.StructArray.from_arrays(parts, fields=fields, mask=like.is_null() if like.null_count else None)


def unwrapped(array: pa.Array) -> pa.Array:
    """The values of a dictionary, of runs or of an extension type."""
    while _is_wrapped(array.type):
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        elif pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        else:
            array = pc.run_end_decode(array)
    return array


def _is_wrapped(t: pa.DataType) -> bool:
    return isinstance(t, pa.BaseExtensionType) or pa.types.is_dictionary(t) or pa.types.is_run_end_encoded(t)


def _elements(array: pa.Array) -> tuple[pa.Array, pa.Array | None, list[pa.Array]]:
    """The elements of a list or a map: offsets from 0, which rows are null, and the elements of all rows that are not null."""
    t = array.type
    mask = array.is_null() if array.null_count else None
    # Of views, too: Arrow's own cast of one loses its last element.
    if not (pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_map(t)):
        counts = pc.list_value_length(array).cast(pa.int64()).fill_null(0).to_numpy()
        return _offsets(counts), mask, [array.flatten()]
    ends: Ints = array.offsets.to_numpy()
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    whole = [array.keys, array.items] if pa.types.is_map(array.type) else [array.values]
    parts, counts = [p.slice(first, last - first) for p in whole], np.diff(ends).astype(np.int64)
    if mask is not None and (hidden := np.where(mask.to_numpy(zero_copy_only=False), counts, 0)).any():
        kept = np.repeat(hidden == 0, counts)
        parts, counts = [p.filter(pa.array(kept)) for p in parts], counts - hidden
    return _offsets(counts), mask, parts


def plain_list(array: pa.Array) -> pa.Array:
    """Lists of a fixed size, or views of lists, as lists with offsets."""
    offsets, mask, (values,) = _elements(array)
    return pa.ListArray.from_arrays(offsets, values, type=pa.list_(array.type.value_field), mask=mask)


def _offsets(counts: Ints) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())


def leaves(array: pa.Array, path: str) -> Iterator[tuple[str, pa.Array]]:
    """The values of all primitive parts of a column, each with its path. Parts of nulls are null, or left out."""
    array = unwrapped(array)
    t = array.type
    if pa.types.is_struct(t):
        for field, part in zip(t, array.flatten(), strict=True):
            yield from leaves(part, f"{path}.{field.name}")
    elif pa.types.is_map(t) or is_list(t):
        for name, part in zip(_names(t), _elements(array)[2], strict=True):
            yield from leaves(part, f"{path}.{name}")
    else:
        yield path, array


def writable(array: pa.Array, target: pa.DataType) -> pa.Array:
    """The values in the type of a Parquet file's column.

    Arrow writes no null where a field is required, even if the null is that of an optional struct around it. So such a field gets
    some value, which Arrow does not write.
    """
    array = converted(array, target)
    return _without_hidden_nulls(array, target) if _has_required(target) else array


def _without_hidden_nulls(array: pa.Array, t: pa.DataType, required: bool = False) -> pa.Array:
    """The array, with some value in required fields where a parent hides a null.

    Args:
        required: No value may be null. Nulls are only those of values around this one.
    """
    if not pa.types.is_nested(t):
        if not required or not array.null_count:
            return array
        return pa.Array.from_buffers(t, len(array), [None, *array.buffers()[1:]], 0, array.offset)
    mask = array.is_null() if array.null_count and not required else None
    if pa.types.is_struct(t):
        parts = [_without_hidden_nulls(array.field(n), f.type, not f.nullable) for n, f in enumerate(t)]
        return pa.StructArray.from_arrays(parts, fields=list(t), mask=mask)
    offsets, _, elements = _elements(array)
    parts = [_without_hidden_nulls(e, f.type, not f.nullable) for e, f in zip(elements, _fields(t), strict=True)]
    made = pa.MapArray if pa.types.is_map(t) else pa.ListArray
    return made.from_arrays(offsets, *parts, type=t, mask=mask)


@lru_cache(1000)
def _has_required(t: pa.DataType) -> bool:
    return any(_requires(t, f) or _has_required(f.type) for f in _fields(t))


@lru_cache(1000)
def _needs_walk(t: pa.DataType) -> bool:
    """Whether dates, timestamps or required nested values must be checked."""
    return (
        pa.types.is_date32(t)
        or pa.types.is_timestamp(t)
        or any(_needs_walk(f.type) or _requires(t, f) for f in _fields(t))
    )


def _requires(outer: pa.DataType, field: pa.Field) -> bool:
    """Whether a nested field requires values. The keys of a map always do, and Arrow checks them."""
    return not field.nullable and not (pa.types.is_map(outer) and field.name == outer.key_field.name)


def _fields(t: pa.DataType) -> Iterator[pa.Field]:
    if pa.types.is_struct(t):
        yield from t
    elif pa.types.is_map(t):
        yield from (t.key_field, t.item_field)
    elif pa.types.is_list(t):
        yield t.value_field


def nested(array: pa.Array, t: pa.DataType) -> Iterator[tuple[str, pa.Field, pa.Array, int]]:
    """The nested fields of a type.

    Of each, the name in paths, the field, its values, and how many of them are null because the outer value is.
    """
    if pa.types.is_struct(t):
        names = [f.name for f in array.type]
        children = array.flatten()
        for field in t:
            yield field.name, field, children[names.index(field.name)], array.null_count
    else:
        for name, field, part in zip(_names(t), _fields(t), _elements(array)[2], strict=True):
            yield name, field, part, 0


def is_within_calendar(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all dates or timestamps are in the years 1 to 9999. Other types are always.

    That is the range of SQL and Python. Iceberg can store other values, but readers then fail.
    """
    if pa.types.is_timestamp(values.type):
        within, plain = allow_microseconds, pa.int64()
    elif pa.types.is_date32(values.type):
        within, plain = allow_days, pa.int32()
    else:
        return True
    limits = pc.min_max(values.cast(plain)).as_py()
    return limits["min"] is None or within(limits["min"], limits["max"])


def _names(t: pa.DataType) -> list[str]:
    """The names of nested fields in paths."""
    if pa.types.is_struct(t):
        return [f.name for f in t]
    return ["key", "value"] if pa.types.is_map(t) else ["element"]


@dataclass(frozen=True)
class HybridCalendar:
    """What a file says of its calendar.

    Spark 2, Hive before version 4 and ORC's Java writer count days before 1582-10-15 in the Julian calendar. Iceberg counts all
    days in the Gregorian calendar. The same number is another day in each of them, and timestamps before 1900 may be some minutes
    off. Such values are refused: whether a reader converts them depends on the reader.
    """

    writer: str
    """For messages."""
    utc: bool = True
    """Timestamps were written in UTC."""
    datetimes: bool = True
    """False: only columns of the type INT96 are in the hybrid calendar."""

    @property
    def first_day(self) -> int:
        """The first day that is the same in both calendars, counted from 1970-01-01."""
        return _FIRST_GREGORIAN_DAY

    @property
    def first_micros(self) -> int:
        """The first timestamp that is the same, in microseconds from 1970-01-01."""
        return (_FIRST_GREGORIAN_DAY if self.utc else _FIRST_DAY_OF_1900) * _DAY_MICROS

    def check(self, rows: pa.Table, first_row: int) -> None:
        """Refuse days and times that a file's writer may have meant in the hybrid calendar.

        Raises:
            BadFile: A day or a timestamp is before the first that is the same in both calendars.

        Args:
            rows: As read.
            first_row: Of these rows, in the file.
        """
        for field in rows.schema:
            if not holds_times(field.type):
                continue
            column, name = rows.column(field.name), field.name
            if any(self._problem(chunk, name) for chunk in column.chunks):
                flaw = first_flaw(column, lambda some, name=name: self._problem(some, name))  # type: ignore[misc]
                raise BadFile("SchemaMismatch", f"row {flaw.row + first_row}: column {flaw.path} {flaw.problem}")

    def _problem(self, array: pa.Array, name: str) -> tuple[str, str] | None:
        for path, values in leaves(array, name):
            if pa.types.is_date(values.type):
                first, plain = self.first_day, values.cast(pa.date32()).cast(pa.int32())
            elif pa.types.is_timestamp(values.type):
                first, plain = self._in_unit(values.type.unit), values.cast(pa.int64())
            else:
                continue
            lowest = pc.min(plain).as_py()
            if lowest is not None and lowest < first:
                return path, self.problem("1582-10-15" if self.utc or pa.types.is_date(values.type) else "1900")
        return None

    def _in_unit(self, unit: str) -> int:
        return self.first_micros * 1000 if unit == "ns" else self.first_micros // _MICROS[unit]

    def problem(self, first: str) -> str:
        """The end of the sentence that refuses a column of the file.

        Args:
            first: The first day or year that both calendars count alike, as text.
        """
        return (
            f"holds a day before {first}, and the file is of {self.writer}, which counts such days in the hybrid "
            "calendar; expected the "
            "proleptic Gregorian calendar. Write the file again with it"
        )


def holds_times(t: pa.DataType) -> bool:
    """Whether values of this type contain days."""
    if isinstance(t, pa.BaseExtensionType):
        return holds_times(t.storage_type)
    if pa.types.is_nested(t):
        return any(holds_times(t.field(n).type) for n in range(t.num_fields))
    if pa.types.is_dictionary(t):
        return holds_times(t.value_type)
    return bool(pa.types.is_date(t) or pa.types.is_timestamp(t))


def calendar_of(metadata: Mapping[bytes, Any] | None) -> HybridCalendar | None:
    """What the metadata of a Parquet or an Avro file says of its calendar. None: it is the proleptic Gregorian calendar."""
    if not metadata:
        return None
    utc = metadata.get(b"org.apache.spark.timeZone", b"") in _UTC
    for key in (b"writer.date.proleptic", b"writer.proleptic"):
        if metadata.get(key) == b"false":
            return HybridCalendar("Hive", metadata.get(b"writer.time.zone", b"") in _UTC)
    version = metadata.get(_SPARK_VERSION)
    if version is None:
        # Spark names its version since 2.4.6.
        is_spark = b"org.apache.spark.sql.parquet.row.metadata" in metadata
        return HybridCalendar("Spark before 2.4.6", utc) if is_spark else None
    match = re.match(rb"(\d+)\.(\d+)", version)
    number = (int(match[1]), int(match[2])) if match else (0, 0)
    spark = f"Spark {number[0]}.{number[1]}"
    if number < (3, 0):
        return HybridCalendar(spark, utc)
    if b"org.apache.spark.legacyDateTime" in metadata:
        return HybridCalendar(f"{spark} with datetimeRebaseModeInWrite LEGACY", utc)
    if number < (3, 1):
        return HybridCalendar(spark, utc, datetimes=False)
    if b"org.apache.spark.legacyINT96" in metadata:
        return HybridCalendar(f"{spark} with int96RebaseModeInWrite LEGACY", utc, datetimes=False)
    return None


def calendar_of_orc(tail: bytes) -> HybridCalendar | None:
    """What the file tail of an ORC file says of its calendar. Files that do not say it count as hybrid, as for ORC's Java reader.

    Args:
        tail: `FileTail` of orc_proto.proto, as pyarrow's `serialized_file_tail` returns it.
    """
    footer = _message(_message(tail).get(_FOOTER, b""))
    if footer.get(_CALENDAR) == _PROLEPTIC:
        return None
    said = "a writer that does not say its calendar" if _CALENDAR not in footer else "a writer with the hybrid calendar"
    return HybridCalendar(said)


def _message(content: Any) -> dict[int, Any]:
    """The last value of each field of a Protocol Buffers message: an integer, or bytes."""
    fields: dict[int, Any] = {}
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        match key & 7:
            case 0:
                fields[key >> 3], position = _varint(content, position)
            case 1:
                position += 8
            case 2:
                size, position = _varint(content, position)
                fields[key >> 3], position = content[position : position + size], position + size
            case 5:
                position += 4
            case _:
                break
    return fields


def _varint(content: bytes, position: int) -> tuple[int, int]:
    value, shift = 0, 0
    while position < len(content):
        byte = content[position]
        value, shift, position = value | (byte & 127) << shift, shift + 7, position + 1
        if byte < 128:
            break
    return value, position
