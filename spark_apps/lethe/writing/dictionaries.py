"""Dictionaries of nothing but the values of their rows. Pure: Arrow in, Arrow out.

Arrow writes a dictionary as it is, also the values that no row has.
"""

from typing import Any

import numpy as np
import pyarrow as pa


def without_unused(rows: pa.Table) -> pa.Table:
    """The rows, with dictionaries of nothing but their own values: a value of other rows must not be in a file."""
    rows = rows.unify_dictionaries().combine_chunks()
    for at, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            rows = rows.set_column(at, field, _without_unused(rows.column(at)))
    return rows


def _without_unused(column: pa.ChunkedArray) -> Any:
    encoded = column.combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):  # no rows
        return column
    values, indices = encoded.dictionary, encoded.indices
    known = indices.drop_null().to_numpy()
    used = np.zeros(len(values), np.bool_)
    used[known] = True
    if used.all():
        return column
    moved = pa.array(np.cumsum(used, dtype=np.int32) - np.int32(1))
    kept = pa.DictionaryArray.from_arrays(moved.take(indices), values.filter(pa.array(used)))
    return kept.cast(column.type)
