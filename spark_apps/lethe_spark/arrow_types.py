"""Which columns of a buffered file fit a table. Pure: Arrow schemas in, a sentence out.

A producer's file may be wider in representation, never in meaning: what is allowed keeps every value.
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


def difference(file: pa.Schema, table: pa.Schema, batch_column: str, headed: bool = True) -> str | None:
    """The first thing in which a file's columns do not fit the table's, or None. The batch column is optional.

    `headed`: the file's columns are surely names. A CSV file without a header has values there, which are not repeated.
    """
    for field in table:
        if field.name == batch_column and field.name not in file.names:
            continue
        found = file.names.count(field.name)
        if found == 0:
            has = _listed(file.names) if headed else f"{len(file.names)} others"
            return f"column {field.name} ({field.type}) is missing; the file has {has}"
        if found > 1:
            return f"column {field.name} is there {found} times"
        actual = file.field(field.name).type
        if not fits(actual, field.type):
            return f"column {field.name} is {actual}, expected {field.type}"
    extra = [name for name in file.names if name not in table.names]
    return f"column {extra[0]} is not in the table, which has {_listed(table.names)}" if extra else None


def fits(actual: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of type `actual` can be one of type `wanted` (a value out of range still fails its cast)."""
    if actual == wanted or pa.types.is_null(actual):
        return True
    if pa.types.is_dictionary(actual):
        return fits(actual.value_type, wanted)
    if _is_text(actual) and _is_text(wanted):
        return True
    if _is_bytes(actual) and _is_bytes(wanted):
        return True
    if pa.types.is_timestamp(actual) and pa.types.is_timestamp(wanted):
        # Without a zone a time is a wall clock's, with one it is an instant: neither can stand for the other.
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


def _is_text(t: pa.DataType) -> bool:
    return bool(pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t))


def _is_bytes(t: pa.DataType) -> bool:
    return bool(pa.types.is_binary(t) or pa.types.is_large_binary(t) or pa.types.is_binary_view(t))


def _is_list(t: pa.DataType) -> bool:
    return bool(pa.types.is_list(t) or pa.types.is_large_list(t))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", …" if len(names) > 30 else "")
