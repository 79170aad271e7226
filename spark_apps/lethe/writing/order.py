"""Puts rows into the table's sort order. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lethe.writing.layout import SortKey


def in_order(rows: pa.Table, keys: Sequence[SortKey]) -> pa.Table:
    """The rows in this order; rows that are in it already are not moved. Equal rows stay in their order."""
    if not keys or rows.num_rows < 2:
        return rows
    ranks = [_ranks(rows.column(key.name), key) for key in keys]
    if _is_sorted(ranks):
        return rows
    return rows.take(pa.array(np.lexsort(ranks[::-1])))


def _ranks(column: pa.ChunkedArray, key: SortKey) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Integers in the order of the values."""
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries().combine_chunks()
    count = len(encoded.dictionary)
    sorting = pc.sort_indices(encoded.dictionary).to_numpy()
    rank_of = np.empty(count + 1, np.int64)
    rank_of[sorting] = np.arange(count)
    if key.is_descending:
        rank_of = -rank_of
    rank_of[count] = -count - 1 if key.nulls_first else count + 1
    return rank_of[encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)]


def _is_sorted(ranks: Sequence["np.ndarray[Any, np.dtype[np.int64]]"]) -> bool:
    equal: Any = True
    for values in ranks:
        before, after = values[:-1], values[1:]
        if bool(np.any(equal & (before > after))):
            return False
        equal = equal & (before == after)
    return True
