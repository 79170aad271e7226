"""At which positions of a data file the rows of some batches lie. I/O: reads the batch column, with Arrow; no Spark.

Positions are counted as in `lethe.search.positions`. A file of sorted rows has one run of rows for each batch, and costs one
entry for each; any other order is right as well.
"""

from collections.abc import Collection, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import Kind, Values
from lethe.search.columns import Unsure, open_columns
from lethe.search.positions import columns_by_id, frozen, unsure_at


def find_batches(
    io: FileIO,
    path: str,
    field_id: int,
    ids: Collection[str],
    format_name: str = "PARQUET",
    names: Mapping[str, int] | None = None,
    if_absent: str | None = None,
    must_have: bool = False,
) -> dict[str, FrozenBitMap64]:
    """The positions of the rows of those of the batches of which there are any, by their ids.

    Args:
        field_id: Of the batch column.
        if_absent: The batch of the rows of a file without that column, as the table says; None: of none, or nobody knows.
        must_have: Nothing is said of such a file if nobody knows.
        path, format_name, names: As `lethe.search.positions.find`.
    Raises: Unsure; whatever the storage raises.
    """
    wanted = sorted(ids)
    values, array = Values(Kind("string"), tuple(wanted)), pa.array(wanted, pa.string())
    found: dict[str, BitMap64] = {}
    with io.new_input(path).open() as stream, unsure_at(path):
        file = open_columns(stream, format_name)
        columns = columns_by_id(file, names)
        if field_id not in columns:
            if if_absent is not None:
                every = BitMap64(range(file.rows)) if if_absent in set(wanted) else BitMap64()
                return {if_absent: frozen(every)} if every else {}
            if must_have:
                raise Unsure("it lacks the batch column")
            return {}
        for start, piece in file.read(columns[field_id], [values]):
            for chunk in piece.chunks:
                for at, first, end in _runs(_numbers(chunk, array)):
                    found.setdefault(wanted[at], BitMap64()).add_range(start + first, start + end)
                start += len(chunk)
    return {i: frozen(positions) for i, positions in found.items()}


def _numbers(chunk: pa.Array, wanted: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    """Of each row, which of the ids it has; -1: none of them."""
    if pa.types.is_dictionary(chunk.type):
        known = pc.index_in(chunk.dictionary.cast(wanted.type), value_set=wanted)
        numbers = known.take(chunk.indices)
    else:
        numbers = pc.index_in(chunk.cast(wanted.type), value_set=wanted)
    return np.asarray(pc.fill_null(numbers, -1).to_numpy(zero_copy_only=False), dtype=np.int32)


def _runs(numbers: "np.ndarray[tuple[int], np.dtype[np.int32]]") -> list[tuple[int, int, int]]:
    """(number, first, end) of each longest run of equal numbers that are not negative."""
    if not len(numbers):
        return []
    starts = np.concatenate(([0], np.flatnonzero(np.diff(numbers)) + 1))
    ends = np.concatenate((starts[1:], [len(numbers)]))
    kept = numbers[starts] >= 0
    return [(int(n), int(a), int(b)) for n, a, b in zip(numbers[starts][kept], starts[kept], ends[kept], strict=True)]
