"""Finds the positions of the rows of batches in a data file. I/O: reads the batch column, with Arrow, without Spark.

Positions are as in `lethe.search.positions`. The search works for any order of rows. It is fastest for sorted files, which
have one run of rows for each batch.
"""

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import ValueKind, Values, ValueType
from lethe.search.columns import Unsure
from lethe.search.positions import SearchedFile, frozen


def find_batches(
    searched: SearchedFile,
    field_id: int,
    ids: Collection[str],
    if_absent: str | None = None,
    must_have: bool = False,
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows of these batches.

    Args:
        field_id: Of the batch column.
        if_absent: The batch of all rows if the file lacks that column, by the table's metadata; None: no batch, or unknown.
        must_have: Raise `Unsure` for a file without that column if `if_absent` is None.
    Returns: Positions by batch id; only batches with rows.
    Raises: Unsure; what the storage raises.
    """
    wanted = sorted(ids)
    values, array = Values(ValueKind(ValueType.STRING), tuple(wanted)), pa.array(wanted, pa.string())
    found: dict[str, BitMap64] = {}
    with searched.open() as (file, columns):
        if field_id not in columns:
            if if_absent is not None:
                every = BitMap64(range(file.rows)) if if_absent in set(wanted) else BitMap64()
                return {if_absent: frozen(every)} if every else {}
            if must_have:
                raise Unsure("the file lacks the batch column")
            return {}
        for start, piece in file.read(columns[field_id], [values]):
            for chunk in piece.chunks:
                for at, first, end in _runs(_indexes(chunk, array)):
                    found.setdefault(wanted[at], BitMap64()).add_range(start + first, start + end)
                start += len(chunk)
    return {i: frozen(positions) for i, positions in found.items()}


def _indexes(chunk: pa.Array, wanted: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """For each row, the index of its id in `wanted`; -1: not one of them."""
    if pa.types.is_dictionary(chunk.type):
        known = pc.index_in(chunk.dictionary.cast(wanted.type), value_set=wanted)
        indexes = known.take(chunk.indices)
    else:
        indexes = pc.index_in(chunk.cast(wanted.type), value_set=wanted)
    return np.asarray(pc.fill_null(indexes, -1).to_numpy(zero_copy_only=False), dtype=np.int32)


def _runs(indexes: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> list[tuple[int, int, int]]:
    """(index, first row, end) of each longest run of equal indexes that are not negative."""
    if not len(indexes):
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(indexes)) + 1))
    ends = np.concatenate((starts[1:], [len(indexes)]))
    kept = indexes[starts] >= 0
    return [(int(n), int(a), int(b)) for n, a, b in zip(indexes[starts][kept], starts[kept], ends[kept], strict=True)]
