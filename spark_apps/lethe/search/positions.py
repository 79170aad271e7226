"""At which positions of a data file rows with some values lie. I/O: reads one column at a time, with Arrow; no Spark.

Positions are those of Iceberg's deletes: a file's rows in their order, counted from 0, whatever is deleted of them. What
cannot be answered with certainty is not answered (`Unsure`). No error tells a value.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO
from pyroaring import BitMap64, FrozenBitMap64

from lethe.files.values import Kind, Values
from lethe.search.columns import Columns, Unsure, open_columns


@dataclass(frozen=True)
class Wanted:
    """Values of the column with this Iceberg field id, rows with one of which are looked for."""

    field_id: int
    values: Values
    array: pa.Array = field(repr=False, compare=False)  # the same, as Arrow has them

    @classmethod
    def of(cls, field_id: int, values: Values) -> "Wanted":
        return cls(field_id, values, as_arrow(values))


def as_arrow(values: Values) -> pa.Array:
    """The values as Arrow holds a column of their kind."""
    items = values.items
    match values.kind:
        case Kind("string"):
            return pa.array(items, pa.string())
        case Kind("int" | "long"):
            return pa.array(items, pa.int64())
        case Kind("date"):
            return pa.array(items, pa.int32()).cast(pa.date32())
        case Kind("timestamp"):
            return pa.array(items, pa.int64()).cast(pa.timestamp("us"))
        case Kind("timestamptz"):
            return pa.array(items, pa.int64()).cast(pa.timestamp("us", "UTC"))
        case Kind("decimal", precision, scale):
            return pa.array(items, pa.decimal128(precision, scale))
        case Kind("uuid"):
            return pa.array([u.bytes for u in items], pa.binary(16))
    raise AssertionError(values.kind)


def find(
    io: FileIO,
    path: str,
    wanted: Mapping[str, Wanted],
    format_name: str = "PARQUET",
    names: Mapping[str, int] | None = None,
    if_absent: Collection[str] = (),
) -> dict[str, FrozenBitMap64]:
    """The positions of the rows that are wanted, for each of `wanted` of which there are any, by its key.

    Args:
        path, format_name: Of a data file: `PARQUET`, `ORC` or `AVRO`.
        names: Field ids by the names of columns, for a file without field ids of its own; None: such a file is not read.
        if_absent: The keys that want every row of a file without their column, for what the table says such rows hold.
    Raises: Unsure; whatever the storage raises.
    """
    found = {key: BitMap64() for key in wanted}
    with io.new_input(path).open() as stream, unsure_at(path):
        file = open_columns(stream, format_name)
        columns = columns_by_id(file, names)
        for field_id in {w.field_id for w in wanted.values()}:
            asked = {key: w for key, w in wanted.items() if w.field_id == field_id}
            if field_id not in columns:
                for key in asked.keys() & set(if_absent):
                    found[key].update(range(file.rows))
                continue
            for start, piece in file.read(columns[field_id], [w.values for w in asked.values()]):
                for key, w in asked.items():
                    found[key].update(matches(piece, w, start))
    return {key: frozen(positions) for key, positions in found.items() if positions}


@contextmanager
def unsure_at(path: str) -> Iterator[None]:
    """What goes wrong with a file, said without what is in it. Raises: Unsure."""
    try:
        yield
    except Unsure as e:
        raise Unsure(f"{path}: {e}") from None
    except pa.ArrowException as e:
        # Its text may quote what could not be converted.
        raise Unsure(f"{path}: {type(e).__name__}") from None


def columns_by_id(file: Columns, names: Mapping[str, int] | None) -> dict[int, str]:
    """The file's own names of its columns, by their field ids. Raises: Unsure."""
    if file.names:
        return dict(file.names)
    if names is None:
        raise Unsure("it has no field ids, and the table no name mapping")
    return {names[name]: name for name in file.known if name in names}


def frozen(positions: BitMap64) -> FrozenBitMap64:
    positions.run_optimize()
    return FrozenBitMap64(positions)


def matches(column: pa.ChunkedArray, wanted: Wanted, start: int = 0) -> np.ndarray[Any, Any]:
    """The positions of the rows of a column with one of the values, the first row being at `start`. Nulls match nothing.

    Raises: pa.ArrowException, with a text that may hold a value, for a column that is not of the values' kind.
    """
    found: list[np.ndarray[Any, Any]] = []
    for chunk in column.chunks:
        hits = np.flatnonzero(is_one_of(chunk, wanted).to_numpy(zero_copy_only=False))
        found.append(hits.astype(np.uint64) + np.uint64(start))
        start += len(chunk)
    return np.concatenate(found) if found else np.empty(0, np.uint64)


def is_one_of(chunk: pa.Array, wanted: Wanted) -> pa.BooleanArray:
    """Of each row whether it has one of the values. Raises: as `matches`."""
    if isinstance(chunk, pa.ExtensionArray):
        chunk = chunk.storage
    if pa.types.is_dictionary(chunk.type):
        known = pc.is_in(_cast(chunk.dictionary, wanted.array.type), value_set=wanted.array)
        return pc.fill_null(known.take(chunk.indices), False)
    return pc.is_in(_cast(chunk, wanted.array.type), value_set=wanted.array)


def plain(values: pa.Array, wanted: Wanted) -> pa.Array:
    """The values of a column as those that are wanted are held. Raises: as `matches`."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _cast(values, wanted.array.type)


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    return values if values.type == wanted else values.cast(wanted)
