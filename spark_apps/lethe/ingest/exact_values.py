"""Converts columns to the table's types and checks each value, also within structs, lists and maps. Pure: Arrow in, Arrow out.

Whole columns are converted and checked at once. Only if that fails, the first row with an unusable value is searched for,
and in it the path of the value, such as `s.c`, `l.element.a` or `m.key`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.ingest import calendar_limits
from lethe.ingest.arrow_types import is_bytes, is_list, is_text, kind_of

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
_FAILURES: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError)


@dataclass(frozen=True)
class Flaw:
    """A value that cannot be stored exactly."""

    row: int  # counted from 0
    path: str  # of the column
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
        found = converted_column(values, field.type)
        if _is_sound(found, field):
            if finite and _has_floats(field.type) and any(_infinite(chunk, field.name) for chunk in found.chunks):
                return first_flaw(found, lambda some: _infinite(some, field.name))
            return found
    except _FAILURES:
        pass
    return first_flaw(values, lambda some: _problem(some, field.type, field.nullable, field.name))


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
    found = [p for chunk in values.slice(start, 1).chunks if (p := problem(chunk))]
    path, text = found[0] if found else ("", "holds a value that cannot be read")
    return Flaw(start, path, text)


# --- Conversion -------------------------------------------------------------------------------------------------------


Cast: TypeAlias = Callable[[pa.Array, pa.DataType], pa.Array]


def _safe_cast(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    return array.cast(wanted, safe=True)


def converted_column(values: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Like `converted`, for a column."""
    if values.type == wanted:
        return values
    if not pa.types.is_nested(wanted) and not _is_wrapped(values.type):
        return values.cast(wanted, safe=True)
    return pa.chunked_array([converted(chunk, wanted) for chunk in values.chunks], wanted)


def converted(array: pa.Array, wanted: pa.DataType, cast: Cast = _safe_cast) -> pa.Array:
    """The values in another type that `lethe.ingest.arrow_types.fits` allows. Fields of structs are matched by name.

    Args:
        cast: Converts primitive values.
    Raises: ArrowInvalid, ArrowNotImplementedError.
    """
    if array.type == wanted:
        return array
    array = unwrapped(array)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), wanted)
    if pa.types.is_struct(wanted):
        children = dict(zip([f.name for f in array.type], array.flatten(), strict=True))
        parts = [converted(children[f.name], f.type, cast) for f in wanted]
        return struct_of(parts, list(wanted), array)
    if pa.types.is_map(wanted):
        offsets, mask, (keys, items) = _elements(array)
        parts = [converted(keys, wanted.key_type, cast), converted(items, wanted.item_type, cast)]
        return pa.MapArray.from_arrays(offsets, *parts, type=wanted, mask=mask)
    if pa.types.is_list(wanted):
        offsets, mask, (values,) = _elements(array)
        return pa.ListArray.from_arrays(offsets, converted(values, wanted.value_type, cast), type=wanted, mask=mask)
    return cast(array, wanted)


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


def writable(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """The values in the type of a Parquet file's column. Arrow writes no null where a field is required, even if the null is
    that of an optional struct around it. So such a field gets some value, which Arrow does not write."""
    array = converted(array, wanted)
    return _without_hidden_nulls(array, wanted) if _has_required(wanted) else array


def _without_hidden_nulls(array: pa.Array, t: pa.DataType, required: bool = False) -> pa.Array:
    """Args:
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


# --- Checks -----------------------------------------------------------------------------------------------------------


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


@lru_cache(1000)
def _has_floats(t: pa.DataType) -> bool:
    return pa.types.is_floating(t) or any(_has_floats(f.type) for f in _fields(t))


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


def _walk_is_sound(array: pa.Array, t: pa.DataType) -> bool:
    if not pa.types.is_nested(t):
        return is_within_calendar(array)
    for _, field, part, absent in nested(array, t):
        if not field.nullable and part.null_count > absent:
            return False
        if _needs_walk(field.type) and not _walk_is_sound(part, field.type):
            return False
    return True


def nested(array: pa.Array, t: pa.DataType) -> Iterator[tuple[str, pa.Field, pa.Array, int]]:
    """The nested fields of a type: the name of each in paths, the field, its values, and how many of them are null because the
    outer value is."""
    if pa.types.is_struct(t):
        names = [f.name for f in array.type]
        children = array.flatten()
        for field in t:
            yield field.name, field, children[names.index(field.name)], array.null_count
    else:
        for name, field, part in zip(_names(t), _fields(t), _elements(array)[2], strict=True):
            yield name, field, part, 0


def is_within_calendar(values: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all dates or timestamps are in the years 1 to 9999. Other types are always."""
    if pa.types.is_timestamp(values.type):
        within, plain = calendar_limits.allow_microseconds, pa.int64()
    elif pa.types.is_date32(values.type):
        within, plain = calendar_limits.allow_days, pa.int32()
    else:
        return True
    found = pc.min_max(values.cast(plain)).as_py()
    return found["min"] is None or within(found["min"], found["max"])


def _infinite(array: pa.Array, path: str) -> tuple[str, str] | None:
    """The path of a number that is not finite; None: all are."""
    for part, values in leaves(array, path):
        if pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values), min_count=0).as_py():
            return part, f"holds NaN, or a number that is too large for the type {values.type}"
    return None


# --- Messages ---------------------------------------------------------------------------------------------------------


def _problem(
    array: pa.Array, wanted: pa.DataType, nullable: bool, path: str, absent: int = 0
) -> tuple[str, str] | None:
    """The path of a value that the type cannot hold, and why; None: it holds all."""
    if not nullable and array.null_count > absent:
        return path, "holds a null, but the table requires a value"
    array = unwrapped(array)
    if pa.types.is_null(array.type):
        return None
    if pa.types.is_nested(wanted):
        for name, field, part, nulls in nested(array, wanted):
            # Arrow checks the keys of maps.
            if found := _problem(part, field.type, field.nullable or name == "key", f"{path}.{name}", nulls):
                return found
        return None
    if problem := _leaf_problem(array, wanted):
        return path, problem
    return None


def _leaf_problem(array: pa.Array, wanted: pa.DataType) -> str | None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _invalid(array.type, wanted)
    try:
        found = array.cast(wanted, safe=True)
    except _FAILURES:
        if is_bytes(array.type) and is_text(wanted):
            return "holds text that is not UTF-8"
        return f"is {kind_of(array.type)} and holds a value that cannot be converted to {kind_of(wanted)} without loss"
    try:
        found.validate(full=True)
    except pa.ArrowInvalid:
        return _invalid(wanted, wanted)
    return None if is_within_calendar(found) else f"holds a {wanted} outside the years 1 to 9999"


def _invalid(actual: pa.DataType, wanted: pa.DataType) -> str:
    if is_text(actual):
        return "holds text that is not UTF-8"
    if pa.types.is_decimal(actual):
        return f"holds a number with too many digits, expected {kind_of(wanted)}"
    return f"holds a value that is damaged, expected {kind_of(wanted)}"


def _names(t: pa.DataType) -> list[str]:
    """The names of nested fields in paths."""
    if pa.types.is_struct(t):
        return [f.name for f in t]
    return ["key", "value"] if pa.types.is_map(t) else ["element"]
