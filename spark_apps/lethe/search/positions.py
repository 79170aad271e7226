"""Finds the positions of rows with given values in a data file. I/O: reads one column at a time, with Arrow, without Spark.

A position is that of Iceberg's position deletes: the number of the row in the file, from 0, whether the row is deleted or not. If
the answer is not certain, `Unsure` is raised. Errors contain no values.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import Values, ValueType
from lethe.search.columns import Columns, Unsure, open_columns


@dataclass(frozen=True)
class Wanted:
    """The values of a column to search for."""

    field_id: int  # of the column, in Iceberg
    values: Values
    array: pa.Array = field(repr=False, compare=False)  # the values as an Arrow array

    @classmethod
    def of(cls, field_id: int, values: Values) -> "Wanted":
        return cls(field_id, values, as_arrow(values))


def as_arrow(values: Values) -> pa.Array:
    """The values as an Arrow array of their kind."""
    items, kind = values.items, values.kind
    match kind.type:
        case ValueType.STRING:
            return pa.array(items, pa.string())
        case ValueType.INT | ValueType.LONG:
            return pa.array(items, pa.int64())
        case ValueType.DATE:
            return pa.array(items, pa.int32()).cast(pa.date32())
        case ValueType.TIMESTAMP:
            return pa.array(items, pa.int64()).cast(pa.timestamp("us"))
        case ValueType.TIMESTAMPTZ:
            return pa.array(items, pa.int64()).cast(pa.timestamp("us", "UTC"))
        case ValueType.DECIMAL:
            return pa.array(items, pa.decimal128(kind.precision, kind.scale))
        case ValueType.UUID:
            return pa.array([u.bytes for u in items], pa.binary(16))
        case _:
            assert_never(kind.type)


@dataclass(frozen=True)
class SearchedFile:
    """A data file to search."""

    io: FileIO
    path: str
    format_name: str = "PARQUET"  # or ORC, AVRO
    names: Mapping[str, int] | None = (
        None  # column name -> field id, if the file has no field ids; None: do not read such a file
    )

    @contextmanager
    def open(self) -> Iterator[tuple[Columns, dict[int, str]]]:
        """The open file, and its names of columns by field id. Raises: Unsure; what the storage raises."""
        with self.io.new_input(self.path).open() as stream, unsure_at(self.path):
            file = open_columns(stream, self.format_name)
            yield file, columns_by_id(file, self.names)


def find(
    searched: SearchedFile, wanted: Mapping[str, Wanted], if_absent: Collection[str] = ()
) -> dict[str, FrozenBitMap64]:
    """Find the positions of the rows with the wanted values.

    Args:
        wanted: By any key.
        if_absent: The keys that match every row of a file without their column: the table says what such rows hold.
    Returns: Positions by key; only keys with rows.
    Raises: Unsure; what the storage raises.
    """
    found = {key: BitMap64() for key in wanted}
    with searched.open() as (file, columns):
        for field_id in {w.field_id for w in wanted.values()}:
            searches = {key: w for key, w in wanted.items() if w.field_id == field_id}
            if field_id not in columns:
                for key in searches.keys() & set(if_absent):
                    found[key].update(range(file.rows))
                continue
            for start, piece in file.read(columns[field_id], [w.values for w in searches.values()]):
                for key, w in searches.items():
                    found[key].update(matches(piece, w, start))
    return {key: frozen(positions) for key, positions in found.items() if positions}


@contextmanager
def unsure_at(path: str) -> Iterator[None]:
    """Turn errors about a file into `Unsure`, without values. Raises: Unsure."""
    try:
        yield
    except Unsure as e:
        raise Unsure(f"{path}: {e}") from None
    except pa.ArrowException as e:
        # Its text may contain a value.
        raise Unsure(f"{path}: {type(e).__name__}") from None


def columns_by_id(file: Columns, names: Mapping[str, int] | None) -> dict[int, str]:
    """The names of columns in the file, by field id. Raises: Unsure."""
    if file.names:
        return dict(file.names)
    if names is None:
        raise Unsure("the file has no field ids, and the table has no name mapping")
    return {names[name]: name for name in file.known if name in names}


def frozen(positions: BitMap64) -> FrozenBitMap64:
    positions.run_optimize()
    return FrozenBitMap64(positions)


def matches(column: pa.ChunkedArray, wanted: Wanted, start: int = 0) -> np.ndarray[Any, Any]:
    """The positions of the rows with one of the values; the first row has the position `start`. Nulls match nothing.

    Raises: pa.ArrowException, if the column is not of the values' kind. Its text may contain a value.
    """
    found: list[np.ndarray[Any, Any]] = []
    for chunk in column.chunks:
        hits = np.flatnonzero(is_one_of(chunk, wanted).to_numpy(zero_copy_only=False))
        found.append(hits.astype(np.uint64) + np.uint64(start))
        start += len(chunk)
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def is_one_of(chunk: pa.Array, wanted: Wanted) -> pa.BooleanArray:
    """Whether each row has one of the values. Raises: as `matches`."""
    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_dictionary(chunk.type):
        known = pc.is_in(_cast(chunk.dictionary, wanted.array.type), value_set=wanted.array)
        return pc.fill_null(known.take(chunk.indices), False)
    return pc.is_in(_cast(chunk, wanted.array.type), value_set=wanted.array)


def plain(values: pa.Array, wanted: Wanted) -> pa.Array:
    """The values of a column in the Arrow type of the wanted values. Raises: as `matches`."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _cast(values, wanted.array.type)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)
